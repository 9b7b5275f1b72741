//! The boot from a unified kernel image onward.

use tec_core::pcr::PcrIndex;

use super::boot::{Boot, Started};
use super::boot_addon::Addons;
use super::hash::BankDigests;
use super::initrd::Piece;
use super::load_options::StubOptions;
use super::measurement::{Component, Measurement};
use super::platform::SecureBoot;
use super::predict_error::PredictError;
use super::stub::{StubError, StubProfile};
use super::unpredictable::Unpredictable;
use super::{initrd, kernel};
use crate::event_log::EventKind;

/// A result that the stub derives from image and machine, if it can be predicted.
type Followed<T> = Result<T, Unpredictable>;

/// The stub of an image: the generations around its version, the older one first, and its name.
struct Stub {
    around: [StubProfile; 2],
    name: String,
}

fn unknown(uki: &Started, name: &str) -> PredictError {
    let source = StubError::UnknownVersion(name.to_owned());
    PredictError::Stub { file: uki.path.clone(), source }
}

impl Boot<'_> {
    /// Predicts what the stub measures, and what the kernel inside it finds. `handed` is what the boot entry
    /// passes to the stub.
    pub(super) fn start_uki(
        &mut self,
        uki: &Started,
        handed: Option<&[u8]>,
    ) -> Result<(), PredictError> {
        let Stub { around, name } = self.stub(uki)?;
        let [older, newer] = around;
        // Since systemd 258, the stub itself loads the kernel (its change 37372).
        let loads = newer.loads_inner_kernel() && self.secure_boot() == SecureBoot::Off;
        let reason = Unpredictable::Version(name);
        self.agree(around, &reason, |boot, profile| boot.run_stub(profile, uki, handed, loads))?;
        if older != newer && self.gave_up(PcrIndex::BOOT_MANAGER) {
            return Err(unknown(uki, &uki.magic()));
        }
        Ok(())
    }

    fn run_stub(
        &mut self,
        profile: StubProfile,
        uki: &Started,
        handed: Option<&[u8]>,
        loads_kernel: bool,
    ) -> Result<(), PredictError> {
        self.measure_sections(profile, uki);
        let line = self.settle_command_line(profile, uki, handed);
        if let Err(reason) = &line {
            let depending = [PcrIndex::KERNEL_CONFIG, PcrIndex::BOOT_FILES];
            self.give_up_all(depending, reason);
        }
        let addons =
            if profile.has_addons() { self.start_addons(profile, uki)? } else { Addons::default() };
        self.measure_addon_lines(&addons);
        let sidecars = self.pack_sidecars(profile, uki)?;
        self.measure_addon_sections(&addons);
        if loads_kernel {
            self.load_inner_kernel(uki)?;
        }
        let line = line.and_then(|own| addons.append_to(&own));
        let followed = line.and_then(|line| {
            self.push_load_options(&line);
            profile.check_kernel(&uki.file, &line)
        });
        match followed {
            Ok(()) => self.measure_initrd(profile, uki, &addons, sidecars),
            Err(reason) => {
                self.give_up(PcrIndex::BOOT_FILES, reason);
                Ok(())
            }
        }
    }

    /// Rereads the image if the boot entry selects a profile other than the first.
    pub(super) fn choose_profile(
        &self,
        uki: Started,
        handed: Option<&[u8]>,
    ) -> Result<Started, PredictError> {
        let [profile, _] = self.stub(&uki)?.around;
        match profile.options(handed) {
            StubOptions::Text { profile, .. } if profile > 0 => self.read_loader(uki.path, profile),
            _ => Ok(uki),
        }
    }

    fn stub(&self, uki: &Started) -> Result<Stub, PredictError> {
        let refuse = |source| PredictError::Stub { file: uki.path.clone(), source };
        let name = uki.magic();
        let around = match (self.options.stub, name.strip_prefix("systemd-stub ")) {
            (Some(profile), _) => [profile; 2],
            (None, Some(version)) => {
                StubProfile::around(version).ok_or_else(|| unknown(uki, &name))?
            }
            (None, None) => return Err(refuse(StubError::Foreign { what: name })),
        };
        if around.contains(&StubProfile::V252) && uki.profile.is_some() {
            return Err(refuse(StubError::Repeated));
        }
        Ok(Stub { around, name })
    }

    /// The number of the profile unless it is the first, then the name (with terminator) and content of each
    /// section.
    fn measure_sections(&mut self, profile: StubProfile, uki: &Started) {
        if let Some(number) = uki.profile.filter(|number| *number > 0) {
            let (component, pcr) = (Component::Pcr12Profile, PcrIndex::KERNEL_CONFIG);
            let number = number.to_string();
            let wide = kernel::wide(&number);
            self.push_data(component, pcr, EventKind::EVENT_TAG, &wide, &number);
        }
        if let Err(reason) = profile.check_sections(&uki.file) {
            self.give_up_all([PcrIndex::KERNEL_BOOT, PcrIndex::BOOT_FILES], &reason);
        }
        for section in profile.measured() {
            let Some(digests) = uki.file.section_digests(section.name) else {
                continue;
            };
            let pcr = PcrIndex::KERNEL_BOOT;
            let title = [section.name.as_bytes(), &[0]].concat();
            self.push_data(section.title, pcr, EventKind::IPL, &title, section.name);
            let content = Measurement::new(section.content, pcr, EventKind::IPL, digests);
            self.push(content.of_file(uki.path.clone()).about(section.name));
        }
    }

    /// The command line before add-ons: what the boot entry passes, unless Secure Boot is on and
    /// the image has its own.
    fn settle_command_line(
        &mut self,
        profile: StubProfile,
        uki: &Started,
        handed: Option<&[u8]>,
    ) -> Followed<String> {
        let handed = match profile.options(handed) {
            StubOptions::None => String::new(),
            StubOptions::Text { line, .. } => profile.command_line(line.as_bytes())?,
            StubOptions::Garbled => {
                return Err(Unpredictable::CommandLine("of the boot entry is not text"));
            }
        };
        let own = uki.file.section(".cmdline");
        let locked = self.secure_boot() == SecureBoot::On && own.is_some();
        if handed.is_empty() || locked {
            return profile.command_line(own.unwrap_or_default());
        }
        let (component, pcr) = (Component::Pcr12LoadOptions, PcrIndex::KERNEL_CONFIG);
        let wide = kernel::wide(&handed);
        self.push_data(component, pcr, EventKind::IPL, &wide, &handed);
        Ok(handed)
    }

    fn load_inner_kernel(&mut self, uki: &Started) -> Result<(), PredictError> {
        match uki.file.nested() {
            Some(Ok(kernel)) => {
                let digests = kernel.authenticode_digests();
                let component = Component::Pcr4UkiLinux;
                let file = uki.path.clone();
                self.push(Measurement::application(component, digests, file).about(".linux"));
                Ok(())
            }
            _ => Err(PredictError::UnknownLoader {
                file: uki.path.clone(),
                what: "a unified kernel image whose section .linux is not an EFI program"
                    .to_owned(),
            }),
        }
    }

    pub(super) fn push_load_options(&mut self, line: &str) {
        let (component, pcr) = (Component::Pcr9LoadOptions, PcrIndex::BOOT_FILES);
        let wide = kernel::wide(line);
        self.push_data(component, pcr, EventKind::EVENT_TAG, &wide, line);
    }

    /// The initial file system in the stub's order: microcode of add-ons in reverse order, and of
    /// the image; its own initial file system; credentials and extensions; archives of its
    /// sections; add-ons.
    fn measure_initrd(
        &mut self,
        profile: StubProfile,
        uki: &Started,
        addons: &Addons,
        sidecars: Vec<Vec<u8>>,
    ) -> Result<(), PredictError> {
        if !self.options.wants(PcrIndex::BOOT_FILES) {
            return Ok(());
        }
        let ucode = addons.with(".ucode").rev();
        let mut pieces: Vec<_> = ucode.map(|a| Piece::Section(a, ".ucode")).collect();
        let own = [".ucode", ".initrd"].into_iter();
        let own = own.filter(|name| uki.has(name) && (*name != ".ucode" || profile.has_addons()));
        pieces.extend(own.map(|name| Piece::Section(uki, name)));
        let archives = sidecars.into_iter().chain(profile.archives(&uki.file));
        pieces.extend(archives.map(Piece::Archive));
        let initrds = addons.with(".initrd");
        pieces.extend(initrds.map(|a| Piece::Section(a, ".initrd")));
        let digests = initrd::digests(self.image, self.options.banks, &pieces)?;
        if let Some(digests) = digests {
            self.push_initrd(digests, &uki.path);
        }
        Ok(())
    }

    pub(super) fn push_initrd(&mut self, digests: BankDigests, path: &str) {
        let (component, pcr) = (Component::Pcr9Initrd, PcrIndex::BOOT_FILES);
        let initrd = Measurement::new(component, pcr, EventKind::EVENT_TAG, digests);
        self.push(initrd.of_file(path).about(".initrd"));
    }
}
