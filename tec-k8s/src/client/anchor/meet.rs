//! How an incoming unit is merged with what a namespace has.

use tec_core::ak::AkRecord;
use tec_core::image::ApprovedImage;
use tec_core::migrate::{Clash, MachineUnit, Merged, TrustUnit, merge_image, merge_machine};
use tec_core::secret::SecretBytes;

use super::snapshot::{Origin, Snapshot};

/// The result for a unit here.
#[derive(Debug)]
pub(super) struct Met {
    pub(super) existed: bool,
    pub(super) merged: Merged<TrustUnit>,
}

impl Snapshot {
    /// Merges an incoming unit with the local one.
    pub(super) fn meet(&self, comes: &TrustUnit) -> Met {
        match comes {
            TrustUnit::Image(image) => self.meet_image(image),
            TrustUnit::Machine(unit) => self.meet_machine(unit),
            // There is no third type.
            _ => Met { existed: false, merged: Merged::Same },
        }
    }

    fn meet_image(&self, comes: &ApprovedImage) -> Met {
        let here = self.images.get(&comes.name);
        let follows = here.is_some_and(|(here, origin)| {
            // What it measures is not known here yet.
            let is_blank = here.expected.pcrs.is_empty() && here.reference == comes.reference;
            *origin == Origin::Adopted || (is_blank && here.revoked_at.is_none())
        });
        let merged = merge_image(here.map(|(here, _)| here), comes, follows);
        Met { existed: here.is_some(), merged: merged.map(TrustUnit::Image) }
    }

    fn meet_machine(&self, comes: &MachineUnit) -> Met {
        let id = comes.machine.id;
        let here = self.machine_unit(&id);
        let known = |key: &AkRecord| Some(self.keys.get(&key.fingerprint())?.record.clone());
        let known: Vec<AkRecord> = comes.keys.iter().filter_map(known).collect();
        let existed = here.is_some();
        // A Secret without its machine, which someone restored: it must match the incoming one.
        let stray = self.secrets.get(&id).filter(|_| !existed);
        let fits = |stray: &SecretBytes| comes.secret.as_ref().is_some_and(|key| key.ct_eq(stray));
        let merged = if stray.is_some_and(|stray| !fits(stray)) {
            Merged::Clash(Clash::DiskKey)
        } else if !existed && self.has_other_escrow(comes) {
            Merged::Clash(Clash::RecoveryKey)
        } else {
            merge_machine(here.as_ref(), comes, &known).map(TrustUnit::Machine)
        };
        Met { existed, merged }
    }
}
