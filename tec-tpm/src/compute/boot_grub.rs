//! The boot from GRUB onward: its script, the kernel, and what the kernel finds.

use tec_core::pcr::PcrIndex;

use super::boot::{Boot, Role, Started};
use super::grub::{GrubProfile, Terminator};
use super::grub_script::Command;
use super::hash::{BankDigests, MultiHasher};
use super::measurement::{Component, Measurement};
use super::pe::PeRequest;
use super::platform::SecureBoot;
use super::predict_error::PredictError;
use super::sbat::Sbat;
use super::unpredictable::Unpredictable;
use super::{find, grub_script, kernel};
use crate::event_log::EventKind;

/// Folder where Debian's GRUB looks for its script.
const DEBIAN_FOLDER: &str = "EFI/debian";
/// Size of the chunks in which files other than programs are read.
const PIECE: usize = 256 << 10;

/// What GRUB has loaded so far.
#[derive(Default)]
struct Loaded {
    /// The beginning of the kernel, for its version; set if the kernel is known.
    kernel: Option<Vec<u8>>,
    options: String,
    initrd: Option<(String, BankDigests)>,
}

impl Boot<'_> {
    pub(super) fn start_grub(&mut self, grub: &Started) -> Result<(), PredictError> {
        let sbat = grub.file.section(".sbat");
        let profile = match self.options.grub {
            Some(profile) => profile,
            None => GrubProfile::from_sbat(sbat)
                .map_err(|source| PredictError::Grub { file: grub.path.clone(), source })?,
        };
        let vendor_is_known = self.options.grub.is_some()
            || sbat
                .and_then(|section| Sbat::parse(section).ok())
                .is_some_and(|sbat| sbat.component("grub.debian").is_some());
        // Builds of other vendors were observed with Secure Boot on only.
        if !vendor_is_known && self.verification() == SecureBoot::Off {
            self.give_up(PcrIndex::BOOT_MANAGER, Unpredictable::GrubVendor);
        }
        let mut loaded = Loaded::default();
        let followed = if vendor_is_known {
            self.follow_script(profile, &mut loaded)?
        } else {
            Err(Unpredictable::GrubVendor)
        };
        if let Err(reason) = followed {
            let depending = [PcrIndex::BOOT_COMMANDS, PcrIndex::BOOT_FILES];
            self.give_up_all(depending, &reason);
        }
        if loaded.kernel.is_none() {
            self.start_found_kernel(profile)?;
        }
        Ok(())
    }

    /// Predicts PCR 4 and 7 without a script to follow: with the only kernel of the image.
    fn start_found_kernel(&mut self, profile: GrubProfile) -> Result<(), PredictError> {
        if profile.kernel_measurements(self.verification()) == 0 {
            return Ok(());
        }
        let path = match &self.options.kernel {
            Some(path) => path.clone(),
            None => find::only_kernel(self.image).map_err(PredictError::Find)?,
        };
        let request = PeRequest::new(self.options.banks).keep([".sbat"]);
        let kernel = self.read(path, &request)?;
        self.start_kernel(profile, &kernel)
    }

    fn start_kernel(&mut self, profile: GrubProfile, kernel: &Started) -> Result<(), PredictError> {
        self.allow(kernel, Role::Kernel)?;
        for _ in 0..profile.kernel_measurements(self.verification()) {
            self.push_image(Component::Pcr4Vmlinuz, kernel);
        }
        Ok(())
    }

    /// Follows GRUB's script up to the boot.
    fn follow_script(
        &mut self,
        profile: GrubProfile,
        loaded: &mut Loaded,
    ) -> Result<Result<(), Unpredictable>, PredictError> {
        let path = match self.find_script(profile)? {
            Ok(path) => path,
            Err(reason) => return Ok(Err(reason)),
        };
        let script = self.read_script(&path)?;
        let digests = BankDigests::of(self.options.banks, &script);
        for _ in 0..profile.script_measurements() {
            self.push_file(path.clone(), digests);
        }
        let commands = match grub_script::parse(&path, &script) {
            Ok(commands) => commands,
            Err(reason) => return Ok(Err(reason)),
        };
        for command in &commands {
            self.push_command(&command.text);
            if let Err(reason) = self.obey(profile, command, &path, loaded)? {
                return Ok(Err(reason));
            }
        }
        Ok(self.boot(profile, loaded))
    }

    /// The script that the embedded one selects, with what GRUB 2.06 measures on the way.
    fn find_script(
        &mut self,
        profile: GrubProfile,
    ) -> Result<Result<String, Unpredictable>, PredictError> {
        let find = |path: &str| find::spelled(self.image, path).map_err(PredictError::Find);
        let platform = format!("{DEBIAN_FOLDER}/x86_64-efi/grub.cfg");
        let plain = format!("{DEBIAN_FOLDER}/grub.cfg");
        let for_platform = find(&platform)?;
        let is_for_platform = for_platform.is_some();
        let found = match for_platform {
            Some(found) => Some(found),
            None => find(&plain)?,
        };
        let Some(found) = found else {
            return Ok(Err(Unpredictable::NoScript { file: plain }));
        };
        if profile.measures_embedded_script() {
            let Some(device) = self.platform.grub_device().map(str::to_owned) else {
                return Ok(Err(Unpredictable::GrubDevice));
            };
            let folder = format!("({device})/{DEBIAN_FOLDER}");
            self.push_command(&format!("[ -z {folder} -o ! -e {folder} ]"));
            self.push_command(&format!("[ -e ({device})/{platform} ]"));
            if !is_for_platform {
                self.push_command(&format!("[ -e ({device})/{plain} ]"));
            }
            let script = if is_for_platform { platform } else { plain };
            self.push_command(&format!("source ({device})/{script}"));
        }
        Ok(Ok(found))
    }

    /// Carries out one command, and predicts what it measures in addition to itself.
    fn obey(
        &mut self,
        profile: GrubProfile,
        command: &Command,
        script: &str,
        loaded: &mut Loaded,
    ) -> Result<Result<(), Unpredictable>, PredictError> {
        let mut words = command.text.split(' ');
        let (name, argument) = (words.next().unwrap_or_default(), words.next());
        if name != "linux" && name != "initrd" {
            return Ok(Ok(()));
        }
        let obeyed = match argument.and_then(|path| path.strip_prefix('/')) {
            None => Err("the path is not absolute"),
            Some(file) => match find::spelled(self.image, file).map_err(PredictError::Find)? {
                None => Err("there is no such file in the image"),
                Some(path) if name == "linux" => {
                    self.load_kernel(profile, path, &command.text, loaded)?
                }
                Some(_) if words.next().is_some() => Err("there is not one file"),
                Some(path) => self.load_initrd(path, loaded)?,
            },
        };
        Ok(obeyed.map_err(|reason| Unpredictable::Script {
            file: script.to_owned(),
            line: command.line,
            reason,
        }))
    }

    fn load_kernel(
        &mut self,
        profile: GrubProfile,
        path: String,
        command: &str,
        loaded: &mut Loaded,
    ) -> Result<Result<(), &'static str>, PredictError> {
        if loaded.kernel.is_some() {
            return Ok(Err("there is more than one kernel"));
        }
        if self.options.kernel.as_ref().is_some_and(|k| *k != path) {
            return Ok(Err("it names another kernel than the chosen one"));
        }
        let mut request = PeRequest::new(self.options.banks).keep([".sbat"]);
        if self.options.wants(PcrIndex::BOOT_FILES) {
            request = request.whole();
        }
        let kernel = self.read(path, &request)?;
        if let Some(digests) = kernel.file.whole_digests() {
            self.push_file(kernel.path.clone(), digests);
        }
        self.start_kernel(profile, &kernel)?;
        let line = command.strip_prefix("linux ").unwrap_or_default();
        let (pcr, component) = (PcrIndex::BOOT_COMMANDS, Component::Pcr8KernelCmdline);
        self.push_data(component, pcr, EventKind::IPL, line.as_bytes(), line);
        line.clone_into(&mut loaded.options);
        loaded.kernel = Some(kernel.file.start);
        Ok(Ok(()))
    }

    fn load_initrd(
        &mut self,
        path: String,
        loaded: &mut Loaded,
    ) -> Result<Result<(), &'static str>, PredictError> {
        if loaded.kernel.is_none() || loaded.initrd.is_some() {
            return Ok(Err("there is not one file after one kernel"));
        }
        if self.options.wants(PcrIndex::BOOT_FILES) {
            let digests = self.hash(&path)?;
            self.push_file(path.clone(), digests);
            loaded.initrd = Some((path, digests));
        }
        Ok(Ok(()))
    }

    /// Predicts what the kernel finds if GRUB enters it through its EFI stub.
    fn boot(&mut self, profile: GrubProfile, loaded: &Loaded) -> Result<(), Unpredictable> {
        let Some(kernel) = &loaded.kernel else {
            return Err(Unpredictable::CommandLine {
                reason: "is not known: the script starts no kernel",
            });
        };
        let Some(terminator) = profile.load_options() else {
            return Ok(());
        };
        let (pcr, kind) = (PcrIndex::BOOT_FILES, EventKind::EVENT_TAG);
        let line = format!("BOOT_IMAGE={}", loaded.options);
        let mut options = kernel::wide(&line);
        if terminator == Terminator::Absent {
            options.truncate(options.len().saturating_sub(2));
        }
        self.push_data(Component::Pcr9LoadOptions, pcr, kind, &options, &line);
        kernel::check_options(&line)?;
        kernel::check_version(kernel)?;
        if let Some((path, digests)) = &loaded.initrd {
            let initrd = Measurement::new(Component::Pcr9Initrd, pcr, kind, *digests);
            self.push(initrd.of_file(path.clone()));
        }
        Ok(())
    }

    fn push_command(&mut self, text: &str) {
        let (pcr, component) = (PcrIndex::BOOT_COMMANDS, Component::Pcr8Command);
        self.push_data(component, pcr, EventKind::IPL, text.as_bytes(), text);
    }

    fn push_file(&mut self, path: String, digests: BankDigests) {
        let (pcr, component) = (PcrIndex::BOOT_FILES, Component::Pcr9File);
        self.push(Measurement::new(component, pcr, EventKind::IPL, digests).of_file(path));
    }

    fn hash(&self, path: &str) -> Result<BankDigests, PredictError> {
        let refuse = |source| PredictError::Open { file: path.to_owned(), source };
        let mut reader = self.image.open(path).map_err(refuse)?;
        let mut hasher = MultiHasher::new(self.options.banks);
        let mut piece = vec![0; PIECE];
        loop {
            match reader.read(&mut piece) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(count) => hasher.update(piece.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(refuse(error)),
            }
        }
    }
}
