//! Another pod of the same vault: its own volume and controller, and storage that is shared.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use services::bootstrap::controller::Controller;
use tec_services::shell::Vault;

use crate::services::bao::{Bao, Seal};
use crate::services::stage::Stage;

/// A pod of the vault that is not the first.
#[derive(Debug)]
#[non_exhaustive]
pub struct Follower {
    /// Its vault.
    pub bao: Bao,
    /// Name of the pod.
    pub pod: String,
    /// Directory of its wrapped key.
    pub volume: PathBuf,
}

impl Follower {
    /// A vault that runs, is empty, and joins these as soon as it can be unsealed.
    pub async fn start(stage: &Stage, number: u32, others: &[&Bao]) -> anyhow::Result<Self> {
        let pod = format!("vault-{number}");
        let volume = stage.path(&format!("volume-{number}"));
        fs::create_dir(&volume)?;
        let mut bao = Bao::node(stage.dir.path(), &pod, others, &Seal::Shamir)?;
        bao.start(&stage.logs).await?;
        Ok(Self { bao, pod, volume })
    }

    /// Its controller, which gets the wrapped key from the controllers at these addresses.
    pub async fn controller(
        &self,
        stage: &Stage,
        peers: &[SocketAddr],
    ) -> anyhow::Result<Controller> {
        self.controller_with(stage, peers, &[]).await
    }

    /// Like [`controller`](Self::controller), with more flags.
    pub async fn controller_with(
        &self,
        stage: &Stage,
        peers: &[SocketAddr],
        more: &[&str],
    ) -> anyhow::Result<Controller> {
        let socket = self.bao.socket().display().to_string();
        let volume = self.volume.display().to_string();
        let peers: Vec<String> = peers.iter().map(ToString::to_string).collect();
        let peers = peers.join(",");
        let flags = [
            ["--pod", &self.pod],
            ["--vault-socket", &socket],
            ["--volume", &volume],
            ["--peers", &peers],
        ];
        stage.controller(&[flags.as_flattened(), more].concat()).await
    }

    /// Loses its storage and its wrapped key, and stops.
    pub fn lose_volume(&mut self) -> anyhow::Result<()> {
        self.bao.kill();
        self.bao.wipe()?;
        fs::remove_dir_all(&self.volume)?;
        Ok(fs::create_dir(&self.volume)?)
    }

    /// A client for its vault.
    pub fn vault(&self) -> Vault {
        self.bao.vault()
    }
}
