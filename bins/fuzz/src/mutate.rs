//! Mutations of seeds for tests: the same ones for the same seed of the random generator.

use rand_core::Rng;

/// Values at which parsers tend to break: limits of ranges, ASCII digits, first bytes of structures.
const EDGES: [u8; 12] = [0, 1, 0x1e, 0x20, b'0', b'"', b'{', 0x30, 0x7f, 0x80, 0xfe, 0xff];
/// Maximum number of changes in one mutation; more would leave nothing of the seed.
const MOST_CHANGES: usize = 6;
/// Maximum number of bytes that one change inserts or duplicates.
const MOST_BYTES: usize = 64;

/// One of `seeds`, changed in up to six places.
pub fn mutate(rng: &mut impl Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut data = choose(rng, seeds).cloned().unwrap_or_default();
    for _ in 0..=below(rng, MOST_CHANGES) {
        change(rng, &mut data, seeds);
    }
    data
}

/// A number below `bound`, or 0 if `bound` is 0.
fn below(rng: &mut impl Rng, bound: usize) -> usize {
    usize::try_from(rng.next_u64() >> 1).unwrap_or_default().checked_rem(bound).unwrap_or_default()
}

fn choose<'a, T>(rng: &mut impl Rng, list: &'a [T]) -> Option<&'a T> {
    list.get(below(rng, list.len()))
}

/// Start and end of a piece of `length` bytes, at most [`MOST_BYTES`] long.
fn piece(rng: &mut impl Rng, length: usize) -> std::ops::Range<usize> {
    let begin = below(rng, length + 1);
    let size = below(rng, MOST_BYTES.min(length - begin) + 1);
    begin..begin + size
}

fn change(rng: &mut impl Rng, data: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let place = below(rng, data.len());
    match below(rng, 9) {
        0 => with_byte(data, place, |byte| byte ^ (1 << below(rng, 8))),
        1 => {
            let edge = choose(rng, &EDGES).copied().unwrap_or_default();
            with_byte(data, place, |_| edge);
        }
        2 => with_byte(data, place, |byte| byte.wrapping_add(1)),
        3 => {
            let mut bytes = vec![0; below(rng, 9)];
            rng.fill_bytes(&mut bytes);
            data.splice(place..place, bytes);
        }
        4 => {
            let removed = piece(rng, data.len());
            data.drain(removed);
        }
        5 => {
            let copied = data.get(piece(rng, data.len())).unwrap_or_default().to_vec();
            data.splice(place..place, copied);
        }
        6 => data.truncate(place),
        7 => number(rng, data, place),
        _ => {
            let other = choose(rng, seeds).map(Vec::as_slice).unwrap_or_default();
            let taken = other.get(piece(rng, other.len())).unwrap_or_default();
            let replaced = place..data.len().min(place + taken.len());
            data.splice(replaced, taken.iter().copied());
        }
    }
}

fn with_byte(data: &mut [u8], place: usize, change: impl FnOnce(u8) -> u8) {
    if let Some(byte) = data.get_mut(place) {
        *byte = change(*byte);
    }
}

/// Writes a number near a limit of its range, in either byte order, over two or four bytes.
fn number(rng: &mut impl Rng, data: &mut [u8], place: usize) {
    let edge = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe, 0xffff_ffff_u32];
    let value = choose(rng, &edge).copied().unwrap_or_default();
    let bytes = match below(rng, 2) {
        0 => value.to_be_bytes(),
        _ => value.to_le_bytes(),
    };
    let wide = if below(rng, 2) == 0 { 2 } else { 4 };
    for (to, from) in data.iter_mut().skip(place).zip(bytes).take(wide) {
        *to = from;
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng as _;

    use super::*;

    fn some(seed: u64) -> Vec<Vec<u8>> {
        let mut rng = ChaCha20Rng::seed_from_u64(seed);
        let seeds = [b"one seed, some words".to_vec(), Vec::new(), vec![7; 300]];
        (0..200).map(|_| mutate(&mut rng, &seeds)).collect()
    }

    #[test]
    fn mutations_repeat_and_differ() {
        assert_eq!(some(1), some(1));
        assert_ne!(some(1), some(2));
        let distinct: std::collections::BTreeSet<_> = some(1).into_iter().collect();
        assert!(distinct.len() > 150);
    }

    #[test]
    fn nothing_to_mutate_is_fine() {
        let mut rng = ChaCha20Rng::seed_from_u64(3);
        mutate(&mut rng, &[]);
    }
}
