//! The boot, step by step: which program is started next, and what verifies it.

use std::collections::BTreeMap;

use tec_core::pcr::PcrIndex;
use tec_core::reference::BootImage;

use super::authority::Authority;
use super::hash::BankDigests;
use super::load_options;
use super::measurement::{Component, Measurement};
use super::pe::PeFile;
use super::platform::{PlatformState, SecureBoot};
use super::predict::BootPredictor;
use super::predict_error::PredictError;
use super::prediction::Prediction;
use super::shim::Shim;
use super::signature;
use super::signature::SignaturePresence;
use super::unpredictable::Unpredictable;
use crate::event_log::EventKind;

/// A boot in progress.
#[derive(Clone)]
pub(super) struct Boot<'b> {
    pub(super) options: &'b BootPredictor,
    pub(super) image: &'b dyn BootImage,
    pub(super) platform: &'b PlatformState,
    pub(super) guard: Guard,
    state: SecureBoot,
    measurements: Vec<Measurement>,
    unpredictable: BTreeMap<PcrIndex, Unpredictable>,
    /// Firmware and shim each measure an authority only once.
    pub(super) firmware_authorities: Vec<Authority>,
    pub(super) shim_authorities: Vec<Authority>,
}

/// What verifies the program that is started next.
#[derive(Clone, Debug)]
pub(super) enum Guard {
    Firmware,
    Shim(Box<Shim>),
}

/// A started file, with its path.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) path: String,
    pub(super) file: PeFile,
    /// The profile whose sections were chosen; `None` if no choice was needed.
    pub(super) profile: Option<u32>,
}

/// Maximum length of a quoted text in which a file describes itself.
const MAX_MAGIC: usize = 64;
impl BootPredictor {
    /// Predicts the next boot.
    ///
    /// # Errors
    /// [`PredictError`], which names the file. A register that cannot be predicted is not an error: the
    /// prediction lists it with the reason.
    ///
    /// # Security
    /// With Secure Boot on, every image must be allowed by a key of the machine or of shim: the
    /// signatures are verified. With Secure Boot off they only have to match their files.
    pub fn predict(
        &self,
        image: &dyn BootImage,
        platform: &PlatformState,
    ) -> Result<Prediction, PredictError> {
        let mut boot = Boot::new(self, image, platform)?;
        boot.run()?;
        let (mut measurements, mut unpredictable) = boot.finish();
        measurements.retain(|measurement| self.wants(measurement.pcr));
        for pcr in PcrIndex::all().filter(|pcr| !self.wants(*pcr)) {
            unpredictable.insert(pcr, Unpredictable::NotAsked);
        }
        Ok(Prediction::new(measurements, unpredictable, self.banks))
    }
}

impl<'b> Boot<'b> {
    pub(super) fn new(
        options: &'b BootPredictor,
        image: &'b dyn BootImage,
        platform: &'b PlatformState,
    ) -> Result<Self, PredictError> {
        let mut boot = Self {
            options,
            image,
            platform,
            guard: Guard::Firmware,
            state: platform.secure_boot().map_err(PredictError::Platform)?,
            measurements: Vec::new(),
            unpredictable: BTreeMap::new(),
            firmware_authorities: Vec::new(),
            shim_authorities: Vec::new(),
        };
        for pcr in PcrIndex::all() {
            match u8::from(pcr) {
                0..=3 | 5 | 6 => boot.give_up(pcr, Unpredictable::Firmware),
                4 | 7 | 8 | 9 | 11 | 12 | 14 => {}
                _ => boot.give_up(pcr, Unpredictable::OperatingSystem),
            }
        }
        if !platform.knows_keys() {
            boot.give_up(PcrIndex::SECURE_BOOT, Unpredictable::Keys);
        }
        Ok(boot)
    }

    pub(super) fn finish(self) -> (Vec<Measurement>, BTreeMap<PcrIndex, Unpredictable>) {
        (self.measurements, self.unpredictable)
    }

    pub(super) fn run(&mut self) -> Result<(), PredictError> {
        self.measure_variables();
        let banks = self.options.banks;
        self.push(Measurement::efi_call(banks));
        self.push(Measurement::separator(Component::Pcr4Separator, PcrIndex::BOOT_MANAGER, banks));
        let (first, second) = self.stages()?;
        let handed = load_options::of_file(self.platform, &first);
        let first = self.read_loader(first, 0)?;
        self.allow(&first, Role::First)?;
        if first.is_uki() {
            let uki = self.choose_profile(first, handed.as_deref())?;
            self.push_image(Component::Pcr4Uki, &uki);
            return self.start_uki(&uki, handed.as_deref());
        }
        if first.file.section(".vendor_cert").is_none() {
            return self.start_other(first, handed.is_some());
        }
        self.push_image(Component::Pcr4Shim, &first);
        self.check_fallback(&first.path)?;
        if handed.is_some_and(|options| load_options::count_for_shim(&options)) {
            return Err(PredictError::LoadOptions(first.path));
        }
        match second {
            Some(second) => self.start_second(&first, second),
            None => Err(PredictError::NoSecondStage(first.path)),
        }
    }

    /// A loader that is not shim.
    fn start_other(&mut self, loader: Started, has_options: bool) -> Result<(), PredictError> {
        let magic = loader.magic();
        match magic.strip_prefix("systemd-boot ") {
            Some(version) => self.start_manager(&loader, version, has_options),
            None => Err(PredictError::UnknownLoader { file: loader.path, what: magic }),
        }
    }

    /// The program that shim starts.
    fn start_second(&mut self, shim: &Started, second: String) -> Result<(), PredictError> {
        self.start_shim(shim)?;
        let second = self.read_loader(second, 0)?;
        if second.is_uki() {
            self.allow(&second, Role::Uki)?;
            self.push_image(Component::Pcr4Uki, &second);
            return self.start_uki(&second, None);
        }
        self.allow(&second, Role::Grub)?;
        self.push_image(Component::Pcr4Grub, &second);
        self.start_grub(&second)
    }

    /// Whether the firmware verifies images, according to the variable `SecureBoot`.
    pub(super) fn secure_boot(&self) -> SecureBoot {
        self.state
    }

    /// Whether the next program is verified: shim stops verifying when the user tells it to, and
    /// GRUB then behaves as if Secure Boot were off.
    pub(super) fn verification(&self) -> SecureBoot {
        match &self.guard {
            Guard::Shim(shim) if !shim.verifies() => SecureBoot::Off,
            _ => self.state,
        }
    }

    pub(super) fn push(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }

    pub(super) fn push_image(&mut self, component: Component, started: &Started) {
        let digests = started.file.authenticode_digests();
        self.push(Measurement::application(component, digests, started.path.clone()));
    }

    /// Measures raw bytes.
    pub(super) fn push_data(
        &mut self,
        component: Component,
        pcr: PcrIndex,
        kind: EventKind,
        data: &[u8],
        subject: &str,
    ) {
        let digests = BankDigests::of(self.options.banks, data);
        self.push(Measurement::new(component, pcr, kind, digests).about(subject));
    }

    /// Records that a register cannot be predicted; the first reason counts.
    pub(super) fn give_up(&mut self, pcr: PcrIndex, reason: Unpredictable) {
        self.unpredictable.entry(pcr).or_insert(reason);
    }

    pub(super) fn gave_up(&self, pcr: PcrIndex) -> bool {
        self.unpredictable.contains_key(&pcr)
    }

    /// Continues in one of two ways, and it is not known in which: a register on which they do not agree
    /// cannot be predicted.
    pub(super) fn agree<W: Copy + PartialEq>(
        &mut self,
        [one, other]: [W; 2],
        reason: &Unpredictable,
        go: impl Fn(&mut Self, W) -> Result<(), PredictError>,
    ) -> Result<(), PredictError> {
        if one == other {
            return go(self, one);
        }
        let mut second = self.clone();
        go(self, one)?;
        go(&mut second, other)?;
        for pcr in PcrIndex::all() {
            let of = |boot: &Self| {
                let measured = boot.measurements.iter().filter(|m| m.pcr == pcr);
                measured.map(|m| m.digests).collect::<Vec<_>>()
            };
            if second.gave_up(pcr) || of(self) != of(&second) {
                self.give_up(pcr, reason.clone());
            }
        }
        Ok(())
    }

    /// Records that several registers cannot be predicted.
    pub(super) fn give_up_all(
        &mut self,
        pcrs: impl IntoIterator<Item = PcrIndex>,
        reason: &Unpredictable,
    ) {
        for pcr in pcrs {
            self.give_up(pcr, reason.clone());
        }
    }
}

/// The role of a file in the boot, which decides how its authority is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The program that the firmware starts.
    First,
    /// GRUB, started by shim.
    Grub,
    /// A unified kernel image, started by shim.
    Uki,
    /// The kernel, started by GRUB.
    Kernel,
    /// An add-on of a unified kernel image.
    Addon,
}

impl Started {
    pub(super) fn is_uki(&self) -> bool {
        self.file.sections().any(|name| name == ".linux")
    }

    /// What the file states about itself.
    pub(super) fn magic(&self) -> String {
        let Some(magic) = self.file.section(".sdmagic") else {
            let has = |name| self.file.sections().any(|section| section == name);
            return match (has(".linuxh"), has(".linux")) {
                (true, _) => "an image of lanzaboote, with the hash of a kernel",
                (_, true) => "a unified kernel image without a section .sdmagic",
                _ => "neither shim nor a unified kernel image",
            }
            .to_owned();
        };
        let text = String::from_utf8_lossy(magic);
        let text = text.trim_matches(|c| ['#', ' ', '\0'].contains(&c));
        let text = text.strip_prefix("LoaderInfo: ").unwrap_or(text);
        text.chars().take(MAX_MAGIC).collect()
    }

    /// Compares the signatures with the digests that a verifier computes.
    pub(super) fn check_signatures(
        &self,
        digests: &BankDigests,
        presence: SignaturePresence,
    ) -> Result<(), PredictError> {
        let refuse = |source| PredictError::Signature { file: self.path.clone(), source };
        let signed = self.file.signed_digests().map_err(refuse)?;
        signature::check(&signed, digests, presence).map_err(refuse)
    }
}
