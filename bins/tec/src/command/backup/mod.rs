//! `tec backup`: the trust of an anchor in one sealed file.

mod restore;

use std::fs;
use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use serde_json::json;
use tec_core::code::Code;
use tec_core::migrate::transfer::{
    Document, Identity, Recipient, Signer, TransferError, TransferWriter,
};
use tec_core::migrate::{Authority, SwapOutcome, Transition, TrustAnchor as _};
use tec_core::port::{AuditAction, AuditEvent, Clock as _};
use tec_core::secret::SecretBytes;
use tec_core::store::Store;
use tec_core::time::Timestamp;
use tec_support::exit::{CodedError, OK};
use tec_support::files::write_private;
use tec_support::{SystemClock, SystemEntropy};

use self::restore::{RestoreArgs, restore};
use super::{audit, coded};
use crate::output::Output;
use crate::state::{SAID, open_existing};

/// Units per part.
const PART: usize = 64;
/// File with the key that signs transfers, in the state directory.
const SIGNER: &str = "transfer-signer.key";
/// Files of the state directory to include; a key before its certificate.
const DOCUMENTS: [&str; 4] = ["ca.key", "ca.pem", "token-signer.pem", SAID];

#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Create the key that opens backups, and print its recipient. Keep the key elsewhere.
    Key {
        /// File for the key.
        file: PathBuf,
    },
    /// Create a backup; the server can keep running.
    Create {
        /// Recipient, as printed by `tec backup key`.
        #[arg(long)]
        recipient: Recipient,
        /// Give up the authority to the anchor that restores this backup, and only serve from now
        /// on. The file contains the output of `tec -o json backup restore` for an earlier backup
        /// there.
        #[arg(long, value_name = "FILE")]
        give_up_to: Option<PathBuf>,
        /// File for the backup.
        file: PathBuf,
    },
    /// Restore a backup into the state directory.
    Restore(RestoreArgs),
}

pub(crate) async fn backup(
    state_dir: &Path,
    command: BackupCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    match command {
        BackupCommand::Key { file } => key(&file, output),
        BackupCommand::Create { recipient, give_up_to, file } => {
            let way = (recipient, give_up_to.as_deref());
            create(state_dir, way, &file, output).await
        }
        BackupCommand::Restore(args) => restore(state_dir, args, output).await,
    }
}

fn key(file: &Path, output: &Output) -> anyhow::Result<u8> {
    anyhow::ensure!(!file.exists(), "{} exists already", file.display());
    let identity = Identity::generate(&SystemEntropy);
    let text = identity.to_text();
    write_private(file, text.expose("write it to its file"))
        .with_context(|| format!("cannot write {}", file.display()))?;
    let recipient = identity.recipient().to_string();
    output.print(&json!({ "recipient": recipient }), |_| recipient.clone())?;
    Ok(OK)
}

/// Reads the signing key, or creates it.
fn signer(state_dir: &Path) -> anyhow::Result<Signer> {
    let path = state_dir.join(SIGNER);
    match fs::read(&path) {
        Ok(text) => Signer::from_text(&SecretBytes::new(text))
            .with_context(|| format!("cannot use {}", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let signer = Signer::generate(&SystemEntropy);
            let text = signer.to_text();
            write_private(&path, text.expose("keep it in its file"))
                .with_context(|| format!("cannot write {}", path.display()))?;
            Ok(signer)
        }
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

async fn create(
    state_dir: &Path,
    (recipient, give_up_to): (Recipient, Option<&Path>),
    file: &Path,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    let signer = signer(state_dir)?;
    if let Some(taker) = give_up_to {
        give_up(&store, &restored(taker)?).await?;
    }
    let source = counted(&store).await?;
    let head = store.audit_head().map_err(audit::coded)?.to_string();
    let mut aside = file.to_owned().into_os_string();
    aside.push(".part");
    let new = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)
        .with_context(|| format!("cannot write {}", file.display()))?;
    let made = (&source, SystemClock.now(), Some(head.as_str()));
    let to = (&signer, recipient);
    let written = write(&store, state_dir, (made, to), new).await?;
    fs::rename(&aside, file).with_context(|| format!("cannot write {}", file.display()))?;
    let value = json!({
        "file": file, "units": written, "number": source.transfers(),
        "signer": signer.public(), "recipient": recipient, "audit_head": head,
    });
    output.print(&value, |_| {
        let (number, file) = (source.transfers(), file.display());
        let signer = signer.public();
        format!("backup {number} of {written} units in {file}\nsigner  {signer}\naudit   {head}")
    })?;
    Ok(OK)
}

/// The record of an anchor that has restored an earlier backup.
fn restored(file: &Path) -> anyhow::Result<Authority> {
    #[derive(serde::Deserialize)]
    struct Restored {
        authority: Authority,
    }
    let text = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let restored: Restored = serde_json::from_slice(&text).with_context(|| {
        format!("{} is not the output of `tec -o json backup restore`", file.display())
    })?;
    Ok(restored.authority)
}

/// Gives up the authority before anything is read, so that the backup contains the final state.
async fn give_up(store: &Store, taker: &Authority) -> anyhow::Result<()> {
    let unavailable = || coded(Code::StoreUnavailable, "give the authority up");
    loop {
        let now = store.authority().await.map_err(unavailable())?;
        let epoch = now.epoch().max(taker.epoch()).next();
        let change = now.yield_to(taker, epoch).map_err(|refused| {
            CodedError::caused(refused.code(), "give the authority up", refused)
        })?;
        let subject = format!("given up to anchor {} at epoch {epoch}", taker.anchor());
        let swapped = swap(store, &change, subject).await.map_err(unavailable())?;
        if swapped == SwapOutcome::Swapped {
            return Ok(());
        }
    }
}

/// Counts this backup in the record of authority, so that an older one is recognized later.
async fn counted(store: &Store) -> anyhow::Result<Authority> {
    let unavailable = || coded(Code::StoreUnavailable, "count the backup");
    loop {
        let change = store.authority().await.map_err(unavailable())?;
        let change = change.count_transfer();
        let subject = format!("backup {}", change.to().transfers());
        let swapped = swap(store, &change, subject).await.map_err(unavailable())?;
        if swapped == SwapOutcome::Swapped {
            return Ok(*change.to());
        }
    }
}

async fn swap(
    store: &Store,
    change: &Transition,
    subject: String,
) -> Result<SwapOutcome, tec_core::port::PortError> {
    let action = AuditAction::AuthorityMoved;
    let line = AuditEvent::new(SystemClock.now(), action, None, subject);
    store.swap(change, &line).await
}

async fn write(
    store: &Store,
    state_dir: &Path,
    (made, to): ((&Authority, Timestamp, Option<&str>), (&Signer, Recipient)),
    file: File,
) -> anyhow::Result<usize> {
    let mut writer = TransferWriter::begin(BufWriter::new(file), made, to, &SystemEntropy)
        .map_err(transfer("begin the backup"))?;
    writer.part(&[], &documents(state_dir)?).map_err(transfer("write the backup"))?;
    let (mut after, mut count) = (None, 0);
    loop {
        let units = store.export(after.as_ref(), PART).await;
        let units = units.map_err(coded(Code::StoreUnavailable, "read what the anchor holds"))?;
        let Some(last) = units.last() else { break };
        after = Some(last.name());
        count += units.len();
        writer.part(&units, &[]).map_err(transfer("write the backup"))?;
    }
    let mut file = writer.finish().map_err(transfer("write the backup"))?;
    file.flush()?;
    file.get_ref().sync_all()?;
    Ok(count)
}

fn documents(state_dir: &Path) -> anyhow::Result<Vec<Document>> {
    let mut documents = Vec::new();
    for name in DOCUMENTS {
        match fs::read(state_dir.join(name)) {
            Ok(content) => documents
                .push(Document { name: name.to_owned(), content: SecretBytes::new(content) }),
            // Its certificates may come from files, or it has not been started yet.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {name}")),
        }
    }
    Ok(documents)
}

fn transfer(context: &'static str) -> impl FnOnce(TransferError) -> CodedError {
    move |error| CodedError::caused(error.code(), context, error)
}
