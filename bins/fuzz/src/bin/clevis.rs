//! libFuzzer over `tec_fuzz::clevis`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::clevis(data));
