//! Restores an empty vault from a snapshot, the wrapped key that belongs to it, and the Secret.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tec_core::code::Code;
use tec_core::plan;
use tec_services::shell::{Http, RestoreShell, Target, Vault};
use tec_services::vault::restore::{Event, Restore};
use tec_services::vault::snapshot;
use tec_support::exit::CodedError;

use crate::bootstrap::archive;
use crate::bootstrap::cli::Restore as Args;
use crate::bootstrap::compose;
use crate::bootstrap::disk::Volume;

/// Deadline for the vault to take a snapshot.
const DEADLINE: Duration = Duration::from_mins(2);

/// Restores the vault. The file is checked before the vault is touched.
/// Errors: the snapshot, the wrapped key and the Secret do not belong together, the vault holds something, or
/// something failed. Whatever the vault held is unchanged.
///
/// # Cancel safety
/// Can be dropped at any await; the next call starts over.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let cluster = Arc::new(compose::cluster_of_restore(&args.place)?);
    let snapshot = &args.snapshot;
    whole(snapshot).await?;
    let file = args.wrapped_key.clone().unwrap_or_else(|| key_beside(snapshot));
    let wrapped =
        std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let vault = Vault::new(Http::new(Target::Unix(args.place.vault_socket.clone()), DEADLINE));
    let disk = Arc::new(Volume::new(args.place.volume.clone()));
    let (namespace, stateful_set) = (args.place.namespace.clone(), args.place.stateful_set.clone());
    let mut plan = Restore::new(namespace, stateful_set, wrapped);
    let mut shell = RestoreShell::new(vault, cluster, disk, snapshot.clone());
    plan::run(&mut plan, Event::Start, &mut shell).await;
    let end = shell.end().context("the restore ended without an outcome")?;
    let failed = || format!("cannot restore {}", snapshot.display());
    end.map_err(|error| match error.code() {
        Some(code) => CodedError::caused(code, failed(), error).into(),
        None => anyhow::Error::from(error).context(failed()),
    })?;
    tracing::info!(snapshot = %snapshot.display(), "the vault is restored");
    Ok(())
}

async fn whole(snapshot: &Path) -> anyhow::Result<()> {
    let path = snapshot.to_owned();
    let checked = tokio::task::spawn_blocking(move || archive::check(&path)).await?;
    let failed = || format!("cannot restore {}", snapshot.display());
    Ok(checked.map_err(|error| CodedError::caused(Code::VaultSnapshotBroken, failed(), error))?)
}

/// The wrapped key that was written together with the snapshot.
fn key_beside(snapshot: &Path) -> PathBuf {
    let name = snapshot.file_name().unwrap_or_default().to_string_lossy();
    snapshot.with_file_name(snapshot::key_name(&name))
}
