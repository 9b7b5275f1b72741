//! libFuzzer over `tec_fuzz::snp_certificate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::snp_certificate(data));
