//! Executes the transcripts in pages: the output shown on a page must match the real output.
//!
//! ```text
//!   $ command           a line that begins so is run, with those that follow a backslash, and with
//!   $ command <<EOF     a text up to its end
//!   what it prints      compared; `...` stands for any text, on a line of its own for any lines
//! ```
//! Only blocks marked `console` are run. Any white space counts as one space, since the width of tables
//! depends on their content. A command without output on the page may print anything. All commands of a page
//! run in one shell.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, ensure};

/// What the shell prints between two commands, and at no other time.
const MARK: &str = "--8<-- command ";

/// A command in a page, with its output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Its line number in the page.
    pub line: usize,
    /// The command, on one or more lines.
    pub command: String,
    /// Lines of output.
    pub output: Vec<String>,
}

/// The steps of a page.
pub fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut is_console = false;
    // What ends the command being read; a line without a trailing backslash ends it, too.
    let mut open: Option<String> = None;
    for (index, line) in page.lines().enumerate() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if !is_console {
        } else if let (Some(end), Some(step)) = (&open, steps.last_mut()) {
            let _ = write!(step.command, "\n{line}");
            let is_over = if end.is_empty() { !line.ends_with('\\') } else { line == end };
            if is_over {
                open = None;
            }
        } else if let Some(command) = line.strip_prefix("$ ") {
            open = ending(command);
            steps.push(Step { line: index + 1, command: command.to_owned(), output: Vec::new() });
        } else if let Some(step) = steps.last_mut() {
            step.output.push(line.to_owned());
        }
    }
    steps
}

/// What ends a command of several lines: the word of a here document or, if empty, the absence of a
/// backslash.
fn ending(command: &str) -> Option<String> {
    if let Some((_, word)) = command.rsplit_once("<<") {
        return Some(word.trim().trim_matches('\'').to_owned());
    }
    command.ends_with('\\').then(String::new)
}

/// Runs all steps of a page in one shell, which the caller sets up.
///
/// # Errors
/// A command failed, or its output differs; the error names its line, and contains both outputs.
pub fn execute(page: &Path, shell: &mut Command) -> anyhow::Result<()> {
    let text =
        std::fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))?;
    let steps = steps(&text);
    ensure!(!steps.is_empty(), "{} has no transcript", page.display());
    let mut script = String::from("set -euo pipefail\nexec 2>&1\n");
    for step in &steps {
        let _ = writeln!(script, "echo '{MARK}{}'\n{}", step.line, step.command);
    }
    let output = shell.arg("-c").arg(script).output().context("cannot run a shell")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let mut parts = printed.split(MARK);
    let before = parts.next().unwrap_or_default();
    ensure!(before.is_empty(), "before the first command: {before}");
    let place = |step: &Step| format!("{}:{}", page.display(), step.line);
    let mut done = 0;
    for (step, part) in steps.iter().zip(parts) {
        let lines: Vec<&str> = part.lines().skip(1).collect();
        let is_last = done + 1 == steps.len();
        let has_ended_well = output.status.success() || !is_last;
        ensure!(
            step.output.is_empty() || matches(&step.output, &lines),
            "{}: `{}` printed\n{}\ninstead of\n{}",
            place(step),
            step.command,
            lines.join("\n"),
            step.output.join("\n")
        );
        ensure!(has_ended_well, "{}: failed\n{}", place(step), lines.join("\n"));
        done += 1;
    }
    let last = steps.get(done.saturating_sub(1)).map(place).unwrap_or_default();
    ensure!(
        done == steps.len(),
        "{last}: the command failed, so the page ended: {}",
        printed.rsplit(MARK).next().unwrap_or_default()
    );
    Ok(())
}

/// Whether the lines match the page.
fn matches<L: AsRef<str>>(page: &[String], lines: &[L]) -> bool {
    match page.split_first() {
        None => lines.iter().all(|line| line.as_ref().trim().is_empty()),
        Some((first, rest)) if first.trim() == "..." => {
            let tails = 0..=lines.len();
            tails.filter_map(|skip| lines.get(skip..)).any(|tail| matches(rest, tail))
        }
        Some((first, rest)) => lines.split_first().is_some_and(|(line, tail)| {
            line_matches(&squeezed(first), &squeezed(line.as_ref())) && matches(rest, tail)
        }),
    }
}

fn squeezed(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Each `...` stands for any text.
fn line_matches(page: &str, line: &str) -> bool {
    match page.split_once("...") {
        None => page == line,
        Some((before, after)) => line.strip_prefix(before).is_some_and(|tail| {
            let starts = tail.char_indices().map(|(at, _)| at).chain([tail.len()]);
            starts.filter_map(|at| tail.get(at..)).any(|tail| line_matches(after, tail))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "Text.\n\n```console\n$ one \\\n    more\nout ... 1\n$ cat <<EOF\na\nEOF\n\
        a\n```\n\n```sh\n$ not this\n```\n\n```console\n$ last\n```\n";

    fn run(page: &str) -> anyhow::Result<()> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), page)?;
        execute(file.path(), &mut Command::new("bash"))
    }

    #[test]
    fn commands_and_what_they_print_are_told_apart() {
        let found = steps(PAGE);
        let commands: Vec<_> = found.iter().map(|step| step.command.as_str()).collect();
        assert_eq!(commands, ["one \\\n    more", "cat <<EOF\na\nEOF", "last"]);
        assert_eq!(found[0].output, ["out ... 1"]);
        assert_eq!(found[1].output, ["a"]);
        assert!(found[2].output.is_empty());
        assert_eq!(found[1].line, 7);
    }

    #[test]
    fn dots_stand_for_any_text_and_any_lines() {
        let page = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert!(matches(&page("a ... c"), &["a  b   c"]));
        assert!(!matches(&page("a ... c"), &["a b d"]));
        assert!(matches(&page("...\nlast"), &["one", "two", "last"]));
        assert!(!matches(&page("one"), &["one", "two"]));
        assert!(!matches(&page("one\ntwo"), &["one"]));
    }

    #[test]
    fn a_page_that_is_right_passes_and_its_commands_share_a_shell() {
        run("```console\n$ a=1\n$ echo $a\n1\n$ echo x >&2\nx\n```\n").unwrap();
    }

    #[test]
    fn a_page_that_is_wrong_says_where() {
        let error = run("\n```console\n$ echo 1\n2\n```\n").unwrap_err();
        assert!(error.to_string().contains(":3: `echo 1` printed\n1"), "{error}");
    }

    #[test]
    fn a_command_that_fails_ends_the_page() {
        for page in ["```console\n$ false\n$ echo\n```\n", "```console\n$ false\n```\n"] {
            let error = run(page).unwrap_err();
            assert!(error.to_string().contains(":2: "), "{error}");
        }
    }
}
