//! What a patch need not touch stays unchanged, byte for byte.

use super::*;

/// Tables that patches write to, and an unknown one.
const TABLES: [&str; 6] = [
    "http_server",
    "attestation_token",
    "attestation_service",
    "attestation_service.attestation_token_broker",
    "storage_backend",
    "future_table",
];

/// A line that no patch owns: an unknown key in any layout, a comment, or nothing.
fn foreign_line() -> impl Strategy<Value = String> {
    let key = ("[a-z]{1,6}", "[ ]{0,2}", "[ ]{0,2}", literal(), comment());
    prop_oneof![
        3 => key.prop_map(|(name, before, after, value, comment)| {
            format!("x_{name}{before}={after}{value}{comment}")
        }),
        1 => "[ ]{0,3}# [ -~]{0,12}",
        1 => Just(String::new()),
    ]
}

fn literal() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "1",
        "0x1F",
        "1_000",
        "+1.5e3",
        "nan",
        "true",
        "'a # b'",
        "\"\\u0041 = \\\"\"",
        "\"\"\"one \\\n   two\"\"\"",
        "1979-05-27 07:32:00Z",
        "[ 1, 2, # why\n  3,\n]",
        "{ a = 1 , \"b c\" = [] }",
    ])
}

fn comment() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[ ]{1,3}# [ -~]{0,9}"]
}

/// Lines with each key once.
fn block() -> impl Strategy<Value = Vec<String>> {
    prop::collection::vec(foreign_line(), 0..5).prop_map(|lines| {
        let mut seen = std::collections::BTreeSet::new();
        let key = |line: &String| line.split('=').next().unwrap_or_default().trim().to_owned();
        let is_new = |line: &String| !line.starts_with("x_") || seen.insert(key(line));
        lines.into_iter().filter(is_new).collect()
    })
}

/// A configuration that differs from what is desired, with many unknown parts.
fn configuration() -> impl Strategy<Value = String> {
    let sections = prop::sample::subsequence(TABLES.to_vec(), 0..=TABLES.len())
        .prop_shuffle()
        .prop_flat_map(|tables| {
            let sections = tables.into_iter().map(|table| (Just(table), comment(), block()));
            sections.collect::<Vec<_>>()
        });
    (block(), sections, any::<bool>()).prop_map(|(top, sections, is_insecure)| {
        let mut text = joined(&top);
        for (table, comment, lines) in sections {
            text += &["[", table, "]", &comment, "\n", &joined(&lines)].concat();
            if is_insecure && table == "attestation_token" {
                text.push_str("insecure_header_jwk = true\n");
            }
        }
        text
    })
}

fn joined(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

/// The lines that stay: all except empty ones, the insecure flag, and the comment above it.
fn kept(text: &str) -> Vec<&str> {
    let mut kept: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        if line.starts_with("insecure") {
            while kept.pop_if(|line| line.trim().starts_with('#')).is_some() {}
        } else {
            kept.push(line);
        }
    }
    kept
}

/// Whether the lines appear in this order, with others between them.
fn follow_each_other(lines: &[&str], text: &str) -> Result<(), String> {
    let mut rest = text.lines();
    for line in lines {
        if !rest.any(|found| found == *line) {
            return Err(format!("{line:?} is not where it was"));
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_not_known_stays_to_the_byte_and_in_its_order(
        current in configuration(),
    ) {
        let after = text(&current, &intent());
        let found = follow_each_other(&kept(&current), &after);
        prop_assert!(found.is_ok(), "{found:?}\n--- before\n{current}\n--- after\n{after}");
    }

    #[test]
    fn a_patched_text_is_rendered_as_it_was_parsed(
        current in configuration(),
    ) {
        let once = text(&current, &intent());
        prop_assert_eq!(once.parse::<DocumentMut>().unwrap().to_string(), once.clone());
        prop_assert_eq!(Schema.patch(&once, &intent()).unwrap(), Patched::Unchanged);
    }

    #[test]
    fn a_diff_tells_of_every_change_and_of_no_other(
        current in configuration(),
    ) {
        let after = text(&current, &intent());
        for change in changes(&current, &after).unwrap() {
            let foreign = change.key.split('.').any(|part| part.starts_with("x_"));
            prop_assert!(!foreign, "{change}");
        }
        prop_assert_eq!(changes(&after, &after).unwrap(), []);
    }
}
