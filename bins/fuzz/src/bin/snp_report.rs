//! libFuzzer over `tec_fuzz::snp_report`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::snp_report(data));
