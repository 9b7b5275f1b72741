//! A registry in the cluster.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Value, json};
use tec_core::port::Clock as _;
use tec_registry::testing::{Access, Content, Pusher, gzip};
use tec_support::SystemClock;
use tec_support::tls::{Pair, issue, new_ca};

use super::{Charts, Image};
use crate::settings::cache;
use crate::wire::provider;

/// A Service address that is never assigned to another Service.
const ADDRESS: &str = "10.96.0.50";
const TAG: &str = "registry.example/docker-registry:1";
const OBJECTS: &str = r#"
apiVersion: v1
kind: ConfigMap
metadata: {name: registry}
data:
  config.yml: |
    {version: "0.1", log: {level: error},
     http: {addr: ":5000", tls: {certificate: /etc/tls/tls.crt, key: /etc/tls/tls.key}},
     storage: {filesystem: {rootdirectory: /data}}}
---
apiVersion: v1
kind: Service
metadata: {name: registry}
spec: {clusterIP: 10.96.0.50, selector: {app: registry}, ports: [{port: 5000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: registry, labels: {app: registry}}
spec:
  securityContext: {runAsNonRoot: true, fsGroup: 65532, seccompProfile: {type: RuntimeDefault}}
  volumes:
  - {name: config, configMap: {name: registry}}
  - {name: tls, secret: {secretName: registry}}
  - {name: data, emptyDir: {}}
  containers:
  - name: registry
    image: registry.example/docker-registry:1
    args: [serve, /etc/registry/config.yml]
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
    readinessProbe: {tcpSocket: {port: 5000}, periodSeconds: 1}
    volumeMounts:
    - {name: config, mountPath: /etc/registry}
    - {name: tls, mountPath: /etc/tls}
    - {name: data, mountPath: /data}
"#;

/// The registry's CA. Our images have it in place of the usual trusted CAs.
#[derive(Debug)]
pub(super) struct Authority(Pair);

impl Authority {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self(new_ca(SystemClock.now())?))
    }

    pub(super) fn pem(&self) -> &str {
        &self.0.chain
    }
}

/// A running registry.
#[derive(Debug)]
#[expect(missing_copy_implementations, reason = "there is one")]
pub struct Registry(());

impl Registry {
    /// Starts a registry in its own namespace, with TLS.
    pub fn start(charts: &Charts) -> anyhow::Result<Self> {
        charts.load(&Image::of(TAG, cache()?.join("bin/docker-registry")))?;
        charts.everywhere(&["create", "namespace", "registry"])?;
        let file = |name: &str| charts.files().join(name);
        let [certificate, key, objects] =
            ["registry.crt", "registry.key", "registry.yaml"].map(file);
        let names = [ADDRESS.to_owned()];
        let (pair, _) = issue(&charts.authority.0, &names, SystemClock.now())?;
        fs::write(&certificate, &pair.chain)?;
        fs::write(&key, pair.key.expose("the registry serves with it"))?;
        fs::write(&objects, OBJECTS)?;
        let flag = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let [certificate, key] = [flag("cert", &certificate), flag("key", &key)];
        let namespace = "--namespace=registry";
        let secret = ["create", "secret", "tls", "registry", namespace, &certificate, &key];
        charts.everywhere(&secret)?;
        charts.everywhere(&["apply", namespace, &flag("filename", &objects)])?;
        let ready = ["wait", namespace, "--for=condition=Ready", "--timeout=60s", "pod/registry"];
        charts.everywhere(&ready)?;
        Ok(Self(()))
    }

    /// Pushes a single-layer image with these labels, and returns its reference.
    pub fn push(
        &self,
        charts: &Charts,
        labels: &Value,
        files: &[(String, Vec<u8>)],
    ) -> anyhow::Result<String> {
        let files: Vec<(&str, &[u8])> =
            files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        let mut content = Content::default();
        let digest = content.image(labels, &[gzip(&files)?]);
        let host = format!("{ADDRESS}:5000");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let ca = charts.authority.pem();
            let pusher = Pusher::with_ca(&host, Access::Everybody, ca, &provider())?;
            pusher.wait().await?;
            pusher.push("team/os", &content).await
        })?;
        Ok(format!("{host}/team/os@{digest}"))
    }

    /// Pushes the boot files of a tree, without a label for their measurements.
    pub fn push_tree(&self, charts: &Charts, root: &Path) -> anyhow::Result<String> {
        let mut paths = Vec::new();
        collect(root, &mut paths)?;
        let read = |path: &PathBuf| {
            let name = path.strip_prefix(root)?.display().to_string();
            anyhow::Ok((name, fs::read(path)?))
        };
        let files = paths.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
        self.push(charts, &json!({}), &files)
    }
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    for entry in
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?
    {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, into)?;
        } else {
            into.push(path);
        }
    }
    Ok(())
}
