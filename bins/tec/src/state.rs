//! The state directory: the store, and what the running server recorded about itself.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tec_core::attest::PinnedPcrs;
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::ignition::ClevisPinGenerator;
use tec_core::migrate::belonging::Demands;
use tec_core::pcr::PcrIndex;
use tec_core::store::Store;
use tec_support::SystemEntropy;
use tec_support::exit::CodedError;
use tec_support::files::write_private;

/// File in which a server records its addresses.
const ENDPOINTS: &str = "endpoints.json";

/// The file of the store.
const DATABASE: &str = "tec.db";

/// File that a running server locks.
const LOCK: &str = "serve.lock";
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// File in which a server records its demands on nodes.
pub(crate) const SAID: &str = "demands.json";

/// Opens the store, creating it if necessary.
pub(crate) fn open(directory: &Path) -> anyhow::Result<Arc<Store>> {
    let store = Store::open(directory, &SystemEntropy).map_err(|error| {
        CodedError::caused(
            error.code(),
            format!("open the store in {}", directory.display()),
            error,
        )
    })?;
    Ok(Arc::new(store))
}

/// Opens the store of a server that has been started before: read-only commands must not create one.
pub(crate) fn open_existing(directory: &Path) -> anyhow::Result<Arc<Store>> {
    // A directory that this user may not read is not one without a store.
    if let Ok(false) = directory.join(DATABASE).try_exists() {
        anyhow::bail!(
            "{} is not a state directory: it has no {DATABASE} (choose another with --state-dir, or create \
             one with `tec bootstrap init --public-host HOST`)",
            directory.display()
        );
    }
    open(directory)
}

/// The lock of a running server; released when the process ends.
#[derive(Debug)]
pub(crate) struct Running(#[expect(dead_code, reason = "held, not read")] File);

impl Running {
    /// Marks that a server is running on a state directory.
    /// Errors: another server is running on it.
    pub(crate) async fn mark(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(LOCK);
        let file =
            File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
        for _ in 0..LOCK_TRIES {
            match file.try_lock() {
                Ok(()) => return Ok(Self(file)),
                // A command that checks the lock holds it for a moment.
                Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_PAUSE).await,
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
        let context = format!("a server runs on {} already", directory.display());
        Err(CodedError::new(Code::ServerRunning, context).into())
    }

    /// Whether a server is running on a state directory.
    pub(crate) fn is(directory: &Path) -> bool {
        let file = File::open(directory.join(LOCK));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

/// Where nodes reach a server, and what they are given.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    pub(crate) register: BaseUrl,
    pub(crate) ak: BaseUrl,
    /// KBS servers in order, this server first.
    pub(crate) kbs: Vec<Endpoint>,
    /// CA bundle of the two registration servers.
    pub(crate) ca: String,
    /// The server's certificate, if it is not from the built-in CA.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) root_device: String,
}

impl Endpoints {
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write_private(&directory.join(ENDPOINTS), &serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {ENDPOINTS}"))
    }

    pub(crate) fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(ENDPOINTS);
        let text = std::fs::read(&path).with_context(|| {
            format!(
                "cannot read {} (run `tec bootstrap init` or `tec serve` on this state \
                 directory first)",
                path.display()
            )
        })?;
        serde_json::from_slice(&text).with_context(|| format!("cannot parse {}", path.display()))
    }

    /// The generator of the pins for nodes.
    pub(crate) fn pins(&self) -> anyhow::Result<ClevisPinGenerator> {
        let (first, others) =
            self.kbs.split_first().context("the state directory lists no KBS server")?;
        let pins = ClevisPinGenerator::new(first.clone())
            .register_ak_at(Endpoint::new(self.ak.clone(), self.ca.clone()))
            .on_device(self.root_device.clone());
        Ok(others.iter().cloned().fold(pins, ClevisPinGenerator::also))
    }
}

/// The demands of the server on a state directory, for moving its trust elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Said {
    pub(crate) demands: Demands,
    /// Empty if the prediction of each image determines the registers.
    pub(crate) pcrs: BTreeSet<PcrIndex>,
}

impl Said {
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write_private(&directory.join(SAID), &serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("cannot write {SAID}"))
    }

    /// The registers that boots must match at the server that was set up or ran here last.
    pub(crate) fn pins(directory: &Path) -> anyhow::Result<Pins> {
        let said = Self::read(directory)?.map(|said| said.pcrs.into_iter().collect());
        let pinned = said.and_then(|pcrs| PinnedPcrs::new(pcrs).ok());
        Ok(pinned.map_or(Pins::Predicted, Pins::Exactly))
    }

    /// `None` if no server has run yet.
    pub(crate) fn read(directory: &Path) -> anyhow::Result<Option<Self>> {
        let path = directory.join(SAID);
        match std::fs::read(&path) {
            Ok(text) => Ok(Some(
                serde_json::from_slice(&text)
                    .with_context(|| format!("cannot parse {}", path.display()))?,
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }
}
