//! libFuzzer over `tec_fuzz::public_key`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::public_key(data));
