//! Runs libFuzzer on the target named by `TEC_FUZZ_TARGET`: one program for all targets, so that there is
//! only one to link.
#![no_main]
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "libFuzzer owns the command line, and a wrong name must stop it"
)]

use std::sync::OnceLock;

static RUN: OnceLock<fn(&[u8])> = OnceLock::new();

fn chosen() -> fn(&[u8]) {
    let name = std::env::var("TEC_FUZZ_TARGET").expect("TEC_FUZZ_TARGET names a fuzz target");
    let mut targets = tec_fuzz::TARGETS.iter();
    let target = targets.find(|target| target.name == name);
    target.expect("TEC_FUZZ_TARGET names a fuzz target").run
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| RUN.get_or_init(chosen)(data));
