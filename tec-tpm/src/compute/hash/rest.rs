//! What a hash function keeps between two pieces of its message.

/// The bytes that do not fill a block of `N` bytes yet, and the length of the message.
#[derive(Clone, Debug)]
pub(super) struct Rest<const N: usize> {
    bytes: [u8; N],
    filled: usize,
    len: u64,
}

impl<const N: usize> Rest<N> {
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], filled: 0, len: 0 }
    }

    /// Splits a piece of the message: the block that it completes, the blocks that it contains, and the end,
    /// which is kept.
    pub(super) fn split<'d>(&mut self, piece: &'d [u8]) -> (Option<[u8; N]>, &'d [[u8; N]]) {
        self.len += piece.len() as u64;
        let missing = if self.filled == 0 { 0 } else { N - self.filled };
        let (now, later) = piece.split_at(missing.min(piece.len()));
        self.keep(now);
        let completed = (self.filled == N).then_some(self.bytes);
        if completed.is_some() {
            self.filled = 0;
        }
        let (blocks, end) = later.as_chunks();
        self.keep(end);
        (completed, blocks)
    }

    fn keep(&mut self, bytes: &[u8]) {
        for (kept, byte) in self.bytes.iter_mut().skip(self.filled).zip(bytes) {
            *kept = *byte;
        }
        self.filled += bytes.len();
    }

    /// The last blocks: one or two (FIPS 180-4, section 5.1). The length takes an eighth of a block.
    pub(super) fn padded(&self) -> ([u8; N], Option<[u8; N]>) {
        let mut first = [0; N];
        let content = self.bytes.iter().take(self.filled).chain(&[0x80]);
        for (byte, content) in first.iter_mut().zip(content) {
            *byte = *content;
        }
        if self.filled < N - N / 8 {
            return (self.with_length(first), None);
        }
        (first, Some(self.with_length([0; N])))
    }

    /// No message has 2^61 bytes, so the upper half of a length of 128 bits is zero.
    fn with_length(&self, mut block: [u8; N]) -> [u8; N] {
        let length = (self.len * 8).to_be_bytes();
        for (byte, length) in block.iter_mut().rev().zip(length.iter().rev()) {
            *byte = *length;
        }
        block
    }
}

/// The words of a state as bytes, up to the length of the digest.
pub(super) fn digest<const N: usize>(bytes: impl IntoIterator<Item = u8>) -> [u8; N] {
    let mut bytes = bytes.into_iter();
    std::array::from_fn(|_| bytes.next().unwrap_or_default())
}
