//! What outlives a controller (cluster, vault, volume), and controllers, each as new as a process.

use std::path::PathBuf;

use crate::process::Transcript;
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Parser as _;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::Value;
use services::bootstrap::cli::{Action, Args};
use services::bootstrap::compose;
use services::bootstrap::controller::Controller;
use tec_services::caller::Account;
use tec_support::files::write_public;
use tempfile::TempDir;

use crate::services::bao::{Bao, Seal};
use crate::services::cluster::{AUDIENCE, Cluster};

/// Everything in a vault's pod, and what outlives the pod.
#[derive(Debug)]
#[non_exhaustive]
pub struct Stage {
    // The order matters: fields are dropped from the top.
    /// The vault.
    pub bao: Bao,
    /// The cluster.
    pub cluster: Cluster,
    /// What everything printed.
    pub logs: Transcript,
    /// The directory of all files.
    pub dir: TempDir,
}

impl Stage {
    /// A vault that was never initialized, on the shared cluster.
    pub async fn new() -> anyhow::Result<Self> {
        Self::on(Cluster::shared().await?).await
    }

    /// Like [`new`](Self::new), on this cluster.
    pub async fn on(cluster: Cluster) -> anyhow::Result<Self> {
        let mut stage = Self::prepare(cluster, &Seal::Shamir)?;
        stage.bao.start(&stage.logs).await?;
        Ok(stage)
    }

    /// Like [`on`](Self::on), with a vault that is not running yet.
    pub fn prepare(cluster: Cluster, seal: &Seal) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::create_dir(dir.path().join("volume"))?;
        let stage = Self {
            bao: Bao::prepare(dir.path(), seal)?,
            logs: Transcript::new(dir.path().join("logs"))?,
            cluster,
            dir,
        };
        std::fs::write(stage.path("api-token"), &stage.cluster.controller_token)?;
        std::fs::write(stage.path("api-ca.crt"), stage.cluster.plane.authority())?;
        Ok(stage)
    }

    /// A path below the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The flags of a controller, as its manifest has them; those in `more` take precedence.
    pub async fn flags(&self, more: &[&str]) -> anyhow::Result<Vec<String>> {
        let cluster = &self.cluster;
        let own = cluster.token(&cluster.account("controller")?).await?;
        std::fs::write(self.path("token"), own)?;
        let at = |name: &str| self.path(name).display().to_string();
        let api = cluster.plane.url();
        let mut flags: Vec<String> = [
            ("--pod", "vault-0".to_owned()),
            ("--namespace", cluster.platform.clone()),
            ("--vault-socket", self.bao.socket().display().to_string()),
            ("--volume", at("volume")),
            ("--kubernetes", api.trim_start_matches("https://").to_owned()),
            ("--kubernetes-ca", at("api-ca.crt")),
            ("--kubernetes-token", at("api-token")),
            ("--vault-kubernetes", cluster.reviews.url().to_owned()),
            ("--vault-kubernetes-ca", at("api-ca.crt")),
            ("--token", at("token")),
            ("--audience", AUDIENCE.to_owned()),
            ("--controller", format!("{}/controller", cluster.platform)),
            ("--nats", format!("{}/nats", cluster.platform)),
            ("--opensearch", format!("{}/opensearch", cluster.platform)),
            ("--collectors", format!("{}/collector", cluster.platform)),
            ("--tracers", format!("{}/tracer", cluster.platform)),
            ("--viewers", format!("{}/dashboards", cluster.platform)),
            ("--component-namespaces", cluster.apps.clone()),
        ]
        .into_iter()
        .filter(|(flag, _)| !more.contains(flag))
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect();
        flags.extend(more.iter().map(|&flag| flag.to_owned()));
        Ok(flags)
    }

    /// A process of the controller; it keeps nothing from the previous one.
    pub async fn controller(&self, more: &[&str]) -> anyhow::Result<Controller> {
        let flags = self.flags(more).await?;
        let line = ["services-bootstrap", "serve"].map(str::to_owned);
        let args = Args::try_parse_from(line.into_iter().chain(flags))?;
        match args.command {
            Action::Serve(serve) => compose::controller(&serve),
            _ => anyhow::bail!("this is not a controller"),
        }
    }

    /// A Secret of the platform's namespace, as JSON.
    pub async fn secret(&self, name: &str) -> anyhow::Result<Value> {
        let secret = self.secrets()?.get(name).await?;
        Ok(serde_json::to_value(secret)?)
    }

    /// Secrets of the platform's namespace.
    pub fn secrets(&self) -> anyhow::Result<Api<Secret>> {
        let admin = self.cluster.plane.admin()?;
        Ok(Api::namespaced(admin, &self.cluster.platform))
    }

    /// The authorities, as callers find them: in the published Secret.
    pub async fn authorities(&self) -> anyhow::Result<String> {
        self.published("ca.crt").await
    }

    /// Updates the mounted files of every pod, as a kubelet does.
    ///
    /// # Errors
    /// The authorities are not published, or files cannot be written.
    pub async fn sync_mounts(&self) -> anyhow::Result<()> {
        for name in ["ca.crt", "tls.crt"] {
            let content = self.published(name).await?;
            for entry in std::fs::read_dir(self.dir.path())? {
                let file = entry?.path().join(name);
                // Atomically: a program never sees half a file.
                if file.exists() && std::fs::read_to_string(&file)? != content {
                    write_public(&file, content.as_bytes())?;
                }
            }
        }
        Ok(())
    }

    async fn published(&self, name: &str) -> anyhow::Result<String> {
        let secret = self.secret("services-bootstrap-tls").await?;
        let text = secret["data"][name].as_str();
        let bytes = STANDARD.decode(text.with_context(|| format!("there is no {name}"))?)?;
        Ok(String::from_utf8(bytes)?)
    }

    /// The volume that the containers of an account's pod share.
    pub fn shared(&self, account: &Account) -> PathBuf {
        self.path(&format!("pod-{}", account.name())).join("shared")
    }

    /// Writes what the kubelet would mount for an account: its token, and what the controller published.
    /// Returns the flags for connecting to a controller at `address`.
    pub async fn mount(&self, account: &Account, address: &str) -> anyhow::Result<Vec<String>> {
        let dir = self.path(&format!("pod-{}", account.name()));
        std::fs::create_dir_all(dir.join("shared"))?;
        for name in ["ca.crt", "tls.crt"] {
            std::fs::write(dir.join(name), self.published(name).await?)?;
        }
        std::fs::write(dir.join("token"), self.cluster.token(account).await?)?;
        let at = |name: &str| dir.join(name).display().to_string();
        let name = self.cluster.account("controller")?.host();
        Ok([
            ("--controller", address.to_owned()),
            ("--controller-name", name),
            ("--ca", at("ca.crt")),
            ("--token", at("token")),
            ("--out", at("shared")),
            ("--deadline-seconds", "30".to_owned()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect())
    }
}
