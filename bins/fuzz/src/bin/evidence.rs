//! libFuzzer over `tec_fuzz::evidence`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::evidence(data));
