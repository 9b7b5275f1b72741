//! libFuzzer over `tec_fuzz::vendor_cert`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::vendor_cert(data));
