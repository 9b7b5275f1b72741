//! The compression function of SHA-512 in the lanes of a vector: four states take little more time than one,
//! because one state waits for the result of each operation before the next.

use std::array;

use fearless_simd::{Level, Simd, SimdBase as _, u64x4};

/// A state of SHA-384 or SHA-512.
pub(super) type State = [u64; 8];
/// A block of a message.
pub(super) type Block = [u8; 128];

/// FIPS 180-4, section 4.2.3; four to a line, as there.
#[rustfmt::skip]
const K: [[u64; 16]; 5] = [
    [
        0x428a_2f98_d728_ae22, 0x7137_4491_23ef_65cd, 0xb5c0_fbcf_ec4d_3b2f, 0xe9b5_dba5_8189_dbbc,
        0x3956_c25b_f348_b538, 0x59f1_11f1_b605_d019, 0x923f_82a4_af19_4f9b, 0xab1c_5ed5_da6d_8118,
        0xd807_aa98_a303_0242, 0x1283_5b01_4570_6fbe, 0x2431_85be_4ee4_b28c, 0x550c_7dc3_d5ff_b4e2,
        0x72be_5d74_f27b_896f, 0x80de_b1fe_3b16_96b1, 0x9bdc_06a7_25c7_1235, 0xc19b_f174_cf69_2694,
    ],
    [
        0xe49b_69c1_9ef1_4ad2, 0xefbe_4786_384f_25e3, 0x0fc1_9dc6_8b8c_d5b5, 0x240c_a1cc_77ac_9c65,
        0x2de9_2c6f_592b_0275, 0x4a74_84aa_6ea6_e483, 0x5cb0_a9dc_bd41_fbd4, 0x76f9_88da_8311_53b5,
        0x983e_5152_ee66_dfab, 0xa831_c66d_2db4_3210, 0xb003_27c8_98fb_213f, 0xbf59_7fc7_beef_0ee4,
        0xc6e0_0bf3_3da8_8fc2, 0xd5a7_9147_930a_a725, 0x06ca_6351_e003_826f, 0x1429_2967_0a0e_6e70,
    ],
    [
        0x27b7_0a85_46d2_2ffc, 0x2e1b_2138_5c26_c926, 0x4d2c_6dfc_5ac4_2aed, 0x5338_0d13_9d95_b3df,
        0x650a_7354_8baf_63de, 0x766a_0abb_3c77_b2a8, 0x81c2_c92e_47ed_aee6, 0x9272_2c85_1482_353b,
        0xa2bf_e8a1_4cf1_0364, 0xa81a_664b_bc42_3001, 0xc24b_8b70_d0f8_9791, 0xc76c_51a3_0654_be30,
        0xd192_e819_d6ef_5218, 0xd699_0624_5565_a910, 0xf40e_3585_5771_202a, 0x106a_a070_32bb_d1b8,
    ],
    [
        0x19a4_c116_b8d2_d0c8, 0x1e37_6c08_5141_ab53, 0x2748_774c_df8e_eb99, 0x34b0_bcb5_e19b_48a8,
        0x391c_0cb3_c5c9_5a63, 0x4ed8_aa4a_e341_8acb, 0x5b9c_ca4f_7763_e373, 0x682e_6ff3_d6b2_b8a3,
        0x748f_82ee_5def_b2fc, 0x78a5_636f_4317_2f60, 0x84c8_7814_a1f0_ab72, 0x8cc7_0208_1a64_39ec,
        0x90be_fffa_2363_1e28, 0xa450_6ceb_de82_bde9, 0xbef9_a3f7_b2c6_7915, 0xc671_78f2_e372_532b,
    ],
    [
        0xca27_3ece_ea26_619c, 0xd186_b8c7_21c0_c207, 0xeada_7dd6_cde0_eb1e, 0xf57d_4f7f_ee6e_d178,
        0x06f0_67aa_7217_6fba, 0x0a63_7dc5_a2c8_98a6, 0x113f_9804_bef9_0dae, 0x1b71_0b35_131c_471b,
        0x28db_77f5_2304_7d84, 0x32ca_ab7b_40c7_2493, 0x3c9e_be0a_15c9_bebc, 0x431d_67c4_9c10_0d4c,
        0x4cc5_d4be_cb3e_42b6, 0x597f_299c_fc65_7e2a, 0x5fcb_6fab_3ad6_faec, 0x6c44_198c_4a47_5817,
    ],
];

/// How many states are worth computing together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lanes {
    /// Two of the same message: the vectors have a rotation.
    Two,
    /// Only four of two messages.
    Four,
    /// None: one state after another is faster.
    None,
}

impl Lanes {
    /// What this processor can do.
    pub(super) fn of_processor() -> Self {
        match Level::new() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(_) => Self::Two,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(_) => Self::Four,
            _ => Self::None,
        }
    }
}

/// Extends the first two states by the first blocks and the last two by the second blocks, of which there
/// are as many.
pub(super) fn compress(states: [&mut State; 4], first: &[Block], second: &[Block]) {
    match Level::new() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(simd) => simd.vectorize(
            #[inline(always)]
            || compress_with(simd, states, first, second),
        ),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(simd) => simd.vectorize(
            #[inline(always)]
            || compress_with(simd, states, first, second),
        ),
        _ => {
            let [a, b, c, d] = states;
            for (state, blocks) in [(a, first), (b, first), (c, second), (d, second)] {
                sha2::block_api::compress512(state, blocks);
            }
        }
    }
}

/// FIPS 180-4, section 6.4.2.
#[expect(clippy::inline_always, reason = "inlined into the code for one type of processor")]
#[inline(always)]
fn compress_with<S: Simd>(simd: S, states: [&mut State; 4], first: &[Block], second: &[Block]) {
    let [a, b, c, d] = states;
    let lane = |((a, b), (c, d)): ((&mut u64, &mut u64), (&mut u64, &mut u64))| {
        u64x4::from_slice(simd, &[*a, *b, *c, *d])
    };
    let mut words = a.iter_mut().zip(b.iter_mut()).zip(c.iter_mut().zip(d.iter_mut()));
    let mut state = array::from_fn(|_| words.next().map_or_else(|| u64x4::splat(simd, 0), lane));
    for (first, second) in first.iter().zip(second) {
        state = compress_block(state, message(simd, first, second));
    }
    let words = a.iter_mut().zip(b).zip(c.iter_mut().zip(d)).zip(state);
    for (((a, b), (c, d)), lanes) in words {
        [*a, *b, *c, *d] = lanes.into();
    }
}

/// The words of both messages, each in two lanes.
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn message<S: Simd>(simd: S, first: &Block, second: &Block) -> [u64x4<S>; 16] {
    let mut words = first.as_chunks().0.iter().zip(second.as_chunks().0);
    array::from_fn(|_| {
        let (first, second) = words.next().map_or((0, 0), |(first, second)| {
            (u64::from_be_bytes(*first), u64::from_be_bytes(*second))
        });
        u64x4::from_slice(simd, &[first, first, second, second])
    })
}

#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn compress_block<S: Simd>(before: [u64x4<S>; 8], mut w: [u64x4<S>; 16]) -> [u64x4<S>; 8] {
    let mut state = before;
    for k in &K {
        macro_rules! rounds {
            ($($i:literal)*) => {$(
                state = round(state, w[$i] + k[$i]);
                w[$i] += small(w[($i + 1) % 16], 1, 8, 7)
                    + w[($i + 9) % 16]
                    + small(w[($i + 14) % 16], 19, 61, 6);
            )*};
        }
        // Unrolled, so that all words stay in registers.
        rounds!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    }
    let mut before = before.into_iter();
    state.map(|word| before.next().map_or(word, |before| word + before))
}

#[expect(clippy::inline_always, reason = "as above")]
#[expect(clippy::many_single_char_names, reason = "the names of the standard")]
#[inline(always)]
fn round<S: Simd>([a, b, c, d, e, f, g, h]: [u64x4<S>; 8], word: u64x4<S>) -> [u64x4<S>; 8] {
    let first = (h + word) + big(e, 14, 18, 41) + ((e & f) ^ (!e & g));
    let second = big(a, 28, 34, 39) + ((a & b) ^ (a & c) ^ (b & c));
    [first + second, a, b, c, d + first, e, f, g]
}

/// FIPS 180-4, section 4.1.3, (4.10) and (4.11).
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn big<S: Simd>(x: u64x4<S>, first: u32, second: u32, third: u32) -> u64x4<S> {
    rotated(x, first) ^ rotated(x, second) ^ rotated(x, third)
}

/// FIPS 180-4, section 4.1.3, (4.12) and (4.13).
#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn small<S: Simd>(x: u64x4<S>, first: u32, second: u32, shift: u32) -> u64x4<S> {
    rotated(x, first) ^ rotated(x, second) ^ (x >> shift)
}

#[expect(clippy::inline_always, reason = "as above")]
#[inline(always)]
fn rotated<S: Simd>(x: u64x4<S>, count: u32) -> u64x4<S> {
    (x >> count) | (x << (64 - count))
}
