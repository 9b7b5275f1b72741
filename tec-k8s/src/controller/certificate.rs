//! Issues certificates for servers for which the cluster object names no Secret.
//!
//! ```text
//!   Secret trust-anchor-ca     stored before anything is signed with it; replaced in `authority`
//!     └─ a Secret per server   tls.crt, tls.key, ca.crt; renewed when a third of its life is left
//! ```
//! Servers reload their certificate when the kubelet replaces it, and nodes pin the CA. *What it is not*:
//! responsible for other people's Secrets. A Secret that has neither the annotation of this module nor a
//! certificate from the CA belongs to someone else and is left unchanged.

use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use tec_core::port::PortError;
use tec_core::rollover::fingerprints;

use super::authority;
use super::authority::Authority;
use super::context::Context;
use super::files::{AUTHORITY, create, find, pair_entries, text};
use super::managed;
use crate::api::{TlsServer, TrustedExecutionCluster};
use crate::client::{ISSUED_AT, ISSUED_FOR, RENEW_AT, port_error};
use crate::render::server_names;

/// Seconds by which clocks differ: certificates begin so much before they are issued.
const SKEW_SECONDS: i64 = 3600;

/// Creates missing certificates, and renews those that expire soon.
pub(super) async fn issue(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<(), PortError> {
    if let Some(issuer) = &cluster.spec.certificate_issuer {
        return managed::request(ctx, cluster, issuer).await;
    }
    let is_issued = |server: &TlsServer| {
        cluster.named_secret(*server).is_none() && cluster.tls_secret(*server).is_some()
    };
    let mut leaves = Vec::new();
    for server in TlsServer::ALL.into_iter().filter(is_issued) {
        leaves.push((server, find(ctx, server.issued_secret()).await?));
    }
    if leaves.is_empty() {
        ctx.memory().authority = None;
        return Ok(());
    }
    let is_ours = |secret: &Secret| secret.annotations().contains_key(RENEW_AT);
    let was_issued = leaves.iter().any(|(_, leaf)| leaf.as_ref().is_some_and(is_ours));
    let authority = authority::stand(ctx, cluster, was_issued).await?;
    for (server, leaf) in leaves {
        issue_one(ctx, cluster, &authority, server, leaf).await?;
    }
    authority::note_published(ctx, authority).await
}

async fn issue_one(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    authority: &Authority,
    server: TlsServer,
    current: Option<Secret>,
) -> Result<(), PortError> {
    let names = server_names(cluster, &ctx.parts.namespace, server);
    if let Some(current) = &current
        && !is_due(ctx, current, authority, &names)
    {
        return Ok(());
    }
    let maker = &ctx.parts.maker;
    let (leaf, renew_at) = maker.certificate(&authority.pair, &names, ctx.now())?;
    let data = pair_entries(&leaf, &authority.bundle);
    let notes = [
        (RENEW_AT, renew_at.unix_seconds().to_string()),
        (ISSUED_AT, ctx.now().unix_seconds().to_string()),
        (ISSUED_FOR, names.join(",")),
    ];
    let name = server.issued_secret();
    let Some(mut next) = current else {
        create(ctx, cluster, name, &notes, data).await?;
        tracing::info!(secret = name, "certificate issued");
        return Ok(());
    };
    // A compare-and-swap: the object carries the version that was read.
    next.data = Some(data);
    let annotations = next.metadata.annotations.get_or_insert_default();
    annotations.extend(notes.map(|(key, value)| (key.to_owned(), value)));
    let secrets: Api<Secret> = ctx.objects();
    let replaced = secrets.replace(name, &PostParams::default(), &next).await;
    replaced.map_err(|error| port_error(format!("renew the certificate in {name}"), error))?;
    tracing::info!(secret = name, "certificate renewed");
    Ok(())
}

/// Whether one of our certificates must be replaced: it expires soon, was issued while the clock was ahead, so that
/// nobody accepts it yet, has different names, or is stored with
/// CAs other than those that nodes should trust. A change of the signing CA changes their order.
fn is_due(ctx: &Context, secret: &Secret, authority: &Authority, names: &[String]) -> bool {
    let notes = secret.annotations();
    let Some(renew_at) = notes.get(RENEW_AT) else {
        // Brought in from another anchor together with its CA, or not ours.
        return comes_with_ca_of(secret, authority);
    };
    let same_bundle = text(secret, AUTHORITY).is_ok_and(|ca| ca.trim() == authority.bundle.trim());
    let now = ctx.now().unix_seconds();
    let begins = notes
        .get(ISSUED_AT)
        .and_then(|at| at.parse().ok())
        .map(|at: i64| at.saturating_sub(SKEW_SECONDS));
    let is_fresh =
        renew_at.parse().is_ok_and(|at: i64| now < at) && begins.is_none_or(|begins| begins <= now);
    let same_names = notes.get(ISSUED_FOR) == Some(&names.join(","));
    !(same_bundle && is_fresh && same_names)
}

fn comes_with_ca_of(secret: &Secret, authority: &Authority) -> bool {
    let trusted = text(secret, AUTHORITY).ok().and_then(|ca| fingerprints(&ca));
    let current = fingerprints(&authority.pair.chain);
    trusted.zip(current).is_some_and(|(trusted, current)| trusted.is_superset(&current))
}
