//! The two commands needed for a quote, sent directly to the kernel's TPM device: this program is the whole
//! system.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};

/// TPM_ST_SESSIONS (TPM 2.0 Library Part 2, "TPM_ST").
const ST_SESSIONS: u16 = 0x8002;
/// TPM_CC_CreatePrimary (Part 2, "TPM_CC").
const CC_CREATE_PRIMARY: u32 = 0x131;
/// TPM_CC_Quote (Part 2, "TPM_CC").
const CC_QUOTE: u32 = 0x158;
/// TPM_RH_ENDORSEMENT (Part 2, "TPM_RH").
const RH_ENDORSEMENT: u32 = 0x4000_000b;
/// TPM_RS_PW (Part 2, "TPM_RH"): authorization by password.
const RS_PASSWORD: u32 = 0x4000_0009;
/// TPM_ALG_ECC, _SHA256, _ECDSA, _NULL (TCG Algorithm Registry, "TPM_ALG_ID").
const ALG_ECC: u16 = 0x0023;
const ALG_SHA256: u16 = 0x000b;
const ALG_ECDSA: u16 = 0x0018;
const ALG_NULL: u16 = 0x0010;
/// TPM_ECC_NIST_P256 (TCG Algorithm Registry, "TPM_ECC_CURVE").
const CURVE_P256: u16 = 0x0003;
/// fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, restricted, sign (Part 2,
/// "TPMA_OBJECT").
const ATTESTATION_KEY: u32 = 0x0005_0072;
/// PCRs 0 to 23 (Part 2, "TPMS_PCR_SELECT").
const ALL_PCRS: [u8; 4] = [3, 0xff, 0xff, 0xff];
/// Tag, size, response code (Part 3, "Command/Response Structure").
const HEADER: usize = 10;
/// Largest response; TPMs announce at most 4096 bytes as TPM_PT_MAX_RESPONSE_SIZE.
const MAX_RESPONSE: usize = 4096;

/// A quote with everything needed to verify it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Quote {
    /// Attestation key, as TPM2B_PUBLIC.
    pub key: Vec<u8>,
    /// The signed data, a TPMS_ATTEST.
    pub message: Vec<u8>,
    /// Its signature, a TPMT_SIGNATURE.
    pub signature: Vec<u8>,
}

/// Creates an attestation key and has it quote PCRs 0 to 23 of the SHA-256 bank.
pub fn quote(device: &Path, nonce: &[u8]) -> anyhow::Result<Quote> {
    let mut tpm = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device)
        .with_context(|| format!("cannot open {}", device.display()))?;
    let created = transmit(&mut tpm, &create_primary()).context("TPM2_CreatePrimary")?;
    let mut created = Response(&created);
    let handle = created.u32()?;
    created.u32()?; // size of the parameters
    let key = created.sized()?;
    let quoted = transmit(&mut tpm, &quote_command(handle, nonce)).context("TPM2_Quote")?;
    let mut quoted = Response(&quoted);
    let size = quoted.u32()?;
    let mut parameters = Response(quoted.bytes(usize::try_from(size)?)?);
    Ok(Quote {
        key: sized(key),
        message: parameters.sized()?.to_vec(),
        signature: parameters.0.to_vec(),
    })
}

/// A key for this boot only: restricted, ECDSA on P-256, in the endorsement hierarchy.
fn create_primary() -> Vec<u8> {
    let mut area = Vec::new();
    area.extend(ALG_ECC.to_be_bytes());
    area.extend(ALG_SHA256.to_be_bytes()); // of its name
    area.extend(ATTESTATION_KEY.to_be_bytes());
    area.extend([0, 0]); // no policy
    area.extend(ALG_NULL.to_be_bytes()); // symmetric
    area.extend(ALG_ECDSA.to_be_bytes());
    area.extend(ALG_SHA256.to_be_bytes());
    area.extend(CURVE_P256.to_be_bytes());
    area.extend(ALG_NULL.to_be_bytes()); // key derivation
    area.extend([0, 0, 0, 0]); // the point is the TPM's to choose
    let mut body = RH_ENDORSEMENT.to_be_bytes().to_vec();
    body.extend(empty_password());
    body.extend([0, 4, 0, 0, 0, 0]); // inSensitive: neither password nor data
    body.extend(sized(&area));
    body.extend([0, 0]); // outsideInfo
    body.extend([0; 4]); // creationPCR
    command(CC_CREATE_PRIMARY, &body)
}

fn quote_command(handle: u32, nonce: &[u8]) -> Vec<u8> {
    let mut body = handle.to_be_bytes().to_vec();
    body.extend(empty_password());
    body.extend(sized(nonce));
    body.extend(ALG_NULL.to_be_bytes()); // the key's own scheme
    body.extend(1_u32.to_be_bytes());
    body.extend(ALG_SHA256.to_be_bytes());
    body.extend(ALL_PCRS);
    command(CC_QUOTE, &body)
}

fn command(code: u32, body: &[u8]) -> Vec<u8> {
    let size = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    let mut command = ST_SESSIONS.to_be_bytes().to_vec();
    command.extend(size.to_be_bytes());
    command.extend(code.to_be_bytes());
    command.extend(body);
    command
}

/// Authorization area with the empty password (Part 2, "TPMS_AUTH_COMMAND").
fn empty_password() -> Vec<u8> {
    let mut area = 9_u32.to_be_bytes().to_vec();
    area.extend(RS_PASSWORD.to_be_bytes());
    area.extend([0; 5]); // nonce, attributes, password
    area
}

/// Prepends the size, as in every TPM2B structure (Part 2, "Sized Buffers").
fn sized(bytes: &[u8]) -> Vec<u8> {
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&size.to_be_bytes(), bytes].concat()
}

/// Sends a command; returns the response after the header.
fn transmit(tpm: &mut File, command: &[u8]) -> anyhow::Result<Vec<u8>> {
    tpm.write_all(command).context("send")?;
    let mut response = vec![0; MAX_RESPONSE];
    let size = tpm.read(&mut response).context("receive")?;
    response.truncate(size);
    let mut header = Response(&response);
    header.bytes(6)?; // tag and size
    let code = header.u32()?;
    if code != 0 {
        bail!("the TPM answers {code:#x}");
    }
    Ok(header.0.to_vec())
}

/// The unread part of a response.
struct Response<'a>(&'a [u8]);

impl<'a> Response<'a> {
    fn bytes(&mut self, size: usize) -> anyhow::Result<&'a [u8]> {
        let (bytes, rest) =
            self.0.split_at_checked(size).context("the TPM's answer is too short")?;
        self.0 = rest;
        Ok(bytes)
    }

    fn u32(&mut self) -> anyhow::Result<u32> {
        Ok(u32::from_be_bytes(self.bytes(4)?.try_into()?))
    }

    fn sized(&mut self) -> anyhow::Result<&'a [u8]> {
        let size = u16::from_be_bytes(self.bytes(2)?.try_into()?);
        self.bytes(size.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_say_their_own_size() {
        for command in [create_primary(), quote_command(0x8000_0000, &[7; 32])] {
            let size = u32::from_be_bytes(command[2..6].try_into().unwrap());
            assert_eq!(usize::try_from(size).unwrap(), command.len());
        }
    }

    #[test]
    fn answers_that_are_cut_off_are_errors() {
        assert!(Response(&[0, 5, 1]).sized().is_err());
        assert!(Response(&[0, 0, 1]).u32().is_err());
        assert_eq!(Response(&[0, 1, 9, 8]).sized().unwrap(), [9]);
    }
}
