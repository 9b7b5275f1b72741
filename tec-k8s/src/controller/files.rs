//! Creates what the key broker needs at startup: keys in Secrets, and Trustee's configuration.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, ResourceExt as _};
use tec_core::port::{EntropyRng, PortError, PortErrorKind};

use super::context::Context;
use super::report::owner_of;
use super::trust::CertificatePair;
use crate::api::{BrokerKind, PublishMode, TrustedExecutionCluster};
use crate::client::port_error;
use crate::render;
use crate::render::{
    BROKER_SESSION, BROKER_SESSION_KEY, BrokerFiles, BuiltinFiles, TRUSTEE_AUTH, TRUSTEE_SIGNER,
    TrusteeFiles,
};

/// Entries of the Secrets that others receive.
const ADMIN_PUBLIC: &str = "public.pub";
const SIGNER_CERTIFICATE: &str = "tls.crt";

/// Entries of a Secret with a certificate (Kubernetes, "TLS Secrets").
pub(super) const CHAIN: &str = "tls.crt";
pub(super) const KEY: &str = "tls.key";
pub(super) const AUTHORITY: &str = "ca.crt";

/// Bytes of the key that replicas share for sessions.
const SESSION_KEY: usize = 32;

/// Entries of a Secret.
pub(super) type Entries = BTreeMap<String, ByteString>;

/// What a key broker of this kind needs at startup. Keys are created once, except for the token signer, which
/// is renewed before it expires. The configuration is that of this release.
pub(super) async fn files(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    kind: BrokerKind,
) -> Result<BrokerFiles, PortError> {
    Ok(match kind {
        BrokerKind::Trustee => BrokerFiles::Trustee(of_trustee(ctx, cluster).await?),
        BrokerKind::Builtin => BrokerFiles::Builtin(of_builtin(ctx, cluster).await?),
    })
}

async fn of_builtin(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<BuiltinFiles, PortError> {
    if find(ctx, BROKER_SESSION).await?.is_none() {
        let mut key = vec![0; SESSION_KEY];
        ctx.entropy().fill(&mut key);
        let key = entries([(BROKER_SESSION_KEY, key)]);
        create(ctx, cluster, BROKER_SESSION, &[], key).await?;
    }
    let signer = token_signer(ctx, cluster).await?;
    Ok(BuiltinFiles::new(text(&signer, SIGNER_CERTIFICATE)?))
}

async fn token_signer(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<Secret, PortError> {
    match find(ctx, TRUSTEE_SIGNER).await? {
        Some(signer) => renewed(ctx, cluster, signer).await,
        None => create(ctx, cluster, TRUSTEE_SIGNER, &[], signer(ctx)?).await,
    }
}

async fn of_trustee(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<TrusteeFiles, PortError> {
    let pair = match find(ctx, TRUSTEE_AUTH).await? {
        Some(pair) => pair,
        None => create(ctx, cluster, TRUSTEE_AUTH, &[], admin_pair(ctx)?).await?,
    };
    let signer = token_signer(ctx, cluster).await?;
    let publish = cluster.spec.publish.as_ref();
    let intent = match publish.map(|publish| publish.mode) {
        Some(PublishMode::Volumes) => render::mounted_intent(),
        _ => render::intent(),
    };
    Ok(TrusteeFiles::new(
        ctx.parts.maker.config(&intent)?,
        text(&signer, SIGNER_CERTIFICATE)?,
        text(&pair, ADMIN_PUBLIC)?,
    ))
}

fn admin_pair(ctx: &Context) -> Result<Entries, PortError> {
    let pair = ctx.parts.maker.admin_pair(&mut EntropyRng::new(ctx.entropy()))?;
    let private = pair.private.expose("the API server stores it").to_vec();
    Ok(entries([("private.key", private), (ADMIN_PUBLIC, pair.public.into_bytes())]))
}

fn signer(ctx: &Context) -> Result<Entries, PortError> {
    let mut rng = EntropyRng::new(ctx.entropy());
    let signer = ctx.parts.maker.signer(&mut rng, ctx.now())?;
    Ok(entries([
        ("tls.key", signer.key.expose("the API server stores it").to_vec()),
        (SIGNER_CERTIFICATE, signer.certificate.into_bytes()),
        ("ca.crt", signer.authority.into_bytes()),
    ]))
}

/// Entries for a certificate with its key, and the CAs that vouch for it.
pub(super) fn pair_entries(pair: &CertificatePair, authority: &str) -> Entries {
    let key = pair.key.expose("the API server stores it").to_vec();
    entries([
        (CHAIN, pair.chain.clone().into_bytes()),
        (KEY, key),
        (AUTHORITY, authority.as_bytes().to_vec()),
    ])
}

pub(super) fn entries<const N: usize>(entries: [(&str, Vec<u8>); N]) -> Entries {
    entries.map(|(name, bytes)| (name.to_owned(), ByteString(bytes))).into()
}

pub(super) async fn find(ctx: &Context, name: &str) -> Result<Option<Secret>, PortError> {
    let secrets: Api<Secret> = ctx.objects();
    let found = secrets.get_opt(name).await;
    found.map_err(|error| port_error(format!("read the Secret {name}"), error))
}

/// Creates a Secret owned by the cluster object, with these annotations.
pub(super) async fn create(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    name: &str,
    annotations: &[(&str, String)],
    data: Entries,
) -> Result<Secret, PortError> {
    let wanted = Secret {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            annotations: (!annotations.is_empty()).then(|| {
                let owned = |(key, value): &(&str, String)| ((*key).to_owned(), value.clone());
                annotations.iter().map(owned).collect()
            }),
            owner_references: owner_of(cluster).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        // The API server itself then refuses a different session key. Others are renewed.
        immutable: (name == BROKER_SESSION).then_some(true),
        data: Some(data),
        ..Secret::default()
    };
    let failed = |error| port_error(format!("create the Secret {name}"), error);
    let secrets: Api<Secret> = ctx.objects();
    match secrets.create(&PostParams::default(), &wanted).await {
        Ok(secret) => Ok(secret),
        // Another replica was faster: its keys are used.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            secrets.get(name).await.map_err(failed)
        }
        Err(error) => Err(failed(error)),
    }
}

/// The signer, or a new one if it expires soon. Whoever else created a signer must renew it.
async fn renewed(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    current: Secret,
) -> Result<Secret, PortError> {
    let is_ours = |owner: &OwnerReference| Some(&owner.uid) == cluster.uid().as_ref();
    let certificate = text(&current, SIGNER_CERTIFICATE).unwrap_or_default();
    if !current.owner_references().iter().any(is_ours)
        || !ctx.parts.maker.is_signer_due(&certificate, ctx.now())
    {
        return Ok(current);
    }
    // A compare-and-swap: the object carries the version that was read.
    let mut next = current;
    next.data = Some(signer(ctx)?);
    let secrets: Api<Secret> = ctx.objects();
    let params = PostParams::default();
    let replaced = secrets.replace(TRUSTEE_SIGNER, &params, &next).await;
    let replaced = replaced.map_err(|error| port_error("renew the signer of tokens", error))?;
    tracing::info!("the signer of tokens was renewed; the key broker starts again with it");
    Ok(replaced)
}

pub(super) fn text(secret: &Secret, entry: &str) -> Result<String, PortError> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(entry));
    let text = bytes.and_then(|bytes| String::from_utf8(bytes.0.clone()).ok());
    text.ok_or_else(|| {
        let why = format!("read {entry} of the Secret {}", secret.name_any());
        PortError::new(PortErrorKind::Invalid, why)
    })
}
