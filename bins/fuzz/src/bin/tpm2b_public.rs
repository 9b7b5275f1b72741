//! libFuzzer over `tec_fuzz::tpm2b_public`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::tpm2b_public(data));
