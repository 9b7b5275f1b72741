//! The data model: an ordered list of measurements. Register values are a fold over it.

use std::fmt;

use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcr;
use tec_core::image::ExpectedPcrs;
use tec_core::image::ImageEvent;
use tec_core::pcr::PcrIndex;
use tec_core::pcr::PcrSet;

use crate::event_log::EventKind;

/// The part of the boot that makes a measurement; the names are those of image labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Component {
    /// The firmware says that it starts a boot option.
    Pcr4EfiCall,
    /// The firmware separates its own measurements from the rest.
    Pcr4Separator,
    /// shim.
    Pcr4Shim,
    /// GRUB.
    Pcr4Grub,
    /// The kernel.
    Pcr4Vmlinuz,
}

impl Component {
    /// Name in labels and ConfigMaps.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pcr4EfiCall => "Pcr4EfiCall",
            Self::Pcr4Separator => "Pcr4Separator",
            Self::Pcr4Shim => "Pcr4Shim",
            Self::Pcr4Grub => "Pcr4Grub",
            Self::Pcr4Vmlinuz => "Pcr4Vmlinuz",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One measurement that a boot makes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Measurement {
    /// What makes it.
    pub component: Component,
    /// Register that it extends.
    pub pcr: PcrIndex,
    /// Event type in the log.
    pub kind: EventKind,
    /// Digest that it extends by.
    pub digest: Sha256Digest,
    /// File that the digest was computed from.
    pub file: Option<String>,
}

impl Measurement {
    /// The firmware's announcement of a boot option (PC Client Platform Firmware Profile 1.06,
    /// 3.3.4.5: the text without terminator).
    pub fn efi_call() -> Self {
        Self {
            component: Component::Pcr4EfiCall,
            pcr: PcrIndex::BOOT_MANAGER,
            kind: EventKind::EFI_ACTION,
            digest: Sha256Digest::of(b"Calling EFI Application from Boot Option"),
            file: None,
        }
    }

    /// The separator of PCR 4 (PC Client Platform Firmware Profile 1.06, 10.4.1: four zero
    /// bytes).
    pub fn separator() -> Self {
        Self {
            component: Component::Pcr4Separator,
            pcr: PcrIndex::BOOT_MANAGER,
            kind: EventKind::SEPARATOR,
            digest: Sha256Digest::of([0; 4]),
            file: None,
        }
    }

    /// An application that firmware or shim starts, by its Authenticode digest.
    pub fn application(
        component: Component,
        digest: Sha256Digest,
        file: impl Into<String>,
    ) -> Self {
        Self {
            component,
            pcr: PcrIndex::BOOT_MANAGER,
            kind: EventKind::EFI_BOOT_SERVICES_APPLICATION,
            digest,
            file: Some(file.into()),
        }
    }

    /// Folds measurements into the values of all registers that they extend.
    pub fn fold(measurements: impl IntoIterator<Item = Self>) -> ExpectedPcrs {
        let events: Vec<ImageEvent> = measurements.into_iter().map(ImageEvent::from).collect();
        let registers: PcrSet = events.iter().map(|event| event.pcr).collect();
        let values = registers
            .iter()
            .map(|pcr| ExpectedPcr::from_events(pcr, events.iter().cloned()));
        ExpectedPcrs::new(values.collect())
    }
}

impl From<Measurement> for ImageEvent {
    fn from(measurement: Measurement) -> Self {
        let event = Self::new(
            measurement.kind.name(),
            measurement.pcr,
            measurement.digest,
            measurement.component.as_str(),
        );
        match measurement.file {
            Some(file) => event.from_file(file),
            None => event,
        }
    }
}
