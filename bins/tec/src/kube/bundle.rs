//! `kubectl tec support-bundle`: an archive of diagnostics for support.
//!
//! Contains objects, Events and logs, and a list of what was redacted. It never reads Secrets, even though
//! the caller may have an admin's permissions.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use kube::api::LogParams;
use serde::Serialize;
use tec_k8s::api::{ApprovedImage, AttestationKey, Machine, TrustedExecutionCluster};
use tec_k8s::client::Object;
use tec_support::exit::OK;

use super::access::Cluster;
use super::redact::redact;
use crate::args::DryRun;
use crate::output::Output;

/// Maximum number of log lines per container.
const LOG_LINES: i64 = 5000;
/// Top-level directory of the archive.
const DIRECTORY: &str = "tec-support";

/// One file of the archive.
#[derive(Debug, Serialize)]
struct Entry {
    path: String,
    bytes: usize,
    /// Number of redacted secrets.
    redacted: usize,
    #[serde(skip)]
    text: String,
}

/// What is in the archive, and what is not.
#[derive(Debug, Serialize)]
struct Manifest {
    version: &'static str,
    namespace: String,
    entries: Vec<Entry>,
    /// What could not be collected, with the reason.
    missing: Vec<String>,
    left_out: &'static str,
}

pub(crate) async fn bundle(
    cluster: &Cluster,
    file: &Path,
    dry_run: DryRun,
    output: &Output,
) -> anyhow::Result<u8> {
    let manifest = collect(cluster).await?;
    if !dry_run.dry_run {
        // It reveals internals of the cluster: readable only by its owner, and never overwrites a file.
        let archive = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(file)
            .with_context(|| format!("cannot create {}", file.display()))?;
        write(archive, &manifest).with_context(|| format!("cannot write {}", file.display()))?;
    }
    output.print(&manifest, |manifest| render(manifest, file, dry_run))?;
    Ok(OK)
}

async fn collect(cluster: &Cluster) -> anyhow::Result<Manifest> {
    let mut manifest = Manifest {
        version: crate::VERSION,
        namespace: cluster.namespace.clone(),
        entries: Vec::new(),
        missing: Vec::new(),
        left_out: "data of Secrets and ConfigMaps; private keys, tokens and passwords in texts",
    };
    objects::<TrustedExecutionCluster>(cluster, &mut manifest).await?;
    objects::<Machine>(cluster, &mut manifest).await?;
    objects::<AttestationKey>(cluster, &mut manifest).await?;
    objects::<ApprovedImage>(cluster, &mut manifest).await?;
    objects::<Deployment>(cluster, &mut manifest).await?;
    objects::<Job>(cluster, &mut manifest).await?;
    objects::<Service>(cluster, &mut manifest).await?;
    objects::<NetworkPolicy>(cluster, &mut manifest).await?;
    objects::<Lease>(cluster, &mut manifest).await?;
    objects::<Event>(cluster, &mut manifest).await?;
    for pod in objects::<Pod>(cluster, &mut manifest).await? {
        logs(cluster, &pod, &mut manifest).await;
    }
    Ok(manifest)
}

/// Adds all objects of a kind. What cannot be read is recorded, since the rest may still help.
async fn objects<K: Object + Serialize>(
    cluster: &Cluster,
    manifest: &mut Manifest,
) -> anyhow::Result<Vec<K>> {
    let kind = K::plural(&());
    let mut found = match cluster.list::<K>().await {
        Ok(found) => found,
        Err(error) => {
            let error = anyhow::Error::from(error);
            manifest.missing.push(format!("{kind}: {error:#}"));
            return Ok(Vec::new());
        }
    };
    for object in &mut found {
        // Field ownership does not help a reader, and is most of the text.
        object.meta_mut().managed_fields = None;
    }
    let text = serde_json::to_string_pretty(&found)?;
    manifest.add(format!("objects/{kind}.json"), &text);
    Ok(found)
}

async fn logs(cluster: &Cluster, pod: &Pod, manifest: &mut Manifest) {
    let name = pod.name_any();
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice());
    for container in containers.unwrap_or_default() {
        let params = LogParams {
            container: Some(container.name.clone()),
            tail_lines: Some(LOG_LINES),
            timestamps: true,
            ..LogParams::default()
        };
        let path = format!("logs/{name}/{}.log", container.name);
        match cluster.api::<Pod>().logs(&name, &params).await {
            Ok(text) => manifest.add(path, &text),
            Err(error) => {
                let error = anyhow::Error::from(error);
                manifest.missing.push(format!("{path}: {error:#}"));
            }
        }
    }
}

impl Manifest {
    fn add(&mut self, path: String, text: &str) {
        let (text, redacted) = redact(text);
        self.entries.push(Entry { path, bytes: text.len(), redacted, text });
    }
}

fn write(archive: impl Write, manifest: &Manifest) -> anyhow::Result<()> {
    let mut builder = tar::Builder::new(GzEncoder::new(archive, Compression::default()));
    let contents = serde_json::to_string_pretty(manifest)?;
    append(&mut builder, "manifest.json", &contents)?;
    for entry in &manifest.entries {
        append(&mut builder, &entry.path, &entry.text)?;
    }
    builder.into_inner()?.finish()?.flush()?;
    Ok(())
}

fn append(builder: &mut tar::Builder<impl Write>, path: &str, text: &str) -> anyhow::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(u64::try_from(text.len())?);
    header.set_mode(0o600);
    builder.append_data(&mut header, format!("{DIRECTORY}/{path}"), text.as_bytes())?;
    Ok(())
}

fn render(manifest: &Manifest, file: &Path, dry_run: DryRun) -> String {
    let redacted: usize = manifest.entries.iter().map(|entry| entry.redacted).sum();
    let files = manifest.entries.len();
    let done = if dry_run.dry_run { "would hold" } else { "holds" };
    let mut lines =
        vec![format!("{} {done} {files} files; {redacted} secrets were taken out", file.display())];
    let missing = manifest.missing.iter();
    lines.extend(missing.map(|what| format!("  could not be had: {what}")));
    lines.push("look through it before you hand it on".to_owned());
    lines.join("\n")
}
