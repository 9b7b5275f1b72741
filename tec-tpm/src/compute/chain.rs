//! The chain shim → GRUB → kernel, and what it measures into PCR 4.

use std::io;

use tec_core::image::ExpectedPcrs;
use tec_core::reference::BootImage;
use tec_core::reference::ComputeError;
use tec_core::reference::PcrComputer;

use super::find;
use super::find::FindError;
use super::grub::GrubError;
use super::grub::GrubProfile;
use super::layout::PeError;
use super::measurement::Component;
use super::measurement::Measurement;
use super::pe::PeFile;
use super::signature::SignatureError;
use super::signature::SignaturePresence;

/// State of Secure Boot on the machines that boot the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the firmware variable SecureBoot is one byte, 0 or 1 (UEFI 2.10, 3.3)"
)]
pub enum SecureBoot {
    /// Images are verified before they start.
    On,
    /// Images start without verification.
    Off,
}

/// Computes PCR 4 of a shim → GRUB → kernel chain.
///
/// The files are found by [`find_boot_files`](super::find_boot_files), or named with the `with_`
/// methods. Every file is hashed in full, and its embedded signature must sign that hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainComputer {
    secure_boot: SecureBoot,
    profile: Option<GrubProfile>,
    loaders: Option<(String, String)>,
    kernel: Option<String>,
    signatures: Signatures,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signatures {
    Checked,
    Ignored,
}

/// The measurements of a chain cannot be computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChainError {
    /// The boot files cannot be told.
    #[error("the boot files cannot be found")]
    Find(#[source] FindError),
    /// A file cannot be opened.
    #[error("cannot open {file}")]
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
    /// What this GRUB measures is not known.
    #[error("the measurements of {file} are not known")]
    Grub {
        /// Path in the image.
        file: String,
        /// Why.
        #[source]
        source: GrubError,
    },
}

impl ChainError {
    /// The file that it is about; none when files could not be found.
    pub fn file(&self) -> Option<&str> {
        match self {
            Self::Find(_) => None,
            Self::Open { file, .. }
            | Self::Pe { file, .. }
            | Self::Signature { file, .. }
            | Self::Grub { file, .. } => Some(file),
        }
    }
}

impl ChainComputer {
    /// A computer for machines with this state of Secure Boot.
    pub fn new(secure_boot: SecureBoot) -> Self {
        Self {
            secure_boot,
            profile: None,
            loaders: None,
            kernel: None,
            signatures: Signatures::Checked,
        }
    }

    /// Takes this profile instead of the one that GRUB's `.sbat` section names.
    #[must_use]
    pub fn with_grub_profile(mut self, profile: GrubProfile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Takes these files as shim and GRUB instead of searching for them.
    #[must_use]
    pub fn with_loaders(mut self, shim: impl Into<String>, grub: impl Into<String>) -> Self {
        self.loaders = Some((shim.into(), grub.into()));
        self
    }

    /// Takes this file as the kernel instead of searching for one.
    #[must_use]
    pub fn with_kernel(mut self, path: impl Into<String>) -> Self {
        self.kernel = Some(path.into());
        self
    }

    /// Takes files whose signatures are missing or do not fit.
    ///
    /// # Security
    /// Only for saying what a machine *would* measure, as simulated firmware does. The values of
    /// such files must not be approved.
    #[must_use]
    pub fn dangerous_ignore_signatures(mut self) -> Self {
        self.signatures = Signatures::Ignored;
        self
    }

    /// The measurements in the order of the boot.
    ///
    /// # Errors
    /// [`ChainError`] naming the file.
    pub fn measure(&self, image: &dyn BootImage) -> Result<Vec<Measurement>, ChainError> {
        let (shim, grub) = match &self.loaders {
            Some(loaders) => loaders.clone(),
            None => find::only_loaders(image).map_err(ChainError::Find)?,
        };
        let shim_file = self.read(image, &shim, &[])?;
        let grub_file = self.read(image, &grub, &[".sbat"])?;
        let kernel_count = self
            .profile_of(&grub, &grub_file)?
            .kernel_measurements(self.secure_boot);
        let mut measurements = vec![
            Measurement::efi_call(),
            Measurement::separator(),
            Measurement::application(Component::Pcr4Shim, shim_file.authenticode(), shim),
            Measurement::application(Component::Pcr4Grub, grub_file.authenticode(), grub),
        ];
        if kernel_count > 0 {
            let kernel = match &self.kernel {
                Some(path) => path.clone(),
                None => find::only_kernel(image).map_err(ChainError::Find)?,
            };
            let digest = self.read(image, &kernel, &[])?.authenticode();
            let measurement = Measurement::application(Component::Pcr4Vmlinuz, digest, kernel);
            measurements.extend(std::iter::repeat_n(measurement, kernel_count));
        }
        Ok(measurements)
    }

    fn read(&self, image: &dyn BootImage, path: &str, keep: &[&str]) -> Result<PeFile, ChainError> {
        let reader = image.open(path).map_err(|source| ChainError::Open {
            file: path.to_owned(),
            source,
        })?;
        let file = PeFile::read(reader, keep).map_err(|source| ChainError::Pe {
            file: path.to_owned(),
            source,
        })?;
        let presence = match self.secure_boot {
            SecureBoot::On => SignaturePresence::Required,
            SecureBoot::Off => SignaturePresence::Optional,
        };
        if self.signatures == Signatures::Checked {
            file.check_signatures(presence)
                .map_err(|source| ChainError::Signature {
                    file: path.to_owned(),
                    source,
                })?;
        }
        Ok(file)
    }

    fn profile_of(&self, path: &str, grub: &PeFile) -> Result<GrubProfile, ChainError> {
        if let Some(profile) = self.profile {
            return Ok(profile);
        }
        GrubProfile::from_sbat(grub.section(".sbat")).map_err(|source| ChainError::Grub {
            file: path.to_owned(),
            source,
        })
    }
}

impl PcrComputer for ChainComputer {
    fn compute(&self, image: &dyn BootImage) -> Result<ExpectedPcrs, ComputeError> {
        match self.measure(image) {
            Ok(measurements) => Ok(Measurement::fold(measurements)),
            Err(error) => {
                let file = error.file().unwrap_or("the boot files").to_owned();
                Err(ComputeError::new(file, error))
            }
        }
    }
}
