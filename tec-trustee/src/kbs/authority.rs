//! `GET` and `PUT authorities`: see [`crate::authority`].

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::digest::Sha256Digest;
use tec_core::id::MachineId;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::rollover::MAX_BUNDLE;

use super::reply::{Refusal, Reply, no_such_plugin, plugin};
use super::{reply, strict};
use crate::authority::{Bundle, Recorded, Trusts};
use crate::wire::ErrorKind;

/// The CA certificates of a server, and which CAs machines report that they trust.
///
/// *Contract*: a report is durable when the call returns, and replaces the previous one. Reporting the same
/// again is fine. *Implemented by* the programs, over a mounted file and the API server.
#[async_trait]
pub trait Authorities: fmt::Debug + Send + Sync {
    /// The CA certificates that nodes should trust for this server, PEM.
    fn bundle(&self) -> Result<String, PortError>;

    /// Records what the pin of an attested machine trusts.
    async fn trusted_by(
        &self,
        machine: &MachineId,
        authorities: &BTreeSet<Sha256Digest>,
    ) -> Result<(), PortError>;
}

/// `GET authorities`.
pub(crate) fn hand_out(authorities: Option<&Arc<dyn Authorities>>) -> Reply {
    match authorities.ok_or_else(no_such_plugin)?.bundle() {
        Ok(certificates) => reply::json(&Bundle { certificates }),
        Err(error) if error.kind() == PortErrorKind::NotFound => Err(no_such_plugin()),
        Err(error) => Err(plugin(&error)),
    }
}

/// `PUT authorities` of an attested machine.
pub(crate) async fn take(
    authorities: Option<&Arc<dyn Authorities>>,
    machine: MachineId,
    body: &[u8],
) -> Reply {
    let authorities = authorities.ok_or_else(no_such_plugin)?;
    let trusts: Result<Trusts, _> = strict::from_slice(body);
    let trusts = trusts.ok().filter(|trusts| trusts.sha256.len() <= MAX_BUNDLE);
    let trusts = trusts.ok_or_else(|| {
        Refusal::new(&ErrorKind::SerdeError, "the body is not a list of a few SHA-256 digests")
    })?;
    let recorded = authorities.trusted_by(&machine, &trusts.sha256).await;
    recorded.map_err(|error| plugin(&error))?;
    tracing::info!(machine.id = %machine, count = trusts.sha256.len(), "trusted CAs reported");
    reply::json(&Recorded {})
}
