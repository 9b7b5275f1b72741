//! Collecting register values that come in parts.

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PCR_COUNT;
use tec_core::pcr::PcrIndex;

use super::TpmError;

/// Asks `read` for the registers that are missing until all are there: a TPM returns as many as
/// fit into one response.
pub(super) fn collect(
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
            return Err(TpmError::Bank { index: first });
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
            Err(TpmError::Bank { index }) if index.as_usize() == 9
        ));
    }
}
