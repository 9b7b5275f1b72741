//! The boot from GRUB onward: its script, the kernel, and what the kernel finds.

use std::io;
use std::io::BufReader;

use tec_core::pcr::PcrIndex;

use super::boot::{Boot, Role, Started};
use super::boot_read::MAX_SCRIPT;
use super::grub::{GrubProfile, Terminator};
use super::grub_host::{Grub, Loaded};
use super::grub_module::{self, Modules};
use super::grub_script::{Host as _, Interpreter, Stop};
use super::grub_tree::GrubTree;
use super::hash::{BankDigests, MultiHasher};
use super::measurement::{Component, Measurement};
use super::pe::PeRequest;
use super::platform::SecureBoot;
use super::predict_error::PredictError;
use super::uki_table::SectionTable;
use super::unpredictable::Unpredictable;
use super::{find, kernel};
use crate::event_log::EventKind;

/// Folder of Debian's GRUB on the EFI system partition.
const DEBIAN_FOLDER: &str = "EFI/debian";
/// The scripts that it looks for, in this order.
const SCRIPTS: [&str; 2] = ["EFI/debian/x86_64-efi/grub.cfg", PLAIN_SCRIPT];
const PLAIN_SCRIPT: &str = "EFI/debian/grub.cfg";
/// What GRUB from 2.12 on looks for first if it was started from there.
const REMOVABLE_SCRIPT: &str = "EFI/BOOT/grub.cfg";
/// Name of the script beside GRUB and in its own folder, as Red Hat builds it.
const SCRIPT: &str = "grub.cfg";
/// Section of a GRUB image with its modules.
const MODULES: &str = "mods";
/// What RHEL 10 leaves to its builds (rhboot/grub2, rhel-10-main, commands/tpm.c).
const SILENT_BUILDS: Unpredictable =
    Unpredictable::GrubVendor("RHEL 10, of which some builds measure no commands,");
const WITHOUT_SECURE_BOOT: Unpredictable =
    Unpredictable::GrubVendor("Fedora from 41 and RHEL 10 without Secure Boot");
/// Size of the chunks in which files other than programs are read.
const PIECE: usize = 256 << 10;

impl Boot<'_> {
    pub(super) fn start_grub(&mut self, grub: &Started) -> Result<(), PredictError> {
        let sbat = grub.file.section(".sbat");
        let profile = match self.options.grub {
            Some(profile) => profile,
            None => GrubProfile::from_sbat(sbat)
                .map_err(|source| PredictError::Grub { file: grub.path.clone(), source })?,
        };
        let is_new = matches!(profile, GrubProfile::Fedora2_12 | GrubProfile::Rhel2_12);
        if is_new && self.verification() == SecureBoot::Off {
            self.give_up(PcrIndex::BOOT_MANAGER, WITHOUT_SECURE_BOOT);
        }
        let mut loaded = Loaded::default();
        let followed = if profile == GrubProfile::Rhel2_12 {
            Err(SILENT_BUILDS)
        } else {
            self.follow_script(profile, &grub.path, &mut loaded)?
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

    pub(super) fn start_kernel(
        &mut self,
        profile: GrubProfile,
        kernel: &Started,
    ) -> Result<(), PredictError> {
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
        program: &str,
        loaded: &mut Loaded,
    ) -> Result<Result<(), Unpredictable>, PredictError> {
        let followed = self.run_script(profile, program, loaded);
        match followed {
            Ok(()) => Ok(self.boot(profile, loaded)),
            Err(Stop::Unpredictable(reason)) => Ok(Err(reason)),
            Err(Stop::Unknown(reason)) => {
                let file = program.to_owned();
                Ok(Err(Unpredictable::Script { file, line: 1, reason }))
            }
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    fn run_script(
        &mut self,
        profile: GrubProfile,
        program: &str,
        loaded: &mut Loaded,
    ) -> Result<(), Stop> {
        let own = partition_of(program);
        let modules = self.modules(program)?;
        let prefix =
            if profile.is_red_hat() { modules.prefix.clone() } else { DEBIAN_FOLDER.to_owned() };
        let names = script_names(profile, own.map(|(_, folder)| folder), &prefix);
        let (partition, name, script) =
            self.find_script(profile, own.map(|(partition, _)| partition), &names)?;
        // Only Debian's 2.06 has a script of its own, and knows where it was started.
        let folder = own.map(|(_, folder)| folder).filter(|_| profile.measures_embedded_script());
        let device = self.platform.grub_device().to_owned();
        let tree = GrubTree::new(self.image, partition, &device);
        let mut grub = Grub { boot: self, profile, tree, modules, loaded };
        if profile.measures_embedded_script() {
            let embedded = embedded_script(&device, name);
            embedded.iter().try_for_each(|command| grub.command(command))?;
        }
        for _ in 0..profile.script_measurements() {
            grub.open(&script)?;
        }
        Interpreter::new(&mut grub, &device, &prefix, folder).boot(&script)
    }

    fn modules(&self, program: &str) -> Result<Modules, PredictError> {
        let table = SectionTable::read(self.image, program)?;
        let Some(section) = table.section(MODULES, 0) else {
            return Ok(Modules::default());
        };
        let content = self.read_part(program, section.raw.start, section.content)?;
        Ok(grub_module::built_in(&content))
    }

    /// The partition, the first name that a script in it has, and its path: on GRUB's own partition, or where
    /// a partition may be if GRUB is in a package.
    fn find_script<'n>(
        &self,
        profile: GrubProfile,
        own: Option<&'static str>,
        names: &'n [String],
    ) -> Result<(&'static str, &'n str, String), Stop> {
        for partition in own.map_or_else(|| find::PARTITIONS.to_vec(), |own| vec![own]) {
            let files = self.list(partition.trim_end_matches('/'))?;
            let spelled = |name: &str| {
                let path = format!("{partition}{name}");
                files.iter().find(|file| file.eq_ignore_ascii_case(&path)).cloned()
            };
            if matches!(profile, GrubProfile::V2_12 | GrubProfile::V2_14)
                && let Some(removable) = spelled(REMOVABLE_SCRIPT)
                && let Some(plain) = spelled(PLAIN_SCRIPT)
                && self.read_small(&removable, MAX_SCRIPT)?
                    != self.read_small(&plain, MAX_SCRIPT)?
            {
                return Err(Stop::Unknown(
                    "EFI/BOOT has another configuration, which GRUB may start",
                ));
            }
            for name in names {
                if let Some(file) = spelled(name) {
                    return Ok((partition, name, file));
                }
            }
        }
        let name = names.last().map_or(SCRIPT, String::as_str);
        let file = format!("{}{name}", own.unwrap_or_default());
        Err(Stop::Unpredictable(Unpredictable::NoScript(file)))
    }

    /// Predicts what the kernel finds if GRUB enters it through its EFI stub.
    fn boot(&mut self, profile: GrubProfile, loaded: &Loaded) -> Result<(), Unpredictable> {
        let Some(kernel) = &loaded.kernel else {
            return Err(Unpredictable::CommandLine("is not known: the script starts no kernel"));
        };
        let Some(terminator) = profile.load_options() else {
            return Ok(());
        };
        let (pcr, kind) = (PcrIndex::BOOT_FILES, EventKind::EVENT_TAG);
        let line = format!("BOOT_IMAGE={}", loaded.options);
        let options = load_options(&line, terminator);
        self.push_data(Component::Pcr9LoadOptions, pcr, kind, &options, &line);
        kernel::check_options(&line)?;
        kernel::check_version(kernel)?;
        if let Some((path, digests)) = &loaded.initrd {
            let initrd = Measurement::new(Component::Pcr9Initrd, pcr, kind, *digests);
            self.push(initrd.of_file(path.clone()));
        }
        Ok(())
    }

    pub(super) fn push_file(&mut self, path: String, digests: BankDigests) {
        let (pcr, component) = (PcrIndex::BOOT_FILES, Component::Pcr9File);
        self.push(Measurement::new(component, pcr, EventKind::IPL, digests).of_file(path));
    }

    pub(super) fn hash(&self, path: &str) -> Result<BankDigests, PredictError> {
        let refuse = |source| PredictError::Open { file: path.to_owned(), source };
        let reader = self.image.open(path).map_err(refuse)?;
        let mut hasher = MultiHasher::new(self.options.banks);
        io::copy(&mut BufReader::with_capacity(PIECE, reader), &mut hasher).map_err(refuse)?;
        Ok(hasher.finish())
    }
}

/// The folder of the partition that a program is on, and the program's folder within that partition, if that
/// follows from its path.
fn partition_of(program: &str) -> Option<(&'static str, &str)> {
    let folder = program.rsplit_once('/').map_or("", |(folder, _)| folder);
    let within = |partition: &&str| {
        let inside = folder.strip_prefix(*partition);
        inside.is_some_and(|inside| inside.to_ascii_lowercase().starts_with("efi/"))
    };
    // `efi/EFI/BOOT` is below the folder `efi`, not in a folder `EFI` at the root.
    let longest =
        find::PARTITIONS.into_iter().filter(within).max_by_key(|partition| partition.len());
    longest.and_then(|partition| Some((partition, folder.strip_prefix(partition)?)))
}

/// Where GRUB looks for its script, in this order: `folder` is where it was started from. Those of Red Hat
/// look there, and in their own folder (rhboot/grub2, normal/main.c, `grub_cmd_normal`).
fn script_names(profile: GrubProfile, folder: Option<&str>, prefix: &str) -> Vec<String> {
    if profile.is_red_hat() {
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        let folders = folder.into_iter().chain(prefix);
        return folders.map(|folder| format!("{folder}/{SCRIPT}")).collect();
    }
    let names = SCRIPTS.into_iter();
    let names = names.filter(|name| profile.measures_embedded_script() || *name == PLAIN_SCRIPT);
    names.map(str::to_owned).collect()
}

/// The commands of Debian's embedded script up to the script that it starts.
fn embedded_script(device: &str, script: &str) -> Vec<String> {
    let folder = format!("({device})/{DEBIAN_FOLDER}");
    let mut commands = vec![format!("[ -z {folder} -o ! -e {folder} ]")];
    let tried = SCRIPTS.into_iter().take_while(|name| *name != script).chain([script]);
    commands.extend(tried.map(|name| format!("[ -e ({device})/{name} ]")));
    commands.push(format!("source ({device})/{script}"));
    commands
}

/// The command line as the kernel's EFI stub finds it.
pub(super) fn load_options(line: &str, terminator: Terminator) -> Vec<u8> {
    let mut options = kernel::wide(line);
    if terminator == Terminator::Absent {
        options.truncate(options.len().saturating_sub(2));
    }
    options
}
