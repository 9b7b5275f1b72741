//! libFuzzer over `tec_fuzz::rcar`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::rcar(data));
