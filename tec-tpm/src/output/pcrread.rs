//! The text of `tpm2_pcrread` and of the `--pcr` files of tpm2-tools (YAML).

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::{OutputError, check_size, register_number};
use crate::event_log::Bank;

const FORM: &str = "the text of tpm2_pcrread";

/// Values of the SHA-256 bank as `tpm2_pcrread` prints them.
pub fn pcrread(values: &BTreeMap<PcrIndex, Sha256Digest>) -> String {
    let mut text = format!("  {}:\n", Bank::Sha256);
    for (pcr, value) in values {
        let value = value.to_string().to_uppercase();
        let _ = writeln!(text, "    {:<2}: 0x{value}", u8::from(*pcr));
    }
    text
}

/// Reads the SHA-256 bank from what `tpm2_pcrread` prints; other banks are skipped.
///
/// # Errors
/// [`OutputError::Member`] naming the line that is not of this form, [`OutputError::Repeated`].
pub fn read_pcrread(text: &str) -> Result<BTreeMap<PcrIndex, Sha256Digest>, OutputError> {
    check_size(text)?;
    let mut values = BTreeMap::new();
    let mut bank = None;
    for (number, line) in text.lines().enumerate() {
        let refuse = || OutputError::Member { member: format!("line {}", number + 1), form: FORM };
        if line.trim().is_empty() {
            continue;
        }
        let (key, value) = line.split_once(':').ok_or_else(refuse)?;
        let (key, value) = (key.trim(), value.trim());
        if value.is_empty() {
            bank = Some(key.to_owned());
            continue;
        }
        if bank.as_deref().ok_or_else(refuse)? != Bank::Sha256.as_str() {
            continue;
        }
        let pcr = register_number(key).ok_or_else(refuse)?;
        let digits = value.strip_prefix("0x").unwrap_or(value);
        let digest: Sha256Digest = digits.parse().map_err(|_| refuse())?;
        if values.insert(pcr, digest).is_some() {
            return Err(OutputError::Repeated(pcr));
        }
    }
    Ok(values)
}
