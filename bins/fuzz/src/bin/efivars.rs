//! libFuzzer over `tec_fuzz::efivars`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::efivars(data));
