//! libFuzzer over `tec_fuzz::policy_text`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::policy_text(data));
