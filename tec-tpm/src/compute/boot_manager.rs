//! The boot through systemd-boot, if there is nothing to choose: one unified kernel image, and no
//! configuration on the partition or in variables.

use super::boot::{Boot, Role, Started};
use super::measurement::Component;
use super::predict_error::PredictError;
use crate::guid::Guid;

/// Versions observed to start such an image without options.
const OBSERVED: [&str; 2] = ["257", "262"];
/// Location of unified kernel images (UAPI group, "Boot Loader Specification", "Type #2").
const IMAGES: &str = "efi/linux/";
/// Paths, in lower case, that configure systemd-boot or contain something else that it could start.
const CHOICES: [&str; 7] = [
    "loader/loader.conf",
    "loader/entries/",
    "loader/keys/",
    "efi/systemd/drivers/",
    "efi/microsoft/",
    "shellx64.efi",
    "system/library/coreservices/",
];
/// Variables that choose an entry (systemd, "Boot Loader Interface").
const VARIABLES: [&str; 4] =
    ["LoaderEntryDefault", "LoaderEntryOneShot", "LoaderEntryPreferred", "LoaderEntrySysFail"];
/// Vendor of those variables.
const LOADER: Guid = Guid::of(0x4a67_b082_0a4c_41cf_b6c7_440b_29bb_8c4f);

impl Boot<'_> {
    /// Continues with the one image that `manager`, whose version is given, can start.
    pub(super) fn start_manager(
        &mut self,
        manager: &Started,
        version: &str,
        has_options: bool,
    ) -> Result<(), PredictError> {
        let refuse = |reason: &str| PredictError::UnknownLoader {
            file: manager.path.clone(),
            what: format!("systemd-boot {version}, and {reason}"),
        };
        let major = version.split(['.', '-', '~']).next().unwrap_or_default();
        if !OBSERVED.contains(&major) {
            return Err(refuse("this version has not been observed"));
        }
        if has_options {
            return Err(refuse("the boot entry hands options to it"));
        }
        if let Some(variable) =
            VARIABLES.iter().find(|name| self.platform.get(name, LOADER).is_some())
        {
            return Err(refuse(&format!("variable {variable} chooses an entry")));
        }
        let path = self.only_image(manager)?.map_err(|reason| refuse(&reason))?;
        self.push_image(Component::Pcr4Manager, manager);
        let uki = self.read_loader(path, 0)?;
        if !uki.is_uki() || uki.has(".profile") {
            return Err(refuse(&format!("{} has several profiles", uki.path)));
        }
        self.allow(&uki, Role::First)?;
        self.push_image(Component::Pcr4Uki, &uki);
        self.start_uki(&uki, None)
    }

    /// The only image on the manager's partition, or the reason why there is none.
    fn only_image(&self, manager: &Started) -> Result<Result<String, String>, PredictError> {
        let upper = manager.path.to_ascii_uppercase();
        let root = upper.rfind("/EFI/").map_or(0, |at| at + 1);
        let mut images = Vec::new();
        for path in self.list(manager.path.get(..root).unwrap_or_default().trim_end_matches('/'))? {
            let within = path.get(root..).unwrap_or_default().to_ascii_lowercase();
            if CHOICES.iter().any(|choice| within.starts_with(choice)) {
                return Ok(Err(format!("{path} gives it a choice")));
            }
            let name = within.strip_prefix(IMAGES);
            let stem = name.and_then(|name| name.strip_suffix(".efi"));
            if stem.is_some_and(|stem| !stem.contains('/')) {
                images.push(path);
            }
        }
        match images.as_slice() {
            [only] if !only.contains('+') => Ok(Ok(only.clone())),
            [_] => Ok(Err("it counts the tries of the image".to_owned())),
            [] => Ok(Err("there is no unified kernel image".to_owned())),
            [..] => Ok(Err("there are several unified kernel images".to_owned())),
        }
    }
}
