//! Checks the pages that make security promises: each row names tests, and these tests exist and run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Violation;
use super::source::Source;

/// Pages whose tables are checked.
const PAGES: [&str; 2] = ["SECURITY.md", "docs/explanation/threat-model.md"];
/// Title of the last column of a checked table.
const COLUMN: &str = "test";
/// Tests that `cargo xtask test` runs only on request.
const ON_REQUEST: &str = "bins/e2e/tests/opensearch";
const RULE: &str = "threat-has-test";

pub(super) fn check(root: &Path, sources: &[Source]) -> Result<Vec<Violation>> {
    let mut found = Vec::new();
    let run: BTreeSet<&str> = sources.iter().flat_map(tests_of).collect();
    for page in PAGES {
        let path = root.join(page);
        if !path.exists() {
            let todo = "restore it; users rely on what it promises";
            found.push(Violation::new(RULE, page, 0, "the page is missing", todo));
            continue;
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {page}"))?;
        for row in rows(&text) {
            found.extend(row.violations(page, &run));
        }
    }
    Ok(found)
}

/// A row of a table whose last column names tests.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    line: usize,
    tests: BTreeSet<String>,
}

impl Row {
    fn violations(&self, page: &str, run: &BTreeSet<&str>) -> Vec<Violation> {
        let todo = "name a test that `cargo xtask test` runs, or remove the promise";
        let violation = |what: String| Violation::new(RULE, page, self.line, what, todo);
        if self.tests.is_empty() {
            return vec![violation("the row names no test".to_owned())];
        }
        let missing = self.tests.iter().filter(|name| !run.contains(name.as_str()));
        missing.map(|name| violation(format!("no test that runs is called {name}"))).collect()
    }
}

fn rows(text: &str) -> Vec<Row> {
    let (mut rows, mut within) = (Vec::new(), false);
    for (number, line) in (1..).zip(text.lines()) {
        let Some(last) = last_cell(line) else {
            within = false;
            continue;
        };
        if last == COLUMN {
            within = true;
        } else if within && !is_rule(last) {
            // Every second piece is between backticks.
            let names = last.split('`').skip(1).step_by(2);
            rows.push(Row { line: number, tests: names.map(str::to_owned).collect() });
        }
    }
    rows
}

/// Whether this is the line below the column titles.
fn is_rule(cell: &str) -> bool {
    cell.contains('-') && cell.chars().all(|c| c == '-' || c == ':')
}

fn last_cell(line: &str) -> Option<&str> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(row.rsplit('|').next().unwrap_or_default().trim())
}

/// Names of the tests that the test runner starts by default.
fn tests_of(source: &Source) -> impl Iterator<Item = &str> {
    const FUNCTION: &str = "fn ";
    let is_test = |offset: &usize| {
        let attributes = attributes_before(source, *offset);
        let is = |start: &str| attributes.iter().any(|line| line.starts_with(start));
        (is("#[test]") || is("#[tokio::test")) && !is("#[ignore")
    };
    let name = |offset: usize| {
        let rest = source.code.get(offset + FUNCTION.len()..)?;
        rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    };
    let runs = !source.file.starts_with(ON_REQUEST);
    let places = source.code.match_indices(FUNCTION).map(|(offset, _)| offset);
    places.filter(move |_| runs).filter(is_test).filter_map(name)
}

/// The lines directly above the one at `offset` that are attributes.
fn attributes_before(source: &Source, offset: usize) -> Vec<&str> {
    let before = source.code.get(..offset).unwrap_or_default();
    // The line itself may start with blanks or `async`.
    let above = before.rsplit_once('\n').map_or("", |(above, _)| above);
    let lines = above.lines().rev().map(str::trim);
    lines.take_while(|line| line.starts_with("#[")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_with_a_column_of_tests_are_read_and_no_others() {
        let page = "| a | b |\n|---|---|\n| x | `no_test` |\n\n\
            | attack | test |\n|---|---|\n| one | `first`, `second` |\n| two | none |\n\ntext\n";
        let row = |line, tests: &[&str]| Row {
            line,
            tests: tests.iter().map(|&name| name.to_owned()).collect(),
        };
        assert_eq!(rows(page), [row(7, &["first", "second"]), row(8, &[])]);
        assert_eq!(rows("| test |\n|---|\n|  |\n"), [row(3, &[])]);
    }

    #[test]
    fn only_functions_that_the_test_runner_starts_are_tests() {
        let code = "#[test]\nfn it_is_checked() {}\n\n\
            #[test]\n#[ignore = \"slow\"]\nfn it_is_ignored() {}\n\n\
            mod tests {\n    #[tokio::test]\n    async fn it_waits() {}\n\n    fn it_is_no_test() {}\n}\n";
        let source = |file: &str| Source::new(file.to_owned(), code.to_owned());
        let plain = source("tec-core/src/x.rs");
        assert_eq!(tests_of(&plain).collect::<Vec<_>>(), ["it_is_checked", "it_waits"]);
        let on_request = source("bins/e2e/tests/opensearch/main.rs");
        assert_eq!(tests_of(&on_request).count(), 0);
    }
}
