//! Secrets: boxed, zeroized on drop, compared in constant time, and never printed, cloned or
//! serialized.

use std::fmt;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// Secret bytes of any length.
///
/// # Security
/// The content is only accessible through [`expose`](Self::expose), whose argument says why; `grep`
/// for it to find every use.
pub struct SecretBytes(Zeroizing<Box<[u8]>>);

impl SecretBytes {
    /// Takes ownership of the bytes. Spare capacity of the vector is zeroized as well.
    pub fn new(bytes: Vec<u8>) -> Self {
        let bytes = Zeroizing::new(bytes);
        Self(Zeroizing::new(Box::from(bytes.as_slice())))
    }

    /// The content; the argument says why this place needs it.
    pub fn expose(&self, _why: &'static str) -> &[u8] {
        &self.0
    }

    /// Whether both secrets are equal, in time that does not depend on their content.
    pub fn ct_eq(&self, other: &Self) -> bool {
        self.0.as_ref().ct_eq(other.0.as_ref()).into()
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A second copy of the secret, made explicitly.
    #[must_use]
    pub fn duplicate(&self, _why: &'static str) -> Self {
        Self(Zeroizing::new(self.0.as_ref().into()))
    }
}

impl fmt::Debug for SecretBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[redacted {} bytes]", self.0.len())
    }
}

/// A secret of exactly `N` bytes.
pub struct SecretArray<const N: usize>(Box<Zeroizing<[u8; N]>>);

impl<const N: usize> SecretArray<N> {
    /// Copies the bytes; wiping the original is up to the caller.
    pub fn new(bytes: [u8; N]) -> Self {
        Self(Box::new(Zeroizing::new(bytes)))
    }

    /// Fills a new secret from `rng`.
    pub fn random(rng: &mut dyn rand_core::CryptoRng) -> Self {
        let mut bytes = Box::new(Zeroizing::new([0; N]));
        rng.fill_bytes(bytes.as_mut_slice());
        Self(bytes)
    }

    /// The content; the argument says why this place needs it.
    pub fn expose(&self, _why: &'static str) -> &[u8; N] {
        &self.0
    }

    /// Whether both secrets are equal, in time that does not depend on their content.
    pub fn ct_eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&**other.0).into()
    }
}

impl<const N: usize> fmt::Debug for SecretArray<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[redacted {N} bytes]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_prints_only_the_length() {
        let secret = SecretBytes::new(b"canary".to_vec());
        assert_eq!(format!("{secret:?}"), "[redacted 6 bytes]");
        assert_eq!(format!("{:?}", SecretArray::new([7; 4])), "[redacted 4 bytes]");
    }

    #[test]
    fn equality_needs_equal_length_and_content() {
        let a = SecretBytes::new(vec![1, 2]);
        assert!(a.ct_eq(&a.duplicate("test")));
        assert!(!a.ct_eq(&SecretBytes::new(vec![1, 3])));
        assert!(!a.ct_eq(&SecretBytes::new(vec![1, 2, 3])));
    }
}
