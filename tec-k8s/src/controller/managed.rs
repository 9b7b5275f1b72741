//! Server certificates issued by cert-manager.
//!
//! ```text
//!   spec.certificateIssuer ─► a Certificate per server ─ cert-manager ─► its Secret ─► the servers
//! ```
//! cert-manager renews them, and servers reload them. *What it is not*: a CA rollover that waits for nodes.
//! That is up to whoever runs the issuer.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::ResourceExt as _;
use kube::api::{DynamicObject, Patch, PatchParams};
use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::rollover::fingerprints;

use super::context::{Context, Spoken};
use super::files::{AUTHORITY, CHAIN, KEY, find, text};
use crate::api::{
    CertificateIssuer, ConditionKind, FIELD_MANAGER, Reason, Transport, TrustedExecutionCluster,
};
use crate::client::port_error;
use crate::render;

/// No watch reports Secrets that cert-manager creates.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Requests certificates from cert-manager for servers without a named Secret, and reports which are still
/// missing.
pub(super) async fn request(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
    issuer: &CertificateIssuer,
) -> Result<(), PortError> {
    ctx.memory().authority = None;
    if cluster.transport() != Transport::Tls {
        return Ok(());
    }
    let certificates = render::certificates(cluster, issuer).map_err(|error| {
        PortError::new(PortErrorKind::Invalid, "render Certificates").because(error)
    })?;
    let resource = render::certificate_resource();
    let api: Api<DynamicObject> =
        Api::namespaced_with(ctx.client(), &ctx.parts.namespace, &resource);
    let mut pending = Vec::new();
    for certificate in &certificates {
        let name = certificate.name_any();
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let applied = api.patch(&name, &params, &Patch::Apply(certificate)).await;
        let applied = applied.map_err(|error| refused(&name, error))?;
        if let Some(lacks) = find(ctx, &name).await?.map_or(Some("no Secret"), |it| lacking(&it)) {
            pending.push(format!("{name} ({lacks}{})", ready_message(&applied)));
        }
    }
    let (reason, message, again) = if pending.is_empty() {
        let said = format!("cert-manager issues with the {} {}", issuer.kind.as_str(), issuer.name);
        (Reason::CertificatesManaged, said, None)
    } else {
        let said = format!("{}: {}", Code::CertificatePending, pending.join(", "));
        (Reason::CertificatesPending, said, Some(LOOK_AGAIN))
    };
    let said = (ConditionKind::CertificateAuthority, reason, message);
    ctx.memory().authority = Some(Spoken { said, again, held_since: None });
    Ok(())
}

/// A kind that the API server does not know gives the same answer as a missing object.
fn refused(name: &str, error: kube::Error) -> PortError {
    let error = port_error(format!("apply the Certificate {name}"), error);
    match error.kind() {
        PortErrorKind::NotFound => error.with_code(Code::CertManagerMissing),
        _ => error,
    }
}

/// What a Secret lacks for the servers, or for nodes to pin.
fn lacking(secret: &Secret) -> Option<&'static str> {
    let has = |entry| text(secret, entry).is_ok_and(|text| !text.is_empty());
    if !has(CHAIN) || !has(KEY) {
        return Some("no tls.crt and tls.key in its Secret");
    }
    let trusted = text(secret, AUTHORITY).ok().and_then(|ca| fingerprints(&ca));
    trusted.is_none().then_some("no ca.crt with one to eight CA certificates in its Secret")
}

/// What cert-manager reports for a Certificate that is not ready.
fn ready_message(certificate: &DynamicObject) -> String {
    let conditions = certificate.data.pointer("/status/conditions");
    let mut conditions = conditions.and_then(|all| all.as_array()).into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    let message = ready.and_then(|ready| ready["message"].as_str());
    message.map(|message| format!("; {message}")).unwrap_or_default()
}
