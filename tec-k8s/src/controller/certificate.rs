//! Certificates of servers for which the cluster object names none.
//!
//! ```text
//!   Secret trust-anchor-ca     made once, stored before anything is signed with it
//!     └─ a Secret per server   tls.crt, tls.key, ca.crt; renewed when a third of its life is left
//! ```
//! Servers read their certificate again when the kubelet replaces it, and nodes pin the authority.
//! *What it is not*: a keeper of other people's Secrets. One that has neither the annotation of this
//! module nor a certificate of the authority is somebody else's, and stays as it is.

use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

use super::context::Context;
use super::files::{Entries, create, entries, find, text};
use super::trust::CertificatePair;
use crate::api::{TlsServer, TrustedExecutionCluster};
use crate::client::{CA_SECRET, ISSUED_FOR, RENEW_AT, port_error};
use crate::render::{Component, KBS_SERVICE};

/// Entries of each Secret (Kubernetes, "TLS Secrets").
const CHAIN: &str = "tls.crt";
const KEY: &str = "tls.key";
const AUTHORITY: &str = "ca.crt";

/// Makes what is missing, and renews what ends soon.
pub(super) async fn issue(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<(), PortError> {
    let is_issued = |server: &TlsServer| {
        cluster.named_secret(*server).is_none() && cluster.tls_secret(*server).is_some()
    };
    let mut leaves = Vec::new();
    for server in TlsServer::ALL.into_iter().filter(is_issued) {
        leaves.push((server, find(ctx, server.issued_secret()).await?));
    }
    if leaves.is_empty() {
        return Ok(());
    }
    let is_ours = |secret: &Secret| secret.annotations().contains_key(RENEW_AT);
    let was_issued = leaves.iter().any(|(_, leaf)| leaf.as_ref().is_some_and(is_ours));
    let authority = authority(ctx, cluster, was_issued).await?;
    for (server, leaf) in leaves {
        issue_one(ctx, cluster, &authority, server, leaf).await?;
    }
    Ok(())
}

/// The authority. One that is gone is not replaced while there are certificates of it: nodes pin it.
async fn authority(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    was_issued: bool,
) -> Result<CertificatePair, PortError> {
    let secret = match find(ctx, CA_SECRET).await? {
        Some(secret) => secret,
        None if was_issued => {
            let leaves = TlsServer::ALL.map(TlsServer::issued_secret).join(" ");
            let why = format!(
                "the Secret {CA_SECRET} is gone, and nodes pin the authority in it: restore it from a \
                 backup, or, if no node pins it, kubectl delete secret {leaves}"
            );
            return Err(PortError::new(PortErrorKind::Invalid, why));
        }
        None => {
            let made = ctx.parts.maker.authority(ctx.now())?;
            let data = pair_entries(&made, &made.chain);
            create(ctx, cluster, CA_SECRET, &[(RENEW_AT, String::new())], data).await?
        }
    };
    let key = secret.data.as_ref().and_then(|data| data.get(KEY));
    let key = key.map(|key| SecretBytes::new(key.0.clone()));
    Ok(CertificatePair {
        chain: text(&secret, CHAIN)?,
        key: key.ok_or_else(|| {
            PortError::new(PortErrorKind::Invalid, format!("read {KEY} of the Secret {CA_SECRET}"))
        })?,
    })
}

async fn issue_one(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    authority: &CertificatePair,
    server: TlsServer,
    current: Option<Secret>,
) -> Result<(), PortError> {
    let names = names(ctx, cluster, server);
    if let Some(current) = &current
        && !is_due(ctx, current, authority, &names)
    {
        return Ok(());
    }
    let maker = &ctx.parts.maker;
    let (leaf, renew_at) = maker.certificate(authority, &names, ctx.now())?;
    let data = pair_entries(&leaf, &authority.chain);
    let notes = [(RENEW_AT, renew_at.unix_seconds().to_string()), (ISSUED_FOR, names.join(","))];
    let name = server.issued_secret();
    let Some(mut next) = current else {
        create(ctx, cluster, name, &notes, data).await?;
        tracing::info!(secret = name, "certificate issued");
        return Ok(());
    };
    // A compare and swap: the object carries the version that was read.
    next.data = Some(data);
    let annotations = next.metadata.annotations.get_or_insert_default();
    annotations.extend(notes.map(|(key, value)| (key.to_owned(), value)));
    let secrets: Api<Secret> = ctx.objects();
    let replaced = secrets.replace(name, &PostParams::default(), &next).await;
    replaced.map_err(|error| port_error(format!("renew the certificate in {name}"), error))?;
    tracing::info!(secret = name, "certificate renewed");
    Ok(())
}

/// Whether a certificate of ours is to be replaced: it ends soon, names something else, or is of
/// another authority.
fn is_due(ctx: &Context, secret: &Secret, authority: &CertificatePair, names: &[String]) -> bool {
    let notes = secret.annotations();
    let by_us = text(secret, AUTHORITY).is_ok_and(|ca| ca.trim() == authority.chain.trim());
    let Some(renew_at) = notes.get(RENEW_AT) else {
        // Brought from another anchor with its authority, or none of ours.
        return by_us;
    };
    let is_fresh = renew_at.parse().is_ok_and(|at: i64| ctx.now().unix_seconds() < at);
    let same_names = notes.get(ISSUED_FOR) == Some(&names.join(","));
    !(by_us && is_fresh && same_names)
}

fn pair_entries(pair: &CertificatePair, authority: &str) -> Entries {
    let key = pair.key.expose("the API server stores it").to_vec();
    entries([
        (CHAIN, pair.chain.clone().into_bytes()),
        (KEY, key),
        (AUTHORITY, authority.as_bytes().to_vec()),
    ])
}

/// The names of the Service, and the one that nodes use.
fn names(ctx: &Context, cluster: &TrustedExecutionCluster, server: TlsServer) -> Vec<String> {
    let spec = &cluster.spec;
    let (service, public) = match server {
        TlsServer::KeyBroker => (KBS_SERVICE, &spec.public_trustee_addr),
        TlsServer::Registration => {
            (Component::RegisterServer.deployment(), &spec.public_register_server_addr)
        }
        TlsServer::AttestationKeys => (
            Component::AttestationKeyRegister.deployment(),
            &spec.public_attestation_key_register_addr,
        ),
    };
    let namespace = &ctx.parts.namespace;
    let public = public.as_deref().and_then(host_of).map(str::to_owned);
    public
        .into_iter()
        .chain([
            service.to_owned(),
            format!("{service}.{namespace}"),
            format!("{service}.{namespace}.svc"),
            format!("{service}.{namespace}.svc.cluster.local"),
        ])
        .collect()
}

/// The host of `host[:port]`; nothing where no certificate could name it.
fn host_of(address: &str) -> Option<&str> {
    let host = match address.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?.0,
        None => address.split(':').next()?,
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let is_address = host.parse::<std::net::IpAddr>().is_ok();
    (is_address || (!host.is_empty() && host.chars().all(is_name))).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_an_address_is_its_name_without_the_port() {
        for (address, host) in [
            ("kbs.example:8080", Some("kbs.example")),
            ("kbs.example", Some("kbs.example")),
            ("192.0.2.1:8080", Some("192.0.2.1")),
            ("[2001:db8::1]:8080", Some("2001:db8::1")),
            ("not a host", None),
            ("", None),
        ] {
            assert_eq!(host_of(address), host, "{address}");
        }
    }
}
