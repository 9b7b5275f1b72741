//! What GRUB's script is run on in a boot: its files are those of the image, and what it measures are
//! measurements of the boot.

use std::io::ErrorKind;

use tec_core::pcr::PcrIndex;

use super::boot::Boot;
use super::boot_read::MAX_SCRIPT;
use super::grub::GrubProfile;
use super::grub_module::Modules;
use super::grub_script::{Found, Host, Stop};
use super::grub_tree::GrubTree;
use super::hash::BankDigests;
use super::measurement::Component;
use super::pe::PeRequest;
use super::predict_error::PredictError;
use super::unpredictable::Unpredictable;
use crate::event_log::EventKind;

/// What GRUB has loaded so far.
#[derive(Default)]
pub(super) struct Loaded {
    /// The beginning of the kernel, for its version; set if the kernel is known.
    pub(super) kernel: Option<Vec<u8>>,
    pub(super) options: String,
    pub(super) initrd: Option<(String, BankDigests)>,
}

/// A GRUB that runs its script.
pub(super) struct Grub<'g, 'b> {
    pub(super) boot: &'g mut Boot<'b>,
    pub(super) profile: GrubProfile,
    pub(super) tree: GrubTree<'b>,
    pub(super) modules: Modules,
    pub(super) loaded: &'g mut Loaded,
}

impl Host for Grub<'_, '_> {
    fn find(&mut self, device: &str, path: &str) -> Result<Found, Stop> {
        self.tree.find(device, path)
    }

    fn command(&mut self, text: &str) -> Result<(), Stop> {
        let (pcr, component) = (PcrIndex::BOOT_COMMANDS, Component::Pcr8Command);
        self.boot.push_data(component, pcr, EventKind::IPL, text.as_bytes(), text);
        Ok(())
    }

    fn open(&mut self, file: &str) -> Result<(), Stop> {
        if self.boot.options.wants(PcrIndex::BOOT_FILES) {
            let digests = self.boot.hash(file)?;
            self.boot.push_file(file.to_owned(), digests);
        }
        Ok(())
    }

    fn content(&mut self, file: &str) -> Result<Vec<u8>, Stop> {
        match self.boot.read_small(file, MAX_SCRIPT) {
            Err(PredictError::Open { source, .. }) if source.kind() == ErrorKind::FileTooLarge => {
                Err(Stop::Unknown("a file is too large"))
            }
            other => Ok(other?),
        }
    }

    fn has_module(&mut self, name: &str) -> Result<bool, Stop> {
        Ok(self.modules.names.contains(name))
    }

    fn entries(&mut self, device: &str, folder: &str) -> Result<Option<Vec<String>>, Stop> {
        let entries = self.tree.entries(device, folder)?;
        let count = entries.as_ref().map_or(0, Vec::len);
        if count > 1 {
            self.boot.give_up(PcrIndex::BOOT_FILES, Unpredictable::EntryOrder(count));
        }
        Ok(entries)
    }

    fn is_red_hat(&self) -> bool {
        self.profile.is_red_hat()
    }

    fn search(&mut self, wanted: &str, hint: Option<&str>) -> Result<String, Stop> {
        let device = self.tree.search(wanted, hint, self.boot.platform.grub_root());
        let unknown = || Unpredictable::GrubRoot(wanted.to_owned());
        device.ok_or_else(|| Stop::Unpredictable(unknown()))
    }

    fn linux(&mut self, path: String, command_line: &str) -> Result<(), Stop> {
        if self.boot.options.kernel.as_ref().is_some_and(|chosen| *chosen != path) {
            return Err(Stop::Unknown("it names another kernel than the chosen one"));
        }
        let mut request = PeRequest::new(self.boot.options.banks).keep([".sbat"]);
        if self.boot.options.wants(PcrIndex::BOOT_FILES) {
            request = request.whole();
        }
        let kernel = self.boot.read(path, &request)?;
        if let Some(digests) = kernel.file.whole_digests() {
            self.boot.push_file(kernel.path.clone(), digests);
        }
        self.boot.start_kernel(self.profile, &kernel)?;
        let (pcr, component) = (PcrIndex::BOOT_COMMANDS, Component::Pcr8KernelCmdline);
        let line = command_line;
        self.boot.push_data(component, pcr, EventKind::IPL, line.as_bytes(), line);
        command_line.clone_into(&mut self.loaded.options);
        self.loaded.kernel = Some(kernel.file.start);
        Ok(())
    }

    fn initrd(&mut self, path: String) -> Result<(), Stop> {
        if self.loaded.initrd.is_some() {
            return Err(Stop::Unknown("there is not one file after one kernel"));
        }
        if self.boot.options.wants(PcrIndex::BOOT_FILES) {
            let digests = self.boot.hash(&path)?;
            self.boot.push_file(path.clone(), digests);
            self.loaded.initrd = Some((path, digests));
        }
        Ok(())
    }

    fn has_setup_screen(&self) -> bool {
        self.boot.platform.has_setup_screen()
    }
}
