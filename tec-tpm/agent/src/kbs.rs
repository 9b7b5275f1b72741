//! One round over the key brokers of a configuration.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tec_core::code::Code;
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::ignition::HeaderConfig;
use tec_core::port::{Attester, Entropy};
use tec_core::secret::SecretBytes;
use tec_trustee::client::{Deadlines, Outcome, RcarClient, RcarError};
use tec_trustee::policy::REFUSED_CLAIM;
use tec_trustee::rotation::Kept;

use crate::failure::Failure;
use crate::fetch::{FetchError, KeyRound, Verdict};
use crate::report::Report;
use crate::settings::Settings;

/// Longest wait for a connection: an address where nothing answers must not use up the deadline of a whole
/// call.
const CONNECT: Duration = Duration::from_secs(10);

/// Attests to the servers of a configuration in turn, and fetches the key at its path.
#[derive(Debug)]
pub(crate) struct KbsRound<A> {
    client: RcarClient,
    path: ResourcePath,
    attester: A,
    servers: Vec<Endpoint>,
}

impl<A: Attester> KbsRound<A> {
    /// A round over the servers of `config`.
    pub(crate) fn new(
        settings: &Settings,
        config: &HeaderConfig,
        attester: A,
        entropy: &Arc<dyn Entropy>,
    ) -> Result<Self, Failure> {
        Ok(Self {
            client: client(settings, &config.servers, entropy)?,
            path: config.path.clone(),
            attester,
            servers: config.servers.clone(),
        })
    }
}

impl<A: Attester> KbsRound<A> {
    /// The names of the keys that the servers keep for this machine; `None` if they name none.
    pub(crate) async fn names(&self) -> Result<Option<Kept>, FetchError> {
        names(&self.client, &self.attester, &self.servers).await
    }
}

/// The names of the keys that `servers` keep for this machine; `None` if they rotate none.
pub(crate) async fn names(
    client: &RcarClient,
    attester: &dyn Attester,
    servers: &[Endpoint],
) -> Result<Option<Kept>, FetchError> {
    match client.rotation(attester).await {
        Ok(kept) => Ok(Some(kept)),
        // It has no such path, or no key for this machine.
        Err(RcarError::Denied { code: None | Some(Code::KeyMissing), .. }) => Ok(None),
        Err(error) => Err(fetch_error(servers, error)),
    }
}

#[async_trait]
impl<A: Attester> KeyRound for KbsRound<A> {
    async fn ask(&self) -> Result<SecretBytes, FetchError> {
        let fetched = self.client.fetch(&self.path, &self.attester).await;
        fetched.map_err(|error| fetch_error(&self.servers, error))
    }
}

/// A client of `servers`.
pub fn client(
    settings: &Settings,
    servers: &[Endpoint],
    entropy: &Arc<dyn Entropy>,
) -> Result<RcarClient, Failure> {
    let deadlines = Deadlines::new(CONNECT.min(settings.timeout), settings.timeout);
    let client = RcarClient::new(servers, deadlines, &settings.provider, Arc::clone(entropy));
    client.map_err(Failure::Servers)
}

/// The failure of a round over `servers`, in words for people.
pub fn fetch_error(servers: &[Endpoint], error: RcarError) -> FetchError {
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

/// Why a token obtains nothing: a key broker issues tokens even for boots that are not approved.
pub fn refusal(outcome: &Outcome) -> Option<Report> {
    let Outcome::Token { claims, .. } = outcome else {
        return None;
    };
    let parts = claims.get("submods").and_then(Value::as_object);
    let text =
        |part: &Value, claim: &str| part.get(claim).and_then(Value::as_str).map(str::to_owned);
    let status = |part: &Value| text(part, "ear.status").unwrap_or_default();
    let mut parts = parts.into_iter().flat_map(|parts| parts.values()).peekable();
    if parts.peek().is_none() {
        return Some(Report::new(Code::ReleaseDenied, "the token says nothing about this node"));
    }
    let part = parts.find(|part| status(part) != "affirming")?;
    let code = text(part, REFUSED_CLAIM).and_then(|code| code.parse().ok());
    let cause = format!("the key broker's policy appraised this node as {:?}", status(part));
    let attempt = claims.get("jti").and_then(Value::as_str).and_then(|id| id.parse().ok());
    let report = Report::new(code.unwrap_or(Code::ReleaseDenied), cause);
    // A key broker that gives no code keeps no attempts to explain.
    Some(report.of_attempt(attempt.filter(|_| code.is_some())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tec_core::port::{PortError, PortErrorKind};
    use tec_trustee::client::CallError;

    use super::*;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    fn token(status: &str, refused: Option<&str>) -> Outcome {
        let part = json!({ "ear.status": status, "tec.refused": refused });
        Outcome::token(json!({ "jti": ID, "submods": { "cpu0": part } }))
    }

    #[test]
    fn a_token_that_does_not_affirm_is_a_refusal_with_the_code_of_the_server() {
        assert_eq!(refusal(&token("affirming", None)), None);
        let refused = refusal(&token("contraindicated", Some("TEC-A412"))).unwrap();
        assert_eq!(refused.code, Code::PcrMismatch);
        assert_eq!(refused.attempt, Some(ID.parse().unwrap()));
        let refused = refusal(&token("warning", None)).unwrap();
        assert_eq!((refused.code, refused.attempt), (Code::ReleaseDenied, None), "as Trustee does");
        assert!(refusal(&Outcome::token(json!({}))).is_some(), "a token that says nothing");
    }

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
