//! Escrow: an attested machine deposits the recovery key of its disk, sealed to an admin.

use crate::attest::Attested;
use crate::code::Code;
use crate::flow::ReleaseError;
use crate::flow::rotation::still_trusted;
use crate::id::{MachineId, ResourcePath};
use crate::port::{
    AkRegistry, AuditAction, AuditEvent, Clock, PortError, PortErrorKind, PutOutcome, SecretStore,
};
use crate::secret::SecretBytes;

/// Maximum number of keys kept for one machine. Each recovery boot creates a new one.
pub const MAX_ESCROWS: u32 = 64;
/// Maximum size of a sealed key: a JWE for a P-521 key is smaller than 1 KiB.
pub const MAX_ESCROW: usize = 8 * 1024;

/// Stores a sealed recovery key in addition to all that the machine deposited before. Returns its
/// number.
///
/// Nothing is ever overwritten: only the node knows which key opens the disk, and a node that died
/// between two steps may have left one that does not.
///
/// # Errors
/// `Refused` if the machine or its key has been revoked or removed since the attestation. Otherwise
/// an error of a port: `Invalid` for a key that is too large, `Conflict` beyond [`MAX_ESCROWS`], or
/// an error of the store.
///
/// # Security
/// The server cannot open a sealed key and does not inspect it. The key is never released to anyone
/// without access to the store: the path of a recovery key is not that of a disk key.
pub async fn escrow(
    aks: &dyn AkRegistry,
    secrets: &dyn SecretStore,
    clock: &dyn Clock,
    attested: &Attested,
    sealed: &SecretBytes,
) -> Result<u32, ReleaseError> {
    still_trusted(aks, attested).await?;
    Ok(keep(secrets, clock, attested.machine(), sealed).await?)
}

async fn keep(
    secrets: &dyn SecretStore,
    clock: &dyn Clock,
    machine: MachineId,
    sealed: &SecretBytes,
) -> Result<u32, PortError> {
    let refused = |kind, what| PortError::new(kind, what).with_code(Code::EscrowRefused);
    if sealed.len() > MAX_ESCROW {
        let what = "keep a recovery key of more than 8 KiB";
        return Err(refused(PortErrorKind::Invalid, what));
    }
    for number in 1..=MAX_ESCROWS {
        let path = ResourcePath::recovery(&machine, number);
        if secrets.exists(&path).await? {
            continue;
        }
        let (now, action) = (clock.now(), AuditAction::RecoveryEscrowed);
        let line = AuditEvent::new(now, action, Some(machine), path.as_str());
        if secrets.put_new(&path, sealed, &line).await? == PutOutcome::Stored {
            return Ok(number);
        }
    }
    let what = "keep more than 64 recovery keys of one machine";
    Err(refused(PortErrorKind::Conflict, what))
}

/// The sealed recovery keys of a machine, the latest first.
pub async fn escrowed(
    secrets: &dyn SecretStore,
    machine: &MachineId,
) -> Result<Vec<(u32, SecretBytes)>, PortError> {
    let mut found = Vec::new();
    for number in 1..=MAX_ESCROWS {
        match secrets.find(&ResourcePath::recovery(machine, number)).await? {
            Some(sealed) => found.push((number, sealed)),
            None => break,
        }
    }
    found.reverse();
    Ok(found)
}

/// Removes all recovery keys of a machine, the latest first, so that an interruption leaves no gap
/// in the numbers.
pub(super) async fn remove(
    secrets: &dyn SecretStore,
    machine: &MachineId,
) -> Result<(), PortError> {
    for (number, _) in escrowed(secrets, machine).await? {
        secrets.remove(&ResourcePath::recovery(machine, number)).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ManualClock, MemoryRegistry, sample};

    fn sealed(text: &str) -> SecretBytes {
        SecretBytes::new(text.as_bytes().to_vec())
    }

    #[tokio::test]
    async fn keys_are_numbered_kept_and_removed_with_the_machine() {
        let store = MemoryRegistry::new();
        let clock = ManualClock::new(sample::time(1));
        let machine = sample::machine_id(1);
        for (number, text) in [(1, "first"), (2, "second")] {
            let kept = keep(&store, &clock, machine, &sealed(text)).await;
            assert_eq!(kept.unwrap(), number);
        }
        let found = escrowed(&store, &machine).await.unwrap();
        let texts: Vec<_> = found.iter().map(|(n, key)| (*n, key.expose("test"))).collect();
        assert_eq!(texts, [(2, &b"second"[..]), (1, &b"first"[..])]);

        crate::flow::remove_machine(&store, &store, &store, &clock, machine).await.unwrap();
        assert!(escrowed(&store, &machine).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_machine_leaves_so_many_and_so_large_keys_and_no_more() {
        let store = MemoryRegistry::new();
        let clock = ManualClock::new(sample::time(1));
        let machine = sample::machine_id(1);
        let keep = async |sealed: &SecretBytes| keep(&store, &clock, machine, sealed).await;
        let large = SecretBytes::new(vec![0; MAX_ESCROW + 1]);
        let error = keep(&large).await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Invalid);
        for _ in 0..MAX_ESCROWS {
            keep(&sealed("x")).await.unwrap();
        }
        let error = keep(&sealed("x")).await.unwrap_err();
        assert_eq!(error.kind(), PortErrorKind::Conflict);
        assert_eq!(error.code(), Some(Code::EscrowRefused));
    }
}
