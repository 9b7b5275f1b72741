//! What Ignition configs of a cluster contain.

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::ignition::{ClevisPinGenerator, MergeSource};
use tec_k8s::api::{RegistrationMode, TlsServer, TrustedExecutionCluster};
use tec_k8s::render::{Authorities, pins};

use super::access::Cluster;

/// Renders the configs of machines.
pub(crate) async fn pins_of(cluster: &Cluster) -> anyhow::Result<ClevisPinGenerator> {
    let object = cluster.cluster_object().await?;
    // A server without an address is not announced to nodes.
    let address = object.spec.public_attestation_key_register_addr.as_ref();
    let keys = address.and_then(|_| object.tls_secret(TlsServer::AttestationKeys));
    let authorities = Authorities::new(
        authority(cluster, object.tls_secret(TlsServer::KeyBroker)).await?,
        authority(cluster, keys).await?,
    );
    Ok(pins(&object, &authorities)?)
}

/// The server at this URL; its CA and token are those of the cluster object, unless they are given.
pub(crate) async fn merge(
    cluster: &Cluster,
    url: BaseUrl,
    ca: Option<String>,
    token: Option<String>,
) -> anyhow::Result<MergeSource> {
    let (ca, token) = match (ca, token) {
        (Some(ca), Some(token)) => (ca, Some(token)),
        (ca, token) => {
            let object = cluster.cluster_object().await?;
            let secret = object.tls_secret(TlsServer::Registration);
            let ca = match ca {
                Some(ca) => ca,
                None => authority(cluster, secret).await?.unwrap_or_default(),
            };
            match token {
                Some(token) => (ca, Some(token)),
                None => (ca, registration_token(cluster, &object).await?),
            }
        }
    };
    let mut source = MergeSource::new(Endpoint::new(url, ca));
    source.token = token;
    Ok(source)
}

/// The token that nodes must present, if required.
pub(crate) async fn registration_token(
    cluster: &Cluster,
    object: &TrustedExecutionCluster,
) -> anyhow::Result<Option<String>> {
    let is_asked = object.registration_mode() == RegistrationMode::Token;
    let Some(name) = object.token_secret().filter(|_| is_asked) else {
        return Ok(None);
    };
    let secret = cluster.get::<Secret>(name).await?;
    let data = secret.data.unwrap_or_default();
    let token =
        data.get("token").with_context(|| format!("the Secret {name} has no entry token"))?;
    let token = String::from_utf8(token.0.clone())
        .with_context(|| format!("the token in the Secret {name} is not UTF-8 text"))?;
    Ok(Some(token.trim().to_owned()))
}

/// The CA that nodes pin, from the TLS Secret named in the cluster object. If one is named, it must exist:
/// otherwise nodes would be configured to trust any certificate, or none.
async fn authority(cluster: &Cluster, secret: Option<&str>) -> anyhow::Result<Option<String>> {
    let Some(name) = secret else {
        return Ok(None);
    };
    let secret = cluster.get::<Secret>(name).await?;
    let data = secret.data.unwrap_or_default();
    let ca = data.get("ca.crt").with_context(|| format!("the Secret {name} has no ca.crt"))?;
    let ca = String::from_utf8(ca.0.clone())
        .with_context(|| format!("ca.crt of the Secret {name} is not PEM"))?;
    Ok(Some(ca))
}
