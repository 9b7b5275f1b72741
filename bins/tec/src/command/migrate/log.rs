//! Archives the audit log of the old anchor at the new one.

use std::fmt::Write as _;
use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::migrate::AnchorId;
use tec_core::port::{AuditAction, AuditEvent, AuditSink, Clock as _};
use tec_core::store::AuditPlace;
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tec_support::exit::CodedError;

use super::super::{audit, coded};
use super::anchor::Anchor;

/// Number of lines read at a time.
const LINES: usize = 1000;
/// Bytes per page; an object has at most 1 MiB (Kubernetes, "ConfigMaps").
const PAGE: usize = 512 << 10;

/// The archived log.
#[derive(Debug, Serialize)]
pub(super) struct Log {
    /// Number of lines.
    pub(super) lines: u64,
    /// SHA-256 over the lines, each with its line feed.
    pub(super) sha256: Sha256Digest,
    /// The file, or the ConfigMap with the index.
    pub(super) kept_as: String,
}

/// Archives the source's log at the target, unless it is there already.
///
/// The source no longer writes at this point, so the archive is complete.
pub(super) async fn keep(
    source: &Anchor,
    target: &Anchor,
    of: AnchorId,
) -> anyhow::Result<Option<Log>> {
    let Some(mut shelf) = Shelf::open(target, of).await? else {
        return Ok(None);
    };
    match source {
        Anchor::Store(store, _) => {
            let base = store.audit_base().map_err(unreadable)?;
            if base != AuditPlace::BEGIN {
                // Where the archive begins: older lines are in the files of `tec audit archive`.
                shelf.line(&audit::begin(base).to_string()).await?;
            }
            let mut after = base.sequence;
            loop {
                let entries = store.audit_events(after, LINES).map_err(unreadable)?;
                let Some((first, last)) = entries.first().zip(entries.last()) else { break };
                anyhow::ensure!(first.sequence == after + 1, "audit lines are being archived");
                after = last.sequence;
                for entry in &entries {
                    shelf.line(&audit::value(entry).to_string()).await?;
                }
            }
        }
        Anchor::Namespace(registry) => {
            let failed = coded(source.unavailable(), "read the audit log");
            for event in registry.audit_lines().await.map_err(failed)? {
                shelf.line(&serde_json::to_string(&event)?).await?;
            }
        }
    }
    let log = shelf.close().await?;
    let subject = format!("{} lines of anchor {of}, SHA-256 {}", log.lines, log.sha256);
    let line = AuditEvent::new(SystemClock.now(), AuditAction::LogKept, None, subject);
    let sink: &dyn AuditSink = match target {
        Anchor::Store(store, _) => &**store,
        Anchor::Namespace(registry) => &**registry,
    };
    let failed = coded(target.unavailable(), "note the audit log that is kept");
    sink.append(&line).await.map_err(failed)?;
    Ok(Some(log))
}

fn unreadable(error: tec_core::store::StoreError) -> CodedError {
    CodedError::caused(error.code(), "read the audit log", error)
}

/// Receives lines, one after another.
struct Shelf<'a> {
    of: AnchorId,
    lines: u64,
    hash: Sha256,
    kept: Kept<'a>,
}

enum Kept<'a> {
    /// Writes to a temporary file, which is renamed once it is complete.
    File {
        aside: PathBuf,
        path: PathBuf,
        to: BufWriter<File>,
    },
    Pages {
        registry: &'a KubeRegistry,
        unavailable: Code,
        page: String,
        names: Vec<String>,
    },
}

impl<'a> Shelf<'a> {
    async fn open(target: &'a Anchor, of: AnchorId) -> anyhow::Result<Option<Self>> {
        let kept = match target {
            Anchor::Store(_, directory) => open_file(directory, of)?,
            Anchor::Namespace(registry) => {
                let unavailable = target.unavailable();
                let failed = coded(unavailable, "look for the audit log");
                let is_kept = registry.keeps_log(of).await.map_err(failed)?;
                (!is_kept).then(|| Kept::Pages {
                    registry,
                    unavailable,
                    page: String::new(),
                    names: Vec::new(),
                })
            }
        };
        Ok(kept.map(|kept| Self { of, lines: 0, hash: Sha256::new(), kept }))
    }

    async fn line(&mut self, line: &str) -> anyhow::Result<()> {
        self.lines += 1;
        self.hash.update(line);
        self.hash.update(b"\n");
        match &mut self.kept {
            Kept::File { to, .. } => writeln!(to, "{line}").context("cannot write the audit log"),
            Kept::Pages { page, .. } => {
                writeln!(page, "{line}")?;
                if page.len() >= PAGE {
                    self.turn().await?;
                }
                Ok(())
            }
        }
    }

    /// Stores a full page.
    async fn turn(&mut self) -> anyhow::Result<()> {
        if let Kept::Pages { registry, unavailable, page, names } = &mut self.kept
            && !page.is_empty()
        {
            let failed = coded(*unavailable, "keep a page of the audit log");
            let kept = registry.keep_page(self.of, std::mem::take(page)).await;
            names.push(kept.map_err(failed)?);
        }
        Ok(())
    }

    async fn close(mut self) -> anyhow::Result<Log> {
        self.turn().await?;
        let sha256 = Sha256Digest::new(self.hash.finalize().into());
        let (lines, of) = (self.lines, self.of);
        let kept_as = match self.kept {
            Kept::File { aside, path, mut to } => {
                to.flush()?;
                to.get_ref().sync_all()?;
                fs::rename(&aside, &path)
                    .with_context(|| format!("cannot write {}", path.display()))?;
                path.display().to_string()
            }
            Kept::Pages { registry, unavailable, names, .. } => {
                let failed = coded(unavailable, "keep the audit log");
                let index = registry.keep_index(of, (lines, sha256), &names).await;
                index.map_err(failed)?
            }
        };
        Ok(Log { lines, sha256, kept_as })
    }
}

fn open_file(directory: &Path, of: AnchorId) -> anyhow::Result<Option<Kept<'static>>> {
    let path = directory.join(format!("audit-of-{of}.jsonl"));
    if path.exists() {
        return Ok(None);
    }
    let aside = path.with_extension("part");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)
        .with_context(|| format!("cannot write {}", aside.display()))?;
    Ok(Some(Kept::File { aside, path, to: BufWriter::new(file) }))
}
