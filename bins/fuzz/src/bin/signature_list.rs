//! libFuzzer over `tec_fuzz::signature_list`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::signature_list(data));
