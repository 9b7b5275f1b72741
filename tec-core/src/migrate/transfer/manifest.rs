//! The first line of a transfer.

use serde::{Deserialize, Serialize};

use super::{Recipient, SignerKey, TransferError, VERSION};
use crate::digest::Sha256Digest;
use crate::migrate::Authority;
use crate::time::Timestamp;

/// File type that every transfer states.
const KIND: &str = "tec-transfer";

/// Description of a transfer, for humans and for the program that reads it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Manifest {
    kind: String,
    version: u32,
    /// Record of the source when the transfer was created.
    pub source: Authority,
    /// When the transfer was created.
    pub made_at: Timestamp,
    /// Last line of the source's audit log then, as number and hash (`1042:d914…`). The log is not in the transfer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit_head: Option<String>,
    /// The recipient that it is sealed to.
    pub recipient: Recipient,
    /// The key that signed it.
    pub signer: SignerKey,
    /// The encapsulated key of HPKE, hexadecimal.
    pub(super) key: String,
}

/// The members that are read first; newer programs keep them, whatever else they write.
#[derive(Deserialize)]
struct Head {
    kind: String,
    version: u32,
}

impl Manifest {
    pub(super) fn new(
        (source, made_at, audit_head): (&Authority, Timestamp, Option<&str>),
        recipient: Recipient,
        signer: SignerKey,
        key: &[u8],
    ) -> Self {
        Self {
            kind: KIND.to_owned(),
            version: VERSION,
            source: *source,
            made_at,
            audit_head: audit_head.map(str::to_owned),
            recipient,
            signer,
            key: hex::encode(key),
        }
    }

    pub(super) fn parse(line: &[u8]) -> Result<Self, TransferError> {
        let head: Head = serde_json::from_slice(line)
            .map_err(|_| TransferError::malformed("the first line is not a manifest"))?;
        if head.kind != KIND {
            return Err(TransferError::malformed("the manifest is of another kind"));
        }
        if head.version > VERSION {
            return Err(TransferError::Newer { found: head.version, known: VERSION });
        }
        serde_json::from_slice(line)
            .map_err(|error| TransferError::malformed(format!("the manifest: {error}")))
    }

    pub(super) fn line(&self) -> Result<Vec<u8>, TransferError> {
        serde_json::to_vec(self)
            .map_err(|error| TransferError::malformed(format!("the manifest: {error}")))
    }
}

/// Domain of the additional data: label ‖ SHA-256 of the manifest line ‖ 0, or 1 for the last part.
const LABEL: &[u8] = b"tec transfer part v1\0";
/// The application's info of HPKE (RFC 9180, section 5.1).
pub(super) const INFO: &[u8] = b"tec transfer v1";

/// Additional data of a part.
pub(super) fn additional_data(line: &[u8], last: bool) -> Vec<u8> {
    let digest = Sha256Digest::of(line);
    [LABEL, digest.as_bytes(), &[u8::from(last)]].concat()
}
