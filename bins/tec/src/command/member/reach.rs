//! Connections to nodes, and what their refusals mean.

use std::time::Duration;

use bootstrapper::instance::transport;
use tec_core::code::Code;
use tec_core::port::{PortError, PortErrorKind, chain};
use tec_node::atls::Endpoint;
use tec_node::rpc::{Reached, Reason};
use tec_support::exit::CodedError;
use tokio::time::Instant;
use tonic::Status;

/// Pause between attempts to reach a node that does not answer.
const PAUSE: Duration = Duration::from_secs(2);

/// Minimum time for an attempt, however little is left: a TPM needs seconds for a quote.
const LEAST: Duration = Duration::from_secs(5);

/// Retries until the node answers or this time is over. A node whose evidence is refused is not asked again.
pub(super) async fn reach(
    endpoint: &Endpoint,
    address: &str,
    until: Instant,
) -> Result<Reached, CodedError> {
    let mut told = false;
    loop {
        let limit = until.max(Instant::now() + LEAST);
        let attempt = tokio::time::timeout_at(limit, transport::reach(endpoint, address));
        let error = match attempt.await.unwrap_or_else(|_| Err(silent())) {
            Ok(reached) => return Ok(reached),
            Err(error) if error.kind() == PortErrorKind::Denied => {
                let context = format!("{address} did not prove itself");
                return Err(CodedError::caused(Code::BootstrapUntrusted, context, error));
            }
            Err(error) => error,
        };
        if Instant::now() + PAUSE > until {
            let context = format!("{address} cannot be reached");
            return Err(CodedError::caused(Code::BootstrapUnreachable, context, error));
        }
        if !told {
            tracing::info!(address, error = chain(&error), "waiting for the node");
            told = true;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn silent() -> PortError {
    PortError::new(PortErrorKind::Unavailable, "hear from it in time")
}

/// A refusal, with the code of its reason.
pub(super) fn refused(address: &str, status: &Status) -> CodedError {
    let code = match Reason::of(status) {
        Some(Reason::InitSecret) => Code::BootstrapSecret,
        Some(Reason::KmsUri | Reason::StorageUri | Reason::Member | Reason::MasterSecret) => {
            Code::BootstrapRequest
        }
        Some(Reason::UnlistedKeyService) => Code::BootstrapUnlisted,
        Some(Reason::KeyService) => Code::BootstrapKeyService,
        Some(Reason::AlreadyActivated | Reason::AlreadyRecovering) => Code::BootstrapActivated,
        Some(Reason::NotPrepared | Reason::Disk) => Code::BootstrapNotPrepared,
        Some(Reason::WrongKey) => Code::BootstrapWrongKey,
        // Not a refusal by the service: the connection broke.
        None if is_broken(status) => Code::BootstrapUnreachable,
        _ => Code::BootstrapDefect,
    };
    CodedError::new(code, format!("{address} refuses: {}", status.message()))
}

/// Whether the connection ended before a reply.
pub(super) fn is_broken(status: &Status) -> bool {
    let by_transport = matches!(
        status.code(),
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled
    );
    by_transport && Reason::of(status).is_none()
}
