//! From an image and a machine to everything that the next boot measures, as far as it follows
//! from them.

use tec_core::image::ExpectedPcrs;
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_core::reference::{BootImage, ComputeError, PcrComputer};

use super::grub::GrubProfile;
use super::hash::Banks;
use super::platform::PlatformState;
use super::predict_error::PredictError;
use super::shim::ShimProfile;
use super::stub::StubProfile;

/// Predicts PCRs 4, 7, 8, 9, 11, 12 and 14 of the next boot of an image on a machine.
///
/// Chains: shim → GRUB → kernel, shim → unified kernel image, firmware → unified kernel image, and
/// firmware → systemd-boot → unified kernel image or kernel of an entry. What starts is the file of the machine's first boot
/// entry whose file the image has, otherwise the file in the usual place. The versions of shim, GRUB and stub
/// are read from the files; the `with_` methods override them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BootPredictor {
    pub(super) banks: Banks,
    pub(super) stages: Option<(String, Option<String>)>,
    pub(super) kernel: Option<String>,
    pub(super) grub: Option<GrubProfile>,
    pub(super) stub: Option<StubProfile>,
    pub(super) shim: Option<ShimProfile>,
    pub(super) registers: Option<PcrSet>,
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
            Err(error) => Err(error.into()),
        }
    }
}

impl From<PredictError> for ComputeError {
    fn from(error: PredictError) -> Self {
        let file = error.file().unwrap_or("the boot files").to_owned();
        Self::new(file, error)
    }
}

impl BootPredictor {
    /// A predictor for the SHA-256 bank that selects everything automatically.
    pub fn new() -> Self {
        Self::default()
    }

    /// Computes these banks.
    pub fn with_banks(mut self, banks: Banks) -> Self {
        self.banks = banks;
        self
    }

    /// Uses these files: what firmware starts and, if that is shim, what shim starts.
    pub fn with_stages(mut self, first: impl Into<String>, second: Option<String>) -> Self {
        self.stages = Some((first.into(), second));
        self
    }

    /// Uses this file as the kernel that GRUB starts.
    pub fn with_kernel(mut self, path: impl Into<String>) -> Self {
        self.kernel = Some(path.into());
        self
    }

    /// Uses this profile instead of the one that GRUB's `.sbat` section names.
    pub fn with_grub_profile(mut self, profile: GrubProfile) -> Self {
        self.grub = Some(profile);
        self
    }

    /// Uses this profile instead of the one that the stub's `.sdmagic` section names.
    pub fn with_stub_profile(mut self, profile: StubProfile) -> Self {
        self.stub = Some(profile);
        self
    }

    /// Uses this profile instead of the one that shim's `.data.ident` section names.
    pub fn with_shim_profile(mut self, profile: ShimProfile) -> Self {
        self.shim = Some(profile);
        self
    }

    /// Predicts only these registers, and reads no more than they need: without PCR 9, programs are hashed
    /// once instead of twice.
    pub fn with_registers(mut self, registers: PcrSet) -> Self {
        self.registers = Some(registers);
        self
    }

    pub(super) fn wants(&self, pcr: PcrIndex) -> bool {
        self.registers.is_none_or(|registers| registers.contains(pcr))
    }

    /// Binds the predictor to a machine, so that it can be used where only an image is given.
    pub fn on(self, platform: PlatformState) -> MachinePredictor {
        MachinePredictor { predictor: self, platform }
    }
}

#[cfg(test)]
mod tests;
