//! libFuzzer over `tec_fuzz::grub_script`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| tec_fuzz::grub_script(data));
