//! The list of hostile seeds with the errors that they are refused with.

use std::fmt::Write as _;

use crate::TARGETS;

const TITLE: &str = "<!-- Written by `cargo run -p tec-fuzz --example seed`. -->
# Seeds

One folder per fuzz target. The name of a file says what it is; `src/<target>.rs` has the code that
makes it. The files below are hostile: their parser refuses them with the error beside, which a test
compares, down to offset and name. What a dependency says as the cause is left out (`…`).

| file | error |
|---|---|
";

/// The text of `corpus/README.md`.
pub fn manifest() -> String {
    let mut text = TITLE.to_owned();
    for target in TARGETS {
        for seed in (target.seeds)() {
            if let Some(refusal) = seed.refusal {
                let error = refusal.error.replace('|', "\\|");
                let _ = writeln!(text, "| {}/{} | `{error}` |", target.name, seed.name);
            }
        }
    }
    text
}
