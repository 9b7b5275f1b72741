//! Provides what the proof of an endorsement key needs: a key that replicas share, and CA certificates.

use k8s_openapi::api::core::v1::ConfigMap;
use tec_core::port::{PortError, PortErrorKind};

use super::context::Context;
use super::files::{create, entries};
use crate::api::{CHALLENGE_KEY, TrustedExecutionCluster};
use crate::client::port_error;

/// Bytes of the key.
const LENGTH: usize = 32;
/// First line of every certificate in PEM (RFC 7468, section 5.1).
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// Creates the Secret [`CHALLENGE_KEY`] if keys need a proof.
pub(super) async fn ensure_key(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<(), PortError> {
    if cluster.endorsement().is_none() || ctx.caches.secrets.get(CHALLENGE_KEY).is_some() {
        return Ok(());
    }
    let mut key = vec![0; LENGTH];
    ctx.entropy().fill(&mut key);
    create(ctx, cluster, CHALLENGE_KEY, &[], entries([("key", key)])).await?;
    Ok(())
}

/// Checks that the CA certificates that the cluster object names exist. The server accepts no key without
/// them.
pub(super) async fn check_roots(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<(), PortError> {
    let Some(name) = cluster.endorsement_roots() else {
        return Ok(());
    };
    let found = ctx.objects::<ConfigMap>().get_opt(name).await;
    let found = found.map_err(|error| port_error(format!("read the ConfigMap {name}"), error))?;
    let data = found.and_then(|found| found.data).unwrap_or_default();
    if data.get("ca.crt").is_some_and(|text| text.contains(CERTIFICATE)) {
        return Ok(());
    }
    let why = format!(
        "no attestation key is accepted: the ConfigMap {name} of spec.approval.endorsementRootsConfigMap has no \
         certificate in ca.crt (kubectl create configmap {name} --from-file=ca.crt=FILE)"
    );
    Err(PortError::new(PortErrorKind::Invalid, why))
}
