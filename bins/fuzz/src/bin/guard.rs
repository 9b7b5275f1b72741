//! libFuzzer over `tec_fuzz::guard`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::guard(data));
