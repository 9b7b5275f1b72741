//! Bounded reading and writing of TPM structures: big-endian, sized buffers (TPM 2.0 Library
//! Part 2, "Buffers and Sizes").

/// Bytes do not form the expected structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The input ends early.
    #[error("truncated at offset {offset}: {wanted} bytes needed, {left} left")]
    Truncated {
        /// Offset.
        offset: usize,
        /// Number of bytes expected.
        wanted: usize,
        /// Number of bytes left.
        left: usize,
    },
    /// A sized buffer is larger than this member may be.
    #[error("a buffer of {size} bytes at offset {offset}; at most {limit} are allowed")]
    Oversized {
        /// Offset.
        offset: usize,
        /// Its size.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A value that the structure does not allow.
    #[error("the value {value:#x} at offset {offset} is not allowed there")]
    Value {
        /// Offset.
        offset: usize,
        /// The value.
        value: u64,
    },
    /// The structure is followed by trailing bytes.
    #[error("{left} bytes too many at offset {offset}")]
    Trailing {
        /// Offset.
        offset: usize,
        /// Number of trailing bytes.
        left: usize,
    },
}

/// Reads one structure from front to back.
#[derive(Debug)]
pub(crate) struct WireReader<'a> {
    bytes: &'a [u8],
    offset: usize,
}

impl<'a> WireReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0 }
    }

    /// Offset of the next read.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// `wanted` bytes, where the number was already read.
    pub(crate) fn take(&mut self, wanted: usize) -> Result<&'a [u8], WireError> {
        let Some((head, tail)) = self.bytes.split_at_checked(wanted) else {
            return Err(WireError::Truncated {
                offset: self.offset,
                wanted,
                left: self.bytes.len(),
            });
        };
        self.bytes = tail;
        self.offset += wanted;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N)?);
        Ok(bytes)
    }

    /// Like [`array`](Self::array), without a copy.
    pub(crate) fn array_ref<const N: usize>(&mut self) -> Result<&'a [u8; N], WireError> {
        let (offset, left) = (self.offset, self.bytes.len());
        let truncated = WireError::Truncated { offset, wanted: N, left };
        self.take(N)?.first_chunk().ok_or(truncated)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, WireError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_be_bytes)
    }

    /// As in structures outside of the TPM: least significant byte first.
    pub(crate) fn le_u32(&mut self) -> Result<u32, WireError> {
        self.array().map(u32::from_le_bytes)
    }

    /// Least significant byte first.
    pub(crate) fn le_u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// TPMI_YES_NO: one byte, 0 or 1.
    pub(crate) fn yes_no(&mut self) -> Result<bool, WireError> {
        let offset = self.offset;
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::Value { offset, value: other.into() }),
        }
    }

    /// `size` bytes, where the size was already read from a field of one byte.
    pub(crate) fn bytes(&mut self, size: u8) -> Result<&'a [u8], WireError> {
        self.take(size.into())
    }

    /// TPM2B: size in two bytes, then that many.
    pub(crate) fn sized(&mut self, limit: usize) -> Result<&'a [u8], WireError> {
        let offset = self.offset;
        let size = usize::from(self.u16()?);
        if size > limit {
            return Err(WireError::Oversized { offset, size, limit });
        }
        self.take(size)
    }

    /// All remaining bytes, if no field gives their number.
    #[cfg(feature = "direct")]
    pub(crate) fn rest(&mut self, limit: usize) -> Result<&'a [u8], WireError> {
        let size = self.bytes.len();
        if size > limit {
            return Err(WireError::Oversized { offset: self.offset, size, limit });
        }
        self.take(size)
    }

    /// Ends the structure; nothing may follow.
    pub(crate) fn finish(self) -> Result<(), WireError> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(WireError::Trailing { offset: self.offset, left: self.bytes.len() })
        }
    }
}

/// The content of a TPM2B that must be the whole input.
pub(crate) fn only_sized(bytes: &[u8], limit: usize) -> Result<&[u8], WireError> {
    let mut reader = WireReader::new(bytes);
    let content = reader.sized(limit)?;
    reader.finish()?;
    Ok(content)
}

/// Appends a TPM2B. Callers pass bounded buffers; anything beyond the size field is truncated, so
/// that the structure stays well formed.
pub(crate) fn push_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let size = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    out.extend_from_slice(&size.to_be_bytes());
    out.extend(bytes.iter().take(size.into()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_past_the_end_says_where() {
        let mut reader = WireReader::new(&[0, 1, 2]);
        assert_eq!(reader.u16(), Ok(1));
        assert_eq!(reader.u32(), Err(WireError::Truncated { offset: 2, wanted: 4, left: 1 }));
    }

    #[test]
    fn buffers_are_bounded_and_round_trip() {
        let mut bytes = Vec::new();
        push_sized(&mut bytes, b"abc");
        assert_eq!(WireReader::new(&bytes).sized(3), Ok(b"abc".as_slice()));
        assert_eq!(
            WireReader::new(&bytes).sized(2),
            Err(WireError::Oversized { offset: 0, size: 3, limit: 2 })
        );
    }

    #[test]
    fn trailing_bytes_and_wrong_booleans_are_refused() {
        let mut reader = WireReader::new(&[2, 0]);
        assert_eq!(reader.yes_no(), Err(WireError::Value { offset: 0, value: 2 }));
        assert_eq!(reader.finish(), Err(WireError::Trailing { offset: 1, left: 1 }));
    }
}
