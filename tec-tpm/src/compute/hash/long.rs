//! SHA-384 and SHA-512, which differ only in their initial state and length, over the same bytes.

use sha2::block_api::compress512;

use super::lanes;
use super::lanes::{Block, Lanes, State};
use super::rest;
use super::rest::Rest;

/// FIPS 180-4, section 5.3.4.
const SHA384: State = [
    0xcbbb_9d5d_c105_9ed8,
    0x629a_292a_367c_d507,
    0x9159_015a_3070_dd17,
    0x152f_ecd8_f70e_5939,
    0x6733_2667_ffc0_0b31,
    0x8eb4_4a87_6858_1511,
    0xdb0c_2e0d_64f9_8fa7,
    0x47b5_481d_befa_4fa4,
];
/// FIPS 180-4, section 5.3.5.
const SHA512: State = [
    0x6a09_e667_f3bc_c908,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
    0x510e_527f_ade6_82d1,
    0x9b05_688c_2b3e_6c1f,
    0x1f83_d9ab_fb41_bd6b,
    0x5be0_cd19_137e_2179,
];

/// Hashes a stream in SHA-384 and SHA-512.
#[derive(Clone, Debug)]
pub(super) struct LongHasher {
    sha384: State,
    sha512: State,
    rest: Rest<128>,
    lanes: Lanes,
}

impl LongHasher {
    pub(super) fn new() -> Self {
        Self { sha384: SHA384, sha512: SHA512, rest: Rest::new(), lanes: Lanes::of_processor() }
    }

    pub(super) fn update(&mut self, data: &[u8]) {
        let blocks = self.begin(data);
        self.compress(blocks);
    }

    /// As [`update`](Self::update) of both, in less time.
    pub(super) fn update_both(&mut self, other: &mut Self, data: &[u8]) {
        let (ours, theirs) = (self.begin(data), other.begin(data));
        let count = if self.lanes == Lanes::None { 0 } else { ours.len().min(theirs.len()) };
        let (ours, our_last) = ours.split_at(count);
        let (theirs, their_last) = theirs.split_at(count);
        if count > 0 {
            let states = [&mut self.sha384, &mut self.sha512, &mut other.sha384, &mut other.sha512];
            lanes::compress(states, ours, theirs);
        }
        self.compress(our_last);
        other.compress(their_last);
    }

    /// The digest of SHA-384.
    pub(super) fn sha384(&self) -> [u8; 48] {
        self.finished(self.sha384)
    }

    /// The digest of SHA-512.
    pub(super) fn sha512(&self) -> [u8; 64] {
        self.finished(self.sha512)
    }

    /// Takes all but the blocks that `data` contains.
    fn begin<'d>(&mut self, data: &'d [u8]) -> &'d [Block] {
        let (completed, blocks) = self.rest.split(data);
        self.compress(completed.as_slice());
        blocks
    }

    fn compress(&mut self, blocks: &[Block]) {
        if self.lanes == Lanes::Two && !blocks.is_empty() {
            let (mut third, mut fourth) = (SHA384, SHA512);
            let states = [&mut self.sha384, &mut self.sha512, &mut third, &mut fourth];
            lanes::compress(states, blocks, blocks);
        } else {
            compress512(&mut self.sha384, blocks);
            compress512(&mut self.sha512, blocks);
        }
    }

    fn finished<const N: usize>(&self, mut state: State) -> [u8; N] {
        let (first, second) = self.rest.padded();
        compress512(&mut state, &[first]);
        compress512(&mut state, second.as_slice());
        rest::digest(state.iter().flat_map(|word| word.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha2::{Digest as _, Sha384, Sha512};

    use super::*;

    fn assert_is_of(hasher: &LongHasher, data: &[u8]) {
        assert_eq!(hasher.sha384().as_slice(), Sha384::digest(data).as_slice());
        assert_eq!(hasher.sha512().as_slice(), Sha512::digest(data).as_slice());
    }

    #[test]
    fn every_length_of_the_last_block_is_padded() {
        let data: Vec<u8> = (0..=255).cycle().take(3 * 128 + 1).collect();
        for len in 0..=data.len() {
            let mut hasher = LongHasher::new();
            hasher.update(&data[..len]);
            assert_is_of(&hasher, &data[..len]);
        }
    }

    proptest! {
        #[test]
        fn pieces_that_two_take_together_give_the_digests_of_each(
            ours in proptest::collection::vec(any::<u8>(), 0..300),
            theirs in proptest::collection::vec(any::<u8>(), 0..300),
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..700), 0..6),
            lanes in proptest::sample::select(vec![Lanes::Two, Lanes::Four, Lanes::None]),
        ) {
            let (mut a, mut b) = (LongHasher::new(), LongHasher::new());
            (a.lanes, b.lanes) = (lanes, lanes);
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
