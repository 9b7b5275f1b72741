//! Overwriting parts of files: turns valid files into hostile ones.

/// `file` with `bytes` written over the content at `at`.
pub(crate) fn put(mut file: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    assert!(at + bytes.len() <= file.len(), "a place in the file");
    file.splice(at..at + bytes.len(), bytes.iter().copied());
    file
}

/// The first `length` bytes.
pub(crate) fn cut(mut file: Vec<u8>, length: usize) -> Vec<u8> {
    assert!(length < file.len(), "something is cut off");
    file.truncate(length);
    file
}

/// A length as a little-endian field of 16 bits.
pub(crate) fn le16(value: usize) -> [u8; 2] {
    u16::try_from(value).expect("a short length").to_le_bytes()
}

/// A length as a little-endian field of 32 bits.
pub(crate) fn le32(value: usize) -> [u8; 4] {
    u32::try_from(value).expect("a length").to_le_bytes()
}

/// A little-endian field of 16 bits.
pub(crate) fn u16_at(data: &[u8], at: usize) -> Option<usize> {
    let field = data.get(at..)?.first_chunk()?;
    Some(usize::from(u16::from_le_bytes(*field)))
}

/// A little-endian field of 32 bits.
pub(crate) fn u32_at(data: &[u8], at: usize) -> Option<usize> {
    let field = data.get(at..)?.first_chunk()?;
    usize::try_from(u32::from_le_bytes(*field)).ok()
}
