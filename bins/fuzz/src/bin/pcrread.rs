//! libFuzzer over `tec_fuzz::pcrread`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::pcrread(data));
