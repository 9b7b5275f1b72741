//! The page of the operator's properties names existing tests, for each number in the list.
#![expect(clippy::unwrap_used, reason = "a test's own tools may fail the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Names of all functions in a folder.
fn functions(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            functions(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let after = text.split("fn ").skip(1);
            let names = after.filter_map(|rest| rest.split(['(', '<']).next());
            found.extend(names.map(str::to_owned));
        }
    }
}

#[test]
fn each_property_of_the_operator_is_shown_by_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/contributing/operator-properties.md")).unwrap();
    let mut known = BTreeSet::new();
    for folder in ["tec-core", "tec-k8s", "tec-tpm", "tec-trustee", "bins"] {
        functions(&root.join(folder), &mut known);
    }
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let mut numbers = BTreeSet::new();
    for row in rows {
        let columns: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let tests: Vec<&str> =
            columns.last().unwrap().split('`').filter(|name| name.contains('_')).collect();
        assert!(!tests.is_empty(), "no test shows: {row}");
        for test in tests {
            assert!(known.contains(test), "{test} does not exist");
        }
        numbers.extend(columns[0].get(1..).and_then(|number| number.parse::<u32>().ok()));
    }
    assert_eq!(numbers, (1..=38).collect());
}
