//! Commands in a page of the documentation.

use std::path::Path;

use anyhow::{Context as _, ensure};

/// The words of each command in a section, without its prompt; continued lines are one command. `names` maps
/// placeholders to values.
pub fn commands(
    page: &str,
    section: &str,
    names: &[(&str, &str)],
) -> anyhow::Result<Vec<Vec<String>>> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text =
        std::fs::read_to_string(docs.join(page)).with_context(|| format!("cannot read {page}"))?;
    let begin = format!("\n## {section}\n");
    let at = text.find(&begin).with_context(|| format!("{page} has no section {section}"))?;
    let rest = text.get(at + begin.len()..).unwrap_or_default();
    let body = rest.split("\n## ").next().unwrap_or_default();
    let body = body.replace("\\\n", " ");
    let word =
        |word: &str| names.iter().fold(word.to_owned(), |word, (from, to)| word.replace(from, to));
    let lines = body.lines().filter_map(|line| line.strip_prefix("$ "));
    let commands: Vec<Vec<String>> =
        lines.map(|line| line.split_whitespace().map(word).collect()).collect();
    ensure!(!commands.is_empty(), "{section} of {page} has no command");
    Ok(commands)
}
