//! Register values that come in parts, and quotes under which registers change.

use tec_core::ak::PublicKey;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PCR_COUNT, PcrIndex};

use super::TpmError;
use crate::evidence::TpmEvidence;
use crate::quote::QuoteError;

/// Quotes are repeated while registers change under them; at boot that does not last long.
const QUOTE_ATTEMPTS: usize = 8;

/// Creates evidence until no register was extended between the quote and the reading of values.
pub(crate) fn settled(
    ak: &PublicKey,
    nonce: &[u8],
    mut make: impl FnMut() -> Result<TpmEvidence, TpmError>,
) -> Result<TpmEvidence, TpmError> {
    for _ in 0..QUOTE_ATTEMPTS {
        let evidence = make()?;
        match evidence.quote().verify(ak, nonce) {
            Ok(_) => return Ok(evidence),
            Err(QuoteError::Digest) => {}
            Err(error) => return Err(TpmError::Quote(error)),
        }
    }
    Err(TpmError::Quote(QuoteError::Digest))
}

/// Asks `read` for the registers that are missing until all are there: a TPM returns as many as
/// fit into one response.
pub(crate) fn collect(
    mut read: impl FnMut(&[PcrIndex]) -> Result<Vec<(usize, Sha256Digest)>, TpmError>,
) -> Result<[Sha256Digest; PCR_COUNT], TpmError> {
    let mut values = [None; PCR_COUNT];
    loop {
        let missing = missing(&values);
        let Some(first) = missing.first().copied() else {
            return Ok(values.map(Option::unwrap_or_default));
        };
        let before = missing.len();
        for (index, value) in read(&missing)? {
            if let Some(slot) = values.get_mut(index) {
                *slot = Some(value);
            }
        }
        if self::missing(&values).len() == before {
            return Err(TpmError::Bank(first));
        }
    }
}

fn missing(values: &[Option<Sha256Digest>; PCR_COUNT]) -> Vec<PcrIndex> {
    PcrIndex::all()
        .zip(values)
        .filter(|(_, value)| value.is_none())
        .map(|(index, _)| index)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::SoftTpm;

    #[test]
    fn a_quote_under_which_a_register_moved_is_made_again() {
        let tpm = SoftTpm::p256(1);
        let mut moves = 2;
        let made = settled(&tpm.public_key(), &[7; 32], || {
            let mut evidence = tpm.quote(&[7; 32]);
            if moves > 0 {
                moves -= 1;
                evidence.values[4] = value(4);
            }
            Ok(evidence)
        });
        assert_eq!(made.unwrap(), tpm.quote(&[7; 32]));
        assert_eq!(moves, 0);
    }

    #[test]
    fn registers_that_never_rest_and_wrong_keys_end_the_attempts() {
        let tpm = SoftTpm::p256(1);
        let mut count = 0;
        let mut moving = || {
            count += 1;
            let mut evidence = tpm.quote(&[7; 32]);
            evidence.values[4] = value(4);
            Ok(evidence)
        };
        assert!(matches!(
            settled(&tpm.public_key(), &[7; 32], &mut moving),
            Err(TpmError::Quote(QuoteError::Digest))
        ));
        assert!(matches!(
            settled(&SoftTpm::p256(2).public_key(), &[7; 32], &mut moving),
            Err(TpmError::Quote(QuoteError::Signature))
        ));
        assert_eq!(count, QUOTE_ATTEMPTS + 1);
    }

    fn value(index: usize) -> Sha256Digest {
        Sha256Digest::of([u8::try_from(index).unwrap()])
    }

    #[test]
    fn parts_of_any_size_become_the_whole() {
        for part in [1, 5, 8, 24] {
            let collected = collect(|missing| {
                let some = missing.iter().take(part).map(|pcr| pcr.as_usize());
                Ok(some.map(|index| (index, value(index))).collect())
            });
            assert_eq!(collected.unwrap(), std::array::from_fn(value));
        }
    }

    #[test]
    fn a_register_that_never_comes_is_named() {
        let collected = collect(|missing| {
            let some = missing.iter().map(|pcr| pcr.as_usize());
            Ok(some.filter(|i| *i != 9).map(|i| (i, value(i))).collect())
        });
        assert!(matches!(
            collected,
            Err(TpmError::Bank(index)) if index.as_usize() == 9
        ));
    }
}
