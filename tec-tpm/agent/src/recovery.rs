//! Maintains a key slot for the case that no server is left.
//!
//! The key is generated here, sealed to an admin's public key, escrowed at the servers, put into a key slot,
//! and forgotten. After a boot that needed the key, it is renewed: a key that was typed is no longer secret.
//!
//! ```text
//! intent on the disk ─► escrow at the server ─► key slot ─► tried ─► token ─► older slots removed
//! ```
//! Power may fail at each arrow: a slot exists only after its key was escrowed, and the next attempt removes
//! what an unfinished one left.

use std::path::Path;
use std::sync::Arc;
use std::{fmt, fs};

use async_trait::async_trait;
use tec_core::endpoint::Endpoint;
use tec_core::port::{Attester, Entropy, EntropyRng};
use tec_core::recovery::RecoveryKey;
use tec_core::secret::SecretBytes;
use tec_trustee::client::RcarClient;
use tec_trustee::jwe;
use tec_trustee::jwe::{Jwe, TeePubKey};

use crate::disk;
use crate::disk::{Cryptsetup, DiskError, Header, RecoveryState, RecoveryToken, SlotMark};
use crate::failure::Failure;
use crate::fetch::Stage;
use crate::kbs::{client, fetch_error};
use crate::pin::released_key;
use crate::rebind::{bound_token, parsed, proven_passphrase};
use crate::settings::Settings;
use crate::tpm::NodeTpm;

/// What to do about the recovery key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Create one unless the disk has one.
    Enroll,
    /// Create a new one, and remove the slot of the old one.
    Renew,
}

/// Outcome for the disk.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Enrolled {
    /// Key slot of the recovery key.
    pub slot: u32,
    /// Number of the escrowed key at the server; `None` if the disk already had a recovery key.
    pub number: Option<u32>,
}

/// Escrows a sealed key.
#[async_trait]
trait Escrow: fmt::Debug + Send + Sync {
    /// Stores the key durably, and returns its number.
    async fn keep(&self, sealed: &Jwe) -> Result<u32, Failure>;
}

#[derive(Debug)]
struct Servers<A> {
    client: RcarClient,
    attester: A,
    tried: Vec<Endpoint>,
}

#[async_trait]
impl<A: Attester> Escrow for Servers<A> {
    async fn keep(&self, sealed: &Jwe) -> Result<u32, Failure> {
        let kept = self.client.escrow(sealed, &self.attester).await;
        kept.map_err(|error| Failure::Fetch(fetch_error(&self.tried, error)))
    }
}

/// Creates or renews the recovery key of a disk, sealed to the key in a file of the admin. Servers must release the disk's key: it authorizes the change.
///
/// # Errors
/// `Io` and `AdminKey` for the admin's key, `Disk`, `Tpm`, `Servers`, `Fetch`, `Resource`. The disk
/// opens as before.
pub async fn recovery(
    settings: &Settings,
    change: Change,
    (device, admin_key): (&Path, &Path),
    entropy: &Arc<dyn Entropy>,
) -> Result<Enrolled, Failure> {
    let admin = read_admin_key(admin_key)?;
    let header = Cryptsetup::new(device);
    let token = bound_token(&header)?;
    let _alone = disk::lock().map_err(Failure::io("lock the disks"))?;
    if let (Change::Enroll, Some(slot)) = (change, settled(&header)?) {
        return Ok(Enrolled { slot, number: None });
    }
    let config = parsed(&token)?.config().clone();
    let tpm = NodeTpm::open(settings)?;
    let key = released_key(settings, &tpm, &config, Stage::LaterBoot, entropy).await?;
    let passphrase = proven_passphrase(&header, &token, &key)?;
    let escrow = Servers {
        client: client(settings, &config.servers, entropy)?,
        attester: tpm.attester(settings.read_event_log()),
        tried: config.servers,
    };
    enroll(&header, &passphrase, &admin, &escrow, &**entropy).await
}

fn read_admin_key(path: &Path) -> Result<TeePubKey, Failure> {
    let operation = format!("read the admin's key from {}", path.display());
    let json = fs::read(path).map_err(Failure::io(operation))?;
    let refused = |reason: String| Failure::AdminKey(reason);
    let key: TeePubKey =
        serde_json::from_slice(&json).map_err(|error| refused(error.to_string()))?;
    key.check().map_err(|error| refused(error.to_string()))?;
    Ok(key)
}

/// The recovery slot of a disk without unfinished changes.
fn settled(header: &dyn Header) -> Result<Option<u32>, Failure> {
    let view = header.recovery()?;
    Ok(match view.tokens.as_slice() {
        [token] if token.state == RecoveryState::Active => Some(token.slot),
        _ => None,
    })
}

/// Can be run again after a crash at any point.
async fn enroll(
    header: &dyn Header,
    passphrase: &SecretBytes,
    admin: &TeePubKey,
    escrow: &dyn Escrow,
    entropy: &dyn Entropy,
) -> Result<Enrolled, Failure> {
    remove_unfinished(header)?;
    let slot = header.recovery().and_then(|view| view.free_slot());
    let slot = slot?;
    let mark = SlotMark::random(entropy);
    let intent = header.add_recovery_token(slot, RecoveryState::Intended, mark);
    let intent = intent?;
    let key = RecoveryKey::random(&mut EntropyRng::new(entropy));
    let sealed = jwe::encrypt(admin, key.passphrase(), &mut EntropyRng::new(entropy));
    let sealed = sealed.map_err(|error| Failure::AdminKey(error.to_string()))?;
    let number = escrow.keep(&sealed).await?;
    activate(header, passphrase, &key, (slot, mark), intent)?;
    Ok(Enrolled { slot, number: Some(number) })
}

/// Removes the intents of earlier tries, with the slots that they created. A slot that another program has
/// created there since stays: it does not have the mark of the intent.
pub(crate) fn remove_unfinished(header: &dyn Header) -> Result<(), DiskError> {
    let view = header.recovery()?;
    // A slot that a pin uses was finished, by a rotation.
    let pins = header.tokens()?;
    let is_active = |slot: u32| {
        let mut tokens = view.tokens.iter();
        tokens.any(|token| token.slot == slot && token.state == RecoveryState::Active)
            || pins.iter().any(|pin| pin.slots.contains(&slot.to_string()))
    };
    for token in &view.tokens {
        if token.state == RecoveryState::Intended {
            if view.is_of(token) && !is_active(token.slot) {
                header.remove_slot(token.slot)?;
            }
            header.remove_token(token.id)?;
        }
    }
    Ok(())
}

/// Creates the slot, tests it, marks it active, and removes all older ones.
fn activate(
    header: &dyn Header,
    passphrase: &SecretBytes,
    key: &RecoveryKey,
    (slot, mark): (u32, SlotMark),
    intent: u32,
) -> Result<(), DiskError> {
    header.add_slot((slot, mark), passphrase, key.passphrase())?;
    if !header.opens(&slot.to_string(), key.passphrase())? {
        return Err(DiskError::SlotReadBack(slot));
    }
    let older: Vec<RecoveryToken> = header.recovery()?.tokens;
    let id = header.add_recovery_token(slot, RecoveryState::Active, mark)?;
    let is_written = header
        .recovery()?
        .tokens
        .iter()
        .any(|token| (token.id, token.slot, token.state) == (id, slot, RecoveryState::Active));
    if !is_written {
        return Err(DiskError::ReadBack(id));
    }
    for token in older {
        if token.id != intent && token.state == RecoveryState::Active {
            header.remove_slot(token.slot)?;
        }
        header.remove_token(token.id)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
