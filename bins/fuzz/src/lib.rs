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
//! ```
//! A target panics when its property does not hold; that is how libFuzzer is told.
#![expect(
    clippy::missing_panics_doc,
    clippy::expect_used,
    clippy::panic,
    reason = "a property that does not hold must stop the fuzzer"
)]

mod clevis;
mod ek_certificate;
mod event_log;
mod evidence;
mod ignition;
mod jwe;
mod kbs;
mod kbs_config;
pub mod mutate;
mod pe;
mod policy_evidence;
mod policy_text;
mod public_key;
mod quote;
mod registration;
mod request;
mod sample;
mod token;
mod tpm2b_public;

pub use self::clevis::clevis;
pub use self::ek_certificate::ek_certificate;
pub use self::event_log::event_log;
pub use self::evidence::evidence;
pub use self::ignition::ignition;
pub use self::jwe::jwe;
pub use self::kbs::kbs;
pub use self::kbs_config::kbs_config;
pub use self::pe::pe;
pub use self::policy_evidence::policy_evidence;
pub use self::policy_text::policy_text;
pub use self::public_key::public_key;
pub use self::quote::quote;
pub use self::registration::registration;
pub use self::token::token;
pub use self::tpm2b_public::tpm2b_public;

/// One target.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Target {
    /// Its name: that of its function, of its binary and of its directory of seeds.
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
}

impl Seed {
    /// A seed.
    pub(crate) fn new(name: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        Self {
            name: name.into(),
            content: content.into(),
        }
    }
}

macro_rules! targets {
    ($($name:ident, $mutations:literal;)*) => {
        /// All targets, in the order of their names.
        pub const TARGETS: &[Target] = &[$(Target {
            name: stringify!($name),
            run: $name,
            seeds: self::$name::seeds,
            mutations: $mutations,
        }),*];
    };
}

targets! {
    clevis, 3000;
    ek_certificate, 3000;
    event_log, 3000;
    evidence, 600;
    ignition, 1500;
    jwe, 600;
    kbs, 200;
    kbs_config, 1500;
    pe, 1500;
    policy_evidence, 400;
    policy_text, 600;
    public_key, 3000;
    quote, 1500;
    registration, 800;
    token, 2000;
    tpm2b_public, 3000;
}
