//! libFuzzer over `tec_fuzz::ignition`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::ignition(data));
