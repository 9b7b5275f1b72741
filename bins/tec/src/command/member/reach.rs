//! Connections to nodes, and what their refusals mean for a person.

use std::time::Duration;

use bootstrapper::transport;
use tec_core::code::Code;
use tec_core::port::PortErrorKind;
use tec_core::port::chain;
use tec_k8s::rpc::Reason;
use tec_support::exit::CodedError;
use tec_tpm::atls::Endpoint;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

/// Between attempts to reach a node that does not answer.
const PAUSE: Duration = Duration::from_secs(2);

/// Tries until the node answers, or this time is over. A node whose evidence is refused is not
/// asked again.
pub(super) async fn reach(
    endpoint: &Endpoint,
    address: &str,
    until: Instant,
) -> Result<Channel, CodedError> {
    let mut told = false;
    loop {
        let error = match transport::dial(endpoint, address).await {
            Ok(channel) => return Ok(channel),
            Err(error) if error.kind() == PortErrorKind::Denied => {
                let context = format!("{address} did not prove itself");
                return Err(CodedError::caused(Code::BootstrapUntrusted, context, error));
            }
            Err(error) => error,
        };
        if Instant::now() + PAUSE > until {
            let context = format!("{address} cannot be reached");
            return Err(CodedError::caused(
                Code::BootstrapUnreachable,
                context,
                error,
            ));
        }
        if !told {
            tracing::info!(address, error = chain(&error), "waiting for the node");
            told = true;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A refusal with the code of its reason.
pub(super) fn refused(address: &str, status: &Status) -> CodedError {
    let code = match Reason::of(status) {
        Some(Reason::InitSecret) => Code::BootstrapSecret,
        Some(Reason::KmsUri | Reason::StorageUri | Reason::Member | Reason::MasterSecret) => {
            Code::BootstrapRequest
        }
        Some(Reason::KeyService) => Code::BootstrapKeyService,
        Some(Reason::AlreadyActivated | Reason::AlreadyRecovering) => Code::BootstrapActivated,
        Some(Reason::NotPrepared | Reason::Disk) => Code::BootstrapNotPrepared,
        Some(Reason::WrongKey) => Code::BootstrapWrongKey,
        // Not by the service: the connection broke.
        None if is_broken(status) => Code::BootstrapUnreachable,
        _ => Code::BootstrapDefect,
    };
    CodedError::new(code, format!("{address} refuses: {}", status.message()))
}

/// Whether the connection ended before an answer.
pub(super) fn is_broken(status: &Status) -> bool {
    let by_transport = matches!(
        status.code(),
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Cancelled
    );
    by_transport && Reason::of(status).is_none()
}
