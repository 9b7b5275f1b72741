//! Whether callers may be routed here: reported to gRPC clients, and to a kubelet, whose probes cannot verify
//! this TLS.

use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use tec_services::shell;
use tec_support::serve;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

/// Longest time in which a healthy vault completes a round. While a round takes longer, calls would fail.
const LONG: Duration = Duration::from_secs(30);

/// Outcome of the latest rounds.
#[derive(Clone, Debug, Default)]
pub struct Health {
    reporter: HealthReporter,
    is_ready: Arc<AtomicBool>,
}

impl Health {
    /// The gRPC health service, for the server as a whole and for its only service.
    pub async fn service(&self) -> HealthServer<HealthService> {
        self.tell(self.is_ready.load(Ordering::Relaxed)).await;
        HealthServer::new(HealthService::from_health_reporter(self.reporter.clone()))
    }

    /// `/livez` and `/readyz`.
    pub fn probes(&self) -> Router {
        let is_ready = Arc::clone(&self.is_ready);
        serve::probes(move || {
            let is_ready = is_ready.load(Ordering::Relaxed);
            ready((!is_ready).then_some("the vault is not as it shall be"))
        })
    }

    /// Runs a round. Afterwards this is ready, or not ready if the round failed. It is also not ready while
    /// the round takes long: the vault or the API server is then unreachable, and the token of the previous
    /// round is of no use without them.
    ///
    /// # Cancel safety
    /// When dropped, the last reported state remains.
    pub async fn during<T, E>(&self, round: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let mut round = pin!(round);
        let ended = if let Ok(ended) = tokio::time::timeout(LONG, &mut round).await {
            ended
        } else {
            self.tell(false).await;
            round.await
        };
        self.tell(ended.is_ok()).await;
        ended
    }

    async fn tell(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Relaxed);
        let status = if is_ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in ["", shell::NAME] {
            self.reporter.set_service_status(name, status).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Request;
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_server::Health as _;

    use super::*;

    /// The status that clients get, which must equal that of the kubelet.
    async fn is_ready(health: &Health) -> bool {
        let service = HealthService::from_health_reporter(health.reporter.clone());
        let told = health.is_ready.load(Ordering::Relaxed);
        for name in ["", shell::NAME] {
            let request = HealthCheckRequest { service: name.to_owned() };
            let answer = service.check(Request::new(request)).await.unwrap();
            let status = answer.into_inner().status;
            // SERVING of grpc.health.v1.
            assert_eq!(status == 1, told, "{name:?}");
        }
        told
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_sent_here_before_a_round_was_good_or_after_one_failed() {
        let health = Health::default();
        health.service().await;
        assert!(!is_ready(&health).await);
        health.during(async { Ok::<_, ()>(()) }).await.unwrap();
        assert!(is_ready(&health).await);
        health.during(async { Err::<(), _>(()) }).await.unwrap_err();
        assert!(!is_ready(&health).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_round_that_is_under_way_changes_nothing_until_it_takes_long() {
        let health = Health::default();
        health.during(async { Ok::<_, ()>(()) }).await.unwrap();
        let round = async {
            tokio::time::sleep(LONG / 2).await;
            assert!(is_ready(&health).await);
            tokio::time::sleep(LONG).await;
            assert!(!is_ready(&health).await);
            Ok::<_, ()>(())
        };
        health.during(round).await.unwrap();
        assert!(is_ready(&health).await);
    }
}
