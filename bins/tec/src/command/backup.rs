//! `tec backup` and `tec restore`: the trust of an anchor in one sealed file.

use std::fs;
use std::fs::File;
use std::fs::OpenOptions;
use std::io::BufReader;
use std::io::BufWriter;
use std::io::ErrorKind;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use clap::Subcommand;
use serde_json::json;
use tec_core::code::Code;
use tec_core::migrate::AdoptPage;
use tec_core::migrate::Adopted;
use tec_core::migrate::Authority;
use tec_core::migrate::SwapOutcome;
use tec_core::migrate::Transition;
use tec_core::migrate::TrustAnchor as _;
use tec_core::migrate::TrustUnit;
use tec_core::migrate::transfer::Document;
use tec_core::migrate::transfer::Identity;
use tec_core::migrate::transfer::Recipient;
use tec_core::migrate::transfer::Signer;
use tec_core::migrate::transfer::SignerKey;
use tec_core::migrate::transfer::TransferError;
use tec_core::migrate::transfer::TransferReader;
use tec_core::migrate::transfer::TransferWriter;
use tec_core::port::AuditAction;
use tec_core::port::AuditEvent;
use tec_core::port::Clock as _;
use tec_core::secret::SecretBytes;
use tec_core::store::Store;
use tec_support::SystemClock;
use tec_support::SystemEntropy;
use tec_support::exit::CodedError;
use tec_support::exit::OK;
use tec_support::files::write_private;

use super::coded;
use crate::output::Output;
use crate::state::open;
use crate::state::open_existing;

/// Units of one part.
const PART: usize = 64;
/// File of the key that signs transfers, in the state directory.
const SIGNER: &str = "transfer-signer.key";
/// Files of the state directory that go along; a key before its certificate.
const DOCUMENTS: [&str; 3] = ["ca.key", "ca.pem", "token-signer.pem"];

#[derive(Debug, Subcommand)]
pub(crate) enum BackupCommand {
    /// Make the key that opens backups, and print what they are sealed for. Keep it elsewhere.
    Key {
        /// File for the key.
        file: PathBuf,
    },
    /// Write a backup; the server may run.
    Create {
        /// Whom it is sealed for, as `tec backup key` printed it.
        #[arg(long)]
        recipient: Recipient,
        /// File for the backup.
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// The backup.
    file: PathBuf,
    /// File with the key that opens it.
    #[arg(long, value_name = "FILE")]
    identity: PathBuf,
    /// Who must have signed it, as `tec backup create` printed it.
    #[arg(long)]
    signer: SignerKey,
    /// Take the authority at once. If the anchor that made the backup still runs, there are two.
    #[arg(long)]
    dangerous_source_is_gone: bool,
}

pub(crate) async fn backup(
    state_dir: &Path,
    command: BackupCommand,
    output: Output,
) -> anyhow::Result<u8> {
    match command {
        BackupCommand::Key { file } => key(&file, output),
        BackupCommand::Create { recipient, file } => {
            create(state_dir, recipient, &file, output).await
        }
    }
}

fn key(file: &Path, output: Output) -> anyhow::Result<u8> {
    anyhow::ensure!(!file.exists(), "{} is there already", file.display());
    let identity = Identity::generate(&SystemEntropy);
    let text = identity.to_text();
    write_private(file, text.expose("write it to its file"))
        .with_context(|| format!("write {}", file.display()))?;
    let recipient = identity.recipient().to_string();
    output.print(&json!({ "recipient": recipient }), |_| recipient.clone())?;
    Ok(OK)
}

/// Reads the key that signs, or makes it.
fn signer(state_dir: &Path) -> anyhow::Result<Signer> {
    let path = state_dir.join(SIGNER);
    match fs::read(&path) {
        Ok(text) => Signer::from_text(&SecretBytes::new(text))
            .with_context(|| format!("use {}", path.display())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let signer = Signer::generate(&SystemEntropy);
            let text = signer.to_text();
            write_private(&path, text.expose("keep it in its file"))
                .with_context(|| format!("write {}", path.display()))?;
            Ok(signer)
        }
        Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
    }
}

async fn create(
    state_dir: &Path,
    recipient: Recipient,
    file: &Path,
    output: Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    let signer = signer(state_dir)?;
    let source = counted(&store).await?;
    let mut aside = file.to_owned().into_os_string();
    aside.push(".part");
    let new = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)
        .with_context(|| format!("write {}", file.display()))?;
    let written = write(&store, state_dir, (&source, &signer, recipient), new).await?;
    fs::rename(&aside, file).with_context(|| format!("write {}", file.display()))?;
    let value = json!({
        "file": file, "units": written, "number": source.transfers(),
        "signer": signer.public(), "recipient": recipient,
    });
    output.print(&value, |_| {
        let (number, file) = (source.transfers(), file.display());
        let signer = signer.public();
        format!("backup {number} of {written} units in {file}\nsigner  {signer}")
    })?;
    Ok(OK)
}

/// Counts this backup in the record of authority, so that an older one is known later.
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
    (source, signer, recipient): (&Authority, &Signer, Recipient),
    file: File,
) -> anyhow::Result<usize> {
    let to = BufWriter::new(file);
    let made = (source, SystemClock.now());
    let mut writer = TransferWriter::begin(to, made, (signer, recipient), &SystemEntropy)
        .map_err(transfer("begin the backup"))?;
    writer
        .part(&[], &documents(state_dir)?)
        .map_err(transfer("write the backup"))?;
    let (mut after, mut count) = (None, 0);
    loop {
        let units = store.export(after.as_ref(), PART).await;
        let units = units.map_err(coded(Code::StoreUnavailable, "read what the anchor holds"))?;
        let Some(last) = units.last() else { break };
        after = Some(last.name());
        count += units.len();
        writer
            .part(&units, &[])
            .map_err(transfer("write the backup"))?;
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
            Ok(content) => documents.push(Document {
                name: name.to_owned(),
                content: SecretBytes::new(content),
            }),
            // Its certificates may come from files, or it has not been started yet.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("read {name}")),
        }
    }
    Ok(documents)
}

fn transfer(context: &'static str) -> impl FnOnce(TransferError) -> CodedError {
    move |error| CodedError::caused(error.code(), context, error)
}

fn reader(args: &RestoreArgs) -> anyhow::Result<TransferReader<BufReader<File>>> {
    let text =
        fs::read(&args.identity).with_context(|| format!("read {}", args.identity.display()))?;
    let identity = Identity::from_text(&SecretBytes::new(text))
        .with_context(|| format!("use {}", args.identity.display()))?;
    let file = File::open(&args.file).with_context(|| format!("open {}", args.file.display()))?;
    let reader = TransferReader::open(BufReader::new(file), &identity, args.signer);
    Ok(reader.map_err(transfer("open the backup"))?)
}

pub(crate) async fn restore(
    state_dir: &Path,
    args: RestoreArgs,
    output: Output,
) -> anyhow::Result<u8> {
    // All of it is read once before anything is written.
    let mut whole = reader(&args)?;
    while whole
        .part()
        .map_err(transfer("check the backup"))?
        .is_some()
    {}
    let store = open(state_dir)?;
    let source = whole.manifest().source;
    listen(&store, &source).await?;
    let restored = adopt(&store, state_dir, reader(&args)?).await?;
    if !restored.conflicts.is_empty() {
        let list = restored.conflicts.join("; ");
        return Err(CodedError::new(Code::TrustConflict, list).into());
    }
    if args.dangerous_source_is_gone {
        seize(&store).await?;
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

/// The store becomes the target of what `source` wrote.
async fn listen(store: &Store, source: &Authority) -> anyhow::Result<()> {
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
    if swap(store, &change, subject).await.map_err(unavailable())? == SwapOutcome::Swapped {
        return Ok(());
    }
    let what = "somebody else restores here";
    Err(CodedError::new(Code::AuthorityMoved, what).into())
}

/// What a restore brought.
#[derive(Debug, Default)]
struct Restored {
    units: usize,
    conflicts: Vec<String>,
    /// Files that were there and stayed.
    kept: Vec<String>,
}

async fn adopt(
    store: &Store,
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
        let last = part.units.last().map(TrustUnit::name);
        let record = store.authority().await;
        let record = record.map_err(coded(Code::StoreUnavailable, "restore the backup"))?;
        let intake = record.intake().context("another restore took over")?;
        let page = AdoptPage {
            intake,
            after: after.take(),
            units: &part.units,
            more,
            at: SystemClock.now(),
        };
        let adopted = store.adopt(&page).await;
        let adopted = adopted.map_err(coded(Code::StoreUnavailable, "restore the backup"))?;
        for (unit, adopted) in part.units.iter().zip(adopted) {
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

/// Writes a file of the state directory where there is none.
fn keep(state_dir: &Path, document: &Document, restored: &mut Restored) -> anyhow::Result<()> {
    let known = DOCUMENTS.iter().find(|name| **name == document.name);
    let name = known.with_context(|| format!("the backup has a file {:?}", document.name))?;
    let path = state_dir.join(name);
    if path.exists() {
        restored.kept.push((*name).to_owned());
        return Ok(());
    }
    let content = document.content.expose("write it to the state directory");
    write_private(&path, content).with_context(|| format!("write {}", path.display()))
}

async fn seize(store: &Store) -> anyhow::Result<()> {
    tracing::warn!("taking the authority without a grant: the other anchor must be gone for ever");
    let unavailable = || coded(Code::StoreUnavailable, "take the authority");
    let now = store.authority().await.map_err(unavailable())?;
    let change = now
        .dangerous_seize()
        .map_err(|refused| CodedError::caused(refused.code(), "take the authority", refused))?;
    let subject = format!("seized at epoch {}", change.to().epoch());
    swap(store, &change, subject).await.map_err(unavailable())?;
    Ok(())
}
