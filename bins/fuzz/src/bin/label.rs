//! libFuzzer over `tec_fuzz::label`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::label(data));
