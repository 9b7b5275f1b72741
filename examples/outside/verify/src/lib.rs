//! Verifies what a machine booted from a quote of any registers, as created by `tpm2_quote`. Reference values
//! and the machine's key come from elsewhere; this crate covers only the proof.

use tec_core::ak::PublicKey;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::quote::{QuoteError, UntrustedQuote};

/// The registers that do not have the expected value, or for which the quote proves none.
pub fn differing(
    quote: UntrustedQuote<'_>,
    key: &PublicKey,
    nonce: &[u8],
    expected: &[(PcrIndex, Sha256Digest)],
) -> Result<Vec<PcrIndex>, QuoteError> {
    let proven = quote.verify_selection(key, nonce)?;
    let differs = |(pcr, value): &&(PcrIndex, Sha256Digest)| proven.value(*pcr) != Some(value);
    Ok(expected.iter().filter(differs).map(|(pcr, _)| *pcr).collect())
}

#[cfg(test)]
mod tests {
    use tec_tpm::testing::SoftTpm;

    use super::*;

    const PCR4: PcrIndex = PcrIndex::BOOT_MANAGER;
    const PCR7: PcrIndex = PcrIndex::SECURE_BOOT;

    fn booted() -> (SoftTpm, Sha256Digest) {
        let (tpm, kernel) = (SoftTpm::p256(1), Sha256Digest::of("kernel"));
        tpm.extend(PCR4, &kernel);
        (tpm, Sha256Digest::ZERO.extended(&kernel))
    }

    #[test]
    fn the_expected_boot_is_proven_and_another_is_told_by_its_register() {
        let (tpm, good) = booted();
        let sent = tpm.quote_of([PCR4], b"nonce");
        let check = |expected: &[_]| differing(sent.quote(), &sent.ak, b"nonce", expected).unwrap();
        assert_eq!(check(&[(PCR4, good)]), []);
        assert_eq!(check(&[(PCR4, Sha256Digest::of("another"))]), [PCR4]);
        assert_eq!(check(&[(PCR4, good), (PCR7, Sha256Digest::ZERO)]), [PCR7], "not quoted");
    }

    #[test]
    fn an_old_quote_and_one_of_another_key_prove_nothing() {
        let (tpm, good) = booted();
        let sent = tpm.quote_of([PCR4], b"nonce");
        let stranger = SoftTpm::p256(2).public_key();
        assert!(differing(sent.quote(), &sent.ak, b"later", &[(PCR4, good)]).is_err());
        assert!(differing(sent.quote(), &stranger, b"nonce", &[(PCR4, good)]).is_err());
    }
}
