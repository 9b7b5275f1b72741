//! How far this host's clock is from the API server's.
//!
//! ```text
//!   before ─ GET /version ─► Date ─► after      in agreement: before ≤ Date ≤ after, within TOLERANCE
//! ```
//! *What it is not*: a source of time. Nobody knows which of the two clocks is right, so nothing is computed
//! with the API server's clock; time-based decisions wait until the clocks agree.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http::header::DATE;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::Client;
use kube::client::Body;
use tec_core::code::Code;
use tec_core::port::{Clock, PortError, PortErrorKind, chain};
use tec_core::time::Timestamp;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::error::port_error;

/// Seconds by which the clocks may differ: half of what replicas of a key broker allow each other, so that
/// any two within it can continue each other's sessions.
const TOLERANCE: i64 = 30;
/// Interval between requests to the API server.
const EVERY: Duration = Duration::from_secs(5);
/// An API server that takes longer counts as not answering.
const PATIENCE: Duration = Duration::from_secs(5);

/// The clock of the API server, compared with this host's while [`follow`](Self::follow) is polled.
#[derive(Clone, derive_more::Debug)]
#[debug("ServerClock {{ ahead: {ahead:?}, .. }}")]
pub struct ServerClock {
    client: Client,
    clock: Arc<dyn Clock>,
    /// Seconds that this host's clock is ahead, negative if behind; `None` before the first answer.
    ahead: watch::Sender<Option<i64>>,
}

impl ServerClock {
    /// Compares `clock` with the clock of the API server that this client reaches.
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self { client, clock, ahead: watch::Sender::new(None) }
    }

    /// Compares the clocks forever. An API server that does not answer changes nothing.
    pub async fn follow(&self) {
        loop {
            match timeout(PATIENCE, self.measure()).await {
                Ok(Ok(ahead)) => self.note(ahead),
                Ok(Err(error)) => tracing::debug!(error = chain(&error), "clocks not compared"),
                Err(_) => tracing::debug!("clocks not compared: the API server does not answer"),
            }
            sleep(EVERY).await;
        }
    }

    /// Whether the clocks agree.
    ///
    /// # Errors
    /// `Unavailable`: they differ (TEC-C425), or have not been compared yet (TEC-C503).
    pub fn check(&self) -> Result<(), PortError> {
        let Some(code) = self.refusal() else {
            return Ok(());
        };
        let why = match *self.ahead.borrow() {
            None => "the API server did not tell the time yet".to_owned(),
            Some(ahead) => {
                let side = if ahead > 0 { "ahead of" } else { "behind" };
                format!("this host's clock is {} s {side} the API server's", ahead.unsigned_abs())
            }
        };
        Err(PortError::new(PortErrorKind::Unavailable, why).with_code(code))
    }

    /// The code of [`check`](Self::check), if it fails.
    pub fn refusal(&self) -> Option<Code> {
        match *self.ahead.borrow() {
            None => Some(Code::ClusterUnreachable),
            Some(ahead) => is_off(ahead).then_some(Code::ClockSkewed),
        }
    }

    /// The later of the two times: what has expired by either clock has expired.
    pub fn latest(&self) -> Timestamp {
        let behind = self.ahead.borrow().filter(|ahead| is_off(*ahead)).unwrap_or(0).min(0);
        self.clock.now().plus_seconds(behind.saturating_neg())
    }

    /// Waits for the first comparison.
    pub async fn compared(&self) {
        // The sender lives as long as this value.
        let _ = self.ahead.subscribe().wait_for(Option::is_some).await;
    }

    /// Reports when the clocks start or stop agreeing, or when the difference changes.
    pub fn subscribe(&self) -> watch::Receiver<Option<i64>> {
        self.ahead.subscribe()
    }

    async fn measure(&self) -> Result<i64, PortError> {
        let what = "ask the API server for its time";
        let invalid = || PortError::new(PortErrorKind::Invalid, what);
        let request = Request::get("/version").body(Body::empty());
        let request = request.map_err(|error| invalid().because(error))?;
        let before = self.clock.now().unix_seconds();
        let answer = self.client.send(request).await.map_err(|error| port_error(what, error))?;
        let after = self.clock.now().unix_seconds();
        // RFC 9110, section 5.6.7: a form of RFC 5322 dates. Every answer has it, including refusals.
        let date = answer.headers().get(DATE).and_then(|date| date.to_str().ok());
        let date = rfc2822::parse(date.ok_or_else(invalid)?);
        let date = date.map_err(|error| invalid().because(error))?.timestamp().as_second();
        Ok(if date < before {
            before.saturating_sub(date)
        } else {
            after.saturating_sub(date).min(0)
        })
    }

    fn note(&self, ahead: i64) {
        self.ahead.send_if_modified(|known| {
            let is_news = known.is_none_or(|known| {
                is_off(known) != is_off(ahead) || known.abs_diff(ahead) > TOLERANCE.unsigned_abs()
            });
            if is_news {
                if is_off(ahead) {
                    let code = Code::ClockSkewed;
                    tracing::error!(%code, ahead, "this host's clock is not the API server's");
                } else if known.is_some() {
                    tracing::info!(ahead, "this host's clock agrees with the API server's again");
                }
                *known = Some(ahead);
            }
            is_news
        });
    }
}

fn is_off(ahead: i64) -> bool {
    ahead.unsigned_abs() > TOLERANCE.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::Response;
    use tec_core::testing::ManualClock;
    use tower::service_fn;

    use super::*;

    /// 1994-11-06T08:49:37Z (RFC 9110, section 5.6.7).
    const DATED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const SECONDS: i64 = 784_111_777;

    /// Result for an API server whose answers take this many seconds.
    async fn measured(at: i64, takes: i64) -> ServerClock {
        let clock = Arc::new(ManualClock::new(Timestamp::from_unix_seconds(at)));
        let slow = Arc::clone(&clock);
        let service = service_fn(move |_: Request<Body>| {
            slow.advance_seconds(takes);
            let answer = Response::builder().status(403).header(DATE, DATED).body(Body::empty());
            async move { Ok::<_, Infallible>(answer.unwrap()) }
        });
        let server = ServerClock::new(Client::new(service, "n"), clock);
        let ahead = server.measure().await.unwrap();
        server.note(ahead);
        server
    }

    #[tokio::test]
    async fn a_clock_that_differs_is_named_with_code_side_and_amount() {
        for (at, side) in [(SECONDS + 3600, "3600 s ahead of"), (SECONDS - 31, "31 s behind")] {
            let error = measured(at, 0).await.check().unwrap_err();
            assert_eq!(
                (error.code(), error.kind()),
                (Some(Code::ClockSkewed), PortErrorKind::Unavailable)
            );
            assert!(error.to_string().contains(side), "{error}");
        }
        for at in [SECONDS - 30, SECONDS, SECONDS + 30] {
            measured(at, 0).await.check().unwrap();
        }
    }

    #[tokio::test]
    async fn an_answer_that_takes_long_is_no_difference() {
        measured(SECONDS - 100, 200).await.check().unwrap();
        let behind = measured(SECONDS - 100, 60).await;
        assert_eq!(behind.check().unwrap_err().code(), Some(Code::ClockSkewed));
    }

    #[tokio::test]
    async fn nothing_is_sure_before_the_first_answer_and_the_amount_is_followed() {
        let server = measured(SECONDS, 0).await;
        let fresh = ServerClock::new(server.client.clone(), Arc::clone(&server.clock));
        assert_eq!(fresh.check().unwrap_err().code(), Some(Code::ClusterUnreachable));
        let mut changes = server.subscribe();
        for (ahead, is_news) in [(5, false), (31, true), (60, false), (62, true), (0, true)] {
            server.note(ahead);
            assert_eq!(changes.has_changed().unwrap(), is_news, "{ahead}");
            changes.mark_unchanged();
        }
    }

    #[tokio::test]
    async fn what_expired_by_either_clock_expired() {
        let latest = async |at| measured(at, 0).await.latest().unix_seconds();
        assert_eq!(latest(SECONDS - 3600).await, SECONDS);
        assert_eq!(latest(SECONDS + 3600).await, SECONDS + 3600);
    }
}
