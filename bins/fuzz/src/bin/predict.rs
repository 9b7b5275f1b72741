//! libFuzzer over `tec_fuzz::predict`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::predict(data));
