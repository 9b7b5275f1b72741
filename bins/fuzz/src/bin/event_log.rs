//! libFuzzer over `tec_fuzz::event_log`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::event_log(data));
