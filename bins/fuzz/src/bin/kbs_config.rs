//! libFuzzer over `tec_fuzz::kbs_config`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::kbs_config(data));
