//! The connection to the controller: mounted authorities, the pod's token, retries with a deadline.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tec_core::port::Clock as _;
use tec_core::time::Timestamp;
use tec_services::shell::client::bootstrap_client::BootstrapClient;
use tec_services::{Fatal, pace};
use tec_support::{SystemClock, SystemEntropy};
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Status};
use x509_cert::Certificate;
use x509_cert::der::Decode as _;

use crate::init::cli::Way;

/// Deadline of one try.
const TRY: Duration = Duration::from_secs(15);
/// Maximum number of tries with a token that is refused: the kubelet may have replaced it in the meantime.
const TOKEN_TRIES: u32 = 3;
/// Maximum number of tries at a vault whose answers are invalid.
const DEFECT_TRIES: u32 = 5;

type Client = BootstrapClient<Channel>;

/// Reads the mounted authorities. During a rotation there are several, and the old one may have expired.
/// Errors: [`Fatal::CaNotMounted`] if there is none, one cannot be read, or all have expired: the service must not
/// start.
pub fn authorities(file: &Path, now: Timestamp) -> Result<String, Fatal> {
    let (pem, ends) = certificates(file)?;
    match ends.into_iter().max() {
        Some(last) if last > now => Ok(pem),
        _ => Err(Fatal::CaNotMounted),
    }
}

/// Reads the controller's own certificate, which is mounted with the authorities: if it has expired, nothing
/// was published for a long time, and the mounted authorities cannot be relied on.
fn published(file: &Path, now: Timestamp) -> Result<(), Fatal> {
    let (_, ends) = certificates(file)?;
    match ends.first() {
        Some(own) if *own > now => Ok(()),
        _ => Err(Fatal::CaNotMounted),
    }
}

/// The file, and when each of its certificates expires.
fn certificates(file: &Path) -> Result<(String, Vec<Timestamp>), Fatal> {
    let end = |der: CertificateDer<'_>| {
        let certificate = Certificate::from_der(&der).ok()?;
        let end = certificate.tbs_certificate().validity().not_after;
        let seconds = i64::try_from(end.to_unix_duration().as_secs()).ok()?;
        Some(Timestamp::from_unix_seconds(seconds))
    };
    let pem = std::fs::read_to_string(file).map_err(|_| Fatal::CaNotMounted)?;
    let ends = CertificateDer::pem_slice_iter(pem.as_bytes()).map(|der| end(der.ok()?));
    let ends: Option<Vec<_>> = ends.collect();
    ends.map(|ends| (pem, ends)).ok_or(Fatal::CaNotMounted)
}

/// What a program expects to be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mounted {
    /// The Secret that the controller publishes, with its certificate: `tls.crt` beside the authorities.
    Secret,
    /// Only the authorities, as when an admin copies them into a different namespace.
    Authorities,
}

/// Checks the mounted files. If they are unusable, logs why and returns the exit code of the program.
pub fn look(way: &Way, mounted: Mounted) -> Result<(), u8> {
    let now = SystemClock.now();
    let own = way.ca.with_file_name("tls.crt");
    let bad = |file: &Path| {
        let file = file.display().to_string();
        move |fatal: Fatal| {
            let code = fatal.code();
            tracing::error!(%code, file, error = %fatal, "a person has to look");
            fatal.exit_code()
        }
    };
    authorities(&way.ca, now).map_err(bad(&way.ca))?;
    match mounted {
        Mounted::Secret => published(&own, now).map_err(bad(&own)),
        Mounted::Authorities => Ok(()),
    }
}

/// A client that connects when first used, always over TLS.
pub fn client(way: &Way, authorities: &str) -> anyhow::Result<Client> {
    let controller = way.controller.as_deref();
    let controller = controller.context("--controller is missing (host and port)")?;
    let host = match &way.controller_name {
        Some(name) => name.as_str(),
        None => controller.rsplit_once(':').map_or(controller, |(host, _)| host),
    };
    let tls = ClientTlsConfig::new()
        .ca_certificate(tonic::transport::Certificate::from_pem(authorities))
        .domain_name(host);
    let endpoint = Endpoint::from_shared(format!("https://{controller}"))
        .with_context(|| {
            format!("invalid address of the controller {controller:?} (expected HOST:PORT)")
        })?
        .timeout(TRY)
        .connect_timeout(TRY)
        .tls_config(tls)
        .context("cannot configure TLS")?;
    Ok(BootstrapClient::new(endpoint.connect_lazy()))
}

/// Maximum number of tries of a call that is refused with this code.
fn tries(code: Code) -> u32 {
    match code {
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::FailedPrecondition
        | Code::ResourceExhausted
        | Code::Cancelled
        | Code::Unknown => u32::MAX,
        Code::Unauthenticated => TOKEN_TRIES,
        Code::Internal => DEFECT_TRIES,
        _ => 1,
    }
}

/// Calls until it succeeds, until it cannot succeed, or until the deadline, each time with the current token
/// and authorities.
pub async fn persist<T, F>(
    way: &Way,
    mut call: impl FnMut(Client, Vec<u8>) -> F,
) -> anyhow::Result<T>
where
    F: Future<Output = Result<T, Status>>,
{
    let deadline = tokio::time::Instant::now() + Duration::from_secs(way.deadline_seconds.into());
    let mut refusals = BTreeMap::<i32, u32>::new();
    let mut tried = 0_u32;
    loop {
        let authorities = authorities(&way.ca, SystemClock.now());
        let authorities =
            authorities.with_context(|| format!("cannot read {}", way.ca.display()))?;
        let token = std::fs::read(&way.token)
            .with_context(|| format!("cannot read {}", way.token.display()))?;
        let answer = call(client(way, &authorities)?, token.trim_ascii().to_vec());
        let refused = match answer.await {
            Ok(answer) => return Ok(answer),
            Err(refused) => refused,
        };
        let message = refused.message();
        tracing::warn!(code = ?refused.code(), message, "the controller refused");
        let alike = refusals.entry(refused.code().into()).or_default();
        *alike = alike.saturating_add(1);
        let wait = pace::between_tries(tried, &SystemEntropy);
        let is_over = tokio::time::Instant::now() + wait >= deadline;
        if *alike >= tries(refused.code()) || is_over {
            anyhow::bail!("the controller refused: {message}");
        }
        tokio::time::sleep(wait).await;
        tried = tried.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::init::cli::Args;

    /// A certificate that expired long ago, or is valid far into the future.
    fn certificate(last_year: i32) -> String {
        let mut params = rcgen::CertificateParams::new(vec!["a.svc".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(last_year, 1, 1);
        let key = rcgen::KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().pem()
    }

    fn way(dir: &Path) -> Way {
        let at = |name: &str| dir.join(name).display().to_string();
        let (ca, token) = (at("ca.crt"), at("token"));
        let line = ["services-init", "--controller", "localhost:1", "--ca", &ca];
        let line = line.into_iter().chain(["--token", &token, "viewer"]);
        Args::try_parse_from(line).unwrap().way
    }

    #[test]
    fn without_mounted_authorities_that_are_good_nothing_starts() {
        let dir = tempfile::tempdir().unwrap();
        let way = way(dir.path());
        let look = || look(&way, Mounted::Authorities);
        assert_eq!(look(), Err(16), "there is no file");
        let (good, ended) = (certificate(2090), certificate(2020));
        let damaged = good.replace("MII", "AAA");
        let mixed = format!("{good}{damaged}");
        for bad in ["", "not PEM", &ended, &damaged, &mixed] {
            std::fs::write(&way.ca, bad).unwrap();
            assert_eq!(look(), Err(16), "{bad}");
        }
        for fine in [good.clone(), format!("{ended}{good}")] {
            std::fs::write(&way.ca, fine).unwrap();
            assert_eq!(look(), Ok(()));
        }
    }

    #[test]
    fn an_initializer_wants_the_controllers_certificate_too() {
        let dir = tempfile::tempdir().unwrap();
        let way = way(dir.path());
        let look = || look(&way, Mounted::Secret);
        std::fs::write(&way.ca, certificate(2090)).unwrap();
        assert_eq!(look(), Err(16), "there is no tls.crt");
        let own = dir.path().join("tls.crt");
        // The certificates after its own are the authority's.
        let ended = format!("{}{}", certificate(2020), certificate(2090));
        for bad in ["not PEM", &ended] {
            std::fs::write(&own, bad).unwrap();
            assert_eq!(look(), Err(16), "{bad}");
        }
        std::fs::write(&own, certificate(2090)).unwrap();
        assert_eq!(look(), Ok(()));
    }

    /// The number of calls that fail with this code before the client gives up.
    async fn calls(code: Code) -> u32 {
        let dir = tempfile::tempdir().unwrap();
        let way = way(dir.path());
        std::fs::write(&way.ca, certificate(2090)).unwrap();
        std::fs::write(&way.token, "token").unwrap();
        let mut calls = 0;
        let ended = persist(&way, |_, _| {
            calls += 1;
            std::future::ready(Err::<(), _>(Status::new(code, "refused")))
        });
        ended.await.unwrap_err();
        calls
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_tried_again_as_often_as_it_may_pass() {
        assert_eq!(calls(Code::PermissionDenied).await, 1);
        assert_eq!(calls(Code::InvalidArgument).await, 1);
        assert_eq!(calls(Code::Unauthenticated).await, TOKEN_TRIES);
        assert_eq!(calls(Code::Internal).await, DEFECT_TRIES);
        // Until the deadline, with waits of at most half a minute.
        assert!(calls(Code::Unavailable).await > 10);
    }

    #[tokio::test(start_paused = true)]
    async fn authorities_that_come_later_are_used_by_the_next_try() {
        let dir = tempfile::tempdir().unwrap();
        let way = way(dir.path());
        std::fs::write(&way.ca, certificate(2090)).unwrap();
        std::fs::write(&way.token, "old").unwrap();
        let mut tokens = Vec::new();
        let ended = persist(&way, |_, token| {
            tokens.push(token);
            // From here on, nothing usable is mounted.
            std::fs::write(&way.token, "new").unwrap();
            if tokens.len() == 2 {
                std::fs::write(&way.ca, "not PEM").unwrap();
            }
            std::future::ready(Err::<(), _>(Status::unavailable("later")))
        });
        let error = ended.await.unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Fatal::CaNotMounted));
        assert_eq!(tokens, [b"old", b"new"]);
    }
}
