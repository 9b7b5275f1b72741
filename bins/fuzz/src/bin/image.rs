//! libFuzzer over `tec_fuzz::image`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::image(data));
