//! Both ways to a TPM against a real emulator: `swtpm` must be installed, one runs per test.
//!
//! One suite is run over both. What they do not share, and how each handles the other's keys, is
//! tested separately.
#![expect(clippy::duplicate_mod, reason = "the suite is run once for each way")]

mod both;

#[path = "."]
mod through_libtss2 {
    use tec_tpm::tss::Tpm;

    #[path = "suite.rs"]
    mod suite;
}

#[path = "."]
mod direct {
    use tec_tpm::direct::Tpm;

    #[path = "suite.rs"]
    mod suite;
}
