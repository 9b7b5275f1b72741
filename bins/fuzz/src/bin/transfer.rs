//! libFuzzer over `tec_fuzz::transfer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::transfer(data));
