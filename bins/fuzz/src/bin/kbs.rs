//! libFuzzer over `tec_fuzz::kbs`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::kbs(data));
