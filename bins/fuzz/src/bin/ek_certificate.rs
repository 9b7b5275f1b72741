//! libFuzzer over `tec_fuzz::ek_certificate`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::ek_certificate(data));
