//! libFuzzer over `tec_fuzz::hcl_report`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::hcl_report(data));
