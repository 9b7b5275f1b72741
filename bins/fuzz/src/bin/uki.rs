//! libFuzzer over `tec_fuzz::uki`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::uki(data));
