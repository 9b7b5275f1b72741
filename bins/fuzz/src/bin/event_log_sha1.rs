//! libFuzzer over `tec_fuzz::event_log_sha1`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::event_log_sha1(data));
