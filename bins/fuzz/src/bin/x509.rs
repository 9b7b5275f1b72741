//! libFuzzer over `tec_fuzz::x509`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::x509(data));
