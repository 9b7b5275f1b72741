//! The boot through systemd-boot, of the entry that was chosen here or that it starts by itself.
//!
//! What chooses on the machine, `loader.conf` and variables, changes no other register than PCR 5, and a
//! counter of tries in the name of an image is not measured at all.

use tec_core::pcr::PcrIndex;

use super::boot::{Boot, Role, Started};
use super::boot_entry::{Entry, MAX_TEXT, Starts, matches, values};
use super::measurement::Component;
use super::pe::PeRequest;
use super::predict_error::PredictError;
use super::stub::StubProfile;
use super::unpredictable::Unpredictable;
use super::{find, kernel, varstore};
use crate::event_log::EventKind;
use crate::guid::Guid;

/// Drivers that systemd-boot loads before anything else.
const DRIVERS: &str = "efi/systemd/drivers/";
/// Keys that systemd-boot enrolls in setup mode, and then restarts.
const KEYS: &str = "loader/keys/auto/";
const CONFIGURATION: &str = "loader/loader.conf";
/// Variables with the name of an entry, in the order of their precedence (systemd, "Boot Loader Interface");
/// after them comes `default` of the configuration.
const VARIABLES: [&str; 2] = ["LoaderEntryOneShot", "LoaderEntryDefault"];
/// Vendor of those variables.
const LOADER: Guid = Guid::of(0x4a67_b082_0a4c_41cf_b6c7_440b_29bb_8c4f);

/// systemd-boot as it was started.
struct Manager<'m> {
    started: &'m Started,
    name: String,
    /// Folder of its partition.
    root: &'m str,
    files: Vec<String>,
}

impl Manager<'_> {
    fn refuse(&self, reason: &str) -> PredictError {
        let what = format!("{}, and {reason}", self.name);
        PredictError::UnknownLoader { file: self.started.path.clone(), what }
    }

    /// Files below a folder of the partition, which is in lower case.
    fn find(&self, folder: &str) -> Option<&String> {
        self.files.iter().find(|path| {
            let within = path.get(self.root.len()..).unwrap_or_default();
            within.to_ascii_lowercase().starts_with(folder)
        })
    }
}

impl Boot<'_> {
    /// Continues with what `manager`, whose version is given, starts.
    pub(super) fn start_manager(
        &mut self,
        started: &Started,
        version: &str,
        has_options: bool,
    ) -> Result<(), PredictError> {
        let upper = started.path.to_ascii_uppercase();
        let at = upper.rfind("/EFI/").map_or(0, |at| at + 1);
        let root = started.path.get(..at).unwrap_or_default();
        let files = self.list(root.trim_end_matches('/'))?;
        let name = format!("systemd-boot {version}");
        let manager = Manager { started, name, root, files };
        let around = StubProfile::around(version)
            .ok_or_else(|| manager.refuse("this version has not been observed"))?;
        if has_options {
            return Err(manager.refuse("the boot entry hands options to it"));
        }
        if let Some(driver) = manager.find(DRIVERS) {
            return Err(manager.refuse(&format!("it loads {driver}")));
        }
        let entry = self.chosen_entry(&manager)?;
        self.push_image(Component::Pcr4Manager, started);
        match &entry.starts {
            Starts::Image => self.start_image(&manager, around, entry.path),
            Starts::Kernel { path, initrds, options } => {
                let reason = Unpredictable::Version(manager.name);
                if around.contains(&StubProfile::V252) {
                    self.give_up_all([PcrIndex::KERNEL_CONFIG, PcrIndex::BOOT_FILES], &reason);
                }
                self.start_listed(root, path, initrds, options)
            }
            Starts::Other(what) => Err(manager.refuse(&format!("{} starts {what}", entry.path))),
        }
    }

    /// Up to 252, it hands the command line of an image to it.
    fn start_image(
        &mut self,
        manager: &Manager<'_>,
        around: [StubProfile; 2],
        path: String,
    ) -> Result<(), PredictError> {
        let uki = self.read_loader(path, 0)?;
        if !uki.is_uki() {
            return Err(manager.refuse(&format!("{} is no unified kernel image", uki.path)));
        }
        self.allow(&uki, Role::First)?;
        self.push_image(Component::Pcr4Uki, &uki);
        let reason = Unpredictable::Version(manager.name.clone());
        let hands = around.map(|profile| profile == StubProfile::V252);
        self.agree(hands, &reason, |boot, hands| {
            let section = uki.file.section(".cmdline").filter(|_| hands).unwrap_or_default();
            match StubProfile::V252.command_line(section) {
                Ok(line) if line.is_empty() => boot.start_uki(&uki, None),
                Ok(line) => {
                    boot.push_handed(&line);
                    boot.start_uki(&uki, Some(&kernel::wide(&line)))
                }
                Err(reason) => {
                    let depending = [PcrIndex::KERNEL_CONFIG, PcrIndex::BOOT_FILES];
                    boot.give_up_all(depending, &reason);
                    boot.start_uki(&uki, None)
                }
            }
        })
    }

    /// Starts the kernel of an entry of type #1, whose EFI stub finds the initramfs that is named before the
    /// options.
    fn start_listed(
        &mut self,
        root: &str,
        path: &str,
        initrds: &[String],
        options: &str,
    ) -> Result<(), PredictError> {
        let request = PeRequest::new(self.options.banks).keep([".sbat"]).whole();
        let kernel = self.read(path.to_owned(), &request)?;
        if kernel.is_uki() {
            let what = "a unified kernel image, and an entry hands options to it".to_owned();
            return Err(PredictError::UnknownLoader { file: kernel.path, what });
        }
        self.allow(&kernel, Role::First)?;
        self.push_image(Component::Pcr4Vmlinuz, &kernel);
        let [initrd] = initrds else {
            let reason = Unpredictable::CommandLine("does not name one initramfs");
            self.give_up_all([PcrIndex::KERNEL_CONFIG, PcrIndex::BOOT_FILES], &reason);
            return Ok(());
        };
        let line = format!("initrd={} {options}", initrd.replace('/', "\\"));
        let line = line.trim_end();
        if !line.is_ascii() {
            let reason = Unpredictable::CommandLine("has other characters than ASCII");
            self.give_up_all([PcrIndex::KERNEL_CONFIG, PcrIndex::BOOT_FILES], &reason);
            return Ok(());
        }
        self.push_handed(line);
        self.push_load_options(line);
        let found = kernel::check_options(options);
        if let Err(reason) = found.and_then(|()| kernel::check_version(&kernel.file.start)) {
            self.give_up(PcrIndex::BOOT_FILES, reason);
            return Ok(());
        }
        let initrd = format!("{root}{}", initrd.trim_start_matches('/'));
        let spelled = find::spelled(self.image, &initrd).map_err(PredictError::Find)?;
        let initrd = spelled.unwrap_or(initrd);
        let digests = self.hash(&initrd)?;
        self.push_initrd(digests, &initrd);
        Ok(())
    }

    /// systemd-boot measures the options that it hands on.
    fn push_handed(&mut self, line: &str) {
        let (component, pcr) = (Component::Pcr12LoadOptions, PcrIndex::KERNEL_CONFIG);
        self.push_data(component, pcr, EventKind::IPL, &kernel::wide(line), line);
    }

    /// The entry that was chosen here, or else the one that the machine or the configuration names, or else
    /// the first of the menu.
    fn chosen_entry(&self, manager: &Manager<'_>) -> Result<Entry, PredictError> {
        let mut entries = self.entries(manager.root, &manager.files)?;
        if entries.is_empty() {
            return Err(manager.refuse("there is no unified kernel image and no entry"));
        }
        let number = match &self.options.kernel {
            Some(chosen) => entries
                .iter()
                .position(|entry| entry.is_at(chosen))
                .ok_or_else(|| manager.refuse(&format!("there is no {chosen}")))?,
            None => self.named_entry(manager, &entries)?.unwrap_or(0),
        };
        Ok(entries.swap_remove(number))
    }

    fn named_entry(
        &self,
        manager: &Manager<'_>,
        entries: &[Entry],
    ) -> Result<Option<usize>, PredictError> {
        let text = match manager.find(CONFIGURATION) {
            Some(path) => self.read_small(path, MAX_TEXT)?,
            None => Vec::new(),
        };
        let text = String::from_utf8_lossy(&text);
        let setting = |name| values(&text).filter(|(key, _)| *key == name).last().map(|(_, v)| v);
        let enrolls = !matches!(setting("secure-boot-enroll"), Some("off" | "manual"));
        let in_setup = self.platform.variable("SetupMode", Guid::GLOBAL) == Some(&[1]);
        if let Some(key) = manager.find(KEYS).filter(|_| enrolls && in_setup) {
            return Err(manager.refuse(&format!(
                "the firmware is in setup mode: the first boot enrolls {key} and restarts (take the \
                 variables after that)"
            )));
        }
        let variable = |name: &str| varstore::text(self.platform.variable(name, LOADER)?);
        // Since 260. Its precedence was not observed.
        let preferred = setting("preferred").is_some()
            || self.platform.variable("LoaderEntryPreferred", LOADER).is_some();
        if preferred && entries.len() > 1 {
            return Err(manager.refuse("a preferred entry is set (--kernel)"));
        }
        let configured = setting("default").map(str::to_owned);
        for wanted in VARIABLES.map(variable).into_iter().chain([configured]).flatten() {
            let wanted = match wanted.as_str() {
                "@saved" => variable("LoaderEntryLastBooted"),
                _ => Some(wanted),
            };
            let Some(wanted) = wanted else { continue };
            let unclear = || manager.refuse(&format!("{wanted} chooses the entry (--kernel)"));
            if wanted.contains('@') || wanted.to_ascii_lowercase().starts_with("auto-") {
                return Err(unclear());
            }
            for (number, entry) in entries.iter().enumerate() {
                if matches(&wanted, &entry.id).ok_or_else(unclear)? {
                    return Ok(Some(number));
                }
            }
        }
        Ok(None)
    }
}
