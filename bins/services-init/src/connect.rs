//! The way to the controller: mounted authorities, the pod's token, tries with a deadline.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tec_core::service::Fatal;
use tec_k8s::service::client::bootstrap_client::BootstrapClient;
use tonic::Code;
use tonic::Status;
use tonic::transport::Certificate;
use tonic::transport::Channel;
use tonic::transport::ClientTlsConfig;
use tonic::transport::Endpoint;

use crate::cli::Way;

/// One try.
const TRY: Duration = Duration::from_secs(15);
/// First wait; it doubles up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Reads the mounted authorities.
///
/// # Errors
/// [`Fatal::CaNotMounted`] if there is none, or it is no PEM: the service must not start.
pub fn authorities(file: &Path) -> Result<String, Fatal> {
    let pem = std::fs::read_to_string(file).map_err(|_| Fatal::CaNotMounted)?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(pem),
        _ => Err(Fatal::CaNotMounted),
    }
}

/// The mounted authorities, or the exit code of the program, after saying why.
///
/// # Errors
/// As [`authorities`].
pub fn mounted(way: &Way) -> Result<String, u8> {
    authorities(&way.ca).map_err(|fatal| {
        let (code, file) = (fatal.code(), way.ca.display());
        tracing::error!(%code, %file, error = %fatal, "a person has to look");
        fatal.exit_code()
    })
}

/// A client that connects when it is first used. There is no way without TLS.
///
/// # Errors
/// The address cannot be used.
pub fn client(way: &Way, authorities: &str) -> anyhow::Result<BootstrapClient<Channel>> {
    let host = match &way.controller_name {
        Some(name) => name.as_str(),
        None => way
            .controller
            .rsplit_once(':')
            .map_or(&*way.controller, |(host, _)| host),
    };
    let tls = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(authorities))
        .domain_name(host);
    let endpoint = Endpoint::from_shared(format!("https://{}", way.controller))
        .with_context(|| format!("{:?} is no address", way.controller))?
        .timeout(TRY)
        .connect_timeout(TRY)
        .tls_config(tls)
        .context("configure TLS")?;
    Ok(BootstrapClient::new(endpoint.connect_lazy()))
}

/// Whether trying again can help. A token that was refused may be replaced by the kubelet.
fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::Unauthenticated
            | Code::Internal
            | Code::Cancelled
            | Code::Unknown
    )
}

/// Calls until it works, until it cannot work, or until the deadline; with the token of the moment.
///
/// # Errors
/// The last refusal.
pub async fn persist<T, F>(way: &Way, mut call: impl FnMut(Vec<u8>) -> F) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, Status>>,
{
    let deadline = tokio::time::Instant::now() + Duration::from_secs(way.deadline_seconds.into());
    let mut wait = FIRST_WAIT;
    loop {
        let token =
            std::fs::read(&way.token).with_context(|| format!("read {}", way.token.display()))?;
        let refused = match call(token.trim_ascii().to_vec()).await {
            Ok(answer) => return Ok(answer),
            Err(refused) => refused,
        };
        let message = refused.message();
        tracing::warn!(code = ?refused.code(), message, "the controller refused");
        if !is_transient(&refused) || tokio::time::Instant::now() + wait >= deadline {
            anyhow::bail!("the controller refused: {message}");
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_mounted_authorities_nothing_starts() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        assert_eq!(authorities(&file), Err(Fatal::CaNotMounted));
        std::fs::write(&file, "not PEM").unwrap();
        assert_eq!(authorities(&file), Err(Fatal::CaNotMounted));
        assert_eq!(Fatal::CaNotMounted.exit_code(), 16);
    }

    #[test]
    fn a_refusal_that_stays_is_not_tried_again() {
        assert!(!is_transient(&Status::permission_denied("SA_NOT_BOUND")));
        assert!(!is_transient(&Status::invalid_argument("BAD_REQUEST")));
        assert!(is_transient(&Status::unavailable("VAULT_SEALED")));
    }
}
