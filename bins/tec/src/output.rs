//! Output of commands: data on stdout, for people or for programs.

use std::fmt;
use std::io::Write as _;
use std::path::Path;

use anyhow::Context as _;
use parking_lot::Mutex;
use serde::Serialize;
use tec_support::files::write_private;
use tec_support::page::Page;

use crate::args::OutputForm;

/// Prints results, but never the same one twice in a row.
#[derive(Debug)]
pub(crate) struct Output {
    form: OutputForm,
    last: Mutex<Option<String>>,
}

impl Output {
    pub(crate) fn new(form: OutputForm) -> Self {
        Self { form, last: Mutex::new(None) }
    }

    /// Prints `value` for programs, or as text for people.
    pub(crate) fn print<T: Serialize + ?Sized>(
        &self,
        value: &T,
        text: impl FnOnce(&T) -> String,
    ) -> anyhow::Result<()> {
        self.raw(match self.form {
            OutputForm::Json => serde_json::to_string_pretty(value)?,
            OutputForm::Yaml => yaml(value)?,
            OutputForm::Name => {
                anyhow::bail!("-o name works only for lists (use -o table, json or yaml)")
            }
            OutputForm::Table | OutputForm::Wide => text(value),
        })
    }

    /// Prints a list.
    pub(crate) fn table<T: Serialize + ?Sized>(
        &self,
        value: &T,
        table: &Table,
    ) -> anyhow::Result<()> {
        match self.form {
            OutputForm::Name => self.raw(table.names()),
            OutputForm::Wide => self.raw(table.lines(usize::MAX)),
            _ => self.print(value, |_| table.to_string()),
        }
    }

    fn raw(&self, printed: String) -> anyhow::Result<()> {
        let mut last = self.last.lock();
        if last.as_ref() != Some(&printed) {
            raw(&printed)?;
            *last = Some(printed);
        }
        Ok(())
    }
}

/// Converts through JSON, so that both formats have the same members.
fn yaml<T: Serialize + ?Sized>(value: &T) -> anyhow::Result<String> {
    Ok(serde_saphyr::to_string(&serde_json::to_value(value)?)?)
}

/// Prints output that has its own format, regardless of `--output`.
pub(crate) fn raw(printed: &str) -> anyhow::Result<()> {
    if printed.is_empty() {
        return Ok(());
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{}", printed.trim_end())?;
    stdout.flush()?;
    Ok(())
}

/// Writes a page; only its owner can read it, since it names machines.
pub(crate) fn write_page(page: &Page, file: &Path) -> anyhow::Result<()> {
    write_private(file, page.render().as_bytes())
        .with_context(|| format!("cannot write {}", file.display()))
}

/// One check with its result.
#[derive(Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) what: String,
    pub(crate) ok: bool,
    /// What was found, or the problem.
    pub(crate) message: String,
}

impl Check {
    pub(crate) fn of(what: impl Into<String>, found: anyhow::Result<String>) -> Self {
        let ok = found.is_ok();
        let message = found.unwrap_or_else(|error| format!("{error:#}"));
        let what = what.into();
        Self { what, ok, message }
    }

    /// The row of a table of checks.
    pub(crate) fn row(&self) -> [String; 3] {
        let ok = if self.ok { "ok" } else { "FAILED" };
        [ok.to_owned(), self.what.clone(), self.message.clone()]
    }
}

/// Rows under a header. The first column names each row.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// Number of columns that `-o table` shows.
    narrow: usize,
    /// Lines below the rows.
    notes: Vec<String>,
}

impl Table {
    pub(crate) fn new(head: &[&'static str], rows: impl Iterator<Item = Vec<String>>) -> Self {
        Self { head: head.to_vec(), rows: rows.collect(), narrow: head.len(), notes: Vec::new() }
    }

    /// Shows the columns after these only with `-o wide`.
    pub(crate) fn narrow(mut self, columns: usize) -> Self {
        self.narrow = columns;
        self
    }

    /// Adds lines below the rows.
    pub(crate) fn with_notes<T: ToString>(mut self, notes: &[T]) -> Self {
        self.notes = notes.iter().map(ToString::to_string).collect();
        self
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.rows.iter().filter_map(|row| row.first().cloned()).collect();
        names.join("\n")
    }

    fn lines(&self, columns: usize) -> String {
        if self.rows.is_empty() {
            return "none".to_owned();
        }
        let head = std::iter::once(self.head.iter().copied().take(columns).collect());
        let rows = self.rows.iter();
        let rows = rows.map(|row| row.iter().map(String::as_str).take(columns).collect());
        let mut lines = tec_support::table::lines(head.chain(rows));
        lines.extend_from_slice(&self.notes);
        lines.join("\n")
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines(self.narrow))
    }
}

/// Aligns rows under a header; an empty table is reported as empty.
pub(crate) fn table<const N: usize>(head: [&'static str; N], rows: &[[String; N]]) -> String {
    Table::new(&head, rows.iter().map(|row| row.to_vec())).to_string()
}

/// The JSON name of an enum variant.
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
        let rows = rows.iter().map(|row| row.to_vec());
        let both = Table::new(&["A", "N"], rows).narrow(1);
        assert_eq!(both.to_string(), "A\nabc\nd");
        assert_eq!(both.lines(usize::MAX), "A    N\nabc  1\nd    22");
        assert_eq!(both.names(), "abc\nd");
    }
}
