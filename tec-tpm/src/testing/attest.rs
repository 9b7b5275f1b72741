//! TPMS_ATTEST structures built for a test, valid or invalid.

use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;

use crate::quote::{ALG_SHA256, ALL_PCRS, GENERATED, ST_ATTEST_QUOTE};
use crate::wire::push_sized;

/// One entry of a TPML_PCR_SELECTION.
#[derive(Clone, Debug)]
pub struct SelectionFields {
    /// TPM_ALG_ID of the bank.
    pub bank: u16,
    /// Bitmap of registers; its length is the size that is written.
    pub bitmap: Vec<u8>,
}

/// Fields of a TPMS_ATTEST (TPM 2.0 Library Part 2, "TPMS_ATTEST"); change one, and sign it with
/// [`SoftTpm::sign`](super::SoftTpm::sign).
#[derive(Clone, Debug)]
pub struct AttestFields {
    /// TPM_GENERATED_VALUE.
    pub magic: u32,
    /// TPM_ST_ATTEST_QUOTE.
    pub kind: u16,
    /// Qualified name of the key.
    pub qualified_signer: Vec<u8>,
    /// The nonce.
    pub extra_data: Vec<u8>,
    /// Milliseconds.
    pub clock_ms: u64,
    /// Number of reboots.
    pub reset_count: u32,
    /// Number of resumes.
    pub restart_count: u32,
    /// TPMI_YES_NO.
    pub safe: u8,
    /// Firmware version.
    pub firmware_version: u64,
    /// The registers that are said to be quoted.
    pub selections: Vec<SelectionFields>,
    /// SHA-256 over the values.
    pub pcr_digest: Vec<u8>,
    /// What follows the structure.
    pub trailing: Vec<u8>,
}

impl AttestFields {
    /// A valid quote over `values`.
    pub fn quote(nonce: &[u8], values: &[Sha256Digest]) -> Self {
        Self {
            magic: GENERATED,
            kind: ST_ATTEST_QUOTE,
            qualified_signer: [&ALG_SHA256.to_be_bytes()[..], &[0x51; 32]].concat(),
            extra_data: nonce.to_vec(),
            clock_ms: 60_000,
            reset_count: 1,
            restart_count: 0,
            safe: 1,
            firmware_version: 1,
            selections: vec![SelectionFields { bank: ALG_SHA256, bitmap: ALL_PCRS.to_vec() }],
            pcr_digest: Self::digest(values),
            trailing: Vec::new(),
        }
    }

    /// SHA-256 over the concatenation of values.
    pub fn digest(values: &[Sha256Digest]) -> Vec<u8> {
        values
            .iter()
            .fold(Sha256::new(), |hash, value| hash.chain_update(value.as_bytes()))
            .finalize()
            .to_vec()
    }

    /// The bytes.
    pub fn marshal(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(self.magic.to_be_bytes());
        out.extend(self.kind.to_be_bytes());
        push_sized(&mut out, &self.qualified_signer);
        push_sized(&mut out, &self.extra_data);
        out.extend(self.clock_ms.to_be_bytes());
        out.extend(self.reset_count.to_be_bytes());
        out.extend(self.restart_count.to_be_bytes());
        out.push(self.safe);
        out.extend(self.firmware_version.to_be_bytes());
        let count = u32::try_from(self.selections.len()).unwrap_or(u32::MAX);
        out.extend(count.to_be_bytes());
        for selection in &self.selections {
            out.extend(selection.bank.to_be_bytes());
            out.push(u8::try_from(selection.bitmap.len()).unwrap_or(u8::MAX));
            out.extend(&selection.bitmap);
        }
        push_sized(&mut out, &self.pcr_digest);
        out.extend(&self.trailing);
        out
    }
}
