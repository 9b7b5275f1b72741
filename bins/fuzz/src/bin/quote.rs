//! libFuzzer over `tec_fuzz::quote`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::quote(data));
