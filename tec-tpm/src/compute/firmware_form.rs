//! A prediction as the firmware of one machine would measure it.
//!
//! Predictions have the form of EDK II. The firmware of a machine may measure other actions into PCR 4 and start
//! programs of its own, and into PCR 7 more variables, fewer of them, or in another order. A log of the machine
//! shows its form: what it has in common with the prediction stays in its place, what only the firmware could have
//! measured stays too, and the rest goes.

use std::path::Path;

use tec_core::pcr::PcrIndex;

use super::measurement::{Component, Measurement};
use super::prediction::{Prediction, recorded};
use crate::event_log::{Bank, Content, Event, EventKind, VerifiedLog};

/// Bytes of a `UEFI_IMAGE_LOAD_EVENT` whose device path is empty (PC Client Platform Firmware Profile 1.06, 10.2.3).
const WITHOUT_PATH: usize = 32;

impl Prediction {
    /// Puts PCR 4 and 7 into the form in which the firmware measured them in an earlier boot, as far as the log
    /// proves these registers. Images state, and servers compare, the form without this.
    pub fn in_form_of(mut self, log: &VerifiedLog<'_>) -> Self {
        for pcr in [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT] {
            if !log.registers().contains(pcr) || !self.predicted().contains(pcr) {
                continue;
            }
            let logged: Vec<_> =
                log.events().filter(|event| event.extends() == Some(pcr)).collect();
            let (stated, others) =
                self.measurements.into_iter().partition::<Vec<_>, _>(|m| m.pcr == pcr);
            self.measurements = others;
            self.measurements.extend(reshaped(&stated, &logged));
        }
        self
    }
}

/// One measurement of the result; `stated` is its place in the prediction.
struct Placed {
    stated: Option<usize>,
    measurement: Measurement,
}

fn reshaped(stated: &[Measurement], logged: &[&Event<'_>]) -> Vec<Measurement> {
    let mut left: Vec<Option<Measurement>> = stated.iter().cloned().map(Some).collect();
    let pairs = paired(stated, logged);
    let mut placed: Vec<Placed> = Vec::new();
    for (number, event) in logged.iter().enumerate() {
        let pair = pairs.get(number).copied().flatten();
        let taken = pair.and_then(|pair| left.get_mut(pair)?.take());
        let kept = || {
            let is_kept = pair.is_none() && is_of_firmware(number, logged);
            is_kept.then(|| recorded(event.extends()?, event)).flatten()
        };
        if let Some(measurement) = taken.or_else(kept) {
            placed.push(Placed { stated: pair, measurement });
        }
    }
    for (place, measurement) in left.into_iter().enumerate() {
        if let Some(measurement) = measurement.filter(|new| !is_never_measured(new, logged)) {
            let before = placed.iter().rposition(|one| one.stated.is_some_and(|s| s < place));
            let at = before.map_or(0, |before| before + 1);
            placed.insert(at, Placed { stated: Some(place), measurement });
        }
    }
    placed.into_iter().map(|one| one.measurement).collect()
}

/// For each event, the measurement that it corresponds to: the same digest, or else the same variable.
fn paired(stated: &[Measurement], logged: &[&Event<'_>]) -> Vec<Option<usize>> {
    let mut free = vec![true; stated.len()];
    let mut pairs = vec![None; logged.len()];
    let same_digest = |event: &Event<'_>, stated: &Measurement| {
        event.digests.sha256.is_some_and(|digest| digest == stated.digests.sha256().as_bytes())
    };
    let same_variable = |event: &Event<'_>, stated: &Measurement| {
        let name = variable(event, EventKind::EFI_VARIABLE_DRIVER_CONFIG);
        is_variable(stated.component) && name.is_some() && name == stated.subject
    };
    for fits in [&same_digest as &dyn Fn(&Event<'_>, &Measurement) -> bool, &same_variable] {
        for (event, pair) in logged.iter().zip(&mut pairs).filter(|(_, pair)| pair.is_none()) {
            let mut candidates = stated.iter().zip(&mut free).enumerate();
            let found = candidates.find(|(_, (stated, free))| **free && fits(event, stated));
            if let Some((place, (_, free))) = found {
                *free = false;
                *pair = Some(place);
            }
        }
    }
    pairs
}

fn is_variable(component: Component) -> bool {
    matches!(
        component,
        Component::Pcr7SecureBoot
            | Component::Pcr7Pk
            | Component::Pcr7Kek
            | Component::Pcr7Db
            | Component::Pcr7Dbx
            | Component::Pcr7Dbt
    )
}

/// Name of the variable, if the event is of this type and its data was measured.
fn variable(event: &Event<'_>, kind: EventKind) -> Option<String> {
    let measured = event.kind == kind && event.measured(Bank::Sha256).is_some();
    match event.content() {
        Content::Variable { name, .. } if measured => Some(name),
        _ => None,
    }
}

/// Whether only the firmware can have measured an event that is not predicted.
fn is_of_firmware(number: usize, logged: &[&Event<'_>]) -> bool {
    let Some(event) = logged.get(number) else {
        return false;
    };
    match event.kind {
        EventKind::EFI_ACTION
        | EventKind::OMIT_BOOT_DEVICE_EVENTS
        | EventKind::SEPARATOR
        | EventKind::EFI_VARIABLE_DRIVER_CONFIG => true,
        EventKind::EFI_VARIABLE_AUTHORITY => is_option_rom(number, logged),
        // Programs on a disk have a path, and a kernel that GRUB or shim measured none, not even to a volume; those of
        // the firmware lie in its volumes, or come before the separator.
        EventKind::EFI_BOOT_SERVICES_APPLICATION => {
            let path = event.detail().unwrap_or_default();
            let is_file =
                Path::new(&path).extension().is_some_and(|kind| kind.eq_ignore_ascii_case("efi"));
            !is_file && event.data.len() > WITHOUT_PATH
                || logged.iter().skip(number).any(|event| event.kind == EventKind::SEPARATOR)
        }
        _ => false,
    }
}

/// Whether an entry of db verified an option ROM: the boot loader was verified with a later one, or with the same.
fn is_option_rom(number: usize, logged: &[&Event<'_>]) -> bool {
    let mut from_here = logged.iter().skip(number);
    from_here.next().is_some_and(|event| is_authority_of_db(event))
        && from_here.any(|event| is_authority_of_db(event))
}

fn is_authority_of_db(event: &Event<'_>) -> bool {
    variable(event, EventKind::EFI_VARIABLE_AUTHORITY).as_deref() == Some("db")
}

/// Whether the firmware measures no such thing: another constant, a variable that it leaves out, or an entry of db
/// although it verified something with one.
fn is_never_measured(stated: &Measurement, logged: &[&Event<'_>]) -> bool {
    match stated.component {
        Component::Pcr4EfiCall | Component::Pcr4Separator => true,
        Component::Pcr7ShimCert => !logged.iter().any(|event| is_authority_of_db(event)),
        // It is measured once it is set.
        Component::Pcr7Dbt => false,
        component => is_variable(component),
    }
}

#[cfg(test)]
mod tests;
