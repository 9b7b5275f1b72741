//! Reports of a migration.

use std::fmt::Write as _;

use serde::Serialize;
use tec_core::code::Code;
use tec_core::migrate::{Authority, CopyReport, MigrateOutcome, Mismatch};
use tec_core::port::PortError;
use tec_support::exit::{CodedError, OK};

use super::super::{coded, word};
use super::belonging::Weighed;
use super::log::Log;

/// The authority records.
#[derive(Debug, Serialize)]
pub(super) struct Records {
    pub(super) source: Authority,
    pub(super) target: Authority,
}

impl Records {
    pub(super) fn text(&self) -> String {
        let line = |name: &str, record: &Authority| {
            let (role, epoch, anchor) = (record.role(), record.epoch(), record.anchor());
            format!("{name}  {role} at epoch {epoch}, anchor {anchor}")
        };
        let (source, target) = (line("source", &self.source), line("target", &self.target));
        format!("{source}\n{target}")
    }
}

/// Report of what a copy would do.
#[derive(Debug, Serialize)]
pub(super) struct Planned {
    #[serde(flatten)]
    pub(super) records: Records,
    pub(super) copy: CopyReport,
    /// Policies, CA and certificates.
    pub(super) belongings: Vec<Weighed>,
    pub(super) dry_run: bool,
}

impl Planned {
    pub(super) fn text(&self) -> String {
        let (records, copy) = (self.records.text(), copy_text(&self.copy, "would be "));
        let belongings = self.belongings.iter().map(Weighed::text);
        let lines: Vec<_> = [records, copy].into_iter().chain(belongings).collect();
        lines.join("\n")
    }
}

/// The result of a run.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    #[serde(flatten)]
    pub(super) records: Records,
    pub(super) outcome: &'static str,
    pub(super) copy: CopyReport,
    pub(super) mismatches: Vec<Mismatch>,
    /// Policies, CA and certificates; empty once they are the target's own.
    pub(super) belongings: Vec<Weighed>,
    /// The source's audit log, if it was archived.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) audit: Option<Log>,
}

impl Done {
    pub(super) fn text(&self) -> String {
        let mut text = format!("{}\n{}", self.records.text(), copy_text(&self.copy, ""));
        for mismatch in &self.mismatches {
            let how = word(&mismatch.difference);
            let _ = write!(text, "\n{}: {how} at the other anchor", mismatch.unit);
        }
        for weighed in &self.belongings {
            let _ = write!(text, "\n{}", weighed.text());
        }
        if let Some(log) = &self.audit {
            let (lines, name) = (log.lines, &log.kept_as);
            let _ = write!(text, "\n{lines} audit lines kept as {name}, SHA-256 {}", log.sha256);
        }
        text
    }
}

pub(super) fn outcome_word(outcome: MigrateOutcome) -> &'static str {
    match outcome {
        MigrateOutcome::Reached => "reached",
        MigrateOutcome::Conflicts => "conflicts",
        MigrateOutcome::NotTheSame => "not-the-same",
        MigrateOutcome::Refused(_) => "refused",
        _ => "interrupted",
    }
}

pub(super) fn ended(
    outcome: MigrateOutcome,
    done: &Done,
    (error, unavailable): (Option<PortError>, Code),
) -> anyhow::Result<u8> {
    let error = match (outcome, error) {
        (MigrateOutcome::Reached, _) => return Ok(OK),
        (MigrateOutcome::Conflicts, _) => {
            let count = done.copy.conflicts.len();
            CodedError::new(Code::TrustConflict, format!("{count} units stand in the way"))
        }
        (MigrateOutcome::NotTheSame, _) => {
            let lost = |mismatch: &&Mismatch| mismatch.difference.is_loss();
            let count = done.mismatches.iter().filter(lost).count();
            let what = format!("{count} units are missing or differ");
            CodedError::new(Code::TrustIncomplete, what)
        }
        (MigrateOutcome::Refused(refused), _) => {
            CodedError::caused(refused.code(), "the authority stays where it is", refused)
        }
        (_, Some(error)) => coded(unavailable, "the run was interrupted")(error),
        (_, None) => CodedError::new(Code::AuthorityMoved, "the run was interrupted"),
    };
    Err(error.into())
}

fn copy_text(copy: &CopyReport, would: &str) -> String {
    let CopyReport { created, updated, same, conflicts, .. } = copy;
    let mut text = format!("{created} {would}created, {updated} {would}updated, {same} the same");
    for conflict in conflicts {
        let _ = write!(text, "\nconflict: {}: {}", conflict.unit, conflict.clash);
    }
    text
}
