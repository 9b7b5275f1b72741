//! Calls of components, and plain vault logins for comparison; the benchmarks measure both.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures::future::try_join_all;
use nkeys::KeyPair;
use services::init::own_key::OwnKey;
use tec_core::secret::SecretBytes;
use tec_services::caller::Role;
use tec_services::shell::Vault;
use tec_services::shell::client::ComponentBootstrapRequest;
use tec_services::shell::client::bootstrap_client::BootstrapClient;
use tec_services::vault::call;
use tonic::transport::Channel;

use crate::services::platform::Platform;

/// Concurrent callers.
pub const CALLERS: u64 = 8;
/// High enough that no call is refused.
const RATE: &str = "1000000";

/// A platform, and a component that calls it again and again.
#[derive(Debug)]
pub struct Load {
    vault: Vault,
    client: BootstrapClient<Channel>,
    token: String,
    user: String,
    certificate_request: String,
    _platform: Platform,
}

/// How long each call took.
#[derive(Debug, Default)]
pub struct Durations(Mutex<Vec<Duration>>);

impl Durations {
    fn add(&self, took: Duration) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(took);
    }

    /// The 99th percentile; zero if there was no call.
    pub fn p99(&self) -> Duration {
        let mut took = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        took.sort_unstable();
        let index = took.len() * 99 / 100;
        took.get(index).copied().unwrap_or_default()
    }
}

impl Load {
    /// Brings a platform up.
    ///
    /// # Errors
    /// A part does not come up.
    pub async fn start() -> anyhow::Result<Self> {
        let platform = Platform::new(&["--calls-per-minute", RATE]).await?;
        let account = platform.stage.cluster.component("comp-a").await?;
        Ok(Self {
            vault: platform.stage.bao.vault(),
            client: platform.client().await?,
            // As a kubelet projects it: its pod has an address, which the certificate names.
            token: platform.stage.cluster.pod_token(&account, "comp-a-0", &["10.1.2.3"]).await?,
            user: KeyPair::new_user().public_key(),
            certificate_request: OwnKey::generate()?.request(),
            _platform: platform,
        })
    }

    /// Logs in to the vault this many times; returns the total time.
    ///
    /// # Errors
    /// The vault refuses.
    pub async fn log_in(&self, times: u64, each: &Durations) -> anyhow::Result<Duration> {
        let login = async || {
            let jwt = SecretBytes::new(self.token.clone().into_bytes());
            let answer = self.vault.call(&call::log_in(Role::Component, &jwt)).await?;
            call::logged_in(&answer).context("the vault refused")?;
            anyhow::Ok(())
        };
        storm(times, each, login).await
    }

    /// Calls `BootstrapComponent` this many times; returns the total time.
    ///
    /// # Errors
    /// The controller refuses.
    pub async fn bootstrap(&self, times: u64, each: &Durations) -> anyhow::Result<Duration> {
        let bootstrap = async || {
            let request = ComponentBootstrapRequest {
                service_account_token: self.token.clone().into_bytes(),
                request_id: "load".to_owned(),
                nats_user: self.user.clone(),
                nonce: String::new(),
                certificate_request: self.certificate_request.clone(),
            };
            self.client.clone().bootstrap_component(request).await?;
            anyhow::Ok(())
        };
        storm(times, each, bootstrap).await
    }
}

/// Makes this many calls, distributed over the callers.
async fn storm(
    times: u64,
    each: &Durations,
    call: impl AsyncFn() -> anyhow::Result<()>,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let caller = async |number: u64| {
        // The first ones take what cannot be shared evenly.
        let share = times / CALLERS + u64::from(number < times % CALLERS);
        for _ in 0..share {
            let begin = Instant::now();
            call().await?;
            each.add(begin.elapsed());
        }
        anyhow::Ok(())
    };
    try_join_all((0..CALLERS).map(caller)).await?;
    Ok(began.elapsed())
}
