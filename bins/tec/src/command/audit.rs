//! `tec audit`.

mod archive;

use std::path::PathBuf;
use std::time::Duration;

use tec_core::code::Code;
use tec_core::store::{AuditEntry, AuditPlace, AuditVerdict, Store, StoreError};
use tec_support::exit::{CodedError, FAILED, OK};

use crate::anchor::{Anchor, Place};
use crate::attempt::attempt_table;
use crate::audit::{AuditCommand, LineArgs, Wanted, cells};
use crate::kube;
use crate::output::{Output, Table, raw};

/// Lines are read in pages of this size.
const PAGE: usize = 1000;

/// Polling interval for new lines.
const FOLLOW: Duration = Duration::from_millis(500);

pub(crate) async fn audit(
    anchor: &Anchor,
    command: AuditCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match (command, &anchor.place) {
        (AuditCommand::List(args), place) => {
            let wanted = Wanted::new(&args, anchor.wanted(args.of.clone()).await?);
            match place {
                Place::Directory(_, store) if args.follow => return follow(store, &wanted).await,
                Place::Directory(_, store) => {
                    let entries = latest(store, &wanted, &args)?;
                    let values: Vec<_> = entries.iter().map(value).collect();
                    let head = ["NO", "AT", "ACTION", "MACHINE", "SUBJECT"];
                    output.table(&values, &Table::new(&head, entries.iter().map(row)))?;
                }
                Place::Namespace(cluster) => {
                    let lines = kube::of(cluster).audit_lines().await;
                    let mut lines = lines.map_err(anchor.failed("read the audit lines"))?;
                    lines.retain(|line| wanted.has(line));
                    lines.reverse();
                    lines.truncate(args.limit);
                    let rows = lines.iter().map(|line| cells(line).to_vec());
                    let table = Table::new(&["AT", "ACTION", "MACHINE", "SUBJECT"], rows);
                    let lines = lines.iter().map(|line| serde_json::json!({ "event": line }));
                    output.table(&lines.collect::<Vec<_>>(), &table)?;
                }
            }
        }
        (AuditCommand::Attempts { of, limit }, _) => {
            let machine = anchor.wanted(of).await?;
            let listed = anchor.attempts.latest(machine, limit).await;
            let listed = listed.map_err(anchor.failed("list the attempts"))?;
            output.table(&listed, &attempt_table(&listed))?;
        }
        (AuditCommand::Verify { archive, head }, Place::Directory(_, store)) => {
            return verify(store, (&archive, head), output);
        }
        (AuditCommand::Archive { file, older_than, consent }, Place::Directory(_, store)) => {
            archive::archive(store, &file, older_than, consent, output).await?;
        }
        // `place::misplaced` has already refused them.
        (AuditCommand::Verify { .. } | AuditCommand::Archive { .. }, Place::Namespace(_)) => {
            anyhow::bail!("a cluster has no audit chain")
        }
    }
    Ok(OK)
}

/// The selected lines, latest first.
fn latest(store: &Store, wanted: &Wanted, args: &LineArgs) -> anyhow::Result<Vec<AuditEntry>> {
    let (mut found, mut before) = (Vec::new(), u64::MAX);
    loop {
        let page = store.audit_latest(before, PAGE).map_err(coded)?;
        let Some(last) = page.last() else { break };
        before = last.sequence;
        let is_end = wanted.is_before(&last.event);
        found.extend(page.into_iter().filter(|entry| wanted.has(&entry.event)));
        if is_end || found.len() >= args.limit {
            break;
        }
    }
    found.truncate(args.limit);
    Ok(found)
}

/// Prints lines as they are written, as one JSON object per line.
async fn follow(store: &Store, wanted: &Wanted) -> anyhow::Result<u8> {
    let mut after = store.audit_head().map_err(coded)?.sequence;
    loop {
        let page = store.audit_events(after, PAGE).map_err(coded)?;
        for entry in page.iter().filter(|entry| wanted.has(&entry.event)) {
            raw(&value(entry).to_string())?;
        }
        match page.last() {
            Some(last) => after = last.sequence,
            None => tokio::time::sleep(FOLLOW).await,
        }
    }
}

/// The first line of a file whose older lines are elsewhere: where the file begins.
pub(super) fn begin(at: AuditPlace) -> serde_json::Value {
    serde_json::json!({ "sequence": at.sequence, "hash": at.hash, "event": null })
}

/// A line of the log, as it is printed and archived.
pub(super) fn value(entry: &AuditEntry) -> serde_json::Value {
    serde_json::json!({ "sequence": entry.sequence, "hash": entry.hash, "event": entry.event })
}

fn row(entry: &AuditEntry) -> Vec<String> {
    let number = std::iter::once(entry.sequence.to_string());
    number.chain(cells(&entry.event)).collect()
}

pub(super) fn place(entry: &AuditEntry) -> AuditPlace {
    AuditPlace { sequence: entry.sequence, hash: entry.hash }
}

/// Verifies the chain, in which the wanted head must be.
fn verify(
    store: &Store,
    (archives, wanted): (&[PathBuf], Option<AuditPlace>),
    output: &Output,
) -> anyhow::Result<u8> {
    let in_archives = archive::verify(store, archives, wanted)?;
    match store.verify_audit().map_err(coded)? {
        AuditVerdict::Intact { events, archived, head } => {
            let head = AuditPlace { sequence: events, hash: head };
            if let Some(wanted) = wanted {
                contains(store, wanted, (head, in_archives))?;
            }
            let value = serde_json::json!({
                "intact": true, "events": events, "archived": archived, "head": head.to_string(),
            });
            let kept = match archives {
                _ if archived == 0 => String::new(),
                [] => format!(" ({archived} archived, not verified: pass --archive)"),
                _ => format!(" ({archived} archived)"),
            };
            output.print(&value, |_| {
                format!("{events} audit lines{kept}, chain intact, head {head}")
            })?;
            Ok(OK)
        }
        AuditVerdict::Broken { sequence } => {
            let value = serde_json::json!({ "intact": false, "sequence": sequence });
            output.print(&value, |_| {
                format!("chain broken: audit line {sequence} is not as it was written")
            })?;
            Ok(FAILED)
        }
    }
}

/// Fails unless a line of the log, whose last one is `head`, or of its archives is the one that was kept elsewhere.
fn contains(
    store: &Store,
    kept: AuditPlace,
    (head, in_archives): (AuditPlace, Option<AuditPlace>),
) -> anyhow::Result<()> {
    let number = kept.sequence;
    let line = store.audit_latest(number.saturating_add(1), 1).map_err(coded)?;
    let base = store.audit_base().map_err(coded)?;
    let mut found = line.iter().map(place).chain([AuditPlace::BEGIN, base]).chain(in_archives);
    let lost = match found.find(|place| place.sequence == number) {
        Some(place) if place == kept => return Ok(()),
        Some(place) => format!(
            "audit line {number} is {place} here: it or lines before it were lost and written again, or the head is \
             of another store"
        ),
        None if number > head.sequence => {
            let first = head.sequence.saturating_add(1);
            format!("audit lines {first} to {number} are missing: the log ends before them")
        }
        None => anyhow::bail!(
            "audit line {number} was archived: pass all files of archived lines, with --archive"
        ),
    };
    Err(CodedError::new(Code::StoreCorrupt, lost).into())
}

pub(super) fn coded(error: StoreError) -> CodedError {
    let code: Code = error.code();
    CodedError::caused(code, "read the audit log", error)
}
