//! libFuzzer over `tec_fuzz::combine`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::combine(data));
