//! The state directory: the store, and what the running server wrote about itself.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::ignition::ClevisPinGenerator;
use tec_core::migrate::belonging::Demands;
use tec_core::pcr::PcrIndex;
use tec_core::store::Store;
use tec_support::SystemEntropy;
use tec_support::exit::CodedError;
use tec_support::files::write_private;

/// File in which a server says where it listens.
const ENDPOINTS: &str = "endpoints.json";

/// File in which a server says whom it lets in.
const SAID: &str = "demands.json";

/// Opens the store; it is made where there is none yet.
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

/// Opens the store of a server that was started before: commands that only look must not make one.
pub(crate) fn open_existing(directory: &Path) -> anyhow::Result<Arc<Store>> {
    if !directory.exists() {
        anyhow::bail!(
            "there is no state directory {}; start `tec serve`, or give --state-dir",
            directory.display()
        );
    }
    open(directory)
}

/// Where nodes reach a server, and what they are told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Endpoints {
    pub(crate) register: BaseUrl,
    pub(crate) ak: BaseUrl,
    /// KBS servers in order, this one first.
    pub(crate) kbs: Vec<Endpoint>,
    /// CA bundle of the two registration servers.
    pub(crate) ca: String,
    pub(crate) root_device: String,
}

impl Endpoints {
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write_private(&directory.join(ENDPOINTS), &serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("write {ENDPOINTS}"))
    }

    pub(crate) fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(ENDPOINTS);
        let text = std::fs::read(&path).with_context(|| {
            format!("read {}; has `tec serve` run on this directory?", path.display())
        })?;
        serde_json::from_slice(&text).with_context(|| format!("parse {}", path.display()))
    }

    /// The generator of what nodes are handed.
    pub(crate) fn pins(&self) -> anyhow::Result<ClevisPinGenerator> {
        let (first, others) = self.kbs.split_first().context("no KBS server is known")?;
        let pins = ClevisPinGenerator::new(first.clone())
            .register_ak_at(Endpoint::new(self.ak.clone(), self.ca.clone()))
            .on_device(self.root_device.clone());
        Ok(others.iter().cloned().fold(pins, ClevisPinGenerator::also))
    }
}

/// Whom the server on a state directory lets in, for whoever moves its trust elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Said {
    pub(crate) demands: Demands,
    pub(crate) pcrs: BTreeSet<PcrIndex>,
}

impl Said {
    pub(crate) fn write(&self, directory: &Path) -> anyhow::Result<()> {
        write_private(&directory.join(SAID), &serde_json::to_vec_pretty(self)?)
            .with_context(|| format!("write {SAID}"))
    }

    /// Nothing where no server ran yet.
    pub(crate) fn read(directory: &Path) -> anyhow::Result<Option<Self>> {
        let path = directory.join(SAID);
        match std::fs::read(&path) {
            Ok(text) => Ok(Some(
                serde_json::from_slice(&text)
                    .with_context(|| format!("parse {}", path.display()))?,
            )),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }
}
