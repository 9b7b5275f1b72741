//! `tec backup restore`.

use std::fs;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use tec_core::code::Code;
use tec_core::migrate::transfer::{Document, Identity, SignerKey, TransferReader};
use tec_core::migrate::{
    AdoptPage, Adopted, Authority, Grant, Intake, SwapOutcome, TrustAnchor as _, TrustUnit,
};
use tec_core::port::Clock as _;
use tec_core::secret::SecretBytes;
use tec_core::store::Store;
use tec_support::SystemClock;
use tec_support::exit::{CodedError, OK};
use tec_support::files::write_private;

use super::super::coded;
use super::{DOCUMENTS, swap, transfer};
use crate::output::Output;
use crate::state::open;

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The backup.
    file: PathBuf,
    /// File with the key that opens it.
    #[arg(long, value_name = "FILE")]
    identity: PathBuf,
    /// Signer of the backup, as printed by `tec backup create`.
    #[arg(long)]
    signer: SignerKey,
    /// Take the authority immediately. If the anchor that created the backup still runs, both will
    /// have authority.
    #[arg(long)]
    dangerous_source_is_gone: bool,
}

fn reader(args: &RestoreArgs) -> anyhow::Result<TransferReader<BufReader<File>>> {
    let text = fs::read(&args.identity)
        .with_context(|| format!("cannot read {}", args.identity.display()))?;
    let identity = Identity::from_text(&SecretBytes::new(text))
        .with_context(|| format!("cannot use {}", args.identity.display()))?;
    let file =
        File::open(&args.file).with_context(|| format!("cannot open {}", args.file.display()))?;
    let reader = TransferReader::open(BufReader::new(file), &identity, args.signer);
    Ok(reader.map_err(transfer("open the backup"))?)
}

pub(crate) async fn restore(
    state_dir: &Path,
    args: RestoreArgs,
    output: &Output,
) -> anyhow::Result<u8> {
    // Reads everything once before anything is written.
    let mut whole = reader(&args)?;
    while whole.part().map_err(transfer("check the backup"))?.is_some() {}
    let store = open(state_dir)?;
    let source = whole.manifest().source;
    let intake = listen(&store, &source).await?;
    let restored = adopt((&store, intake), state_dir, reader(&args)?).await?;
    if !restored.conflicts.is_empty() {
        let list = restored.conflicts.join("; ");
        return Err(CodedError::new(Code::TrustConflict, list).into());
    }
    if args.dangerous_source_is_gone {
        seize(&store).await?;
    } else if let Some(grant) = source.grant() {
        take(&store, &grant).await?;
    }
    let unavailable = coded(Code::StoreUnavailable, "read the record of authority");
    let record = store.authority().await.map_err(unavailable)?;
    let value = json!({
        "units": restored.units, "authority": record, "kept": restored.kept,
        "made_at": whole.manifest().made_at,
    });
    output.print(&value, |_| {
        let (units, role) = (restored.units, record.role());
        format!("{units} units restored; this anchor is {role}")
    })?;
    Ok(OK)
}

/// Makes the store the target of a migration from the store that `source` wrote.
async fn listen(store: &Store, source: &Authority) -> anyhow::Result<Intake> {
    let unavailable = || coded(Code::StoreUnavailable, "prepare the restore");
    let refused = |refused: tec_core::migrate::Refused| {
        CodedError::caused(refused.code(), "restore the backup here", refused)
    };
    let now = store.authority().await.map_err(unavailable())?;
    if now.is_alone() {
        let change = now.stand_by(source).map_err(refused)?;
        let subject = format!("stands by for anchor {}", source.anchor());
        swap(store, &change, subject).await.map_err(unavailable())?;
    }
    let now = store.authority().await.map_err(unavailable())?;
    let change = now.listen_to_transfer(source).map_err(refused)?;
    let subject = format!("restores backup {}", source.transfers());
    let swapped = swap(store, &change, subject).await.map_err(unavailable())?;
    if swapped == SwapOutcome::Swapped
        && let Some(intake) = change.to().intake()
    {
        return Ok(intake);
    }
    let what = "somebody else restores here";
    Err(CodedError::new(Code::AuthorityMoved, what).into())
}

/// The result of a restore.
#[derive(Debug, Default)]
struct Restored {
    units: usize,
    conflicts: Vec<String>,
    /// Files that already existed and were kept.
    kept: Vec<String>,
}

async fn adopt(
    (store, intake): (&Store, Intake),
    state_dir: &Path,
    mut reader: TransferReader<BufReader<File>>,
) -> anyhow::Result<Restored> {
    let (mut restored, mut after) = (Restored::default(), None);
    loop {
        let part = reader.part().map_err(transfer("read the backup"))?;
        let more = part.is_some();
        let part = part.unwrap_or_default();
        for document in &part.documents {
            keep(state_dir, document, &mut restored)?;
        }
        if part.units.is_empty() && more {
            continue;
        }
        let units: Arc<[TrustUnit]> = part.units.into();
        let (last, at) = (units.last().map(TrustUnit::name), SystemClock.now());
        let page = AdoptPage { intake, after: after.take(), units: Arc::clone(&units), more, at };
        let adopted = store.adopt(&page).await;
        let adopted = adopted.map_err(coded(Code::StoreUnavailable, "restore the backup"))?;
        for (unit, adopted) in units.iter().zip(adopted) {
            restored.units += 1;
            if let Adopted::Clash(clash) = adopted {
                restored.conflicts.push(format!("{}: {clash}", unit.name()));
            }
        }
        if !more {
            return Ok(restored);
        }
        after = last;
    }
}

/// Writes a file of the state directory unless it exists.
fn keep(state_dir: &Path, document: &Document, restored: &mut Restored) -> anyhow::Result<()> {
    let known = DOCUMENTS.iter().find(|name| **name == document.name);
    let name = known
        .with_context(|| format!("the backup contains the unknown file {:?}", document.name))?;
    let path = state_dir.join(name);
    if path.exists() {
        restored.kept.push((*name).to_owned());
        return Ok(());
    }
    let content = document.content.expose("write it to the state directory");
    write_private(&path, content).with_context(|| format!("cannot write {}", path.display()))
}

/// Takes the authority that the source gave up to this anchor. If the authority was given to another anchor,
/// or was already taken, nothing changes.
async fn take(store: &Store, grant: &Grant) -> anyhow::Result<()> {
    let unavailable = || coded(Code::StoreUnavailable, "take the authority");
    let now = store.authority().await.map_err(unavailable())?;
    let Ok(change) = now.take(grant) else {
        tracing::warn!("the authority was not given up to this anchor; it stands by");
        return Ok(());
    };
    let subject = format!("taken at epoch {}", change.to().epoch());
    moved(swap(store, &change, subject).await.map_err(unavailable())?)
}

async fn seize(store: &Store) -> anyhow::Result<()> {
    tracing::warn!("taking the authority without a grant: the other anchor must be gone for ever");
    let unavailable = || coded(Code::StoreUnavailable, "take the authority");
    let now = store.authority().await.map_err(unavailable())?;
    let change = now
        .dangerous_seize()
        .map_err(|refused| CodedError::caused(refused.code(), "take the authority", refused))?;
    let subject = format!("seized at epoch {}", change.to().epoch());
    moved(swap(store, &change, subject).await.map_err(unavailable())?)
}

/// Verifies that the record is as requested.
fn moved(outcome: SwapOutcome) -> anyhow::Result<()> {
    if outcome == SwapOutcome::Swapped {
        return Ok(());
    }
    let what = "somebody else moved the authority meanwhile";
    Err(CodedError::new(Code::AuthorityMoved, what).into())
}
