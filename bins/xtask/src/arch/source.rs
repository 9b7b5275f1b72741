//! Rust sources, with a copy in which comments and literals are blank, so that rules over the
//! text meet code only.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

/// One Rust file.
pub(super) struct Source {
    /// Relative to the root, with slashes.
    pub(super) file: String,
    /// As it is.
    pub(super) text: String,
    /// With comments and the content of literals replaced by blanks, byte for byte.
    pub(super) code: String,
}

impl Source {
    pub(super) fn new(file: String, text: String) -> Self {
        let code = blank(&text);
        Self { file, text, code }
    }

    /// Line of a byte offset, counted from 1.
    pub(super) fn line_at(&self, offset: usize) -> usize {
        let before = self.code.as_bytes().get(..offset).unwrap_or_default();
        before.split(|byte| *byte == b'\n').count()
    }

    /// Number of lines before the test module, or of the file. A module of tests in a file of its own
    /// is declared anywhere.
    pub(super) fn lines_before_tests(&self) -> usize {
        let lines: Vec<&str> = self.code.lines().collect();
        let is_tests = |pair: &[&str]| {
            matches!(pair, [cfg, item]
                if cfg.trim() == "#[cfg(test)]" && item.starts_with("mod ") && !item.ends_with(';'))
        };
        lines.windows(2).position(is_tests).unwrap_or(lines.len())
    }

    /// Whether a generator wrote it: codegen compares it, and it has the generator's taste.
    pub(super) fn is_generated(&self) -> bool {
        self.text.starts_with(GENERATED)
    }

    /// Whether the whole file is test code.
    pub(super) fn is_test(&self) -> bool {
        self.file.ends_with("/tests.rs") || self.file.contains("/tests/")
    }

    /// Offsets at which `needle` stands in the code as whole words.
    pub(super) fn words<'a>(&'a self, needle: &'a str) -> impl Iterator<Item = usize> + 'a {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        self.code.match_indices(needle).map(|(offset, _)| offset).filter(move |offset| {
            let before = self.code.get(..*offset).unwrap_or_default();
            let after = self.code.get(offset + needle.len()..).unwrap_or_default();
            !before.ends_with(is_word) && !after.starts_with(is_word)
        })
    }
}

/// First words of code that prost writes.
const GENERATED: &str = "// This file is @generated";

/// Every Rust file of the workspace, in order.
pub(super) fn read_all(root: &Path) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    walk(root, "", &mut sources)?;
    sources.sort_by(|a, b| a.file.cmp(&b.file));
    Ok(sources)
}

fn walk(root: &Path, below: &str, sources: &mut Vec<Source>) -> Result<()> {
    let dir = root.join(below);
    let entries = fs::read_dir(&dir).with_context(|| format!("cannot list {}", dir.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", dir.display()))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry
            .file_type()
            .with_context(|| format!("cannot look at {}", entry.path().display()))?;
        let file = if below.is_empty() { name.clone() } else { format!("{below}/{name}") };
        if kind.is_dir() && !name.starts_with('.') && name != "target" {
            walk(root, &file, sources)?;
        } else if kind.is_file() && Path::new(&name).extension().is_some_and(|end| end == "rs") {
            let text =
                fs::read_to_string(entry.path()).with_context(|| format!("cannot read {file}"))?;
            sources.push(Source::new(file, text));
        }
    }
    Ok(())
}

/// Replaces comments and the content of string and character literals by blanks. Line breaks and
/// the length in bytes stay.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let previous_is_word = out.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let (kept, length) = match token(rest, previous_is_word) {
            Some(token) => token,
            None => (first.len_utf8(), first.len_utf8()),
        };
        let (now, later) = rest.split_at(length);
        let (kept, dropped) = now.split_at(kept);
        out.push_str(kept);
        out.extend(dropped.bytes().map(|b| if b == b'\n' { '\n' } else { ' ' }));
        rest = later;
    }
    out
}

/// If `rest` begins with a comment or a literal: how many bytes of it stay, and how long it is.
fn token(rest: &str, previous_is_word: bool) -> Option<(usize, usize)> {
    if rest.starts_with("//") {
        return Some((0, rest.find('\n').unwrap_or(rest.len())));
    }
    if rest.starts_with("/*") {
        return Some((0, block_comment(rest)));
    }
    if rest.starts_with('"') {
        return Some((1, quoted(rest, '"')));
    }
    if rest.starts_with('\'') {
        return character(rest).map(|length| (1, length));
    }
    if previous_is_word {
        return None;
    }
    ["r", "br", "cr"].iter().find_map(|prefix| raw_string(rest, prefix))
}

/// `r"…"`, `br#"…"#` and so on: up to the quote that as many `#` follow as stood in front.
fn raw_string(rest: &str, prefix: &str) -> Option<(usize, usize)> {
    let after_prefix = rest.strip_prefix(prefix)?;
    let hashes = after_prefix.chars().take_while(|c| *c == '#').count();
    let content = after_prefix.get(hashes..)?.strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let length = content.find(&end).map_or(content.len(), |at| at + end.len());
    let begin = prefix.len() + hashes + 1;
    Some((begin, begin + length))
}

/// Block comments nest.
fn block_comment(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(here) = rest.get(at..).filter(|here| !here.is_empty()) {
        if here.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if here.starts_with("*/") {
            depth = depth.saturating_sub(1);
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += here.chars().next().map_or(1, char::len_utf8);
        }
    }
    rest.len()
}

/// Length of a literal with escapes, both quotes included.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == quote {
            return at + 1;
        }
    }
    rest.len()
}

/// `'x'` and `'\n'` are characters, `'a` in `&'a str` is a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest.chars().skip(1);
    let (first, second) = (chars.next()?, chars.next()?);
    (first == '\\' || second == '\'').then(|| quoted(rest, '\''))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("a.rs".to_owned(), text.to_owned())
    }

    #[test]
    fn comments_and_literals_are_blank_and_code_stays() {
        let text =
            "a // x\n/* y /* z */ */ b \"s\\\"t\" r#\"q\"u\"# 'c' '\\'' &'a str br\"w\" \u{e9}";
        let code = blank(text);
        assert_eq!(code.len(), text.len());
        for gone in ["x", "y", "z", "s", "q", "u", "w", "c"] {
            assert!(!code.replace("str", "").contains(gone), "{gone} in {code}");
        }
        assert!(code.contains("&'a str") && code.contains(" b "), "{code}");
    }

    #[test]
    fn an_identifier_that_ends_in_r_begins_no_raw_string() {
        let code = blank("for x in bar\"s\" { var }");
        assert!(code.contains("{ var }") && !code.contains("\"s\""), "{code}");
    }

    #[test]
    fn words_are_whole_words() {
        let source = source("tss_esapi::X; my_tss_esapi; // tss_esapi\n tss_esapi_sys");
        assert_eq!(source.words("tss_esapi").count(), 1);
    }

    #[test]
    fn lines_end_at_the_test_module() {
        assert_eq!(source("a\nb\n#[cfg(test)]\nmod tests {\n}\n").lines_before_tests(), 2);
        for whole in ["a\n#[cfg(test)]\nfn b() {}\n", "a\n#[cfg(test)]\nmod tests;\n"] {
            assert_eq!(source(whole).lines_before_tests(), 3);
        }
    }
}
