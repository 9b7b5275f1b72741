//! Whether to unseal a sealed vault: one that an admin sealed on purpose stays sealed.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::Duration;

use parking_lot::Mutex;
use tec_services::vault::Sealed;

use crate::bootstrap::cli::Unseal;

/// Interval between checks for whether the vault restarted.
const POLL: Duration = Duration::from_secs(1);

/// Remembers which process of the vault was unsealed.
#[derive(Debug)]
pub struct Sealing {
    when: Unseal,
    socket: PathBuf,
    opened: Mutex<Option<Instance>>,
}

/// A process of the vault: each creates its own socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instance {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Sealing {
    /// Decides for the vault behind this socket.
    pub fn new(when: Unseal, socket: PathBuf) -> Self {
        Self { when, socket, opened: Mutex::default() }
    }

    /// The current process, if there is one.
    pub fn instance(&self) -> Option<Instance> {
        let found = std::fs::metadata(&self.socket).ok()?;
        Some(Instance {
            device: found.dev(),
            inode: found.ino(),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    /// What to do if the vault is sealed: unseal it, unless this process was unsealed before.
    pub fn of(&self, instance: Option<Instance>) -> Sealed {
        let opened = *self.opened.lock();
        match self.when {
            Unseal::Start if opened.is_some() && opened == instance => Sealed::Leave,
            Unseal::Start | Unseal::Always => Sealed::Open,
        }
    }

    /// Returns once the vault's process is not the one that was unsealed: it restarted, and is sealed.
    pub async fn restarted(&self) {
        loop {
            let instance = self.instance();
            let opened = *self.opened.lock();
            // Without a process there is nothing to unseal yet.
            if instance.is_some() && instance != opened {
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Records that the process is unsealed. `instance` was read before unsealing, so a process that started
    /// since then differs.
    pub fn opened(&self, instance: Option<Instance>) {
        *self.opened.lock() = instance;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_vault_is_opened_once_for_each_of_its_starts_or_always() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        let sealing = |when| Sealing::new(when, socket.clone());
        let (start, always) = (sealing(Unseal::Start), sealing(Unseal::Always));
        assert_eq!(start.of(start.instance()), Sealed::Open);
        start.opened(None);
        assert_eq!(start.of(start.instance()), Sealed::Open, "it does not run");

        let first = UnixListener::bind(&socket).unwrap();
        let instance = start.instance();
        start.opened(instance);
        always.opened(instance);
        assert_eq!(start.of(start.instance()), Sealed::Leave);
        assert_eq!(always.of(always.instance()), Sealed::Open);

        std::fs::remove_file(&socket).unwrap();
        let _second = UnixListener::bind(&socket).unwrap();
        assert_eq!(start.of(start.instance()), Sealed::Open);
        drop(first);
    }
}
