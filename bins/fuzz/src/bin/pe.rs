//! libFuzzer over `tec_fuzz::pe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::pe(data));
