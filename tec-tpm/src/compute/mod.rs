//! PCR values from boot files: what a shim → GRUB → kernel chain measures into PCR 4.
//!
//! *What it is*: a bounded reader of PE files that hashes them the way firmware does
//! (Authenticode), a finder of the boot files in the usual image layouts, and the sequence of
//! measurements that GRUB's version and Secure Boot make of them.
//!
//! *What it is not*: a guess. An unknown GRUB, an unsigned file under Secure Boot, or several
//! kernels with no way to choose are typed errors. Signatures are not verified, only compared
//! with what they sign.
//!
//! ```text
//! BootImage ─ find_boot_files ─► shim, GRUB, kernel ─ PeFile::read ─► Authenticode digests
//!                                          GRUB's .sbat ─ GrubProfile ─► how often the kernel
//!                                                  └──► Vec<Measurement> ─ fold ─► PCR values
//! ```
//! The ordered list of [`Measurement`]s is the model; register values are a fold over it.
//!
//! # Example
//! ```
//! # #[cfg(feature = "test-util")] {
//! use tec_core::pcr::PcrIndex;
//! use tec_core::reference::PcrComputer;
//! use tec_tpm::compute::ChainComputer;
//! use tec_tpm::compute::SecureBoot;
//! use tec_tpm::compute::testing::debian_chain;
//!
//! let image = debian_chain("2.12"); // a MemoryImage; a directory is a DirectoryImage
//! let expected = ChainComputer::new(SecureBoot::On).compute(&image)?;
//! let pcr4 = expected.pcr(PcrIndex::BOOT_MANAGER).unwrap();
//! let ids: Vec<_> = pcr4.events.iter().map(|event| event.id.as_str()).collect();
//! assert_eq!(ids, ["Pcr4EfiCall", "Pcr4Separator", "Pcr4Shim", "Pcr4Grub", "Pcr4Vmlinuz"]);
//! # }
//! # Ok::<(), tec_core::reference::ComputeError>(())
//! ```

mod authenticode;
mod authority;
mod boot;
mod boot_grub;
mod boot_uki;
mod chain;
mod cpio;
mod der;
mod directory;
mod find;
mod grub;
mod grub_script;
mod guid;
mod hash;
mod kernel;
mod layout;
mod measurement;
mod memory;
mod pe;
mod platform;
mod predict;
mod sbat;
mod shim;
mod siglist;
mod signature;
mod stub;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod varstore;
mod walk;
mod x509;

pub use authenticode::AuthenticodeError;
pub use authority::AuthorityError;
pub use chain::ChainComputer;
pub use chain::ChainError;
pub use chain::SecureBoot;
pub use der::DerError;
pub use directory::DirectoryImage;
pub use find::BootComponent;
pub use find::BootFiles;
pub use find::FindError;
pub use find::find_boot_files;
pub use grub::GrubError;
pub use grub::GrubProfile;
pub use guid::Guid;
pub use guid::ParseGuidError;
pub use hash::BankDigests;
pub use hash::Banks;
pub use layout::PeError;
pub use measurement::Component;
pub use measurement::Measurement;
pub use memory::MemoryImage;
pub use pe::PeFile;
pub use pe::PeRequest;
pub use platform::PlatformError;
pub use platform::PlatformState;
pub use predict::BootPredictor;
pub use predict::PredictError;
pub use predict::Prediction;
pub use predict::Register;
pub use predict::Unpredictable;
pub use sbat::Sbat;
pub use sbat::SbatEntry;
pub use sbat::SbatError;
pub use shim::ShimError;
pub use shim::ShimProfile;
pub use siglist::SignatureListError;
pub use signature::SignatureContentError;
pub use signature::SignatureError;
pub use signature::SignaturePresence;
pub use signature::SignedDigest;
pub use stub::StubError;
pub use stub::StubProfile;
pub use varstore::VariableStoreError;
pub use x509::UnsupportedSignature;

#[cfg(test)]
mod tests;
