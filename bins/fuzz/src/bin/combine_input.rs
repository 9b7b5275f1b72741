//! libFuzzer over `tec_fuzz::combine_input`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::combine_input(data));
