//! `node-agent key rotate`: replaces the disk key, if the server has a new one.
//!
//! ```text
//! server: new key pending ─► slot and token for it ─► tried ─► confirmed ─► server releases the new key
//!   ─► slots and tokens of the old key removed ─► confirmed ─► server forgets the old key
//! ```
//! Power may fail at each arrow: the key that the server releases opens the disk at every moment, and the
//! next run continues. A boot in the meantime finds one token that does not open, and one that does.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::{Args, Subcommand};
use serde_json::json;
use tec_core::code::Code;
use tec_core::id::ResourcePath;
use tec_core::ignition::HeaderConfig;
use tec_core::luks::content_key;
use tec_core::port::{Attester, Entropy, EntropyRng};
use tec_core::rotation::{Confirmation, KeyMark, Keys, NodeStep, next_step};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_trustee::clevis;
use tec_trustee::client::{RcarClient, RcarError};
use tec_trustee::rotation::{Kept, Report, Step, Which};

use crate::disk;
use crate::disk::{DiskError, Header, RecoveryState, SlotMark, Token};
use crate::failure::Failure;
use crate::kbs::{client, fetch_error};
use crate::output::Output;
use crate::rebind::{bound_token, parsed, proven_passphrase};
use crate::recovery::remove_unfinished;
use crate::settings::Flags;
use crate::stream;
use crate::tpm::NodeTpm;

/// Most steps for one disk, and most answers of the server, in one run: a rotation has four.
const MAX_STEPS: u32 = 8;

/// Subcommands of `key`.
#[derive(Clone, Debug, Subcommand)]
#[expect(clippy::exhaustive_enums, reason = "the program handles every command")]
pub enum KeyCommand {
    /// Replace the disk key by the one that the server has pending, if any
    Rotate(RotateArgs),
}

/// Arguments of `key rotate`.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct RotateArgs {
    /// Additional LUKS2 devices, such as files, besides all block devices that are bound to servers
    pub devices: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Outcome for the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Rotated {
    /// The disks open with the new key alone.
    Replaced,
    /// No key is pending.
    NothingPending,
    /// The server rotates no keys.
    NotOffered,
}

impl Rotated {
    /// The output, without a final newline.
    pub fn render(self, output: Output) -> String {
        let (word, text) = match self {
            Self::Replaced => {
                ("replaced", "the disk key was replaced, and the old key slots removed")
            }
            Self::NothingPending => ("nothing-pending", "no new disk key is pending"),
            Self::NotOffered => ("not-offered", "this key broker rotates no disk keys"),
        };
        match output {
            Output::Json => json!({ "rotation": word }).to_string(),
            Output::Text => text.to_owned(),
        }
    }
}

/// The key broker of the disks.
#[async_trait]
trait Broker: fmt::Debug + Send + Sync {
    /// The keys that it keeps; `None` if it rotates none.
    async fn kept(&self) -> Result<Option<Kept>, Failure>;

    /// A key of this machine.
    async fn key(&self, which: Which) -> Result<SecretBytes, Failure>;

    /// Confirms a step. Returns what it keeps afterwards.
    async fn confirm(&self, report: &Report) -> Result<Kept, Failure>;
}

/// Runs `key rotate`, and prints the outcome.
///
/// # Errors
/// As [`rotate`], or stdout cannot be written.
pub async fn run(
    flags: &Flags,
    args: &RotateArgs,
    entropy: &Arc<dyn Entropy>,
) -> Result<(), Failure> {
    let rotated = rotate(flags, args, entropy).await?;
    stream::write_line(&rotated.render(args.output))
}

/// Replaces the key of all disks of this machine, if the server has a new one.
///
/// # Errors
/// `Disk`, `Tpm`, `Servers`, `Fetch`, `Resource`, `Rotation`. The key that the server releases opens the disks.
pub async fn rotate(
    flags: &Flags,
    args: &RotateArgs,
    entropy: &Arc<dyn Entropy>,
) -> Result<Rotated, Failure> {
    let disks = disk::bound(&args.devices).map_err(Failure::Disk)?;
    let headers: Vec<&dyn Header> = disks.iter().map(|disk| disk as &dyn Header).collect();
    let Some(config) = common_config(&headers)? else {
        return Ok(Rotated::NothingPending);
    };
    // Two runs at the same time would remove each other's unfinished slots.
    let _alone = disk::lock().map_err(Failure::io("lock the disks"))?;
    let broker = Remote {
        client: client(&config.servers, flags.timeout(), entropy).map_err(Failure::Servers)?,
        attester: NodeTpm::open(flags)?.attester(flags.read_event_log()),
        config: config.clone(),
    };
    follow(&headers, &config, &broker, &**entropy).await
}

/// What all disks are bound to: one key, at one server. Several servers may be several trust anchors, of which
/// only one has the new key.
fn common_config(headers: &[&dyn Header]) -> Result<Option<HeaderConfig>, Failure> {
    let mut common: Option<HeaderConfig> = None;
    for header in headers {
        for token in header.tokens().map_err(Failure::Disk)? {
            let config = parsed(&token).map_err(Failure::Disk)?.config().clone();
            let differs =
                |one: &HeaderConfig| (&one.path, &one.servers) != (&config.path, &config.servers);
            if config.servers.len() != 1 || common.as_ref().is_some_and(differs) {
                return Err(Failure::Rotation {
                    reason: "the disks must be bound to one key at one key broker",
                });
            }
            common = Some(config);
        }
    }
    Ok(common)
}

/// The two keys of a rotation, from the view of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Old,
    New,
}

/// The keys of a rotation.
struct Pair {
    old: SecretArray<32>,
    new: SecretArray<32>,
    keys: Keys<Key>,
    /// Mark of the new key.
    report: KeyMark,
}

/// Can be run again after a crash at any point.
async fn follow(
    headers: &[&dyn Header],
    config: &HeaderConfig,
    broker: &dyn Broker,
    entropy: &dyn Entropy,
) -> Result<Rotated, Failure> {
    let Some(mut kept) = broker.kept().await? else {
        return Ok(Rotated::NotOffered);
    };
    let mut outcome = Rotated::NothingPending;
    for _ in 0..MAX_STEPS {
        let Some(pair) = fetched(&kept, broker).await? else {
            return Ok(outcome);
        };
        outcome = Rotated::Replaced;
        let mut ready = None;
        for header in headers {
            ready = Some(prepare(*header, config, &pair, entropy)?);
        }
        let Some(step) = ready else {
            return Ok(Rotated::NothingPending);
        };
        let step = match step {
            Confirmation::Staged => Step::Staged,
            Confirmation::Removed => Step::Removed,
        };
        kept = broker.confirm(&Report { step, sha256: *pair.report.digest() }).await?;
    }
    Err(Failure::Rotation { reason: "the key broker changes its mind too often" })
}

/// The keys that the server keeps, checked against their marks; `None` if no rotation is under way.
async fn fetched(kept: &Kept, broker: &dyn Broker) -> Result<Option<Pair>, Failure> {
    let (old, new, keys) = match kept {
        Kept::Settled { .. } => return Ok(None),
        Kept::Pending { current, pending } => (
            (Which::Current, *current),
            (Which::Pending, *pending),
            Keys::Pending { current: Key::Old, pending: Key::New },
        ),
        Kept::Promoted { current, previous } => (
            (Which::Previous, *previous),
            (Which::Current, *current),
            Keys::Promoted { current: Key::New, previous: Key::Old },
        ),
    };
    let mut found = Vec::with_capacity(2);
    for (which, mark) in [old, new] {
        let resource = broker.key(which).await?;
        if KeyMark::of(&resource) != KeyMark::from_digest(mark) {
            return Err(Failure::Rotation { reason: "the key broker released another key" });
        }
        found.push(content_key(&resource).map_err(Failure::Resource)?);
    }
    let (new_key, old_key) = (found.pop(), found.pop());
    let report = KeyMark::from_digest(new.1);
    Ok(old_key.zip(new_key).map(|(old, new)| Pair { old, new, keys, report }))
}

/// Does what is left to do for one disk. Returns what may be confirmed about it.
fn prepare(
    header: &dyn Header,
    config: &HeaderConfig,
    pair: &Pair,
    entropy: &dyn Entropy,
) -> Result<Confirmation, Failure> {
    remove_unfinished(header).map_err(Failure::Disk)?;
    for _ in 0..MAX_STEPS {
        let opens_new = opening(header, &pair.new).map_err(Failure::Disk)?.is_some();
        let has_old = !sealed_with(header, &pair.old).map_err(Failure::Disk)?.is_empty();
        let holds = |key: &Key| match key {
            Key::New => opens_new,
            Key::Old => has_old,
        };
        match next_step(&pair.keys, holds) {
            NodeStep::AddSlot { .. } => stage(header, config, pair, entropy),
            NodeStep::RemoveSlots(_) => remove_old(header, pair),
            NodeStep::Confirm(confirmation, _) => return Ok(confirmation),
            NodeStep::Rest => break,
        }
        .map_err(Failure::Disk)?;
    }
    Err(Failure::Rotation { reason: "a disk does not change as it should" })
}

/// Tokens whose passphrase is sealed with this key.
fn sealed_with(header: &dyn Header, key: &SecretArray<32>) -> Result<Vec<Token>, DiskError> {
    let mut found = header.tokens()?;
    found.retain(|token| parsed(token).is_ok_and(|sealed| sealed.open(key).is_ok()));
    Ok(found)
}

/// The token that opens the disk with this key, and its passphrase.
fn opening(
    header: &dyn Header,
    key: &SecretArray<32>,
) -> Result<Option<(Token, SecretBytes)>, DiskError> {
    for token in sealed_with(header, key)? {
        match proven_passphrase(header, &token, key) {
            Ok(passphrase) => return Ok(Some((token, passphrase))),
            Err(DiskError::Stale { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Adds a slot with a new passphrase, sealed with the new key, and tries it.
fn stage(
    header: &dyn Header,
    config: &HeaderConfig,
    pair: &Pair,
    entropy: &dyn Entropy,
) -> Result<(), DiskError> {
    let id = bound_token(header)?.id;
    let (_, passphrase) = opening(header, &pair.old)?.ok_or(DiskError::Stale { id })?;
    let slot = header.recovery()?.free_slot()?;
    let mark = SlotMark::random(entropy);
    // A crash leaves the intent, which identifies the slot: nothing else knows its passphrase yet.
    let intent = header.add_recovery_token(slot, RecoveryState::Intended, mark)?;
    let fresh = fresh_passphrase(entropy);
    header.add_slot((slot, mark), &passphrase, &fresh)?;
    if !header.opens(&slot.to_string(), &fresh)? {
        return Err(DiskError::SlotReadBack { slot });
    }
    let sealed = clevis::seal(config, &pair.new, &fresh, &mut EntropyRng::new(entropy));
    let sealed = sealed.map_err(|source| DiskError::Sealed { id, source })?;
    let id = header.add_token(&[slot.to_string()], &sealed)?;
    if opening(header, &pair.new)?.is_none() {
        return Err(DiskError::ReadBack { id });
    }
    header.remove_token(intent)
}

/// 256 random bits as text: Clevis passes passphrases as lines.
fn fresh_passphrase(entropy: &dyn Entropy) -> SecretBytes {
    let key = SecretArray::<32>::random(&mut EntropyRng::new(entropy));
    let text = URL_SAFE_NO_PAD.encode(key.expose("write the passphrase"));
    SecretBytes::new(text.into_bytes())
}

/// Removes the slots and tokens of the old key. Slots first: a slot without a token would never be found again.
fn remove_old(header: &dyn Header, pair: &Pair) -> Result<(), DiskError> {
    let old = sealed_with(header, &pair.old)?;
    let is_old = |token: &Token| old.iter().any(|one| one.id == token.id);
    let others: Vec<Token> = header.tokens()?.into_iter().filter(|one| !is_old(one)).collect();
    let view = header.recovery()?;
    let is_shared = |slot: &str| {
        others.iter().any(|token| token.slots.iter().any(|one| one == slot))
            || view.tokens.iter().any(|token| token.slot.to_string() == slot)
    };
    for token in &old {
        for slot in token.slots.iter().filter(|slot| !is_shared(slot)) {
            let number = slot.parse().ok().filter(|number| view.slots.contains(number));
            if let Some(number) = number {
                header.remove_slot(number)?;
            }
        }
        header.remove_token(token.id)?;
    }
    Ok(())
}

/// The key broker of the pin, and the TPM of this machine.
#[derive(Debug)]
struct Remote<A> {
    client: RcarClient,
    attester: A,
    config: HeaderConfig,
}

impl<A: Attester> Remote<A> {
    fn failed(&self, error: RcarError) -> Failure {
        Failure::Fetch(fetch_error(&self.config.servers, error))
    }

    fn path(&self) -> &ResourcePath {
        &self.config.path
    }
}

#[async_trait]
impl<A: Attester> Broker for Remote<A> {
    async fn kept(&self) -> Result<Option<Kept>, Failure> {
        match self.client.rotation(&self.attester).await {
            Ok(kept) => Ok(Some(kept)),
            // It has no such path, or no key for this machine.
            Err(RcarError::Denied { code: None | Some(Code::KeyMissing), .. }) => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    async fn key(&self, which: Which) -> Result<SecretBytes, Failure> {
        let fetched = self.client.fetch_key(self.path(), which, &self.attester).await;
        fetched.map_err(|error| self.failed(error))
    }

    async fn confirm(&self, report: &Report) -> Result<Kept, Failure> {
        let confirmed = self.client.confirm_rotation(report, &self.attester).await;
        confirmed.map_err(|error| self.failed(error))
    }
}

#[cfg(test)]
mod tests;
