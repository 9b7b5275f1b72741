//! libFuzzer over `tec_fuzz::registration`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::registration(data));
