//! Trust in one file: for backups, and for anchors without a network between them (feature
//! `transfer`).
//!
//! ```text
//! {"kind":"tec-transfer","version":1,…}\n      the manifest: one line of JSON that anybody can read
//! <128 hexadecimal digits>\n                   Ed25519 of the source over that line
//! length ‖ part                                HPKE for the target's key, any number of parts
//! length ‖ last part                           empty; without it the file is cut off
//! ```
//! *What it is*: a stream. Neither side holds more than a part in memory.
//!
//! *What it is not*: a proof that the source gave up the authority. Restoring a transfer takes the
//! authority only if the source is lost permanently.
//!
//! # Security
//! Parts are sealed with HPKE (RFC 9180) in base mode: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256,
//! AES-256-GCM. The signed manifest contains the encapsulated key, so that only its signer could
//! seal the parts, and its digest is additional data of each part. HPKE itself numbers the parts,
//! so they cannot be omitted, repeated or reordered.

mod error;
mod key;
mod manifest;
mod part;
mod read;
mod write;

pub use self::error::TransferError;
pub use self::key::{Identity, ParseKeyError, Recipient, Signer, SignerKey};
pub use self::manifest::Manifest;
pub use self::part::{Document, Part};
pub use self::read::TransferReader;
pub use self::write::TransferWriter;

/// Version that this program writes, and the highest that it reads.
pub const VERSION: u32 = 1;

#[cfg(test)]
mod tests;
