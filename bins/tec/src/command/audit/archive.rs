//! Old audit lines in files: `tec audit archive`, and their part in `tec audit verify`.
//!
//! ```text
//! {"sequence":120,"hash":"…","event":null}     where the file begins: after this line
//! {"sequence":121,"hash":"…","event":{…}}      the lines, as the log had them
//! ```

use std::fs;
use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::port::Clock as _;
use tec_core::store::{AuditPlace, AuditVerdict, Store};
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::exit::CodedError;
use tec_support::files::create_private;

use super::{PAGE, begin, coded, place, value};
use crate::args::Consent;
use crate::consent::consented;
use crate::output::Output;

/// Between two removals: longer than a server on the same store waits before it tries to write again.
const PAUSE: Duration = Duration::from_millis(200);

/// Moves the lines older than this to a new file. They are on disk there before they are removed here.
pub(super) async fn archive(
    store: &Store,
    file: &Path,
    older_than: Duration,
    consent: Consent,
    output: &Output,
) -> anyhow::Result<()> {
    let intact = store.verify_audit().map_err(coded)?;
    ensure!(
        matches!(intact, AuditVerdict::Intact { .. }),
        "the chain is broken, and nothing is archived (see where: tec audit verify)"
    );
    let now = SystemClock.now();
    let age = i64::try_from(older_than.as_secs()).unwrap_or(i64::MAX);
    let base = store.audit_base().map_err(coded)?;
    let last = last_before(store, base, now.plus_seconds(age.saturating_neg()))?;
    let lines = last.sequence - base.sequence;
    let found = json!({
        "lines": lines, "first": base.sequence + 1, "last": last.sequence, "head": last.to_string(),
        "file": file,
    });
    if lines == 0 {
        if !consent.dry_run.dry_run {
            remove(store).await;
        }
        return output.print(&found, |_| "no audit line is that old".to_owned());
    }
    let said =
        format!("audit lines {} to {} in {}", base.sequence + 1, last.sequence, file.display());
    let consented = consented(&[format!("{said} instead of the log")], consent)?;
    if consented {
        write(store, file, base, last)?;
        // What is on disk, not what was to be.
        ensure!(
            chain(file, |_| ())? == (base, last),
            "{} is not as it was written",
            file.display()
        );
        let archived = store.archive_audit(base, last, now).await;
        archived.map_err(|error| CodedError::caused(Code::StoreUnavailable, "archive", error))?;
        remove(store).await;
    }
    output.print(
        &found,
        |_| if consented { said } else { format!("{lines} audit lines are that old") },
    )
}

/// Removes lines that were archived, now or by an interrupted command: they are in their file, so that a failure
/// is none of archiving.
async fn remove(store: &Store) {
    loop {
        match store.remove_archived_audit().await {
            Ok(0) => return,
            Ok(_) => tokio::time::sleep(PAUSE).await,
            Err(error) => return tracing::warn!(%error, "lines in the file take space here, too"),
        }
    }
}

/// The last line before the first one that is newer than `cutoff`.
fn last_before(store: &Store, base: AuditPlace, cutoff: Timestamp) -> anyhow::Result<AuditPlace> {
    let mut last = base;
    loop {
        let page = store.audit_events(last.sequence, PAGE).map_err(coded)?;
        let old = page.iter().take_while(|entry| entry.event.at <= cutoff);
        let count = old.clone().count();
        if let Some(entry) = old.last() {
            last = place(entry);
        }
        if count < PAGE {
            return Ok(last);
        }
    }
}

fn write(store: &Store, path: &Path, base: AuditPlace, last: AuditPlace) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    create_private(path, format!("{}\n", begin(base)).as_bytes()).with_context(failed)?;
    let written = append(store, path, base.sequence, last.sequence);
    written.inspect_err(|_| drop(fs::remove_file(path))).with_context(failed)
}

fn append(store: &Store, path: &Path, mut after: u64, last: u64) -> anyhow::Result<()> {
    let mut to = BufWriter::new(File::options().append(true).open(path)?);
    while after < last {
        let page = store.audit_events(after, PAGE).map_err(coded)?;
        let before = after;
        for entry in page.iter().take_while(|entry| entry.sequence <= last) {
            writeln!(to, "{}", value(entry))?;
            after = entry.sequence;
        }
        ensure!(after > before, "someone else archives these lines");
    }
    to.flush()?;
    Ok(to.get_ref().sync_all()?)
}

/// Verifies files of archived lines, oldest first, each of which continues the one before; the log continues the last.
/// Returns the line that has the number of the wanted one.
pub(super) fn verify(
    store: &Store,
    files: &[PathBuf],
    wanted: Option<AuditPlace>,
) -> anyhow::Result<Option<AuditPlace>> {
    let (mut end, mut found) = (AuditPlace::BEGIN, None);
    for file in files {
        let seen = |place: AuditPlace| {
            if wanted.is_some_and(|wanted| wanted.sequence == place.sequence) {
                found = Some(place);
            }
        };
        let (begin, last) = chain(file, seen).with_context(|| format!("{}", file.display()))?;
        ensure!(
            begin == end,
            "{} begins after line {}, where no file before it ends",
            file.display(),
            begin.sequence
        );
        end = last;
    }
    let base = store.audit_base().map_err(coded)?;
    ensure!(
        files.is_empty() || end == base,
        "the log begins after line {}, where the last archive does not end",
        base.sequence
    );
    Ok(found)
}

#[derive(serde::Deserialize)]
struct Line {
    sequence: u64,
    hash: Sha256Digest,
    event: Value,
}

/// Where a file begins, and its last line.
fn chain(
    path: &Path,
    mut seen: impl FnMut(AuditPlace),
) -> anyhow::Result<(AuditPlace, AuditPlace)> {
    let lines = BufReader::new(File::open(path)?).lines();
    let mut places = lines.map(|line| {
        let Line { sequence, hash, event } = serde_json::from_str(&line?)?;
        anyhow::Ok((AuditPlace { sequence, hash }, event))
    });
    let (begin, _) = places.next().context("an empty file")??;
    let mut last = begin;
    for place in places {
        let (place, event) = place?;
        ensure!(
            last.followed_by(&event).map_err(coded)? == place,
            "line {} is not as it was written",
            last.sequence + 1
        );
        seen(place);
        last = place;
    }
    Ok((begin, last))
}
