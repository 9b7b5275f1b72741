//! `tec bootstrap init --namespace`: makes a namespace the trust anchor of a cluster that does not exist yet.
//!
//! ```text
//!   definitions, namespace ─► accounts, operator ─► CA ─► certificates ─► token ─► cluster object
//!   ─► images ─► the config for the installer
//! ```
//! Existing objects are left unchanged, so it can be repeated; certificates that expire soon are renewed.

mod certificate;
mod operator;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, PostParams};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::flow::UnpinnedInputs;
use tec_core::id::ImageName;
use tec_core::ignition::{MergeSource, render_merge};
use tec_core::migrate::{AnchorId, TrustAnchor as _};
use tec_core::port::Entropy as _;
use tec_k8s::api::{
    AdditionalTrustee, ApprovedImage, ApprovedImageSpec, TrustedExecutionCluster,
    TrustedExecutionClusterSpec, crds,
};
use tec_k8s::render;
use tec_support::exit::OK;
use tec_support::{SystemEntropy, endpoint};

use self::operator::ROOTS;
use super::InstallArgs;
use super::flags::{self, Given};
use crate::args::Access;
use crate::command::image::approve_plain;
use crate::kube::access::{Cluster, coded};
use crate::kube::ignition::registration_token;
use crate::output::Output;
use crate::serve::args::{Approval, ServeArgs};

/// Name of the cluster object, if none exists.
const CLUSTER: &str = "cluster";
/// Deadline for the definitions to be served.
const ESTABLISHED: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(200);
/// Servers, each with the Secret of its certificate and the names of its Services.
const SERVERS: [(&str, &str); 3] = [
    ("trustee-tls", render::KBS_SERVICE),
    ("register-server-tls", "register-server"),
    ("attestation-key-register-tls", "attestation-key-register"),
];
/// Secret with the registration token.
const TOKEN: &str = "trust-registration-token";

/// What was set up.
#[derive(Debug, Serialize)]
struct Founded {
    anchor: AnchorId,
    namespace: String,
    /// Objects that were created; the others existed already.
    made: Vec<String>,
    images: Vec<ImageName>,
    /// The installer's config.
    ignition: Value,
}

/// Sets the namespace up.
pub(crate) async fn found(
    access: &Access,
    wanted: Wanted<'_>,
    images: (&[(ImageName, PathBuf)], UnpinnedInputs),
    output: &Output,
) -> anyhow::Result<u8> {
    flags::check(wanted.given)?;
    let args = wanted.args;
    let [registration, _, _] = args.kept_addresses()?;
    let roots = operator::roots(args)?;
    let cluster = Cluster::connect(access).await?;
    let mut founding = Founding { cluster, wanted, args, made: Vec::new() };
    founding.definitions().await?;
    founding.operator().await?;
    let ca = founding.certificates().await?;
    founding.token().await?;
    founding.roots(roots).await?;
    founding.cluster_object().await?;
    let object = founding.cluster.cluster_object().await?;
    let token = registration_token(&founding.cluster, &object).await?;
    if let Some(path) = &args.registration_token_file {
        let given = std::fs::read_to_string(path)?;
        ensure!(
            token.as_deref() == Some(given.trim()),
            "--registration-token-file differs from the token in the cluster, which is kept \
             (kubectl get secret {TOKEN})"
        );
    }
    let approved = founding.images(images).await?;
    let mut source = MergeSource::new(Endpoint::new(url(args, registration.port())?, ca));
    source.token = token;
    let Founding { cluster, made, .. } = founding;
    let registry = crate::kube::registry(access).await?;
    let record = registry.authority().await;
    let founded = Founded {
        anchor: record.context("cannot read the record of authority")?.anchor(),
        namespace: cluster.namespace,
        made,
        images: approved,
        ignition: serde_json::from_slice(&render_merge(&source)?)?,
    };
    output.print(&founded, |founded| founded.ignition.to_string())?;
    tracing::info!("set up; lead nodes to the Services next, then check it");
    Ok(OK)
}

fn url(args: &ServeArgs, port: u16) -> anyhow::Result<BaseUrl> {
    let scheme = if args.dangerous_plain_http { "http" } else { "https" };
    format!("{scheme}://{}", address(args, port))
        .parse()
        .with_context(|| format!("--public-host {:?}", args.public_host()))
}

fn address(args: &ServeArgs, port: u16) -> String {
    let host = args.public_host();
    match host.parse::<std::net::Ipv6Addr>() {
        Ok(_) => format!("[{host}]:{port}"),
        Err(_) => format!("{host}:{port}"),
    }
}

/// The key brokers of `--also-kbs`. Nodes trust the certificate of a key broker only if its CA is given.
fn additional_trustees(args: &ServeArgs) -> anyhow::Result<Vec<AdditionalTrustee>> {
    let trustee = |text: &String| {
        let endpoint = endpoint::parse(text).with_context(|| format!("--also-kbs {text:?}"))?;
        let url = endpoint.url.as_str();
        let address = url.split_once("://").map_or(url, |(_, address)| address);
        if endpoint.url.is_tls() {
            ensure!(
                !endpoint.cert.is_empty(),
                "--also-kbs {text} needs a CA file with --namespace (pass --also-kbs {text}=CA-FILE)"
            );
            return Ok(AdditionalTrustee::new(address, endpoint.cert.as_str()));
        }
        ensure!(
            args.dangerous_plain_http,
            "--also-kbs {text} needs --dangerous-plain-http with --namespace"
        );
        Ok(AdditionalTrustee::dangerous_plain_http(address))
    };
    args.also_kbs.iter().map(trustee).collect()
}

/// What to set up.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) args: &'a ServeArgs,
    /// The flags that were given.
    pub(crate) given: &'a Given,
    pub(crate) install: &'a InstallArgs,
}

struct Founding<'a> {
    cluster: Cluster,
    wanted: Wanted<'a>,
    args: &'a ServeArgs,
    made: Vec<String>,
}

impl Founding<'_> {
    /// Creates an object unless one of that name exists.
    async fn ensure(&mut self, object: &render::Object) -> anyhow::Result<()> {
        let resource = object.resource();
        let client = self.cluster.client.clone();
        let api: Api<DynamicObject> = match &object.metadata().namespace {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        };
        let what = format!("{} {}", object.kind(), object.name());
        let wanted: DynamicObject = serde_json::from_value(serde_json::to_value(object)?)?;
        let created = api.create(&PostParams::default(), &wanted).await;
        self.note(what, created)
    }

    /// Records what was created; existing objects are left alone.
    fn note<K>(&mut self, what: String, created: kube::Result<K>) -> anyhow::Result<()> {
        match created {
            Ok(_) => self.made.push(what),
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(coded(format!("create {what}"))(error).into()),
        }
        Ok(())
    }

    async fn definitions(&mut self) -> anyhow::Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.cluster.client.clone());
        for definition in crds() {
            let name = definition.name_any();
            let created = api.create(&PostParams::default(), &definition).await;
            self.note(format!("CustomResourceDefinition {name}"), created)?;
            let served = async {
                while !is_established(&api.get(&name).await?) {
                    tokio::time::sleep(POLL).await;
                }
                kube::Result::Ok(())
            };
            let served = tokio::time::timeout(ESTABLISHED, served).await;
            served
                .with_context(|| format!("{name} is not served"))?
                .map_err(coded(format!("look at {name}")))?;
        }
        let (policy, binding) = render::definition_guard();
        self.ensure(&policy.into()).await?;
        self.ensure(&binding.into()).await
    }

    /// The token that nodes present: the existing one, otherwise that in the file, otherwise a new one.
    async fn token(&mut self) -> anyhow::Result<()> {
        let token = if let Some(path) = &self.args.registration_token_file {
            std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the token in {}", path.display()))?
        } else {
            let mut seed = [0; 32];
            SystemEntropy.fill(&mut seed);
            Sha256Digest::of(seed).to_string()
        };
        let entries = json!({"token": token.trim()});
        self.secret(TOKEN, "Opaque", &entries, &json!({})).await
    }

    async fn secret(
        &mut self,
        name: &str,
        kind: &str,
        entries: &Value,
        annotations: &Value,
    ) -> anyhow::Result<()> {
        let secret = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": annotations},
            "type": kind, "stringData": entries,
        }))?;
        let api = self.cluster.api::<k8s_openapi::api::core::v1::Secret>();
        let created = api.create(&PostParams::default(), &secret).await;
        self.note(format!("Secret {name}"), created)
    }

    async fn cluster_object(&mut self) -> anyhow::Result<()> {
        let spec = self.spec()?;
        let there = self.cluster.list::<TrustedExecutionCluster>().await?;
        if let Some(there) = there.first() {
            let (wanted, known) =
                (serde_json::to_value(&spec)?, serde_json::to_value(&there.spec)?);
            flags::compare(self.wanted.given, &there.name_any(), &wanted, &known)?;
            return Ok(());
        }
        let object = TrustedExecutionCluster::new(CLUSTER, spec);
        let api = self.cluster.api::<TrustedExecutionCluster>();
        let created = api.create(&PostParams::default(), &object).await;
        self.note(format!("TrustedExecutionCluster {CLUSTER}"), created)
    }

    fn spec(&self) -> anyhow::Result<TrustedExecutionClusterSpec> {
        let args = self.args;
        let [register, ak, kbs] = args.addresses().map(|address| address.port());
        let policy = match args.ak_approval {
            Approval::Tofu => "FirstUse",
            Approval::Ek => "EndorsementKey",
            Approval::Manual => "Manual",
        };
        let allowed: Vec<_> = args.allow_ek.iter().map(ToString::to_string).collect();
        let [trustee, register_server, ak_register] =
            SERVERS.map(|(secret, _)| (!args.dangerous_plain_http).then_some(secret));
        let spec = json!({
            "publicTrusteeAddr": address(args, kbs),
            "publicAttestationKeyRegisterAddr": address(args, ak),
            "additionalTrustees": additional_trustees(args)?,
            "trusteeKbsPort": kbs,
            "registerServerPort": register,
            "attestationKeyRegisterPort": ak,
            "dangerousPlainHttp": args.dangerous_plain_http.then_some(true),
            "trusteeSecret": trustee,
            "registerServerSecret": register_server,
            "attestationKeyRegisterSecret": ak_register,
            "approval": {
                "policy": policy, "allowedEndorsementKeys": allowed,
                "endorsementRootsConfigMap": args.ek_roots.as_ref().map(|_| ROOTS),
                "maxClaimed": args.max_claimed, "maxClaimedPerSource": args.max_claimed_per_source,
            },
            "registration": {
                "mode": "Token", "tokenSecret": TOKEN, "maxUnclaimed": args.max_unclaimed,
                "unclaimedTtlSeconds": args.unclaimed_seconds(),
            },
        });
        serde_json::from_value(spec).context("cannot write the cluster object")
    }

    /// A reference with a digest is measured by the operator; anything else is a path on this host.
    async fn images(
        &mut self,
        (images, inputs): (&[(ImageName, PathBuf)], UnpinnedInputs),
    ) -> anyhow::Result<Vec<ImageName>> {
        let coverage = (self.args.pins.pins()?, inputs);
        let registry = crate::kube::of(&self.cluster);
        let ports = (&registry as _, &registry as _);
        for (name, path) in images {
            let reference = path.to_string_lossy();
            if reference.contains("@sha256:") {
                let mut spec = ApprovedImageSpec::default();
                spec.image = reference.into_owned();
                let object = ApprovedImage::new(name.as_str(), spec);
                let api = self.cluster.api::<ApprovedImage>();
                let created = api.create(&PostParams::default(), &object).await;
                self.note(format!("ApprovedImage {name}"), created)?;
            } else {
                approve_plain(ports, (name.clone(), path), coverage).await?;
            }
        }
        Ok(images.iter().map(|(name, _)| name.clone()).collect())
    }
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.iter().flat_map(|status| &status.conditions);
    conditions
        .flatten()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}
