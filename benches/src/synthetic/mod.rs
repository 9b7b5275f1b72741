//! Synthetic inputs: the same seed gives the same bytes, whatever the size.
//!
//! Large programs are streamed, so that a file of 2 GiB takes neither memory nor disk.

mod fleet;
mod log;
mod machine;
mod program;

pub use self::fleet::Fleet;
pub use self::log::event_log;
pub use self::machine::{ATTRIBUTES, dbx, machine};
pub use self::program::{Program, ProgramImage};

/// Pseudo-random numbers (SplitMix64: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators",
/// OOPSLA 2014). Only for shapes and filler.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `end`, or zero.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        let end = end.max(1) as u64;
        usize::try_from(self.next() % end).unwrap_or_default()
    }
}

/// As many bytes as requested.
pub fn bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let words = std::iter::from_fn(|| Some(random.next().to_le_bytes()));
    words.flatten().take(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_bytes_and_others_do_not() {
        assert_eq!(bytes(1, 1000), bytes(1, 1000));
        assert_ne!(bytes(1, 1000), bytes(2, 1000));
        assert_eq!(bytes(1, 1000)[..10], bytes(1, 10));
    }
}
