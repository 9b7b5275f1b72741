//! libFuzzer over `tec_fuzz::jwe`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::jwe(data));
