//! Attestation keys from directories, kept in sync with the store.
//!
//! ```text
//! <machine id>.pub ─ read ─► wanted ─┐
//! store ─────────── list ─► present ─┴─ bind what is new, remove what is gone
//! ```
//! The directories are authoritative: a machine whose file is removed loses its key in the store, and one
//! whose file returns is bound again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context as _;
use tec_core::ak::{AkCandidate, AkState, ManualMatcher, PublicKey};
use tec_core::flow;
use tec_core::flow::{AkOutcome, AkPorts, ClaimLimits};
use tec_core::id::MachineId;
use tec_core::machine::{Machine, RegisteredBy};
use tec_core::port::{AkRegistry, Clock, MachineRegistry, UnclaimedLimit};
use tec_core::store::Store;
use tec_support::input;
use tec_support::serve::Shutdown;

/// Polling interval for the directories; a revocation takes effect within this time.
const POLL: Duration = Duration::from_secs(1);
/// Interval after which the directories are read even if they look unchanged: file times are coarse, and a
/// file can be rewritten without changing its directory.
const READ_ANYWAY: Duration = Duration::from_mins(1);
/// Largest key file; an RSA key of 4096 bits takes 800 bytes of PEM.
const MAX_FILE: u64 = 16 * 1024;

/// The keys that should be bound, by machine.
pub type Wanted = BTreeMap<MachineId, PublicKey>;

/// Keeps the store in sync with directories.
#[derive(Debug)]
pub struct Keys {
    dirs: Vec<PathBuf>,
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
}

impl Keys {
    /// Keys from `dirs`.
    pub fn new(dirs: Vec<PathBuf>, store: Arc<Store>, clock: Arc<dyn Clock>) -> Self {
        Self { dirs, store, clock }
    }

    /// Syncs the store with the directories. An unusable file is logged and skipped; the key it bound before
    /// is removed, since it is no longer wanted.
    /// Errors: A directory cannot be read, or the store failed; in that case nothing is removed.
    pub async fn sync(&self) -> anyhow::Result<()> {
        let mut wanted = Wanted::new();
        for dir in &self.dirs {
            read_dir(dir, &mut wanted)?;
        }
        let aks: &dyn AkRegistry = &*self.store;
        let machines: &dyn MachineRegistry = &*self.store;
        for record in aks.list(None).await? {
            let is_wanted = wanted.get(&record.machine) == Some(&record.public);
            if is_wanted && record.state == AkState::Bound {
                wanted.remove(&record.machine);
            } else {
                machines.remove(&record.machine).await?;
                tracing::info!(machine = %record.machine, "key removed");
            }
        }
        for (machine, public) in wanted {
            self.bind(machine, public).await?;
        }
        Ok(())
    }

    /// Keys are approved as by an admin: whoever can write to the directory is trusted like one.
    async fn bind(&self, id: MachineId, public: PublicKey) -> anyhow::Result<()> {
        let machines: &dyn MachineRegistry = &*self.store;
        let machine = Machine::unclaimed(id, RegisteredBy::Admin, self.clock.now());
        machines.create(&machine, UnclaimedLimit::Unlimited).await?;
        let ports =
            AkPorts::new(machines, &*self.store, &ManualMatcher, &*self.store, &*self.clock)
                .with_claims(ClaimLimits::NONE);
        match flow::approve(ports, id, AkCandidate::from_admin(public, None)).await? {
            AkOutcome::Bound(_) | AkOutcome::AlreadyBound => {
                tracing::info!(machine = %id, "key bound");
            }
            AkOutcome::Waiting(reason)
            | AkOutcome::AlreadyWaiting(reason)
            | AkOutcome::Rejected(reason) => {
                tracing::error!(machine = %id, %reason, "key not bound");
            }
        }
        Ok(())
    }

    /// Follows changes until shutdown.
    pub async fn follow(self, mut shutdown: Shutdown) {
        // What changed since the first reading is unknown.
        let (mut seen, mut read) = (Vec::new(), Instant::now());
        loop {
            tokio::select! {
                () = shutdown.triggered() => return,
                () = tokio::time::sleep(POLL) => {},
            }
            let stamps = self.stamps();
            if stamps == seen && read.elapsed() < READ_ANYWAY {
                continue;
            }
            match self.sync().await {
                Ok(()) => (seen, read) = (stamps, Instant::now()),
                Err(error) => tracing::error!(error = format!("{error:#}"), "keys not read"),
            }
        }
    }

    /// A directory's time changes when files are added, removed or renamed, which is how mounted volumes
    /// change.
    fn stamps(&self) -> Vec<Option<SystemTime>> {
        let time = |dir: &PathBuf| fs::metadata(dir).and_then(|meta| meta.modified()).ok();
        self.dirs.iter().map(time).collect()
    }
}

fn read_dir(dir: &Path, wanted: &mut Wanted) -> anyhow::Result<()> {
    let listing = || format!("read the keys in {}", dir.display());
    for entry in fs::read_dir(dir).with_context(listing)? {
        let path = entry.with_context(listing)?.path();
        if path.extension().is_none_or(|end| end != "pub") {
            continue;
        }
        match read_key(&path) {
            Ok((machine, key)) => {
                if wanted.insert(machine, key).is_some() {
                    tracing::warn!(%machine, "the machine has a key in two directories");
                }
            }
            Err(error) => tracing::error!(
                file = %path.display(), error = format!("{error:#}"), "key left out"
            ),
        }
    }
    Ok(())
}

fn read_key(path: &Path) -> anyhow::Result<(MachineId, PublicKey)> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let machine = name.parse().context("the name is not a machine ID")?;
    let pem = input::text(path, MAX_FILE)?;
    let key = PublicKey::from_pem(&pem).context("not a public key in PEM")?;
    Ok((machine, key))
}
