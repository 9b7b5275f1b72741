//! The boot through systemd-boot, of the unified kernel image that was chosen here or that is the only one.
//!
//! What chooses on the machine, `loader.conf` and variables, changes no other register than PCR 5, and a counter of
//! tries in the name of an image is not measured at all.

use super::boot::{Boot, Role, Started};
use super::measurement::Component;
use super::predict_error::PredictError;
use crate::guid::Guid;

/// Versions observed to start such an image without options.
const OBSERVED: [&str; 2] = ["257", "262"];
/// Location of unified kernel images (UAPI group, "Boot Loader Specification", "Type #2").
const IMAGES: &str = "efi/linux/";
/// Paths, in lower case, that contain something else that systemd-boot could start, or keys that it enrolls.
const CHOICES: [&str; 6] = [
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
        let path = self.managed_image(manager)?.map_err(|reason| refuse(&reason))?;
        self.push_image(Component::Pcr4Manager, manager);
        let uki = self.read_loader(path, 0)?;
        if !uki.is_uki() || uki.has(".profile") {
            return Err(refuse(&format!("{} has several profiles", uki.path)));
        }
        self.allow(&uki, Role::First)?;
        self.push_image(Component::Pcr4Uki, &uki);
        self.start_uki(&uki, None)
    }

    /// The image that the manager starts: the chosen one, whatever chooses it on the machine, or else the only thing
    /// that it could start. Otherwise the reason why that is not known.
    fn managed_image(&self, manager: &Started) -> Result<Result<String, String>, PredictError> {
        let upper = manager.path.to_ascii_uppercase();
        let root = upper.rfind("/EFI/").map_or(0, |at| at + 1);
        let (mut images, mut choice) = (Vec::new(), None);
        for path in self.list(manager.path.get(..root).unwrap_or_default().trim_end_matches('/'))? {
            let within = path.get(root..).unwrap_or_default().to_ascii_lowercase();
            let name = within.strip_prefix(IMAGES);
            let stem = name.and_then(|name| name.strip_suffix(".efi"));
            if CHOICES.iter().any(|choice| within.starts_with(choice)) {
                choice.get_or_insert(path);
            } else if stem.is_some_and(|stem| !stem.contains('/')) {
                images.push(path);
            }
        }
        if let Some(chosen) = &self.options.kernel {
            let is_there = images.contains(chosen);
            return Ok(if is_there {
                Ok(chosen.clone())
            } else {
                Err(format!("there is no {chosen}"))
            });
        }
        let variable = VARIABLES.iter().find(|name| self.platform.get(name, LOADER).is_some());
        Ok(match (images.as_slice(), variable, choice) {
            ([only], None, None) => Ok(only.clone()),
            ([], ..) => Err("there is no unified kernel image".to_owned()),
            (_, Some(variable), _) => Err(format!("variable {variable} chooses an entry")),
            (_, _, Some(path)) => Err(format!("{path} gives it a choice")),
            _ => Err("there are several unified kernel images: choose one".to_owned()),
        })
    }
}
