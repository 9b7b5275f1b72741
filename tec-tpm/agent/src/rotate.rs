//! Replaces the disk key, if the server has a new one.
//!
//! ```text
//! server: new key pending ─► slot and token for it ─► tried ─► confirmed ─► server releases the new key
//!   ─► slots and tokens of the old key removed ─► confirmed ─► server forgets the old key
//! ```
//! Power may fail at each arrow: the key that the server releases opens the disk at every moment, and the
//! next run continues. A boot in the meantime finds one token that does not open, and one that does.
//!
//! An admin may cancel a rotation. The next run removes the slot that it left; see [`next_step`].

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::id::ResourcePath;
use tec_core::ignition::HeaderConfig;
use tec_core::luks::content_key;
use tec_core::port::{Attester, Entropy, EntropyRng};
use tec_core::rotation::{Confirmation, KeyMark, Keys, NodeStep, Slots, next_step};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_trustee::clevis;
use tec_trustee::client::{RcarClient, RcarError};
use tec_trustee::rotation::{Kept, Report, Which};

use crate::disk;
use crate::disk::{DiskError, Header, RecoveryState, SlotMark, Token};
use crate::failure::Failure;
use crate::kbs::{client, fetch_error, names};
use crate::kept::{kept, mark, replace};
use crate::rebind::{bound_token, parsed, proven_passphrase};
use crate::recovery::remove_unfinished;
use crate::settings::Settings;
use crate::tpm::NodeTpm;

/// Most steps for one disk, and most answers of the server, in one run: a rotation has four.
const MAX_STEPS: u32 = 8;

/// Outcome for the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotated {
    /// The disks open with the new key alone.
    Replaced,
    /// No key is pending. What a canceled rotation left was removed.
    Cleaned,
    /// No key is pending.
    NothingPending,
    /// The server rotates no keys.
    NotOffered,
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

/// Replaces the key of all disks of this machine, and of the given devices, if the server has a new one.
///
/// # Errors
/// `Disk`, `Tpm`, `Servers`, `Fetch`, `Resource`, `Rotation`, `NotCurrent`. The key that the server releases opens the disks.
pub async fn rotate(
    settings: &Settings,
    devices: &[PathBuf],
    entropy: &Arc<dyn Entropy>,
) -> Result<Rotated, Failure> {
    let disks = disk::bound(devices)?;
    let headers: Vec<&dyn Header> = disks.iter().map(|disk| disk as &dyn Header).collect();
    // Two runs at the same time would remove each other's unfinished slots, and `rebind` in the meantime would
    // bind a disk to servers that are not asked here.
    let _alone = disk::lock().map_err(Failure::io("lock the disks"))?;
    let Some(config) = common_config(&headers)? else {
        return Ok(Rotated::NothingPending);
    };
    let broker = Remote {
        client: client(settings, &config.servers, entropy)?,
        attester: NodeTpm::open(settings)?.attester(settings.read_event_log()),
        config: config.clone(),
        kept: settings.kept_key.clone(),
        mark: settings.root_mark.clone(),
    };
    follow(&headers, &config, &broker, &**entropy).await
}

/// What all disks are bound to: one key, at one server. Several servers may be several trust anchors, of which
/// only one has the new key.
fn common_config(headers: &[&dyn Header]) -> Result<Option<HeaderConfig>, Failure> {
    let mut common: Option<HeaderConfig> = None;
    for header in headers {
        for token in header.tokens()? {
            let config = parsed(&token)?.config().clone();
            let differs = |one: &HeaderConfig| !names_the_same(one, &config);
            if config.servers.len() != 1 || common.as_ref().is_some_and(differs) {
                return Err(Failure::Rotation(
                    "the disks must be bound to one key at one key broker",
                ));
            }
            common = Some(config);
        }
    }
    Ok(common)
}

/// Whether both name one key, at the same servers.
fn names_the_same(one: &HeaderConfig, other: &HeaderConfig) -> bool {
    (&one.path, &one.servers) == (&other.path, &other.servers)
}

/// The two keys of a rotation, from the view of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Old,
    New,
}

/// The keys that the server keeps.
struct Pair {
    /// None if no rotation is under way.
    old: Option<SecretArray<32>>,
    new: SecretArray<32>,
    keys: Keys<Key>,
    /// Proves that this node has the new key.
    proof: KeyMark,
}

/// A disk, and its tokens before the server was asked: see [`Slots::Dead`].
struct Disk<'h> {
    header: &'h dyn Header,
    before: Vec<Token>,
}

impl<'h> Disk<'h> {
    fn look(header: &'h dyn Header) -> Result<Self, Failure> {
        Ok(Self { header, before: header.tokens()? })
    }

    /// Whether tokens have been removed.
    fn has_less(&self) -> Result<bool, Failure> {
        Ok(self.header.tokens()?.len() < self.before.len())
    }
}

/// Can be run again after a crash at any point.
async fn follow(
    headers: &[&dyn Header],
    config: &HeaderConfig,
    broker: &dyn Broker,
    entropy: &dyn Entropy,
) -> Result<Rotated, Failure> {
    let disks: Result<Vec<Disk<'_>>, Failure> =
        headers.iter().map(|header| Disk::look(*header)).collect();
    let disks = disks?;
    let Some(mut kept) = broker.kept().await? else {
        return Ok(Rotated::NotOffered);
    };
    for disk in &disks {
        remove_unfinished(disk.header)?;
    }
    if kept.is_settled() {
        return clean(&disks, config, &kept, (broker, entropy)).await;
    }
    for _ in 0..MAX_STEPS {
        if kept.is_settled() {
            return Ok(Rotated::Replaced);
        }
        let pair = fetched(&kept, broker).await?;
        let mut ready = None;
        for disk in &disks {
            ready = prepare(disk, config, &pair, entropy)?;
        }
        let Some(step) = ready else {
            break;
        };
        kept = broker.confirm(&Report { step, sha256: *pair.proof.digest() }).await?;
    }
    Err(Failure::Rotation("the key broker changes its mind too often"))
}

/// Removes what canceled rotations left.
async fn clean(
    disks: &[Disk<'_>],
    config: &HeaderConfig,
    kept: &Kept,
    (broker, entropy): (&dyn Broker, &dyn Entropy),
) -> Result<Rotated, Failure> {
    // A disk with one token has nothing dead, or nothing that opens it: this needs no key.
    if disks.iter().all(|disk| disk.before.len() < 2) {
        return Ok(Rotated::NothingPending);
    }
    let pair = fetched(kept, broker).await?;
    let mut rotated = Rotated::NothingPending;
    for disk in disks {
        prepare(disk, config, &pair, entropy)?;
        if disk.has_less()? {
            rotated = Rotated::Cleaned;
        }
    }
    Ok(rotated)
}

/// The keys that the server keeps, checked against their names.
async fn fetched(kept: &Kept, broker: &dyn Broker) -> Result<Pair, Failure> {
    let (old, new, keys) = match kept {
        Kept::Settled { current } => {
            (None, (Which::Current, *current), Keys::Settled { current: Key::New })
        }
        Kept::Pending { current, pending } => (
            Some((Which::Current, *current)),
            (Which::Pending, *pending),
            Keys::Pending { current: Key::Old, pending: Key::New },
        ),
        Kept::Promoted { current, previous } => (
            Some((Which::Previous, *previous)),
            (Which::Current, *current),
            Keys::Promoted { current: Key::New, previous: Key::Old },
        ),
    };
    let old = match old {
        Some(old) => Some(checked(old, broker).await?.0),
        None => None,
    };
    let (new, proof) = checked(new, broker).await?;
    Ok(Pair { old, new, keys, proof })
}

/// A key, if it is the one of this name, and its mark.
async fn checked(
    (which, name): (Which, Sha256Digest),
    broker: &dyn Broker,
) -> Result<(SecretArray<32>, KeyMark), Failure> {
    let resource = broker.key(which).await?;
    let mark = KeyMark::of(&resource);
    if mark.name() != name {
        let reason =
            "the key broker released another key than it named (run `node-agent key rotate` again)";
        return Err(Failure::Rotation(reason));
    }
    Ok((content_key(&resource).map_err(Failure::Resource)?, mark))
}

/// Does what is left to do for one disk. Returns what may be confirmed about it.
fn prepare(
    disk: &Disk<'_>,
    config: &HeaderConfig,
    pair: &Pair,
    entropy: &dyn Entropy,
) -> Result<Option<Confirmation>, Failure> {
    let header = disk.header;
    for _ in 0..MAX_STEPS {
        let opens_new = opening(header, &pair.new)?.is_some();
        let old = old_tokens(header, pair)?;
        let dead = dead_tokens(disk, config, pair)?;
        let has = |slots: Slots<'_, Key>| match slots {
            Slots::Of(Key::New) => opens_new,
            Slots::Of(Key::Old) => !old.is_empty(),
            Slots::Dead => !dead.is_empty(),
        };
        match next_step(&pair.keys, has) {
            NodeStep::AddSlot { .. } => stage(header, config, pair, entropy),
            NodeStep::RemoveSlots(Slots::Dead) => remove(header, &dead),
            NodeStep::RemoveSlots(Slots::Of(_)) => remove(header, &old),
            NodeStep::Confirm(confirmation, _) => return Ok(Some(confirmation)),
            NodeStep::Rest => return Ok(None),
        }?;
    }
    Err(Failure::Rotation("a disk does not change as it should"))
}

fn old_tokens(header: &dyn Header, pair: &Pair) -> Result<Vec<Token>, DiskError> {
    pair.old.as_ref().map_or_else(|| Ok(Vec::new()), |old| sealed_with(header, old))
}

/// Tokens that the disk had before the server was asked, and that none of its keys opens: their keys are never
/// released again, see [`next_step`]. A token of another path or another server is never dead here.
fn dead_tokens(
    disk: &Disk<'_>,
    config: &HeaderConfig,
    pair: &Pair,
) -> Result<Vec<Token>, DiskError> {
    let is_here =
        |token: &Token| parsed(token).is_ok_and(|sealed| names_the_same(sealed.config(), config));
    let kept = [Some(&pair.new), pair.old.as_ref()];
    let is_kept = |token: &Token| kept.into_iter().flatten().any(|key| is_sealed_with(token, key));
    let mut found = disk.header.tokens()?;
    found.retain(|token| disk.before.contains(token) && is_here(token) && !is_kept(token));
    Ok(found)
}

fn is_sealed_with(token: &Token, key: &SecretArray<32>) -> bool {
    parsed(token).is_ok_and(|sealed| sealed.open(key).is_ok())
}

/// Tokens whose passphrase is sealed with this key.
fn sealed_with(header: &dyn Header, key: &SecretArray<32>) -> Result<Vec<Token>, DiskError> {
    let mut found = header.tokens()?;
    found.retain(|token| is_sealed_with(token, key));
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
            Err(DiskError::Stale(_)) => {}
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
    let old = pair.old.as_ref().map_or_else(|| Ok(None), |old| opening(header, old))?;
    let (_, passphrase) = old.ok_or(DiskError::Stale(id))?;
    let slot = header.recovery()?.free_slot()?;
    let mark = SlotMark::random(entropy);
    // A crash leaves the intent, which identifies the slot: nothing else knows its passphrase yet.
    let intent = header.add_recovery_token(slot, RecoveryState::Intended, mark)?;
    let fresh = fresh_passphrase(entropy);
    header.add_slot((slot, mark), &passphrase, &fresh)?;
    if !header.opens(&slot.to_string(), &fresh)? {
        return Err(DiskError::SlotReadBack(slot));
    }
    let sealed = clevis::seal(config, &pair.new, &fresh, &mut EntropyRng::new(entropy));
    let sealed = sealed.map_err(|source| DiskError::Sealed { id, source })?;
    let id = header.add_token(&[slot.to_string()], &sealed)?;
    if opening(header, &pair.new)?.is_none() {
        return Err(DiskError::ReadBack(id));
    }
    header.remove_token(intent)
}

/// 256 random bits as text: Clevis passes passphrases as lines.
fn fresh_passphrase(entropy: &dyn Entropy) -> SecretBytes {
    let key = SecretArray::<32>::random(&mut EntropyRng::new(entropy));
    let text = URL_SAFE_NO_PAD.encode(key.expose("write the passphrase"));
    SecretBytes::new(text.into_bytes())
}

/// Removes tokens and their slots. Slots first: a slot without a token would never be found again.
fn remove(header: &dyn Header, tokens: &[Token]) -> Result<(), DiskError> {
    let goes = |token: &Token| tokens.iter().any(|one| one.id == token.id);
    let others: Vec<Token> = header.tokens()?.into_iter().filter(|one| !goes(one)).collect();
    let view = header.recovery()?;
    let is_shared = |slot: &str| {
        others.iter().any(|token| token.slots.iter().any(|one| one == slot))
            || view.tokens.iter().any(|token| token.slot.to_string() == slot)
    };
    for token in tokens {
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
    /// The key that the initramfs kept, if it did.
    kept: PathBuf,
    /// The mark of the root, which follows the key.
    mark: PathBuf,
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
        let names = names(&self.client, &self.attester, &self.config.servers).await;
        names.map_err(Failure::Fetch)
    }

    async fn key(&self, which: Which) -> Result<SecretBytes, Failure> {
        let shown = kept(&self.kept, self.path()).map(|key| KeyMark::of(&key));
        match self.client.fetch_key(self.path(), (which, shown), &self.attester).await {
            Err(RcarError::Denied { code: Some(Code::KeyMissing), .. })
                if which != Which::Current =>
            {
                Err(Failure::NotCurrent)
            }
            Ok(key) if which == Which::Current => {
                let is_kept = self.kept.exists();
                let noted = if is_kept { replace(&self.kept, self.path(), &key) } else { Ok(()) };
                if let Err(error) = noted.and_then(|()| mark(&self.mark, &key)) {
                    tracing::warn!(%error, "the key cannot be kept for a running system");
                }
                Ok(key)
            }
            fetched => fetched.map_err(|error| self.failed(error)),
        }
    }

    async fn confirm(&self, report: &Report) -> Result<Kept, Failure> {
        match self.client.confirm_rotation(report, &self.attester).await {
            Err(RcarError::Denied { code: Some(Code::RotationNotCurrent), .. }) => {
                Err(Failure::NotCurrent)
            }
            confirmed => confirmed.map_err(|error| self.failed(error)),
        }
    }
}

#[cfg(test)]
mod tests;
