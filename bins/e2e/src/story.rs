//! Prints what happens as it happens, and keeps it for the report.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

/// The outcome of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// As expected: it worked.
    Worked,
    /// As expected: it was refused with this code.
    Refused(String),
}

/// One step of a scene.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Step {
    /// What was done.
    pub what: String,
    /// Its outcome.
    pub outcome: Outcome,
    /// When it started, relative to the start of the story.
    pub begin: Duration,
    /// How long it took.
    pub took: Duration,
    /// More lines, for example an explanation.
    pub more: String,
}

/// One scene.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Scene {
    /// Its letter.
    pub letter: char,
    /// Its title.
    pub title: String,
    /// What happened.
    pub steps: Vec<Step>,
}

/// The whole story.
#[derive(Debug)]
pub struct Story {
    begin: Instant,
    color: bool,
    /// The scenes so far.
    pub scenes: Vec<Scene>,
}

impl Default for Story {
    fn default() -> Self {
        Self::new()
    }
}

impl Story {
    /// A story that starts now.
    pub fn new() -> Self {
        let color = std::io::stdout().is_terminal();
        Self { begin: Instant::now(), color, scenes: Vec::new() }
    }

    /// How long it has taken so far.
    pub fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    /// Starts a scene.
    pub fn scene(&mut self, letter: char, title: &str) {
        say(&format!("\n{}", self.paint("1", &format!("Scene {letter}: {title}"))));
        self.scenes.push(Scene { letter, title: title.to_owned(), steps: Vec::new() });
    }

    /// Runs a step that must work.
    pub fn works<T>(
        &mut self,
        what: &str,
        step: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let begin = self.elapsed();
        let value = step().map_err(|error| error.context(format!("step failed: {what}")))?;
        self.keep(what, Outcome::Worked, begin, String::new());
        Ok(value)
    }

    /// Shows a text, as part of the story.
    pub fn shows(&mut self, what: &str, text: &str) {
        let begin = self.elapsed();
        self.keep(what, Outcome::Worked, begin, text.to_owned());
    }

    /// Runs a step that must be refused with `code`; the step returns the code it received, and lines that
    /// explain it.
    ///
    /// # Errors
    /// The step was not refused, or was refused with a different code.
    pub fn refused(
        &mut self,
        what: &str,
        code: &str,
        step: impl FnOnce() -> anyhow::Result<Result<(), (String, String)>>,
    ) -> anyhow::Result<()> {
        let begin = self.elapsed();
        match step().map_err(|error| error.context(format!("step failed: {what}")))? {
            Ok(()) => anyhow::bail!("not refused: {what}"),
            Err((met, more)) if met == code => {
                self.keep(what, Outcome::Refused(met), begin, more);
                Ok(())
            }
            Err((met, more)) => {
                anyhow::bail!("{what}: refused with {met} instead of {code}: {more}")
            }
        }
    }

    fn keep(&mut self, what: &str, outcome: Outcome, begin: Duration, more: String) {
        let took = self.elapsed().saturating_sub(begin);
        let mark = match &outcome {
            Outcome::Worked => self.paint("32", "ok     "),
            Outcome::Refused(_) => self.paint("33", "refused"),
        };
        let code = match &outcome {
            Outcome::Worked => String::new(),
            Outcome::Refused(code) => format!(" with {code}"),
        };
        say(&format!("  {mark} {what}{code}  ({} ms)", took.as_millis()));
        for line in more.lines() {
            say(&self.paint("2", &format!("          {line}")));
        }
        let step = Step { what: what.to_owned(), outcome, begin, took, more };
        if let Some(scene) = self.scenes.last_mut() {
            scene.steps.push(step);
        }
    }

    fn paint(&self, style: &str, text: &str) -> String {
        if self.color { format!("\u{1b}[{style}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

/// Prints a line on stdout. A closed stdout does not stop the demo.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
