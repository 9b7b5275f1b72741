//! libFuzzer over `tec_fuzz::sbat`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::sbat(data));
