//! libFuzzer over `tec_fuzz::variable_store`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::variable_store(data));
