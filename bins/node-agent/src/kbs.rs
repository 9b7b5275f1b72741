//! One round over the key brokers of a configuration.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use rustls::crypto::ring;
use tec_core::code::Code;
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::ignition::HeaderConfig;
use tec_core::port::{Attester, Entropy};
use tec_core::secret::SecretBytes;
use tec_trustee::client::{Deadlines, RcarClient, RcarError, SetupError};

use crate::fetch::{FetchError, KeyRound, Verdict};

/// Longest wait for a connection: an address where nothing answers must not use up the deadline of a whole
/// call.
const CONNECT: Duration = Duration::from_secs(10);

/// Attests to the servers of a configuration in turn, and fetches the key at its path.
#[derive(Debug)]
pub struct KbsRound<A> {
    client: RcarClient,
    path: ResourcePath,
    attester: A,
    servers: Vec<Endpoint>,
}

impl<A: Attester> KbsRound<A> {
    /// A round over the servers of `config`; each call may take `timeout`.
    ///
    /// # Errors
    /// A server's CA cannot be used.
    pub fn new(
        config: &HeaderConfig,
        attester: A,
        timeout: Duration,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Self, SetupError> {
        Ok(Self {
            client: client(&config.servers, timeout, entropy)?,
            path: config.path.clone(),
            attester,
            servers: config.servers.clone(),
        })
    }
}

#[async_trait]
impl<A: Attester> KeyRound for KbsRound<A> {
    async fn ask(&self) -> Result<SecretBytes, FetchError> {
        let fetched = self.client.fetch(&self.path, &self.attester).await;
        fetched.map_err(|error| fetch_error(&self.servers, error))
    }
}

/// Rounds with the attestation key in use, then with the one before it: while a rotation is under way, a server that
/// was restored from a backup, or took over from another one, may accept the earlier key alone.
#[derive(Debug)]
pub(crate) struct EachKey<R> {
    pub(crate) present: R,
    pub(crate) earlier: Option<R>,
}

#[async_trait]
impl<R: KeyRound> KeyRound for EachKey<R> {
    async fn ask(&self) -> Result<SecretBytes, FetchError> {
        let refused = match self.present.ask().await {
            Ok(key) => return Ok(key),
            Err(error) => error,
        };
        match &self.earlier {
            // An admin is told why the key in use was refused.
            Some(earlier) => earlier.ask().await.or(Err(refused)),
            None => Err(refused),
        }
    }
}

/// A client of `servers`; each call may take `timeout`.
pub(crate) fn client(
    servers: &[Endpoint],
    timeout: Duration,
    entropy: &Arc<dyn Entropy>,
) -> Result<RcarClient, SetupError> {
    let deadlines = Deadlines::new(CONNECT.min(timeout), timeout);
    let provider = Arc::new(ring::default_provider());
    RcarClient::new(servers, deadlines, &provider, Arc::clone(entropy))
}

/// The failure of a round over `servers`, in words for people.
pub(crate) fn fetch_error(servers: &[Endpoint], error: RcarError) -> FetchError {
    let attempt = match &error {
        RcarError::Denied { attempt, .. } => *attempt,
        _ => None,
    };
    let urls: Vec<_> = servers.iter().map(|one| one.url.as_str()).collect();
    FetchError::new(error.code(), verdict(&error), urls.join(", "), error).of_attempt(attempt)
}

fn verdict(error: &RcarError) -> Verdict {
    match error {
        RcarError::Denied { code, .. } => match code {
            // Trustee returns no codes: a key broker that does not know the machine's attestation key yet
            // refuses in the same way as one that rejects its boot.
            None | Some(Code::MachineUnknown | Code::AkNotBound | Code::KeyMissing) => {
                Verdict::Unsettled
            }
            Some(_) if error.is_retryable() => Verdict::Unanswered,
            Some(_) => Verdict::Refused,
        },
        _ if error.is_retryable() => Verdict::Unanswered,
        _ => Verdict::Hopeless,
    }
}

#[cfg(test)]
mod tests {
    use tec_core::port::{PortError, PortErrorKind};
    use tec_trustee::client::CallError;

    use super::*;

    #[test]
    fn a_tpm_that_cannot_attest_is_not_asked_again_but_a_busy_one_is() {
        let attester = |kind| RcarError::Attester(PortError::new(kind, "quote"));
        let verdict_of = |kind| verdict(&attester(kind));
        assert_eq!(verdict_of(PortErrorKind::NotFound), Verdict::Hopeless);
        assert_eq!(verdict_of(PortErrorKind::Unavailable), Verdict::Unanswered);
    }

    #[test]
    fn outages_are_outwaited() {
        let error = RcarError::Call(CallError::Unavailable {
            server: "http://a".parse().unwrap(),
            status: 503,
        });
        assert_eq!(verdict(&error), Verdict::Unanswered);
    }
}
