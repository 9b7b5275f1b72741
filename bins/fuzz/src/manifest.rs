//! The list of hostile seeds with their expected errors: `corpus/README.md`.
//!
//! Errors are recorded only in the list; the code that generates a seed names just its parser.

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

/// The committed errors by file.
fn listed() -> BTreeMap<&'static str, String> {
    let row = |line: &'static str| {
        let (file, error) = line.strip_prefix("| ")?.split_once(" | `")?;
        Some((file, error.strip_suffix("` |")?.replace("\\|", "|")))
    };
    COMMITTED.lines().filter_map(row).collect()
}

/// Whether `given` is the error; anything after an ellipsis is ignored.
fn fits(error: &str, given: &str) -> bool {
    match error.strip_suffix('…') {
        Some(beginning) => given.starts_with(beginning),
        None => given == error,
    }
}

/// The expected list: for each hostile seed the committed error if the parser still returns it, otherwise the
/// error it returns now.
///
/// # Panics
/// If a parser accepts a hostile seed.
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
