//! Finds what produced a value, and identifies each event of a log.

use std::collections::BTreeMap;

use serde::Serialize;
use tec_core::attest::LoggedEvent;
use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;

use super::{CombineError, Combined, Combiner, Grouping, Loaders, MokLists, Provenance, loose};
use crate::event_log::{Event, EventLog};

/// An event that an image causes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[non_exhaustive]
pub struct KnownEvent {
    /// The image.
    pub image: String,
    /// The component, for example `Pcr4Shim`.
    pub component: String,
    /// Its file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// An event of a log, and the images that cause the same event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct IdentifiedEvent {
    /// The event; its `detail` proves nothing.
    #[serde(flatten)]
    pub event: LoggedEvent,
    /// Images that extend the same register with the same digest; empty if there are none.
    pub known_as: Vec<KnownEvent>,
    /// The meaning of the digest itself, if it is one that every firmware measures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub well_known: Option<&'static str>,
}

/// How far the origin of a value deviates from unmodified images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Liberty {
    /// An unmodified image.
    Image,
    /// A state of a fleet that is being updated.
    Fleet,
    /// shim and GRUB from different images, or machine owner keys of another image.
    SplitUnits,
    /// Known components in a known order, arbitrarily omitted, replaced or repeated.
    Loose,
}

/// What produces a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Made {
    /// A state.
    By(Provenance),
    /// A sequence of components: the events, and how many times each occurs.
    From(Vec<(Vec<KnownEvent>, u32)>),
}

/// What is known about a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Identification {
    /// The register.
    pub pcr: PcrIndex,
    /// The value.
    pub value: Sha256Digest,
    /// The deviation from the images; `None` if nothing known produces the value.
    pub liberty: Option<Liberty>,
    /// What produces it: all ways with that deviation.
    pub made: Vec<Made>,
    /// Whether every way was tried; `false` if there were too many.
    pub exhaustive: bool,
}

/// Known images, for finding out what produced a value or an event.
///
/// # Example
/// ```
/// # #[cfg(feature = "test-util")] {
/// use tec_core::digest::Sha256Digest;
/// use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
/// use tec_core::pcr::PcrIndex;
/// use tec_tpm::combine::{Catalog, Liberty};
/// use tec_tpm::event_log::{EventLog, EventLogBuilder};
///
/// let pcr4 = PcrIndex::BOOT_MANAGER;
/// let event = |id: &str, file: &str| ImageEvent::new("E", pcr4, Sha256Digest::of(file), id);
/// let events = [event("Pcr4Shim", "shim 16.1"), event("Pcr4Vmlinuz", "linux 6.12")];
/// let image = ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr4, events)]);
/// let catalog = Catalog::new(&[("44.2", &image)])?;
///
/// // From a value alone: all of the image, or shim without the kernel.
/// let whole = image.pcr(pcr4).unwrap().value;
/// assert_eq!(catalog.value(pcr4, &whole).liberty, Some(Liberty::Image));
/// let shim = Sha256Digest::ZERO.extended(&Sha256Digest::of("shim 16.1"));
/// assert_eq!(catalog.value(pcr4, &shim).liberty, Some(Liberty::Loose));
///
/// // From a log: which component of which image each event is.
/// let log = EventLogBuilder::new().image(Sha256Digest::of("linux 6.12"), "/vmlinuz").build();
/// let found = catalog.log(&EventLog::parse(&log)?);
/// assert_eq!(found[0].known_as[0].component, "Pcr4Vmlinuz");
/// assert_eq!(found[0].known_as[0].image, "44.2");
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Catalog<'a> {
    images: Vec<(&'a str, &'a ExpectedPcrs)>,
    states: Combined,
    split: Combined,
    events: BTreeMap<(PcrIndex, Sha256Digest), Vec<KnownEvent>>,
}

/// Digests that firmware always measures, whatever it boots: separators and actions (PC Client Platform
/// Firmware Profile 1.06, 10.4.1 and 10.4.4).
const WELL_KNOWN: [(&[u8], &str); 8] = [
    (&[0; 4], "separator"),
    (&[0xff; 4], "separator"),
    (&[1, 0, 0, 0], "separator after an error"),
    (b"Calling EFI Application from Boot Option", "boot option is called"),
    (b"Returning from EFI Application from Boot Option", "boot option returned"),
    (b"Exit Boot Services Invocation", "operating system takes over"),
    (b"Exit Boot Services Returned with Success", "operating system took over"),
    (b"Exit Boot Services Returned with Failure", "operating system failed to take over"),
];

impl<'a> Catalog<'a> {
    /// A catalog of these named images, approved or not.
    ///
    /// # Errors
    /// [`CombineError`] if they cannot be combined.
    pub fn new(images: &[(&'a str, &'a ExpectedPcrs)]) -> Result<Self, CombineError> {
        let mut events: BTreeMap<_, Vec<KnownEvent>> = BTreeMap::new();
        for (name, expected) in images {
            for event in expected.pcrs.iter().flat_map(|pcr| &pcr.events) {
                let known = KnownEvent {
                    image: (*name).to_owned(),
                    component: event.id.clone(),
                    file: event.source.clone(),
                };
                let same = events.entry((event.pcr, event.hash)).or_default();
                if !same.contains(&known) {
                    same.push(known);
                }
            }
        }
        let split = Grouping::new(Loaders::Separate, MokLists::Independent);
        Ok(Self {
            states: Combiner::new().combine(images)?,
            split: Combiner::new().with_grouping(split).combine(images)?,
            images: images.to_vec(),
            events,
        })
    }

    /// Finds what produces this value: an unmodified image, otherwise a state of the fleet,
    /// otherwise split units, otherwise any selection of known components. Returns the nearest one
    /// found.
    pub fn value(&self, pcr: PcrIndex, value: &Sha256Digest) -> Identification {
        let mut found = Identification {
            pcr,
            value: *value,
            liberty: None,
            made: Vec::new(),
            exhaustive: true,
        };
        let states = self.states.provenance(pcr, value);
        let whole = |p: &&Provenance| !p.whole_images().is_empty();
        let images: Vec<_> = states.iter().filter(whole).cloned().collect();
        let (liberty, states) = if !images.is_empty() {
            (Liberty::Image, images)
        } else if !states.is_empty() {
            (Liberty::Fleet, states)
        } else {
            (Liberty::SplitUnits, self.split.provenance(pcr, value))
        };
        if !states.is_empty() {
            found.liberty = Some(liberty);
            found.made = states.into_iter().map(Made::By).collect();
            return found;
        }
        let search = loose::search(&self.images, pcr, value);
        found.exhaustive = search.exhaustive;
        found.liberty = (!search.found.is_empty()).then_some(Liberty::Loose);
        let known = |(digest, count)| (self.known_as(pcr, &digest).to_vec(), count);
        let sequences = search.found.into_iter();
        found.made = sequences
            .map(|sequence| Made::From(sequence.into_iter().map(known).collect()))
            .collect();
        found
    }

    /// Images that extend a register with this digest.
    pub fn known_as(&self, pcr: PcrIndex, digest: &Sha256Digest) -> &[KnownEvent] {
        self.events.get(&(pcr, *digest)).map_or(&[], Vec::as_slice)
    }

    /// For each event, the images that cause it.
    pub fn events(&self, events: impl IntoIterator<Item = LoggedEvent>) -> Vec<IdentifiedEvent> {
        let identify = |event: LoggedEvent| IdentifiedEvent {
            known_as: self.known_as(event.pcr, &event.digest).to_vec(),
            well_known: well_known(&event.digest),
            event,
        };
        events.into_iter().map(identify).collect()
    }

    /// For each event of a log that extends a register, the images that cause it. Events without a
    /// SHA-256 digest are omitted.
    pub fn log(&self, log: &EventLog<'_>) -> Vec<IdentifiedEvent> {
        self.events(log.events().iter().filter_map(Event::logged))
    }
}

fn well_known(digest: &Sha256Digest) -> Option<&'static str> {
    let known = WELL_KNOWN.iter();
    let mut same = known.filter(|(data, _)| Sha256Digest::of(data) == *digest);
    same.next().map(|(_, name)| *name)
}
