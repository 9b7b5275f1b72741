//! libFuzzer over `tec_fuzz::token`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::token(data));
