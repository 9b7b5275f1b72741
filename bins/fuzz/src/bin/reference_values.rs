//! libFuzzer over `tec_fuzz::reference_values`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::reference_values(data));
