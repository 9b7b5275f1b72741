//! libFuzzer over `tec_fuzz::pkcs7`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::pkcs7(data));
