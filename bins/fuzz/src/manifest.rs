//! The list of hostile seeds with the errors that they are refused with: `corpus/README.md`.
//!
//! The list is where an error is written down; the code that makes a seed names only its parser.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::TARGETS;

/// The committed list.
pub const COMMITTED: &str = include_str!("../corpus/README.md");

const TITLE: &str = "<!-- Written by `cargo run -p tec-fuzz --example seed`. -->
# Seeds

One folder per fuzz target. The name of a file says what it is; `src/<target>.rs` has the code that
makes it. The files below are hostile: their parser refuses them with the error beside, which a test
compares, down to offset and name. What a dependency says as the cause is left out (`…`).

| file | error |
|---|---|
";

/// The committed errors by the files that they are about.
fn listed() -> BTreeMap<&'static str, String> {
    let row = |line: &'static str| {
        let (file, error) = line.strip_prefix("| ")?.split_once(" | `")?;
        Some((file, error.strip_suffix("` |")?.replace("\\|", "|")))
    };
    COMMITTED.lines().filter_map(row).collect()
}

/// Whether `given` is the error; what follows an ellipsis does not count.
fn fits(error: &str, given: &str) -> bool {
    match error.strip_suffix('…') {
        Some(beginning) => given.starts_with(beginning),
        None => given == error,
    }
}

/// The list as it must be: of each hostile seed the committed error where the parser still gives
/// it, else the error that it does give.
///
/// # Panics
/// When a parser takes a hostile seed.
pub fn manifest() -> String {
    let listed = listed();
    let mut text = TITLE.to_owned();
    for target in TARGETS {
        for seed in (target.seeds)() {
            let Some(read) = seed.refused_by else {
                continue;
            };
            let file = format!("{}/{}", target.name, seed.name);
            let Err(given) = read(&seed.content) else {
                panic!("{file} is not refused");
            };
            let committed = listed.get(file.as_str());
            let error = committed.filter(|error| fits(error, &given)).unwrap_or(&given);
            let _ = writeln!(text, "| {file} | `{}` |", error.replace('|', "\\|"));
        }
    }
    text
}
