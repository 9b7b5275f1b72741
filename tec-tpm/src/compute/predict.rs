//! From an image and a machine to everything that the next boot measures, as far as it follows
//! from them.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::pcr::PcrSet;
use tec_core::reference::BootImage;
use tec_core::reference::ComputeError;
use tec_core::reference::PcrComputer;

use super::authority::AuthorityError;
use super::boot::Boot;
use super::find::FindError;
use super::grub::GrubError;
use super::grub::GrubProfile;
use super::hash::BankDigests;
use super::hash::Banks;
use super::layout::PeError;
use super::measurement::Component;
use super::measurement::Measurement;
use super::platform::PlatformError;
use super::platform::PlatformState;
use super::shim::ShimError;
use super::shim::ShimProfile;
use super::signature::SignatureError;
use super::stub::StubError;
use super::stub::StubProfile;
use crate::event_log::Event;
use crate::event_log::VerifiedLog;

/// Predicts PCRs 4, 7, 8, 9, 11, 12 and 14 of the next boot of an image on a machine.
///
/// Chains: shim → GRUB → kernel, shim → unified kernel image, firmware → unified kernel image.
/// Which shim, GRUB and stub these are is read from the files; the `with_` methods override that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootPredictor {
    pub(super) banks: Banks,
    pub(super) stages: Option<(String, Option<String>)>,
    pub(super) kernel: Option<String>,
    pub(super) grub: Option<GrubProfile>,
    pub(super) stub: Option<StubProfile>,
    pub(super) shim: Option<ShimProfile>,
    registers: Option<PcrSet>,
}

/// A [`BootPredictor`] for one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachinePredictor {
    predictor: BootPredictor,
    platform: PlatformState,
}

impl PcrComputer for MachinePredictor {
    fn compute(&self, image: &dyn BootImage) -> Result<ExpectedPcrs, ComputeError> {
        match self.predictor.predict(image, &self.platform) {
            Ok(prediction) => Ok(prediction.expected()),
            Err(error) => {
                let file = error.file().unwrap_or("the boot files").to_owned();
                Err(ComputeError::new(file, error))
            }
        }
    }
}

/// What a boot measures, in order, and which registers cannot be told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prediction {
    measurements: Vec<Measurement>,
    unpredictable: BTreeMap<PcrIndex, Unpredictable>,
    banks: Banks,
}

/// What is known about one register.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Register<'p> {
    /// Its values in all banks that were computed.
    Predicted(BankDigests),
    /// It does not follow from image and machine.
    Unpredictable(&'p Unpredictable),
}

/// Why a register does not follow from image and machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unpredictable {
    /// Code, settings and devices of the machine.
    #[error("the firmware measures its own code, settings and devices; take it from a log")]
    Firmware,
    /// The keys of the machine were not given.
    #[error("it holds the keys of the machine, which were not given")]
    Keys,
    /// The lists of machine owner keys were not given.
    #[error("it holds the machine owner keys, which were not given")]
    MokLists,
    /// The register was not asked for.
    #[error("it was not asked for")]
    NotAsked,
    /// Measured after the boot chain.
    #[error("the running system measures it")]
    OperatingSystem,
    /// systemd-stub from version 258 on adds a secret of the machine to the initial file system.
    #[error("the stub adds a secret of the machine to the initial file system")]
    BootSecret,
    /// GRUB's script does more than is followed here.
    #[error("line {line} of {file} is not followed: {reason}")]
    Script {
        /// File.
        file: String,
        /// Line, from 1.
        line: usize,
        /// What is not followed.
        reason: &'static str,
    },
    /// There is no script where this GRUB looks for it.
    #[error("there is no {file} that says what GRUB does")]
    NoScript {
        /// File that was looked for.
        file: String,
    },
    /// GRUB 2.06 measures the name of its partition, and the machine's state does not say it.
    #[error("GRUB measures the name of its partition, which was not given")]
    GrubDevice,
    /// Vendors change what GRUB measures of its scripts and files.
    #[error("what this vendor's GRUB measures of scripts and files is not known")]
    GrubVendor,
    /// The kernel has not been observed.
    #[error("whether kernel {version} measures its command line and initrd is not known")]
    KernelVersion {
        /// Its version.
        version: String,
    },
    /// An option of the kernel changes what it loads.
    #[error("the kernel's option {option} changes what it loads")]
    KernelOption {
        /// The option.
        option: String,
    },
    /// The kernel's command line cannot be told.
    #[error("the command line {reason}")]
    CommandLine {
        /// What is the matter with it.
        reason: &'static str,
    },
    /// A section whose use depends on the machine or on a choice, or that is not followed.
    #[error("how section {section} is used does not follow from the image")]
    Section {
        /// Its name.
        section: String,
    },
    /// A file beside the boot files adds to what is measured, which is not followed.
    #[error("{file} adds to what is measured, which is not followed")]
    Sidecar {
        /// File.
        file: String,
    },
    /// The user has told shim not to verify what it starts.
    #[error("shim does not verify on this machine, which has not been observed")]
    Insecure,
}

/// The next boot cannot be predicted at all.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The boot files cannot be told.
    #[error("the boot files cannot be found")]
    Find(#[source] FindError),
    /// The variables contradict themselves.
    #[error("the state of the machine cannot be read")]
    Platform(#[source] PlatformError),
    /// A file cannot be opened or read.
    #[error("cannot read {file}")]
    Open {
        /// Path in the image.
        file: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be hashed.
    #[error("cannot hash {file}")]
    Pe {
        /// Path in the image.
        file: String,
        /// Why.
        #[source]
        source: PeError,
    },
    /// The signature in a file does not fit the file.
    #[error("the signature of {file} does not fit")]
    Signature {
        /// Path in the image.
        file: String,
        /// Why.
        #[source]
        source: SignatureError,
    },
    /// Who allows a file to start cannot be told, or nobody does.
    #[error("cannot tell who allows {file} to start")]
    Authority {
        /// Path in the image.
        file: String,
        /// Why.
        #[source]
        source: AuthorityError,
    },
    /// What this shim measures is not known.
    #[error("the measurements of {file} are not known")]
    Shim {
        /// Path in the image.
        file: String,
        /// Why.
        #[source]
        source: ShimError,
    },
    /// What this GRUB measures is not known.
    #[error("the measurements of {file} are not known")]
    Grub {
        /// Path in the image.
        file: String,
        /// Why.
        #[source]
        source: GrubError,
    },
    /// What this stub measures is not known.
    #[error("the measurements of {file} are not known")]
    Stub {
        /// Path in the image.
        file: String,
        /// Why.
        #[source]
        source: StubError,
    },
    /// A file is neither shim nor a unified kernel image.
    #[error("{file} is neither shim nor a unified kernel image")]
    UnknownLoader {
        /// Path in the image.
        file: String,
    },
    /// shim starts a file that the image does not have.
    #[error("there is nothing that {file} would start")]
    NoSecondStage {
        /// Path of shim.
        file: String,
    },
}

impl PredictError {
    /// The file that it is about; none when files could not be found or a variable is at fault.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Find(_) | Self::Platform(_) => None,
            Self::Open { file, .. }
            | Self::Pe { file, .. }
            | Self::Signature { file, .. }
            | Self::Authority { file, .. }
            | Self::Shim { file, .. }
            | Self::Grub { file, .. }
            | Self::Stub { file, .. }
            | Self::UnknownLoader { file }
            | Self::NoSecondStage { file } => Some(file),
        }
    }
}

impl BootPredictor {
    /// A predictor for the SHA-256 bank that finds everything by itself.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes these banks.
    #[must_use]
    pub fn with_banks(mut self, banks: Banks) -> Self {
        self.banks = banks;
        self
    }

    /// Takes these files: what firmware starts and, if that is shim, what shim starts.
    #[must_use]
    pub fn with_stages(mut self, first: impl Into<String>, second: Option<String>) -> Self {
        self.stages = Some((first.into(), second));
        self
    }

    /// Takes this file as the kernel that GRUB starts.
    #[must_use]
    pub fn with_kernel(mut self, path: impl Into<String>) -> Self {
        self.kernel = Some(path.into());
        self
    }

    /// Takes this profile instead of the one that GRUB's `.sbat` section names.
    #[must_use]
    pub fn with_grub_profile(mut self, profile: GrubProfile) -> Self {
        self.grub = Some(profile);
        self
    }

    /// Takes this profile instead of the one that the stub's `.sdmagic` section names.
    #[must_use]
    pub fn with_stub_profile(mut self, profile: StubProfile) -> Self {
        self.stub = Some(profile);
        self
    }

    /// Takes this profile instead of the one that shim's `.data.ident` section names.
    #[must_use]
    pub fn with_shim_profile(mut self, profile: ShimProfile) -> Self {
        self.shim = Some(profile);
        self
    }

    /// Predicts these registers only, and reads no more than they need: without PCR 9, programs
    /// are hashed once instead of twice.
    #[must_use]
    pub fn with_registers(mut self, registers: PcrSet) -> Self {
        self.registers = Some(registers);
        self
    }

    pub(super) fn wants(&self, pcr: PcrIndex) -> bool {
        self.registers
            .is_none_or(|registers| registers.contains(pcr))
    }

    /// Binds the predictor to a machine, so that it can stand where images alone are computed.
    pub fn on(self, platform: PlatformState) -> MachinePredictor {
        MachinePredictor {
            predictor: self,
            platform,
        }
    }

    /// Predicts the next boot.
    ///
    /// # Errors
    /// [`PredictError`] naming the file. A register that cannot be told is no error: the
    /// prediction says which and why.
    ///
    /// # Security
    /// With Secure Boot on, every image must be allowed by a key of the machine or of shim: the
    /// signatures are verified. With Secure Boot off, or on a machine whose keys are not known,
    /// they must fit their files, and nothing more.
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
        Ok(Prediction {
            measurements,
            unpredictable,
            banks: self.banks,
        })
    }
}

impl Prediction {
    /// All measurements in the order of the boot; those of unpredictable registers are not all.
    pub fn measurements(&self) -> &[Measurement] {
        &self.measurements
    }

    /// The measurements of one register, in order.
    pub fn of_register(&self, pcr: PcrIndex) -> impl Iterator<Item = &Measurement> {
        self.measurements.iter().filter(move |m| m.pcr == pcr)
    }

    /// What is known about one register.
    pub fn register(&self, pcr: PcrIndex) -> Register<'_> {
        if let Some(reason) = self.unpredictable.get(&pcr) {
            return Register::Unpredictable(reason);
        }
        let value = self
            .of_register(pcr)
            .fold(BankDigests::zero(self.banks), |value, measurement| {
                value.extended(&measurement.digests)
            });
        Register::Predicted(value)
    }

    /// The registers whose values are predicted.
    pub fn predicted(&self) -> PcrSet {
        let known = |pcr: &PcrIndex| !self.unpredictable.contains_key(pcr);
        PcrIndex::all().filter(known).collect()
    }

    /// The registers that are not, each with the reason.
    pub fn unpredictable(&self) -> impl Iterator<Item = (PcrIndex, &Unpredictable)> {
        self.unpredictable
            .iter()
            .map(|(pcr, reason)| (*pcr, reason))
    }

    /// Takes registers that the firmware makes (0 to 3, 5 and 6) from the log of an earlier boot of
    /// the machine, in the SHA-256 bank, which is the one that was verified.
    ///
    /// Only registers that are not predicted are taken. PCR 0 stays unpredictable if the TPM was
    /// started at another locality than 0, as its value then does not start at zero.
    #[must_use]
    pub fn with_recorded(mut self, log: &VerifiedLog<'_>, registers: PcrSet) -> Self {
        for pcr in registers.iter() {
            let is_firmware = self.unpredictable.get(&pcr) == Some(&Unpredictable::Firmware);
            let at_zero = u8::from(pcr) != 0 || log.startup_locality() == 0;
            if !is_firmware || !at_zero || !log.registers().contains(pcr) {
                continue;
            }
            self.unpredictable.remove(&pcr);
            let events = log.events().filter(|event| event.pcr == Some(pcr));
            self.measurements.extend(events.filter_map(recorded));
        }
        self
    }

    /// The SHA-256 values of the predicted registers that something is measured into.
    pub fn expected(&self) -> ExpectedPcrs {
        let predicted = self.predicted();
        let known = self.measurements.iter();
        Measurement::fold(known.filter(|m| predicted.contains(m.pcr)).cloned())
    }
}

fn recorded(event: &Event<'_>) -> Option<Measurement> {
    let digest = Sha256Digest::new(*event.digests.sha256?);
    let digests = BankDigests::from_sha256(digest);
    let recorded = Measurement::new(Component::Recorded, event.pcr?, event.kind, digests);
    Some(match event.detail() {
        Some(detail) => recorded.about(detail),
        None => recorded,
    })
}

impl fmt::Display for Register<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Predicted(value) => value.sha256().fmt(f),
            Self::Unpredictable(reason) => reason.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests;
