//! Reads images in registries (OCI Distribution Specification 1.1), but only the parts that are needed.
//!
//! *What it is*: a reader. The label with PCR values is read without pulling a layer; the boot files of an
//! image are read from its layers by [`BootSource::open_parts`], which fetches single files if layers allow
//! it.
//!
//! *What it is not*: a client that pushes or lists. An image is named by its digest, and everything that a
//! registry or mirror sends is verified against that digest, so neither needs to be trusted. The digest that a
//! tag points to ([`Registry::resolve`]) is only what they say. The program chooses the TLS provider.
//!
//! ```text
//! reference@sha256:… ─► manifest, or index ─► manifest of the platform ─► config ─► label
//!                                                     └─► layers, by range ─► boot files
//! ```
//! The client is our own, since existing crates read answers of any size into memory and do not support
//! mirrors.
//!
//! [`BootSource::open_parts`]: tec_tpm::compute::input::BootSource::open_parts

mod challenge;
mod credentials;
mod document;
mod error;
mod image;
mod mirror;
mod options;
mod parts;
mod reference;
mod registry;
mod signature;
mod tag;
#[cfg(feature = "test-util")]
pub mod testing;
mod tls;
mod transport;

pub use self::credentials::{Credentials, CredentialsError};
pub use self::document::{Platform, PlatformError};
pub use self::error::RegistryError;
pub use self::image::{LABEL, RemoteImage};
pub use self::mirror::{Mirror, MirrorError};
pub use self::options::RegistryOptions;
pub use self::reference::{ImageReference, ReferenceError};
pub use self::registry::Registry;
pub use self::signature::{SignerKey, SignerKeyError};
pub use self::tag::{TagReference, TagReferenceError};
