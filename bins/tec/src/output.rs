//! What commands print: data on stdout, as text for people or JSON for programs.

use std::io::Write as _;

use serde::Serialize;

use crate::args::OutputForm;

/// Prints results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output(OutputForm);

impl Output {
    pub(crate) fn new(form: OutputForm) -> Self {
        Self(form)
    }

    /// Prints `value` as JSON, or the text made of it.
    pub(crate) fn print<T: Serialize + ?Sized>(
        self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        let printed = match self.0 {
            OutputForm::Json => serde_json::to_string_pretty(value)?,
            OutputForm::Text => text(value),
        };
        raw(&printed)
    }
}

/// Prints what has a form of its own, whatever `--output` says.
pub(crate) fn raw(printed: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", printed.trim_end())?;
    stdout.flush()?;
    Ok(())
}

/// One thing that was looked at.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) ok: bool,
    /// What was found, or what is wrong.
    pub(crate) message: String,
}

impl Check {
    pub(crate) fn of(what: impl Into<String>, found: anyhow::Result<String>) -> Self {
        let ok = found.is_ok();
        let message = found.unwrap_or_else(|error| format!("{error:#}"));
        let what = what.into();
        Self { what, ok, message }
    }

    /// Of a table of checks.
    pub(crate) fn row(&self) -> [String; 3] {
        let ok = if self.ok { "ok" } else { "FAILED" };
        [ok.to_owned(), self.what.clone(), self.message.clone()]
    }
}

/// Lines up rows under a head; an empty table says so.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    if rows.is_empty() {
        return "none".to_owned();
    }
    let head = std::iter::once(head.to_vec());
    let rows = rows.iter().map(|row| row.iter().map(String::as_str).collect());
    tec_support::table::lines(head.chain(rows)).join("\n")
}

/// An enum's name as it stands in JSON.
pub(crate) fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["abc".to_owned(), "1".to_owned()], ["d".to_owned(), "22".to_owned()]];
        assert_eq!(table(["A", "N"], &rows), "A    N\nabc  1\nd    22");
        assert_eq!(table(["A"], &[]), "none");
    }
}
