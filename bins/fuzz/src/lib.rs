//! What must hold for every input of every parser: one plain function per target.
//!
//! *What it is*: properties. Nothing panics or runs forever, and beyond that: what was parsed is rendered and
//! parsed again to the same value, what verifies is what was signed, what is refused leaves nothing behind.
//! Results that can be computed in a second way are.
//!
//! *What it is not*: a fuzzer. The same functions run twice:
//!
//! ```text
//! corpus/<target>/* ─┬─ cargo test -p tec-fuzz ── each seed, and seeded mutations of the seeds
//!                    └─ cargo xtask fuzz ──────── libFuzzer, guided by coverage (src/bin)
//! examples/seed.rs ───► corpus/<target>/*         the crates' builders create every seed
//!                  └──► corpus/README.md          the hostile seeds, each with its typed error
//! ```
//! Hostile seeds are files that a parser must refuse, each with the error in the list.
//!
//! A target panics when its property does not hold, which is how libFuzzer detects it.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold must stop the fuzzer"
)]

mod az_snp_evidence;
mod bytes;
mod clevis;
mod combine;
mod combine_input;
mod efivars;
mod ek_certificate;
mod event_log;
mod event_log_sha1;
mod evidence;
mod grub_script;
mod guard;
mod hcl_report;
mod ignition;
mod image;
mod jwe;
mod kbs;
mod kbs_config;
mod label;
pub mod manifest;
pub mod mutate;
mod pcrread;
mod pe;
mod pkcs7;
mod policy_evidence;
mod policy_text;
mod predict;
mod public_key;
mod quote;
mod rcar;
mod reference_values;
mod registration;
mod request;
mod sample;
mod sbat;
mod service_uri;
mod signature_list;
mod signer;
mod slow;
mod snp_certificate;
mod snp_report;
mod systemd_log;
mod token;
mod tpm2b_public;
mod transfer;
mod uki;
mod variable_store;
mod vendor_cert;
mod x509;

/// One target.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Target {
    /// Name of its module, its function and its seed directory.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
    /// Generates its seeds, always the same ones.
    pub seeds: fn() -> Vec<Seed>,
    /// Number of mutations that a test tries: a few thousand if each takes microseconds.
    pub mutations: usize,
}

/// A parser.
pub type Read = fn(&[u8]) -> Result<(), String>;

/// One seed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Seed {
    /// Name of its file.
    pub name: String,
    /// Input of the target.
    pub content: Vec<u8>,
    /// For a hostile seed, the parser that refuses it; it returns the `Debug` form of its error, which names
    /// variant, offset and culprit. `corpus/README.md` contains the error, see [`manifest`].
    pub refused_by: Option<Read>,
}

impl Seed {
    /// A seed.
    pub(crate) fn new(name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), content: content.into(), refused_by: None }
    }

    /// Marks it as hostile.
    pub(crate) fn refused(mut self, read: Read) -> Self {
        self.refused_by = Some(read);
        self
    }
}

/// Converts a parser's result to the form of [`Seed::refused_by`].
pub(crate) fn outcome<T, E: std::fmt::Debug>(result: Result<T, E>) -> Result<(), String> {
    result.map(drop).map_err(|error| format!("{error:?}"))
}

/// Each target is a module with a function of the same name.
macro_rules! targets {
    ($($name:ident, $mutations:literal;)*) => {
        &[$(Target {
            name: stringify!($name),
            run: $name::$name,
            seeds: $name::seeds,
            mutations: $mutations,
        }),*]
    };
}

/// All targets, sorted by name, with the number of mutations tried for each.
pub const TARGETS: &[Target] = targets! {
    az_snp_evidence, 200;
    clevis, 3000;
    combine, 300;
    combine_input, 600;
    efivars, 3000;
    ek_certificate, 3000;
    event_log, 3000;
    event_log_sha1, 3000;
    evidence, 600;
    grub_script, 500;
    guard, 200;
    hcl_report, 1500;
    ignition, 1500;
    image, 600;
    jwe, 600;
    kbs, 200;
    kbs_config, 1500;
    label, 3000;
    pcrread, 3000;
    pe, 1500;
    pkcs7, 600;
    policy_evidence, 400;
    policy_text, 600;
    predict, 150;
    public_key, 3000;
    quote, 1500;
    rcar, 600;
    reference_values, 3000;
    registration, 800;
    sbat, 3000;
    service_uri, 3000;
    signature_list, 3000;
    snp_certificate, 600;
    snp_report, 600;
    systemd_log, 3000;
    token, 2000;
    tpm2b_public, 3000;
    transfer, 600;
    uki, 300;
    variable_store, 3000;
    vendor_cert, 3000;
    x509, 1500;
};
