//! The CA of a namespace, and the certificates of its servers.

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt as _;
use serde_json::json;
use tec_core::port::Clock as _;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_k8s::client::{CA_SECRET, RENEW_AT};
use tec_support::tls::Pair;
use tec_support::{SystemClock, tls};

use super::{Founding, SERVERS};
use crate::args::DryRun;

/// The layout of certificates (Kubernetes, "TLS Secrets").
const TLS: &str = "kubernetes.io/tls";

impl Founding<'_> {
    /// Creates what is missing, and returns the CA that nodes should trust; empty for plain HTTP.
    pub(super) async fn certificates(&mut self) -> anyhow::Result<String> {
        if self.args.dangerous_plain_http {
            tracing::warn!("plain HTTP: anybody on the network path can read and drop");
            return Ok(String::new());
        }
        if let (Some(certificate), Some(key), Some(ca)) =
            (&self.args.tls_cert, &self.args.tls_key, &self.args.tls_ca)
        {
            let read = |path: &std::path::PathBuf| {
                std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read {}", path.display()))
            };
            let (chain, key, ca) = (read(certificate)?, read(key)?, read(ca)?);
            let key = SecretBytes::new(key.into_bytes());
            for (name, _) in SERVERS {
                self.put(name, &Pair { chain: chain.clone(), key: copy(&key) }, &ca, None).await?;
                let there = self.cluster.get::<Secret>(name).await?.data.unwrap_or_default();
                ensure!(
                    there.get("tls.crt").is_some_and(|there| there.0 == chain.as_bytes()),
                    "--tls-cert differs from the certificate in the cluster, which is kept \
                     (kubectl get secret {name})"
                );
            }
            return Ok(ca);
        }
        let ca = self.ca().await?;
        for (name, service) in SERVERS {
            self.server(name, service, &ca).await?;
        }
        Ok(ca.chain)
    }

    async fn ca(&mut self) -> anyhow::Result<Pair> {
        if self.cluster.find::<Secret>(CA_SECRET).await?.is_none() {
            let made = tls::new_ca(SystemClock.now())?;
            self.put(CA_SECRET, &made, &made.chain, None).await?;
        }
        // Another client may have created it first; theirs counts.
        let secret = self.cluster.get::<Secret>(CA_SECRET).await?;
        let mut data = secret.data.unwrap_or_default();
        let mut entry = |name: &str| {
            let lacks = || format!("the Secret {CA_SECRET} has no {name}");
            anyhow::Ok(data.remove(name).with_context(lacks)?.0)
        };
        Ok(Pair {
            chain: String::from_utf8(entry("tls.crt")?).context("the CA is not PEM")?,
            key: SecretBytes::new(entry("tls.key")?),
        })
    }

    /// The certificate of one server; renewed if it was created here and expires soon.
    async fn server(&mut self, name: &str, service: &str, ca: &Pair) -> anyhow::Result<()> {
        let now = SystemClock.now();
        let there = self.cluster.find::<Secret>(name).await?;
        if there.as_ref().is_some_and(|secret| !is_due(secret, now)) {
            return Ok(());
        }
        let namespace = &self.cluster.namespace;
        let names = [
            self.args.public_host().to_owned(),
            service.to_owned(),
            format!("{service}.{namespace}.svc"),
            "localhost".to_owned(),
        ];
        let (leaf, renew_at) = tls::issue(ca, &names, now)?;
        if there.is_none() {
            return self.put(name, &leaf, &ca.chain, Some(renew_at)).await;
        }
        let key = String::from_utf8_lossy(leaf.key.expose("the API server stores it"));
        let change = json!({
            "metadata": {"annotations": {RENEW_AT: renew_at.unix_seconds().to_string()}},
            "stringData": {"tls.crt": leaf.chain, "tls.key": key},
        });
        let dry_run = DryRun { dry_run: false };
        self.cluster.merge::<Secret>(name, &change, dry_run).await?;
        Ok(())
    }

    async fn put(
        &mut self,
        name: &str,
        pair: &Pair,
        ca: &str,
        renew_at: Option<Timestamp>,
    ) -> anyhow::Result<()> {
        let key = String::from_utf8_lossy(pair.key.expose("the API server stores it"));
        let entries = json!({"tls.crt": pair.chain, "tls.key": key, "ca.crt": ca});
        let annotations = match renew_at {
            Some(at) => json!({RENEW_AT: at.unix_seconds().to_string()}),
            None => json!({}),
        };
        self.secret(name, TLS, &entries, &annotations).await
    }
}

fn copy(key: &SecretBytes) -> SecretBytes {
    key.duplicate("each server has it in a Secret of its own")
}

fn is_due(secret: &Secret, now: Timestamp) -> bool {
    let renew_at = secret.annotations().get(RENEW_AT);
    let renew_at = renew_at.and_then(|text| text.parse::<i64>().ok());
    renew_at.is_some_and(|at| now.unix_seconds() >= at)
}
