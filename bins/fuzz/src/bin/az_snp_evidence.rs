//! libFuzzer over `tec_fuzz::az_snp_evidence`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::az_snp_evidence(data));
