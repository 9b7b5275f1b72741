//! `tec ignition` on a cluster.

use std::path::Path;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Secret;
use serde_json::Value;
use tec_core::endpoint::{BaseUrl, Endpoint};
use tec_core::id::MachineId;
use tec_core::ignition::{MergeSource, PinGenerator as _, render_merge};
use tec_k8s::api::{RegistrationMode, TlsServer, TrustedExecutionCluster};
use tec_k8s::render::{Authorities, pins};
use tec_support::exit::OK;

use super::access::Cluster;
use super::lookup::id_of;
use crate::ignition::IgnitionCommand;
use crate::output::Output;

pub(crate) async fn ignition(
    cluster: &Cluster,
    command: IgnitionCommand,
    output: &Output,
) -> anyhow::Result<u8> {
    let config = match command {
        IgnitionCommand::Merge { url, ca, token_file } => {
            let url = url
                .context("--url is needed: the URL at which nodes reach the registration server")?;
            merge(cluster, url, ca.as_deref(), token_file.as_deref()).await?
        }
        IgnitionCommand::Machine { machine } => {
            of_machine(cluster, id_of(cluster, &machine).await?).await?
        }
    };
    // An Ignition config is JSON in either output format.
    output.print(&config, ToString::to_string)?;
    Ok(OK)
}

/// The config of a machine.
pub(super) async fn of_machine(cluster: &Cluster, id: MachineId) -> anyhow::Result<Value> {
    let object = cluster.cluster_object().await?;
    // A server without an address is not announced to nodes.
    let address = object.spec.public_attestation_key_register_addr.as_ref();
    let keys = address.and_then(|_| object.tls_secret(TlsServer::AttestationKeys));
    let authorities = Authorities::new(
        authority(cluster, object.tls_secret(TlsServer::KeyBroker)).await?,
        authority(cluster, keys).await?,
    );
    let config = pins(&object, &authorities)?.render_ignition(&id)?;
    Ok(serde_json::from_slice(&config)?)
}

async fn merge(
    cluster: &Cluster,
    url: BaseUrl,
    ca: Option<&Path>,
    token_file: Option<&Path>,
) -> anyhow::Result<Value> {
    let object = match (ca, token_file) {
        (Some(_), Some(_)) => None,
        _ => Some(cluster.cluster_object().await?),
    };
    let ca = if let Some(path) = ca {
        tec_support::tls::ca_pem(path)?
    } else {
        let object =
            object.as_ref().context("there is no TrustedExecutionCluster in this namespace")?;
        let secret = object.tls_secret(TlsServer::Registration);
        authority(cluster, secret).await?.unwrap_or_default()
    };
    let mut source = MergeSource::new(Endpoint::new(url, ca));
    if let Some(path) = token_file {
        let token = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the token in {}", path.display()))?;
        source.token = Some(token.trim().to_owned());
    } else if let Some(object) = &object {
        source.token = registration_token(cluster, object).await?;
    }
    Ok(serde_json::from_slice(&render_merge(&source)?)?)
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
