//! Writes DER, just enough for one certificate and one name (X.690).

use x509_cert::der::oid::ObjectIdentifier;

pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
pub(super) const PRINTABLE_STRING: u8 = 0x13;
pub(super) const UTC_TIME: u8 = 0x17;
pub(super) const GENERALIZED_TIME: u8 = 0x18;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
/// `[0]`, constructed: the version of a certificate (RFC 5280, section 4.1).
pub(super) const VERSION: u8 = 0xa0;
/// `[3]`, constructed: its extensions.
pub(super) const EXTENSIONS: u8 = 0xa3;

/// One value: tag, length, content.
pub(super) fn tlv(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut out = Vec::with_capacity(length + 6);
    out.push(tag);
    push_length(&mut out, length);
    for part in parts {
        out.extend_from_slice(part);
    }
    out
}

/// Definite form (X.690, section 8.1.3).
fn push_length(out: &mut Vec<u8>, length: usize) {
    match u8::try_from(length) {
        Ok(short) if short < 0x80 => out.push(short),
        _ => {
            let bytes = length.to_be_bytes();
            let significant = bytes.iter().position(|byte| *byte != 0).unwrap_or(0);
            let tail = bytes.get(significant..).unwrap_or_default();
            out.push(0x80 | u8::try_from(tail.len()).unwrap_or(0x7f));
            out.extend_from_slice(tail);
        }
    }
}

pub(super) fn object_identifier(oid: ObjectIdentifier) -> Vec<u8> {
    tlv(OBJECT_IDENTIFIER, &[oid.as_bytes()])
}
