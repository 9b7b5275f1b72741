//! The token that nodes present to register, created once if the cluster object names none.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use tec_core::digest::Sha256Digest;
use tec_core::port::PortError;

use super::context::Context;
use super::report::owner_of;
use crate::api::{REGISTRATION_TOKEN, TrustedExecutionCluster};
use crate::client::port_error;

/// Number of random bytes in a token, which is the digest of them.
const LENGTH: usize = 32;

/// Creates the Secret [`REGISTRATION_TOKEN`] if nodes must present it and nobody has created it. Whoever
/// names a Secret in the cluster object must create it.
pub(super) async fn ensure(
    ctx: &Context,
    cluster: &TrustedExecutionCluster,
) -> Result<(), PortError> {
    if cluster.token_secret() != Some(REGISTRATION_TOKEN)
        || ctx.caches.secrets.get(REGISTRATION_TOKEN).is_some()
    {
        return Ok(());
    }
    let mut seed = [0; LENGTH];
    ctx.entropy().fill(&mut seed);
    let token = Sha256Digest::of(seed).to_string();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(REGISTRATION_TOKEN.to_owned()),
            owner_references: owner_of(cluster).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([("token".to_owned(), ByteString(token.into_bytes()))])),
        ..Secret::default()
    };
    let made = ctx.objects::<Secret>().create(&PostParams::default(), &secret).await;
    match made {
        Ok(_) => {
            tracing::info!(secret = REGISTRATION_TOKEN, "the registration token was made");
            Ok(())
        }
        // Another replica was faster, or the watch is late.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(port_error("create the registration token", error)),
    }
}
