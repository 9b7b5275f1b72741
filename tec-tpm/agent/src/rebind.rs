//! Moves an already bound disk to other servers.
//!
//! The passphrase, the key slots and the data stay the same: only the token, which names the servers of the
//! key, is replaced. At every moment there is a token that opens the disk.
//!
//! ```text
//! old token ─ key from the NEW servers ─► passphrase ─► opens the slot?
//!   └─► new token written ─► read back, opened ─► old token removed
//! ```

use std::path::Path;
use std::sync::Arc;

use tec_core::endpoint::Endpoint;
use tec_core::ignition::HeaderConfig;
use tec_core::port::{Entropy, EntropyRng};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_trustee::clevis;
use tec_trustee::clevis::SealedPassphrase;

use crate::disk;
use crate::disk::{Cryptsetup, DiskError, Header, Token};
use crate::failure::Failure;
use crate::fetch::Stage;
use crate::pin::released_key;
use crate::settings::Settings;
use crate::tpm::NodeTpm;

/// Outcome for the header.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebound {
    /// The token that names the new servers.
    pub token: u32,
    /// Tokens that were removed.
    pub removed: Vec<u32>,
}

/// Binds a disk to other servers. The servers must release the key now: a disk is never bound to servers that
/// do not.
///
/// # Errors
/// `Disk`, `Tpm`, `Servers`, `Fetch`, `Resource`, `Sealed`. The disk opens as before.
pub async fn rebind(
    settings: &Settings,
    device: &Path,
    servers: &[Endpoint],
    entropy: &Arc<dyn Entropy>,
) -> Result<Rebound, Failure> {
    let header = Cryptsetup::new(device);
    // Held while the key is fetched too: a rotation in the meantime would make it the old one.
    let _alone = disk::lock().map_err(Failure::io("lock the disks"))?;
    let wanted = wanted(&header, servers)?;
    let tpm = NodeTpm::open(settings)?;
    let key = released_key(settings, &tpm, &wanted, Stage::Moving, entropy).await?;
    move_token(&header, &wanted, &key, &**entropy).map_err(Failure::Disk)
}

/// The configuration on the disk, with other servers.
fn wanted(header: &dyn Header, servers: &[Endpoint]) -> Result<HeaderConfig, Failure> {
    let token = bound_token(header)?;
    let mut wanted = parsed(&token)?.config().clone();
    wanted.servers = servers.to_vec();
    Ok(wanted)
}

/// The token of the pin.
pub(crate) fn bound_token(header: &dyn Header) -> Result<Token, DiskError> {
    header.tokens()?.into_iter().next().ok_or(DiskError::NoToken)
}

pub(crate) fn parsed(token: &Token) -> Result<SealedPassphrase, DiskError> {
    let id = token.id;
    SealedPassphrase::parse(&token.sealed).map_err(|source| DiskError::Sealed { id, source })
}

/// Writes the new token, reads it back, removes the others. Can be run again after a crash at any point.
pub(crate) fn move_token(
    header: &dyn Header,
    wanted: &HeaderConfig,
    key: &SecretArray<32>,
    entropy: &dyn Entropy,
) -> Result<Rebound, DiskError> {
    let tokens = header.tokens()?;
    refuse_rotation(&tokens, wanted, key)?;
    let new = match find_bound(&tokens, wanted)? {
        Some(token) => token.clone(),
        None => write_token(header, &tokens, wanted, key, entropy)?,
    };
    proven_passphrase(header, &new, key)?;
    let mut removed = Vec::new();
    for token in tokens.iter().filter(|token| token.id != new.id) {
        // For a different disk key or a different slot: not ours to remove.
        let is_replaced = parsed(token)?.config().path == wanted.path
            && token.slots.iter().all(|slot| new.slots.contains(slot));
        if is_replaced {
            header.remove_token(token.id)?;
            removed.push(token.id);
        }
    }
    Ok(Rebound { token: new.id, removed })
}

/// Refuses a disk between the two keys of a rotation: the token of the other key would keep its old servers.
fn refuse_rotation(
    tokens: &[Token],
    wanted: &HeaderConfig,
    key: &SecretArray<32>,
) -> Result<(), DiskError> {
    let (mut ours, mut other) = (false, false);
    for token in tokens {
        let sealed = parsed(token)?;
        if sealed.config().path == wanted.path {
            let opens = sealed.open(key).is_ok();
            ours |= opens;
            other |= !opens;
        }
    }
    if ours && other { Err(DiskError::Rotating) } else { Ok(()) }
}

/// The token that an earlier try wrote.
fn find_bound<'t>(
    tokens: &'t [Token],
    wanted: &HeaderConfig,
) -> Result<Option<&'t Token>, DiskError> {
    for token in tokens {
        if parsed(token)?.config() == wanted {
            return Ok(Some(token));
        }
    }
    Ok(None)
}

fn write_token(
    header: &dyn Header,
    tokens: &[Token],
    wanted: &HeaderConfig,
    key: &SecretArray<32>,
    entropy: &dyn Entropy,
) -> Result<Token, DiskError> {
    let old = tokens.first().ok_or(DiskError::NoToken)?;
    let passphrase = proven_passphrase(header, old, key)?;
    let mut rng = EntropyRng::new(entropy);
    let sealed = clevis::seal(wanted, key, &passphrase, &mut rng);
    let sealed = sealed.map_err(|source| DiskError::Sealed { id: old.id, source })?;
    let id = header.add_token(&old.slots, &sealed)?;
    let read_back = header.tokens()?.into_iter().find(|token| token.id == id);
    read_back
        .filter(|token| token.sealed == sealed && token.slots == old.slots)
        .ok_or(DiskError::ReadBack(id))
}

/// The passphrase of a token, if it opens the disk.
pub(crate) fn proven_passphrase(
    header: &dyn Header,
    token: &Token,
    key: &SecretArray<32>,
) -> Result<SecretBytes, DiskError> {
    let id = token.id;
    let passphrase = parsed(token)?.open(key).map_err(|source| DiskError::Sealed { id, source })?;
    for slot in &token.slots {
        if header.opens(slot, &passphrase)? {
            return Ok(passphrase);
        }
    }
    Err(DiskError::Stale(id))
}

#[cfg(test)]
mod tests {
    use tec_core::testing::SeededEntropy;

    use super::*;
    use crate::disk::tests::fake::{FakeHeader, KEY, config_for};

    const OLD: &str = "https://old:1";
    const NEW: &str = "https://new:1";

    fn run(header: &FakeHeader, key: [u8; 32]) -> Result<Rebound, DiskError> {
        let wanted = config_for(NEW).to_header();
        let entropy = SeededEntropy::new(2);
        move_token(header, &wanted, &SecretArray::new(key), &entropy)
    }

    /// Servers of the tokens that open the disk.
    fn servers(header: &FakeHeader) -> Vec<String> {
        header.life.set(None);
        let key = SecretArray::new(KEY);
        let tokens = header.tokens().unwrap();
        let opening = tokens.iter().filter(|token| proven_passphrase(header, token, &key).is_ok());
        opening.map(|token| parsed(token).unwrap().config().servers[0].url.to_string()).collect()
    }

    #[test]
    fn the_new_token_replaces_the_old_one() {
        let header = FakeHeader::bound_to(OLD);
        let rebound = run(&header, KEY).unwrap();
        assert_eq!((rebound.token, rebound.removed), (1, vec![0]));
        assert_eq!(servers(&header), [NEW]);
    }

    #[test]
    fn a_power_cut_at_any_step_leaves_a_token_that_opens_and_the_next_try_ends_it() {
        for life in 0..12 {
            let header = FakeHeader::bound_to(OLD);
            header.life.set(Some(life));
            let first = run(&header, KEY);
            assert!(!servers(&header).is_empty(), "after {life} calls");
            run(&header, KEY).unwrap();
            assert_eq!(servers(&header), [NEW], "after {life} calls");
            assert_eq!(header.tokens().unwrap().len(), 1);
            if first.is_ok() {
                return;
            }
        }
        panic!("it never ended");
    }

    #[test]
    fn doing_it_again_changes_nothing() {
        let header = FakeHeader::bound_to(NEW);
        let rebound = run(&header, KEY).unwrap();
        assert_eq!((rebound.token, rebound.removed), (0, vec![]));
    }

    #[test]
    fn a_disk_between_two_keys_keeps_the_tokens_of_both() {
        for key in [KEY, [8; 32]] {
            let header = FakeHeader::bound_to(OLD);
            let passphrase = SecretBytes::new(b"battery staple".to_vec());
            header.fill(2, b"battery staple");
            let (config, entropy) = (config_for(OLD).to_header(), SeededEntropy::new(3));
            let mut rng = EntropyRng::new(&entropy);
            let sealed = clevis::seal(&config, &SecretArray::new([8; 32]), &passphrase, &mut rng);
            header.add_token(&["2".to_owned()], &sealed.unwrap()).unwrap();
            let before = header.tokens().unwrap();
            assert!(matches!(run(&header, key), Err(DiskError::Rotating)));
            assert_eq!(header.tokens().unwrap(), before);
        }
    }

    #[test]
    fn servers_with_another_key_get_no_disk() {
        let header = FakeHeader::bound_to(OLD);
        assert!(matches!(run(&header, [8; 32]), Err(DiskError::Sealed { id: 0, .. })));
        assert_eq!(servers(&header), [OLD]);
    }
}
