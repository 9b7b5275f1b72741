//! The shim of the running boot, which wrote the mirrors of its lists.

use std::io::Read;

use tec_core::digest::Sha256Digest;

use super::layout::PeError;
use super::pe::PeFile;
use super::shim_error::ShimError;
use super::vendor::VendorLists;

/// The shim of the running boot.
///
/// A running system shows the machine owner's keys only in shim's mirrors, after the keys of shim's vendor.
/// If the next boot has another shim, this one determines where the owner's keys begin.
///
/// # Security
/// The mirrors must begin with the vendor's keys of this shim. That does not prove that this shim wrote them:
/// compare [`authenticode`](Self::authenticode) with the event log of the running boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningShim {
    authenticode: Sha256Digest,
    lists: VendorLists,
}

/// The shim of the running boot cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunningShimError {
    /// It is not a program for firmware.
    #[error("cannot read the program")]
    Read(#[source] PeError),
    /// It is not shim.
    #[error("cannot read the vendor's keys of the running shim")]
    Keys(#[source] ShimError),
}

impl RunningShim {
    /// Reads the program.
    ///
    /// # Errors
    /// [`RunningShimError`] if it is not shim.
    pub fn read(program: impl Read) -> Result<Self, RunningShimError> {
        let file = PeFile::read(program, &[".vendor_cert"]).map_err(RunningShimError::Read)?;
        let lists = VendorLists::of(&file).map_err(RunningShimError::Keys)?;
        Ok(Self { authenticode: file.authenticode(), lists })
    }

    /// What the firmware measured into PCR 4 if this shim was started.
    pub fn authenticode(&self) -> Sha256Digest {
        self.authenticode
    }

    pub(super) fn lists(&self) -> &VendorLists {
        &self.lists
    }
}
