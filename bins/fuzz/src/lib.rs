//! What must hold for every input of every parser: one plain function per target.
//!
//! *What it is*: properties. Nothing panics or takes for ever, and beyond that: what was parsed is
//! rendered and parsed again to the same value, what is verified is what was signed, what is
//! refused leaves nothing behind. Where a result can be computed in another way, it is.
//!
//! *What it is not*: a fuzzer. The same functions run twice:
//!
//! ```text
//! corpus/<target>/* ─┬─ cargo test -p tec-fuzz ── each seed, and seeded mutations of the seeds
//!                    └─ cargo xtask fuzz ──────── libFuzzer, guided by coverage (src/bin)
//! examples/seed.rs ───► corpus/<target>/*         every seed is made by the builders of the crates
//!                  └──► corpus/README.md          the hostile seeds, each with its typed error
//! ```
//! Hostile seeds are files that a parser must refuse, and in which way ([`Refusal`]).
//!
//! A target panics when its property does not hold; that is how libFuzzer is told.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold must stop the fuzzer"
)]

mod bytes;
pub mod manifest;
pub mod mutate;
mod request;
mod sample;
mod signer;

/// One target.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Target {
    /// Name of its module, of its function and of its directory of seeds.
    pub name: &'static str,
    /// The function.
    pub run: fn(&[u8]),
    /// Makes its seeds; the same ones every time.
    pub seeds: fn() -> Vec<Seed>,
    /// Mutations of seeds that a test tries: some thousand where one takes microseconds.
    pub mutations: usize,
}

/// One seed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Seed {
    /// Name of its file.
    pub name: String,
    /// What the target is given.
    pub content: Vec<u8>,
    /// For a hostile seed, how it is refused.
    pub refusal: Option<Refusal>,
}

/// How a hostile seed is refused.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Refusal {
    /// The parser; it gives the `Debug` form of its error, which names variant, offset and culprit.
    pub read: fn(&[u8]) -> Result<(), String>,
    /// The error. What another crate says as its cause is cut off at an ellipsis.
    pub error: &'static str,
}

impl Refusal {
    /// Whether `given` is the error.
    pub fn is(&self, given: &str) -> bool {
        match self.error.strip_suffix('…') {
            Some(beginning) => given.starts_with(beginning),
            None => given == self.error,
        }
    }
}

impl Seed {
    /// A seed.
    pub(crate) fn new(name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            content: content.into(),
            refusal: None,
        }
    }

    /// Says that the parser refuses it with this error.
    pub(crate) fn refused(
        mut self,
        read: fn(&[u8]) -> Result<(), String>,
        error: &'static str,
    ) -> Self {
        self.refusal = Some(Refusal { read, error });
        self
    }
}

/// What a parser says, as [`Refusal::read`] gives it.
pub(crate) fn outcome<T, E: std::fmt::Debug>(result: Result<T, E>) -> Result<(), String> {
    result.map(drop).map_err(|error| format!("{error:?}"))
}

/// Each target is a module of its name, with a function of its name.
macro_rules! targets {
    ($($name:ident, $mutations:literal;)*) => {
        $(mod $name;)*

        /// All targets, in the order of their names.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: $name::$name,
            seeds: $name::seeds,
            mutations: $mutations,
        }),*];
    };
}

targets! {
    az_snp_evidence, 200;
    clevis, 3000;
    combine, 300;
    combine_input, 600;
    efivars, 3000;
    ek_certificate, 3000;
    event_log, 3000;
    event_log_sha1, 3000;
    evidence, 600;
    grub_script, 3000;
    guard, 200;
    hcl_report, 1500;
    ignition, 1500;
    image, 600;
    jwe, 600;
    kbs, 200;
    kbs_config, 1500;
    label, 3000;
    pcrlock, 3000;
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
    token, 2000;
    tpm2b_public, 3000;
    transfer, 600;
    uki, 300;
    variable_store, 3000;
    vendor_cert, 3000;
    x509, 1500;
}
