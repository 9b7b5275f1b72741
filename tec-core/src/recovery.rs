//! Recovery keys: 48 digits that a person can type, for a disk whose servers are lost.
//!
//! ```text
//! 128 random bits = 8 × 16 bits ─ each times 11 ─► 123456-123456-…  eight groups of six digits
//! ```
//! Each group is a multiple of 11, so a wrong digit or two swapped digits are detected, and the
//! error names the group. The text with its hyphens is the passphrase of the disk: what is printed
//! is what is typed at the boot prompt.
//!
//! ```
//! use tec_core::recovery::RecoveryKey;
//! # use rand_core::SeedableRng as _;
//! # let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
//! let key = RecoveryKey::random(&mut rng);
//! let text = std::str::from_utf8(key.passphrase().expose("print it")).unwrap();
//! assert!(RecoveryKey::parse(text)?.passphrase().ct_eq(key.passphrase()));
//! # Ok::<(), tec_core::recovery::ParseRecoveryKeyError>(())
//! ```

use std::fmt::Write as _;

use rand_core::CryptoRng;
use zeroize::Zeroizing;

use crate::secret::{SecretArray, SecretBytes};

/// Number of groups in a key.
const GROUPS: usize = 8;
/// Digits in a group: 65535 × 11 has six.
const DIGITS: usize = 6;
/// Every group is a multiple of this: the smallest number that detects every change of one digit
/// and every swap of two neighbors.
const CHECK: u32 = 11;
/// Length of the text: the groups, with hyphens between them.
const LENGTH: usize = GROUPS * DIGITS + GROUPS - 1;

/// A recovery key.
#[derive(Debug)]
pub struct RecoveryKey(SecretBytes);

/// The text is not a recovery key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRecoveryKeyError {
    /// Wrong number of digits.
    #[error("a recovery key must have 48 digits; this one has {0}")]
    Digits(usize),
    /// A character that is neither a digit nor a separator.
    #[error("a recovery key may contain only digits, hyphens and spaces")]
    Character,
    /// A digit of a group is wrong.
    #[error("group {0} of the recovery key has a wrong digit")]
    Group(usize),
}

impl RecoveryKey {
    /// Generates a key.
    pub fn random(rng: &mut dyn CryptoRng) -> Self {
        let bits = SecretArray::<{ GROUPS * 2 }>::random(rng);
        let mut text = Zeroizing::new(String::with_capacity(LENGTH + 1));
        for pair in bits.expose("write the key").chunks_exact(2) {
            let value = pair.iter().fold(0, |value, byte| value << 8 | u32::from(*byte));
            // Writing to a string cannot fail.
            let _ = write!(text, "{:0DIGITS$}-", value * CHECK);
        }
        let text = text.trim_end_matches('-');
        Self(SecretBytes::new(text.as_bytes().to_vec()))
    }

    /// Parses a key as printed, or with other separators.
    pub fn parse(text: &str) -> Result<Self, ParseRecoveryKeyError> {
        let is_separator = |c: char| c == '-' || c.is_whitespace();
        let mut digits = Zeroizing::new(Vec::with_capacity(LENGTH + 1));
        let mut count: usize = 0;
        for c in text.chars().filter(|c| !is_separator(*c)) {
            let digit = c.to_digit(10).ok_or(ParseRecoveryKeyError::Character)?;
            count = count.saturating_add(1);
            if count <= GROUPS * DIGITS {
                digits.push(digit);
            }
        }
        if count != GROUPS * DIGITS {
            return Err(ParseRecoveryKeyError::Digits(count));
        }
        let mut text = Zeroizing::new(String::with_capacity(LENGTH + 1));
        for (position, group) in digits.chunks_exact(DIGITS).enumerate() {
            let number = group.iter().fold(0, |number, digit| number * 10 + digit);
            if number % CHECK != 0 || number / CHECK > u16::MAX.into() {
                let group = position + 1;
                return Err(ParseRecoveryKeyError::Group(group));
            }
            let _ = write!(text, "{number:0DIGITS$}-");
        }
        let text = text.trim_end_matches('-');
        Ok(Self(SecretBytes::new(text.as_bytes().to_vec())))
    }

    /// The passphrase of the disk: digits and hyphens.
    pub fn passphrase(&self) -> &SecretBytes {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng as _;

    use super::*;

    fn text(seed: u64) -> String {
        let key = RecoveryKey::random(&mut ChaCha20Rng::seed_from_u64(seed));
        String::from_utf8(key.passphrase().expose("test").to_vec()).unwrap()
    }

    #[test]
    fn a_key_is_eight_groups_of_six_digits_and_parses_with_any_separators() {
        let text = text(1);
        assert_eq!(text.len(), LENGTH);
        assert_eq!(text.split('-').filter(|group| group.len() == 6).count(), 8);
        for typed in [text.clone(), text.replace('-', ""), text.replace('-', "  ")] {
            let parsed = RecoveryKey::parse(&typed).unwrap();
            assert_eq!(parsed.passphrase().expose("test"), text.as_bytes());
        }
    }

    #[test]
    fn what_is_no_key_says_why() {
        let digits = |digits| Err(ParseRecoveryKeyError::Digits(digits));
        let parse = |text: &str| RecoveryKey::parse(text).map(drop);
        assert_eq!(parse(""), digits(0));
        assert_eq!(parse(&"0".repeat(49)), digits(49));
        assert_eq!(parse("12345x"), Err(ParseRecoveryKeyError::Character));
        // 65536 × 11 is a multiple of 11, but needs more than 16 bits.
        let large = format!("{}720896", "0".repeat(42));
        assert_eq!(parse(&large), Err(ParseRecoveryKeyError::Group(8)));
    }

    proptest! {
        #[test]
        fn a_wrong_digit_and_exchanged_neighbors_are_seen(
            seed: u64, at in 0_usize..47, other in 0_u8..10,
        ) {
            let good = text(seed).replace('-', "");
            let mut wrong = good.clone().into_bytes();
            wrong[at] = b'0' + other;
            let mut exchanged = good.clone().into_bytes();
            exchanged.swap(at, at + 1);
            for typed in [wrong, exchanged] {
                let typed = String::from_utf8(typed).unwrap();
                // Swapping neighbors across two groups changes both groups.
                prop_assert_eq!(RecoveryKey::parse(&typed).is_ok(), typed == good);
            }
        }
    }
}
