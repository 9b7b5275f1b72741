//! What a call of a component costs, beside a bare login at the vault.

use std::fmt;
use std::io::Write;
use std::time::Duration;
use std::time::Instant;

use anyhow::Context as _;
use futures::future::try_join_all;
use nkeys::KeyPair;
use tec_core::secret::SecretBytes;
use tec_core::service::caller::Role;
use tec_core::service::vault::call;
use tec_k8s::service::client::ComponentBootstrapRequest;

use crate::platform::Platform;

/// Callers at the same time.
const CALLERS: usize = 8;
/// How long each measurement lasts.
const LASTS: Duration = Duration::from_secs(10);
/// So many that nobody is refused for them.
const RATE: &str = "1000000";

/// Calls that were made.
#[derive(Debug)]
struct Measured {
    /// How long each took, the shortest first.
    took: Vec<Duration>,
    seconds: f64,
}

impl Measured {
    fn per_second(&self) -> f64 {
        f64::from(u32::try_from(self.took.len()).unwrap_or(u32::MAX)) / self.seconds
    }

    /// What one of a hundred calls exceeds, in milliseconds.
    fn p99(&self) -> f64 {
        let index = self.took.len() * 99 / 100;
        self.took
            .get(index)
            .map_or(f64::NAN, |took| took.as_secs_f64() * 1000.0)
    }
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rate, p99) = (self.per_second(), self.p99());
        write!(f, "{rate:>7.1} calls/s, p99 {p99:>6.1} ms")
    }
}

/// Both measurements, and how many times as dear the call is.
///
/// # Errors
/// A part does not come up, or a call is refused.
pub async fn compare(out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let platform = Platform::new(&["--calls-per-minute", RATE]).await?;
    let account = platform.stage.cluster.component("comp-a").await?;
    let token = platform.stage.cluster.token(&account).await?;
    let vault = platform.stage.bao.vault();
    let login = async || {
        let jwt = SecretBytes::new(token.clone().into_bytes());
        let answer = vault.call(&call::log_in(Role::Component, &jwt)).await?;
        call::logged_in(&answer).context("the vault refused")?;
        anyhow::Ok(())
    };
    let client = platform.client().await?;
    let user = KeyPair::new_user().public_key();
    let bootstrap = async || {
        let request = ComponentBootstrapRequest {
            service_account_token: token.clone().into_bytes(),
            request_id: "load".to_owned(),
            nats_user: user.clone(),
            nonce: String::new(),
        };
        client.clone().bootstrap_component(request).await?;
        anyhow::Ok(())
    };
    let login = measure(login).await?;
    writeln!(out, "load  login at the vault   {login}")?;
    let bootstrap = measure(bootstrap).await?;
    writeln!(out, "load  BootstrapComponent   {bootstrap}")?;
    let times = login.per_second() / bootstrap.per_second();
    writeln!(
        out,
        "load  a call costs {times:.1} logins, with {CALLERS} callers at the same time"
    )?;
    Ok(())
}

/// Calls again and again, several at the same time.
async fn measure(call: impl AsyncFn() -> anyhow::Result<()>) -> anyhow::Result<Measured> {
    let began = Instant::now();
    let caller = async || {
        let mut took = Vec::new();
        while began.elapsed() < LASTS {
            let begin = Instant::now();
            call().await?;
            took.push(begin.elapsed());
        }
        anyhow::Ok(took)
    };
    let callers = (0..CALLERS).map(|_| caller());
    let took = try_join_all(callers).await?;
    let seconds = began.elapsed().as_secs_f64();
    let mut took: Vec<Duration> = took.into_iter().flatten().collect();
    took.sort_unstable();
    Ok(Measured { took, seconds })
}
