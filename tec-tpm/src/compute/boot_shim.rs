//! The boot through shim: its lists, its level, and the keys that it finds.

use tec_core::pcr::PcrIndex;

use super::authority::Authority;
use super::boot::{Boot, Guard, Role, Started};
use super::find;
use super::measurement::Component;
use super::platform::SecureBoot;
use super::predict_error::PredictError;
use super::shim::{Shim, ShimProfile};
use super::unpredictable::Unpredictable;
use crate::event_log::EventKind;
use crate::guid::Guid;

impl Boot<'_> {
    /// Predicts what shim measures before it starts anything (shim, mok.c, `import_mok_state`): its lists in
    /// the order of its table. From then on it verifies what is started.
    pub(super) fn start_shim(&mut self, started: &Started) -> Result<(), PredictError> {
        let refuse = |source| PredictError::Shim { file: started.path.clone(), source };
        let profile = match self.options.shim {
            Some(profile) => profile,
            None => ShimProfile::from_ident(started.file.section(".data.ident")).map_err(refuse)?,
        };
        let shim = Shim::new(&started.file, self.platform, self.secure_boot(), profile);
        let shim = shim.map_err(refuse)?;
        self.notice_unbundled(started)?;
        if !self.platform.knows_mok_lists() {
            self.give_up(PcrIndex::MOK, Unpredictable::MokLists);
        }
        self.push_list(Component::Pcr14MokList, "MokList", &shim.measured_list());
        let revocations = shim.measured_revocations();
        self.push_list(Component::Pcr14MokListX, "MokListX", &revocations);
        if let Some(state) = shim.sb_state() {
            self.push_own(Component::Pcr7MokSbState, "MokSBState", state);
            self.push_list(Component::Pcr14MokSbState, "MokSBState", state);
        }
        self.push_own(Component::Pcr7SbatLevel, "SbatLevel", shim.sbat_level());
        if let Some(trust) = shim.measured_trust() {
            if profile.has_trust_in_pcr_7() {
                self.push_own(Component::Pcr7MokListTrusted, "MokListTrusted", trust);
            }
            self.push_list(Component::Pcr14MokListTrusted, "MokListTrusted", trust);
        }
        if let Some(policy) = shim.measured_policy() {
            self.push_list(Component::Pcr14MokPolicy, "MokPolicy", policy);
        }
        self.guard = Guard::Shim(Box::new(shim));
        Ok(())
    }

    fn push_list(&mut self, component: Component, name: &str, data: &[u8]) {
        self.push_data(component, PcrIndex::MOK, EventKind::IPL, data, name);
    }

    /// Measures one of shim's own variables in PCR 7.
    fn push_own(&mut self, component: Component, variable: &'static str, data: &[u8]) {
        let authority = Authority { variable, vendor: Guid::SHIM, data: data.to_vec() };
        self.push_authority(component, &authority);
        self.shim_authorities.push(authority);
    }

    pub(super) fn push_shim_authority(&mut self, authority: Authority, role: Role) {
        if self.shim_authorities.contains(&authority) {
            return;
        }
        let component = match (authority.variable, role) {
            ("db", Role::Kernel) => Component::Pcr7KernelDbCert,
            ("db", Role::Uki | Role::Addon) => Component::Pcr7UkiDbCert,
            ("db", Role::First | Role::Grub) => Component::Pcr7GrubDbCert,
            ("vendor_db", Role::Kernel) => Component::Pcr7KernelVendorDbCert,
            ("vendor_db", Role::Uki | Role::Addon) => Component::Pcr7UkiVendorDbCert,
            ("vendor_db", Role::First | Role::Grub) => Component::Pcr7GrubVendorDbCert,
            (_, Role::Kernel) => Component::Pcr7KernelMokListCert,
            (_, Role::Uki | Role::Addon) => Component::Pcr7UkiMokListCert,
            (_, Role::First | Role::Grub) => Component::Pcr7GrubMokListCert,
        };
        self.push_authority(component, &authority);
        self.shim_authorities.push(authority);
    }

    /// If started by its path for removable media, shim prefers the program that creates boot
    /// entries (shim, shim.c, `should_use_fallback`).
    pub(super) fn check_fallback(&self, shim: &str) -> Result<(), PredictError> {
        let Some((folder, _)) = shim.rsplit_once('/') else {
            return Ok(());
        };
        if !find::is_removable(folder) {
            return Ok(());
        }
        let fallback = format!("{folder}/{}", find::FALLBACK);
        match find::spelled(self.image, &fallback).map_err(PredictError::Find)? {
            Some(file) => Err(PredictError::Fallback(file)),
            None => Ok(()),
        }
    }

    /// Files next to shim that add to its keys or raise its level (shim, shim.c,
    /// `load_unbundled_trust`).
    fn notice_unbundled(&mut self, started: &Started) -> Result<(), PredictError> {
        let folder = started.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let unbundled = self.list(folder)?.into_iter().find(|path| {
            let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
            name.starts_with("shim_certificate") || name.starts_with("revocations")
        });
        if let Some(file) = unbundled.filter(|_| self.secure_boot() == SecureBoot::On) {
            let reason = Unpredictable::Sidecar(file);
            self.give_up_all([PcrIndex::SECURE_BOOT, PcrIndex::MOK], &reason);
        }
        Ok(())
    }
}
