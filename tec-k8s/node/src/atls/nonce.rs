//! The nonces of a handshake, and the two ways to transmit them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::DistinguishedName;
use tec_core::port::Entropy;
use x509_cert::der::Decode as _;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::name::Name;

use super::der;

/// Prefix of ALPN tokens that carry a nonce; 64 hexadecimal digits follow.
const ALPN_PREFIX: &[u8] = b"atls:v1:nonce:";
/// Common name (RFC 5280, appendix A.1: id-at 3).
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// 32 fresh random bytes that the peer's evidence must bind.
#[derive(Clone, Copy, PartialEq, Eq, derive_more::Debug)]
#[debug("Nonce({})", hex::encode(_0))]
pub struct Nonce([u8; 32]);

impl Nonce {
    /// Takes the bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(super) fn random(entropy: &dyn Entropy) -> Self {
        let mut bytes = [0; 32];
        entropy.fill(&mut bytes);
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// How a client sends it: as a protocol name that no server selects.
    pub fn to_alpn(&self) -> Vec<u8> {
        [ALPN_PREFIX, hex::encode(self.0).as_bytes()].concat()
    }

    /// The nonce among the offered protocols; `None` unless there is exactly one.
    pub(super) fn from_alpn<'a>(offered: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut tokens = offered.filter_map(|token| token.strip_prefix(ALPN_PREFIX));
        let (token, None) = (tokens.next()?, tokens.next()) else {
            return None;
        };
        let mut bytes = [0; 32];
        hex::decode_to_slice(token, &mut bytes).ok()?;
        Some(Self(bytes))
    }

    /// How a server sends it: as an acceptable CA whose common name is the nonce in base64.
    pub(super) fn to_authority(self) -> DistinguishedName {
        let text = STANDARD.encode(self.0);
        let value = der::tlv(der::PRINTABLE_STRING, &[text.as_bytes()]);
        let attribute = der::tlv(der::SEQUENCE, &[&der::object_identifier(COMMON_NAME), &value]);
        DistinguishedName::in_sequence(&der::tlv(der::SET, &[&attribute]))
    }

    /// The nonce in the only acceptable CA.
    pub(super) fn from_authorities(authorities: &[&[u8]]) -> Option<Self> {
        let [only] = authorities else { return None };
        let name = Name::from_der(only).ok()?;
        let attribute = name.iter().find(|one| one.oid == COMMON_NAME)?;
        // PrintableString or UTF8String; both are read as their bytes.
        let bytes = STANDARD.decode(attribute.value.value()).ok()?;
        bytes.try_into().ok().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_survives_both_ways() {
        let nonce = Nonce::new([0x5a; 32]);
        let token = nonce.to_alpn();
        assert_eq!(Nonce::from_alpn([b"h2".as_slice(), &token].into_iter()), Some(nonce));
        let authority = nonce.to_authority();
        assert_eq!(Nonce::from_authorities(&[authority.as_ref()]), Some(nonce));
    }

    #[test]
    fn two_nonces_or_a_short_one_are_none() {
        let (a, b) = (Nonce::new([1; 32]).to_alpn(), Nonce::new([2; 32]).to_alpn());
        assert_eq!(Nonce::from_alpn([a.as_slice(), &b].into_iter()), None);
        assert_eq!(Nonce::from_alpn([&a[..a.len() - 1]].into_iter()), None);
        let authority = Nonce::new([1; 32]).to_authority();
        let twice = [authority.as_ref(), authority.as_ref()];
        assert_eq!(Nonce::from_authorities(&twice), None);
        assert_eq!(Nonce::from_authorities(&[]), None);
    }
}
