//! What firmware measures: its variables, and the keys that it finds.

use tec_core::pcr::PcrIndex;

use super::authority::Authority;
use super::boot::{Boot, Guard, Role, Started};
use super::measurement::{Component, Measurement};
use super::platform::SecureBoot;
use super::predict_error::PredictError;
use super::signature::SignaturePresence;
use super::verifier;
use crate::event_log::{EventKind, variable_data};
use crate::guid::Guid;

impl Boot<'_> {
    /// EDK II, `MeasureAllSecureVariables`: five variables, empty if they are not set; then `dbt`
    /// if it is set; then the separator.
    pub(super) fn measure_variables(&mut self) {
        let kind = EventKind::EFI_VARIABLE_DRIVER_CONFIG;
        let state = [u8::from(self.secure_boot() == SecureBoot::On)];
        let name = "SecureBoot";
        self.push_variable(Component::Pcr7SecureBoot, kind, name, Guid::GLOBAL, &state);
        let platform = self.platform;
        for (component, name, vendor) in [
            (Component::Pcr7Pk, "PK", Guid::GLOBAL),
            (Component::Pcr7Kek, "KEK", Guid::GLOBAL),
            (Component::Pcr7Db, "db", Guid::SECURITY_DATABASE),
            (Component::Pcr7Dbx, "dbx", Guid::SECURITY_DATABASE),
            (Component::Pcr7Dbt, "dbt", Guid::SECURITY_DATABASE),
        ] {
            let data = platform.variable(name, vendor).unwrap_or_default();
            if component != Component::Pcr7Dbt || !data.is_empty() {
                self.push_variable(component, kind, name, vendor, data);
            }
        }
        self.push(Measurement::separator(
            Component::Pcr7Separator,
            PcrIndex::SECURE_BOOT,
            self.options.banks,
        ));
    }

    fn push_variable(
        &mut self,
        component: Component,
        kind: EventKind,
        name: &str,
        vendor: Guid,
        data: &[u8],
    ) {
        let event = variable_data(vendor, name, data);
        self.push_data(component, PcrIndex::SECURE_BOOT, kind, &event, name);
    }

    pub(super) fn push_authority(&mut self, component: Component, authority: &Authority) {
        let kind = EventKind::EFI_VARIABLE_AUTHORITY;
        let (name, vendor) = (authority.variable, authority.vendor);
        self.push_variable(component, kind, name, vendor, &authority.data);
    }

    /// Lets the current verifier, firmware or shim, verify an image.
    pub(super) fn allow(&mut self, started: &Started, role: Role) -> Result<(), PredictError> {
        if !self.platform.knows_keys() {
            // What may allow it is unknown, so any valid signature must do.
            let presence = match self.secure_boot() {
                SecureBoot::On => SignaturePresence::Required,
                SecureBoot::Off => SignaturePresence::Optional,
            };
            let mut digests = started.file.authenticode_digests();
            if matches!(self.guard, Guard::Shim(_)) {
                digests = digests.as_shim_has_them();
            }
            return started.check_signatures(&digests, presence);
        }
        if self.verification() == SecureBoot::Off {
            return Ok(());
        }
        let found = match &self.guard {
            Guard::Firmware => verifier::by_firmware(self.platform, &started.file),
            Guard::Shim(shim) => verifier::by_shim(self.platform, shim, started, role),
        };
        let found = found
            .map_err(|source| PredictError::Authority { file: started.path.clone(), source })?;
        for authority in found {
            match self.guard {
                Guard::Firmware => self.push_firmware_authority(authority),
                Guard::Shim(_) => self.push_shim_authority(authority, role),
            }
        }
        Ok(())
    }

    fn push_firmware_authority(&mut self, authority: Authority) {
        if !self.firmware_authorities.contains(&authority) {
            self.push_authority(Component::Pcr7ShimCert, &authority);
            self.firmware_authorities.push(authority);
        }
    }
}
