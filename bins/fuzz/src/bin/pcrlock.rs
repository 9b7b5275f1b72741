//! libFuzzer over `tec_fuzz::pcrlock`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::pcrlock(data));
