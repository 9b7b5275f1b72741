//! PCR values from boot files: what the next boot of an image will measure.
//!
//! *What it is*: a bounded reader of PE files that hashes them the way firmware does
//! (Authenticode), a finder of the boot files in the usual image layouts, a verifier of their
//! signatures, and the rules by which firmware, shim, GRUB, systemd-stub and the kernel's own EFI
//! stub measure. [`BootPredictor`] gives PCRs 4, 7, 8, 9, 11, 12 and 14 of an image on a machine;
//! [`ChainComputer`] is the same for PCR 4 of an image alone.
//!
//! *What it is not*: a guess. An unknown shim, GRUB or stub, a file that the machine would refuse, and
//! several kernels without a way to choose one are typed errors; a register that does not follow from image
//! and machine is [`Register::Unpredictable`], with the reason. What was taken from the log of an earlier
//! boot is [`Register::Recorded`], not predicted.
//!
//! Images are directories ([`DirectoryImage`]) or are in memory ([`MemoryImage`]); the feature `images` adds
//! disks, archives and OCI image layouts (`input::BootSource`).
//!
//! ```text
//! BootImage ─ find ─► files ─ PeFile::read_as ─► digests in all banks, sections, signatures
//!                                                      │
//! PlatformState (variables) ───────────────────────────┼─► who allows whom, which lists
//! profiles of shim, GRUB, stub (from the files) ───────┘
//!            └──► Vec<Measurement> in the order of the boot ─ fold ─► PCR values
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
//!
//! The same for a machine, here one without keys that starts a unified kernel image:
//! ```
//! # #[cfg(feature = "test-util")] {
//! use tec_core::pcr::PcrIndex;
//! use tec_tpm::compute::BootPredictor;
//! use tec_tpm::compute::MemoryImage;
//! use tec_tpm::compute::PlatformState;
//! use tec_tpm::compute::Register;
//! use tec_tpm::compute::Unpredictable;
//! use tec_tpm::compute::testing::PeBuilder;
//! use tec_tpm::compute::testing::application;
//!
//! let uki = PeBuilder::new()
//!     .section(".sdmagic", "#### LoaderInfo: systemd-stub 262.1 ####")
//!     .section(".linux", application("Linux"));
//! let image = MemoryImage::new().with("EFI/BOOT/BOOTX64.EFI", uki.build());
//! let machine = PlatformState::new(); // or from_efivars, from_variable_store
//! let prediction = BootPredictor::new().predict(&image, &machine)?;
//!
//! assert!(matches!(prediction.register(PcrIndex::KERNEL_BOOT), Register::Predicted(_)));
//! let why = prediction.register(PcrIndex::BOOT_FILES); // stub 262 adds a secret
//! assert_eq!(why, Register::Unpredictable(&Unpredictable::BootSecret));
//! # }
//! # Ok::<(), tec_tpm::compute::PredictError>(())
//! ```

mod authenticode;
mod authority;
mod boot;
mod boot_addon;
mod boot_entry;
mod boot_firmware;
mod boot_grub;
mod boot_manager;
mod boot_read;
mod boot_shim;
mod boot_sidecar;
mod boot_uki;
mod chain;
mod cpio;
mod dbx;
mod der;
mod directory;
mod find;
mod firmware_form;
mod grub;
mod grub_host;
mod grub_module;
mod grub_script;
mod grub_tree;
mod hash;
mod initrd;
#[cfg(feature = "images")]
pub mod input;
mod kernel;
mod layout;
mod load_options;
mod measurement;
mod memory;
mod pe;
mod platform;
mod predict;
mod predict_error;
mod prediction;
mod resolve;
mod running_shim;
mod sbat;
mod shim;
mod shim_error;
mod shim_variable;
mod siglist;
mod signature;
mod stub;
#[cfg(any(test, feature = "test-util"))]
pub mod testing;
mod uki_table;
mod unpredictable;
mod varstore;
mod vendor;
mod verifier;
mod x509;

pub use crate::guid::{Guid, ParseGuidError};
pub use authenticode::AuthenticodeError;
pub use authority::AuthorityError;
pub use chain::ChainComputer;
pub use dbx::DbxUpdateError;
pub use der::DerError;
pub use directory::DirectoryImage;
pub use find::{BootComponent, BootFiles, FindError, find_boot_files};
pub use grub::{GrubError, GrubProfile};
pub use hash::{BankDigests, Banks};
pub use layout::PeError;
pub use measurement::{Component, Measurement};
pub use memory::MemoryImage;
pub use pe::{PeFile, PeRequest};
pub use platform::{PlatformError, PlatformState, SecureBoot};
pub use predict::{BootPredictor, MachinePredictor};
pub use predict_error::PredictError;
pub use prediction::{Prediction, Register};
pub use running_shim::{RunningShim, RunningShimError};
pub use sbat::{Sbat, SbatEntry, SbatError, SbatRevocation};
pub use shim::ShimProfile;
pub use shim_error::ShimError;
pub use siglist::SignatureListError;
pub(crate) use siglist::entry_digests;
#[cfg(test)]
pub(crate) use siglist::{X509, one as list_of_one};
pub use signature::{SignatureError, SignaturePresence, SignedDigest};
pub use stub::{StubError, StubProfile};
pub use unpredictable::Unpredictable;
pub use varstore::VariableStoreError;
pub use x509::UnsupportedSignature;
pub(crate) use x509::{rsa_scheme, verify_ecdsa};

#[cfg(test)]
mod tests;
