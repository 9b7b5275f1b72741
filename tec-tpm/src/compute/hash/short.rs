//! SHA-256, and SHA-1 over the same bytes: in alternation, because the processor works on one state while it
//! waits for the instructions of the other.

use sha2::block_api::compress256;

use super::rest;
use super::rest::Rest;

/// A block of a message.
type Block = [u8; 64];

/// FIPS 180-4, section 5.3.1.
const SHA1: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
/// FIPS 180-4, section 5.3.3.
#[rustfmt::skip]
const SHA256: [u32; 8] = [
    0x6a09_e667, 0xbb67_ae85, 0x3c6e_f372, 0xa54f_f53a,
    0x510e_527f, 0x9b05_688c, 0x1f83_d9ab, 0x5be0_cd19,
];
/// Blocks of one state before those of the next: few enough that the processor sees both.
const TURN: usize = 2;

/// Hashes a stream in SHA-256, and in SHA-1 if that is wanted.
#[derive(Clone, Debug)]
pub(super) struct ShortHasher {
    sha1: Option<[u32; 5]>,
    sha256: [u32; 8],
    rest: Rest<64>,
}

impl ShortHasher {
    /// A hasher for SHA-256.
    pub(super) fn new() -> Self {
        Self { sha1: None, sha256: SHA256, rest: Rest::new() }
    }

    /// Adds SHA-1.
    pub(super) fn with_sha1(mut self) -> Self {
        self.sha1 = Some(SHA1);
        self
    }

    pub(super) fn update(&mut self, data: &[u8]) {
        let blocks = self.begin(data);
        self.compress(blocks);
    }

    /// As [`update`](Self::update) of both, in less time.
    pub(super) fn update_both(&mut self, other: &mut Self, data: &[u8]) {
        let (ours, theirs) = (self.begin(data), other.begin(data));
        let count = ours.len().min(theirs.len());
        let (ours, our_last) = ours.split_at(count);
        let (theirs, their_last) = theirs.split_at(count);
        for (ours, theirs) in ours.chunks(TURN).zip(theirs.chunks(TURN)) {
            self.take_turn(ours);
            other.take_turn(theirs);
        }
        self.compress(our_last);
        other.compress(their_last);
    }

    /// The digest of SHA-1, if that was wanted.
    pub(super) fn sha1(&self) -> Option<[u8; 20]> {
        let mut state = self.sha1?;
        let (first, second) = self.rest.padded();
        sha1::block_api::compress(&mut state, &[first]);
        sha1::block_api::compress(&mut state, second.as_slice());
        Some(rest::digest(state.iter().flat_map(|word| word.to_be_bytes())))
    }

    /// The digest of SHA-256.
    pub(super) fn sha256(&self) -> [u8; 32] {
        let mut state = self.sha256;
        let (first, second) = self.rest.padded();
        compress256(&mut state, &[first]);
        compress256(&mut state, second.as_slice());
        rest::digest(state.iter().flat_map(|word| word.to_be_bytes()))
    }

    /// Takes all but the blocks that `data` contains.
    fn begin<'d>(&mut self, data: &'d [u8]) -> &'d [Block] {
        let (completed, blocks) = self.rest.split(data);
        self.take_turn(completed.as_slice());
        blocks
    }

    fn compress(&mut self, blocks: &[Block]) {
        if self.sha1.is_none() {
            return compress256(&mut self.sha256, blocks);
        }
        for blocks in blocks.chunks(TURN) {
            self.take_turn(blocks);
        }
    }

    fn take_turn(&mut self, blocks: &[Block]) {
        if let Some(state) = &mut self.sha1 {
            sha1::block_api::compress(state, blocks);
        }
        compress256(&mut self.sha256, blocks);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha1::Sha1;
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn assert_is_of(hasher: &ShortHasher, data: &[u8]) {
        assert_eq!(hasher.sha1().unwrap().as_slice(), Sha1::digest(data).as_slice());
        assert_eq!(hasher.sha256().as_slice(), Sha256::digest(data).as_slice());
    }

    #[test]
    fn every_length_of_the_last_block_is_padded() {
        let data: Vec<u8> = (0..=255).collect();
        for len in 0..=data.len() {
            let mut hasher = ShortHasher::new().with_sha1();
            hasher.update(&data[..len]);
            assert_is_of(&hasher, &data[..len]);
        }
    }

    proptest! {
        #[test]
        fn pieces_that_two_take_in_turns_give_the_digests_of_each(
            ours in proptest::collection::vec(any::<u8>(), 0..200),
            theirs in proptest::collection::vec(any::<u8>(), 0..200),
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..500), 0..6),
        ) {
            let (mut a, mut b) = (ShortHasher::new().with_sha1(), ShortHasher::new().with_sha1());
            a.update(&ours);
            b.update(&theirs);
            for piece in &pieces {
                a.update_both(&mut b, piece);
            }
            let all = pieces.concat();
            assert_is_of(&a, &[ours, all.clone()].concat());
            assert_is_of(&b, &[theirs, all].concat());
        }
    }
}
