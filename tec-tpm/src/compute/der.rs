//! The few DER structures of certificates and signatures, with their original bytes: the encoding
//! is what is signed, so nothing here is decoded and re-encoded.

/// DER that cannot be read, or a structure other than the expected one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the DER structure is not that of a {structure}")]
#[non_exhaustive]
pub struct DerError {
    /// The expected structure.
    pub structure: &'static str,
}

// Tags (X.690, 8.1.2 and the clauses of each type).
pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OID: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
/// Context-specific, constructed, number 0; higher numbers follow.
pub(super) const CONTEXT_0: u8 = 0xa0;

/// A DER element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Element<'d> {
    pub(super) tag: u8,
    /// With tag and length.
    pub(super) raw: &'d [u8],
    pub(super) value: &'d [u8],
}

/// Reads elements one after another.
#[derive(Clone, Debug)]
pub(super) struct Der<'d> {
    rest: &'d [u8],
    structure: &'static str,
}

impl<'d> Der<'d> {
    pub(super) const fn new(rest: &'d [u8], structure: &'static str) -> Self {
        Self { rest, structure }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next element, whatever its tag.
    pub(super) fn any(&mut self) -> Result<Element<'d>, DerError> {
        let (element, rest) = split(self.rest).ok_or(DerError { structure: self.structure })?;
        self.rest = rest;
        Ok(element)
    }

    /// The next element, which must have this tag.
    pub(super) fn element(&mut self, tag: u8) -> Result<Element<'d>, DerError> {
        let element = self.any()?;
        if element.tag == tag { Ok(element) } else { Err(DerError { structure: self.structure }) }
    }

    /// The content of the next element, which must have this tag.
    pub(super) fn within(&mut self, tag: u8) -> Result<Self, DerError> {
        let element = self.element(tag)?;
        Ok(Self::new(element.value, self.structure))
    }

    /// The next element if it has this tag.
    pub(super) fn optional(&mut self, tag: u8) -> Result<Option<Element<'d>>, DerError> {
        if self.rest.first() == Some(&tag) { self.any().map(Some) } else { Ok(None) }
    }
}

/// X.690, 8.1.3 and 10.1: definite lengths, of up to four bytes here; tags of one byte.
fn split(data: &[u8]) -> Option<(Element<'_>, &[u8])> {
    let (&[tag, first], rest) = data.split_first_chunk()?;
    if tag & 0x1f == 0x1f {
        return None;
    }
    let (length, header) = match first {
        0..=0x7f => (usize::from(first), 2),
        0x81..=0x84 => {
            let count = usize::from(first - 0x80);
            let bytes = rest.get(..count)?;
            let length = bytes
                .iter()
                .try_fold(0_usize, |sum, byte| Some(sum.checked_mul(256)? | usize::from(*byte)))?;
            (length, 2 + count)
        }
        _ => return None,
    };
    let end = header.checked_add(length)?;
    let element = Element { tag, raw: data.get(..end)?, value: data.get(header..end)? };
    Some((element, data.get(end..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_read_one_after_another() {
        let mut der = Der::new(b"\x30\x03\x02\x01\x05\x06\x01\x2a", "test");
        let mut inner = der.within(SEQUENCE).unwrap();
        let integer = inner.element(INTEGER).unwrap();
        assert_eq!((integer.raw, integer.value), (&b"\x02\x01\x05"[..], &b"\x05"[..]));
        assert!(inner.is_empty() && inner.any().is_err());
        assert_eq!(der.optional(SET), Ok(None));
        assert!(der.clone().element(INTEGER).is_err());
        assert_eq!(der.element(OID).unwrap().value, b"\x2a");
    }

    #[test]
    fn indefinite_and_lying_lengths_are_refused() {
        for data in [
            &b""[..],
            b"\x30",
            b"\x30\x80\0\0",
            b"\x30\x85\0\0\0\0\0",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x81",
            b"\x1f\x01\0",
        ] {
            assert!(Der::new(data, "test").any().is_err(), "{data:?}");
        }
    }
}
