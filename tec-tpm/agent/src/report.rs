//! What the console of a node shows when it got no key: three lines, never more.
//!
//! ```text
//! TEC-A412 boot not approved: it matches no approved image
//! attempt 1f6f3c5e-0d5b-4b3c-9a55-3f1f3b8b8f2e
//! see: tec explain 1f6f3c5e-0d5b-4b3c-9a55-3f1f3b8b8f2e, tec image approve <name> <path> if the boot is yours, tec explain TEC-A412
//! ```

use std::fmt;

use tec_core::code::Code;
use tec_core::id::{AttemptId, MachineId};

/// Longest cause to print; console lines are for people.
const MAX_CAUSE: usize = 400;

/// A failure in words for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The code.
    pub code: Code,
    /// The attempt under which a server recorded the reason, if a server reported it.
    pub attempt: Option<AttemptId>,
    /// The machine whose key was requested, if known.
    pub machine: Option<MachineId>,
    /// What failed and why, for failures that no server recorded.
    pub cause: String,
}

impl Report {
    /// A report of a failure on this side.
    pub fn new(code: Code, cause: impl Into<String>) -> Self {
        Self { code, attempt: None, machine: None, cause: cause.into() }
    }

    /// Adds the attempt.
    pub fn of_attempt(mut self, attempt: Option<AttemptId>) -> Self {
        self.attempt = attempt;
        self
    }

    /// Adds the machine.
    pub fn of_machine(mut self, machine: Option<MachineId>) -> Self {
        self.machine = machine;
        self
    }
}

/// One line for a console: strings from servers must not move the cursor or forge further lines.
fn one_line(text: &str) -> String {
    let mut line: String = text
        .split_whitespace()
        .flat_map(|word| [" ", word])
        .skip(1)
        .flat_map(str::chars)
        .map(|c| if c.is_control() { '?' } else { c })
        .take(MAX_CAUSE)
        .collect();
    if line.is_empty() {
        line.push_str("no cause is known");
    }
    line
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let code = self.code;
        writeln!(f, "{code} {}", code.title())?;
        match &self.attempt {
            Some(attempt) => writeln!(f, "attempt {attempt}")?,
            None => writeln!(f, "{}", one_line(&self.cause))?,
        }
        match (&self.attempt, &self.machine) {
            (Some(attempt), _) => write!(f, "see: tec explain {attempt}, ")?,
            (None, Some(machine)) => write!(f, "see: tec explain {machine}, ")?,
            (None, None) => write!(f, "see: ")?,
        }
        if code == Code::PcrMismatch {
            f.write_str("tec image approve <name> <path> if the boot is yours, ")?;
        }
        f.write_str(&code.command())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    #[test]
    fn an_attempt_is_named_in_the_second_and_third_line() {
        let report = Report::new(Code::PcrMismatch, "not shown")
            .of_attempt(Some(ID.parse().unwrap()))
            .of_machine(Some(ID.parse().unwrap()));
        assert_eq!(
            report.to_string(),
            format!(
                "TEC-A412 {}\nattempt {ID}\nsee: tec explain {ID}, tec image approve <name> <path> if the boot is yours, tec explain TEC-A412",
                Code::PcrMismatch.title()
            )
        );
    }

    #[test]
    fn without_an_attempt_the_cause_and_the_machine_are_named() {
        let report = Report::new(Code::ServerUnreachable, "tried https://kbs: refused")
            .of_machine(Some(ID.parse().unwrap()));
        let text = report.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[1], "tried https://kbs: refused");
        assert_eq!(lines[2], format!("see: tec explain {ID}, tec explain TEC-A401"));
    }

    #[test]
    fn hostile_texts_stay_one_line() {
        let hostile = format!("a\nTEC-A400\r\n\u{1b}[2Jb {}", "x".repeat(9000));
        let text = Report::new(Code::ServerUnreachable, hostile).to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("a TEC-A400 ?[2Jb xxx"), "{}", lines[1]);
        assert!(lines[1].len() <= MAX_CAUSE);
        let empty = Report::new(Code::NodeTpm, " \n").to_string();
        assert_eq!(empty.lines().count(), 3);
        assert!(empty.ends_with("see: tec explain TEC-N500"));
    }
}
