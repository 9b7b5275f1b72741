//! PCR 4 of an image alone, without a machine.

use tec_core::image::ExpectedPcrs;
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_core::reference::{BootImage, ComputeError, PcrComputer};

use super::grub::GrubProfile;
use super::measurement::Measurement;
use super::platform::{PlatformState, SecureBoot};
use super::predict::BootPredictor;
use super::predict_error::PredictError;
use super::prediction::Register;

/// Computes PCR 4 of an image, whatever keys its machines have: a [`BootPredictor`] without a
/// machine.
///
/// The files are found by [`find_boot_files`](super::find_boot_files), or named with the `with_`
/// methods. Every file is hashed in full, and its embedded signature must sign that hash; who
/// signed does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainComputer {
    secure_boot: SecureBoot,
    predictor: BootPredictor,
}

impl ChainComputer {
    /// Creates a computer for machines with this state of Secure Boot.
    pub fn new(secure_boot: SecureBoot) -> Self {
        let registers = PcrSet::default().with(PcrIndex::BOOT_MANAGER);
        let predictor = BootPredictor::new().with_registers(registers);
        Self { secure_boot, predictor }
    }

    /// Uses this profile instead of the one named by GRUB's `.sbat` section.
    pub fn with_grub_profile(mut self, profile: GrubProfile) -> Self {
        self.predictor = self.predictor.with_grub_profile(profile);
        self
    }

    /// Uses this file as the kernel instead of searching for one.
    pub fn with_kernel(mut self, path: impl Into<String>) -> Self {
        self.predictor = self.predictor.with_kernel(path);
        self
    }

    /// The measurements in boot order.
    pub fn measure(&self, image: &dyn BootImage) -> Result<Vec<Measurement>, PredictError> {
        let platform = PlatformState::with_unknown_variables(self.secure_boot);
        let prediction = self.predictor.predict(image, &platform)?;
        let pcr = PcrIndex::BOOT_MANAGER;
        match prediction.register(pcr) {
            Register::Unpredictable(reason) => {
                Err(PredictError::Register { pcr, source: reason.clone() })
            }
            _ => Ok(prediction.measurements().to_vec()),
        }
    }
}

impl PcrComputer for ChainComputer {
    fn compute(&self, image: &dyn BootImage) -> Result<ExpectedPcrs, ComputeError> {
        Ok(Measurement::fold(self.measure(image)?))
    }
}

#[cfg(test)]
mod tests;
