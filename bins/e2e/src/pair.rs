//! One machine and the trust anchor that serves it, after the first boot.

use std::sync::Arc;

use anyhow::Context as _;
use tec_core::id::MachineId;
use tec_core::port::DiskKeys as _;
use tec_core::rotation::{KeyMark, Keys};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::anchor::Anchor;
use crate::firmware::BootChain;
use crate::machine::Machine;
use crate::process::Transcript;
use crate::settings::Settings;
use crate::wire;

/// Both, on files that end with them. `tec serve` has approved what the machine boots.
#[derive(Debug)]
#[non_exhaustive]
pub struct Pair {
    /// Where all files are.
    pub directory: TempDir,
    /// What the programs are.
    pub settings: Settings,
    /// The trust anchor.
    pub anchor: Anchor,
    /// The machine.
    pub machine: Machine,
    /// Its ID.
    pub id: MachineId,
    /// Runs calls of the store.
    pub runtime: Runtime,
}

impl Pair {
    /// Starts both.
    pub fn start() -> anyhow::Result<Self> {
        let directory = tempfile::tempdir()?;
        let settings = Settings::for_tests(&directory.path().join("unused.html"))?;
        let logs = Arc::new(Transcript::new(directory.path().join("logs"))?);
        let anchor = Anchor::start(&settings, &directory.path().join("state"), &logs, &[])?;
        let image = settings.image("current");
        let path = image.to_str().context("the path of the image is not text")?;
        let approved = anchor.tec(&["image", "approve", "debian", path, "--accept-unpinned"])?;
        let chain = BootChain::of_approval(&image, &approved)?;
        let machine = Machine::new(&settings, &logs, directory.path(), "node", chain)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let [register, ..] = anchor.urls()?;
        let url = format!("{register}/ignition-clevis-pin-trustee");
        let ignition = runtime.block_on(wire::get(&anchor.ca()?, &url))?;
        let id = machine.first_boot(&ignition.body)?;
        Ok(Self { directory, settings, anchor, machine, id, runtime })
    }

    /// The keys that the store has, whether a server runs or not.
    pub fn kept(&self) -> anyhow::Result<Keys<KeyMark>> {
        let store = self.anchor.store()?;
        let kept = self.runtime.block_on(store.rotation(&self.id))?;
        kept.context("the store has no key of the machine")
    }
}
