//! The controller's loop.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use tec_core::plan;
use tec_core::port::{Clock, Entropy, EntropyRng, chain};
use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::time::Timestamp;
use tec_services::Fatal;
use tec_services::shell;
use tec_services::shell::{
    ApiServer, Bootstrap, BringUpShell, Disk, Peers, Replaceable, Settings, SetupShell, Standing,
    Vault, Warning,
};
use tec_services::vault::{
    BringUp, Event, Fresh, OnDrift, Ordinal, Outcome, Platform, Rekey, RootPart, SealKind, Setup,
    SetupEnd, SetupEvent, Stage,
};
use tec_support::certificate::Certificate;
use tec_support::serve::Shutdown;

use crate::bootstrap::accounts::Accounts;
use crate::bootstrap::authority;
use crate::bootstrap::health::Health;
use crate::bootstrap::passwords::Passwords;
use crate::bootstrap::sealing::{Instance, Sealing};
use crate::bootstrap::snapshots::{SnapshotError, Snapshots, Step};

/// Longest interval between checks for drift.
const LOOK: Duration = Duration::from_mins(5);
/// Interval between checks for locked-out users.
const REVOCATIONS: Duration = Duration::from_secs(2);
/// Interval between checks for what others must do: the first pod writes what only root may write, or an
/// admin unseals a vault that was sealed on purpose.
const MENDED: Duration = Duration::from_secs(5);
/// Number of these checks after which another pod serves with what the first one wrote. During a rolling
/// update with other flags, the first pod is updated only once the others are ready. In total it is less than
/// the time after which a round makes a controller not ready.
const PATIENCE: u32 = 4;
/// Interval between warnings that an authority expires soon.
const NOTICES: i64 = 24 * 60 * 60;
/// Reasons of Events for programs.
const AUTHORITY_ENDS: &str = "AuthorityEndsSoon";
const AUTHORITIES_PUBLISHED: &str = "AuthoritiesPublished";
/// Reason of the Event for a snapshot that was not taken.
const SNAPSHOT_FAILED: &str = "SnapshotFailed";
/// Interval between checks for whether a snapshot is due, and wait after one that failed.
const SNAPSHOTS: (Duration, Duration) = (Duration::from_mins(1), Duration::from_mins(5));
/// Shortest interval between renewals.
const SHORTEST: Duration = Duration::from_secs(1);

/// Everything that the controller needs.
#[derive(Debug)]
pub struct Controller {
    /// The desired state.
    pub platform: Platform,
    /// Name of this pod.
    pub pod: String,
    /// Its UID, if known.
    pub pod_uid: Option<String>,
    /// Whether to unseal a sealed vault.
    pub sealing: Sealing,
    /// This pod's ordinal.
    pub ordinal: Ordinal,
    /// The vault beside the controller.
    pub vault: Vault,
    /// The API server.
    pub cluster: Arc<ApiServer>,
    /// The shared volume.
    pub disk: Arc<dyn Disk>,
    /// Controllers of the vault's other pods.
    pub peers: Arc<dyn Peers>,
    /// The controller's own token, for its own audience.
    pub token: PathBuf,
    /// Configuration of callers.
    pub settings: Settings,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub entropy: Arc<dyn Entropy>,
    /// The certificate that the gRPC server presents.
    pub certificate: Arc<Certificate>,
    /// The token used to serve requests.
    pub standing: Arc<Standing>,
    /// Accounts of a running NATS.
    pub accounts: Accounts,
    /// Passwords of a running OpenSearch.
    pub passwords: Passwords,
    /// Snapshots of the vault, if they are requested.
    pub snapshots: Option<Snapshots>,
    /// Whether callers may be routed here.
    pub health: Health,
}

/// Result of a round.
#[derive(Debug)]
#[non_exhaustive]
pub struct Round {
    /// How long until the next round is due.
    pub next: Duration,
    /// The authorities that everyone trusts, in PEM.
    pub authorities: String,
    /// Those of them that sign.
    pub signers: String,
    /// How far their replacement has come.
    pub stage: Stage,
    /// A role or policy of the vault that differs, and that the first pod has to repair.
    pub drift: Option<String>,
}

/// What was reported about the authorities.
#[derive(Debug, Default)]
struct Told {
    /// When the last warning about their end was.
    ends: Option<Timestamp>,
    /// The last stage of their replacement.
    stage: Option<Stage>,
}

/// Why a round ended without a certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RoundError {
    /// Manual intervention is needed.
    #[error("{0}: {1}")]
    Fatal(Fatal, String),
    /// The vault was sealed on purpose; an admin must unseal it first.
    #[error("the vault was sealed on purpose")]
    Sealed,
    /// The certificate of the vault cannot be used.
    #[error("cannot use the certificate of the vault")]
    Certificate(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A plan ended without an outcome.
    #[error("a plan ended without an outcome")]
    NoOutcome,
}

impl Controller {
    /// The routes of the gRPC server: bootstrap, health, reflection.
    pub async fn router(&self) -> anyhow::Result<Router> {
        let bootstrap = Bootstrap::new(
            self.vault.clone(),
            Arc::clone(&self.cluster),
            Arc::clone(&self.disk),
            Arc::clone(&self.standing),
            Arc::clone(&self.clock),
            Arc::clone(&self.entropy),
            self.settings.clone(),
        );
        let health = self.health.service().await;
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(&shell::descriptors())
            .with_service_name(shell::NAME)
            .build_v1()
            .context("cannot build the reflection service")?;
        let mut routes = tonic::service::Routes::new(shell::service(Arc::new(bootstrap)));
        routes = routes.add_service(health).add_service(reflection);
        Ok(routes.into_axum_router())
    }

    /// Unseals and sets up the vault, once.
    ///
    /// # Cancel safety
    /// Can be dropped at any await; the next round continues.
    pub async fn round(&self) -> Result<Round, RoundError> {
        let mut root_part = RootPart::IfChanged;
        let (mut mended, mut waits) = (0, 0);
        loop {
            self.bring_up(root_part).await?;
            root_part = RootPart::IfChanged;
            let on_drift = if waits < PATIENCE { OnDrift::Report } else { OnDrift::Accept };
            match self.set_up(on_drift).await? {
                SetupEnd::Ready { token, token_life, tls, trusted, stage, signers, drift } => {
                    self.certificate
                        .replace(tls.chain.as_bytes(), &tls.key)
                        .map_err(|error| RoundError::Certificate(error.into()))?;
                    self.rekey(token.duplicate("two parts of this use it")).await;
                    self.standing.replace(token, &trusted, signers);
                    let next = tls.renew_after(self.clock.now()).min(token_life * 2 / 3);
                    return Ok(Round {
                        next: next.clamp(SHORTEST, LOOK),
                        authorities: trusted,
                        signers: tls.authorities,
                        stage,
                        drift,
                    });
                }
                SetupEnd::Sealed => {
                    tracing::warn!("the vault was sealed or started meanwhile");
                    tokio::time::sleep(SHORTEST).await;
                }
                SetupEnd::RootDrift(object) if self.ordinal == Ordinal::Follower => {
                    tracing::warn!(object, "drift that the first pod has to mend: waiting for it");
                    tokio::time::sleep(MENDED).await;
                    waits += 1;
                }
                SetupEnd::RootDrift(object) => {
                    tracing::warn!(
                        object,
                        "drift of what only root may write: it is written again"
                    );
                    tokio::time::sleep(before_mending(mended)).await;
                    mended += 1;
                    root_part = RootPart::Always;
                }
                SetupEnd::Fatal(fatal, object) => return Err(RoundError::Fatal(fatal, object)),
                _ => return Err(RoundError::NoOutcome),
            }
        }
    }

    /// Runs once more if the vault created its socket only during this call, because otherwise it would be
    /// unknown which vault process was unsealed.
    async fn bring_up(&self, root_part: RootPart) -> Result<(), RoundError> {
        let instance = self.sealing.instance();
        self.bring_up_instance(root_part, instance).await?;
        match (instance, self.sealing.instance()) {
            (None, Some(started)) => self.bring_up_instance(root_part, Some(started)).await,
            _ => Ok(()),
        }
    }

    async fn bring_up_instance(
        &self,
        root_part: RootPart,
        instance: Option<Instance>,
    ) -> Result<(), RoundError> {
        let mut rng = EntropyRng::new(&*self.entropy);
        let fresh =
            Fresh { key: SecretArray::random(&mut rng), seed: SecretArray::random(&mut rng) };
        let mut plan = BringUp::new(self.platform.clone(), self.ordinal, root_part, fresh)
            .with_sealed(self.sealing.of(instance));
        let mut shell = self.shell();
        plan::run(&mut plan, Event::Start, &mut shell).await;
        match shell.end() {
            Some(Ok(Outcome::Up)) => {
                self.sealing.opened(instance);
                Ok(())
            }
            Some(Ok(Outcome::WithoutKey(fatal))) => {
                self.sealing.opened(instance);
                tracing::warn!(code = %fatal.code(), "the vault serves, but its key is lost");
                self.warn(fatal, "the vault opened by itself and serves on").await;
                Ok(())
            }
            Some(Ok(Outcome::LeftSealed)) => Err(RoundError::Sealed),
            Some(Err(fatal)) => Err(RoundError::Fatal(fatal, fatal.code().to_string())),
            None => Err(RoundError::NoOutcome),
        }
    }

    async fn set_up(&self, on_drift: OnDrift) -> Result<SetupEnd, RoundError> {
        let mut plan = Setup::new(self.platform.clone()).with_drift(on_drift);
        let cluster = Arc::clone(&self.cluster);
        let (vault, clock) = (self.vault.clone(), Arc::clone(&self.clock));
        let mut shell = SetupShell::new(vault, cluster, self.token.clone(), clock);
        plan::run(&mut plan, SetupEvent::Start, &mut shell).await;
        shell.into_end().ok_or(RoundError::NoOutcome)
    }

    /// Replaces the vault's key, if that is requested or began. The vault serves all the time; what fails is
    /// continued in the next round.
    async fn rekey(&self, token: SecretBytes) {
        if self.ordinal == Ordinal::Follower || self.platform.seal != SealKind::Shamir {
            return;
        }
        let seed = SecretArray::random(&mut EntropyRng::new(&*self.entropy));
        let mut plan = Rekey::new(self.platform.clone(), token, seed);
        let mut shell = self.shell();
        plan::run(&mut plan, Event::Start, &mut shell).await;
        if let Some(Ok(Outcome::WithoutKey(fatal))) = shell.end() {
            tracing::error!(code = %fatal.code(), "the vault will not open with its stored key");
            self.warn(fatal, "the vault serves, but will not open after its next start").await;
        }
    }

    fn shell(&self) -> BringUpShell {
        let (cluster, disk) = (Arc::clone(&self.cluster), Arc::clone(&self.disk));
        BringUpShell::new(self.vault.clone(), cluster, disk, Arc::clone(&self.peers))
    }

    /// Runs rounds until shutdown.
    pub async fn keep(&self, mut shutdown: Shutdown) -> Result<(), RoundError> {
        let mut told = Told::default();
        loop {
            tokio::select! {
                () = shutdown.triggered() => return Ok(()),
                done = self.once(&mut told) => done?,
            }
        }
    }

    /// One round, and the wait until the next.
    async fn once(&self, told: &mut Told) -> Result<(), RoundError> {
        match self.health.during(self.round()).await {
            Ok(round) => {
                let next_seconds = round.next.as_secs();
                match &round.drift {
                    None => tracing::info!(next_seconds, "the vault is as it shall be"),
                    Some(object) => tracing::warn!(
                        object,
                        next_seconds,
                        "the vault serves with drift that the first pod has to mend"
                    ),
                }
                self.tell_of_authorities(&round, told).await;
                self.rest(&round).await;
                Ok(())
            }
            Err(RoundError::Sealed) => {
                tracing::warn!(
                    "the vault was sealed on purpose: it is left so until it is restarted"
                );
                tokio::time::sleep(MENDED).await;
                Ok(())
            }
            Err(RoundError::Fatal(fatal, detail)) => {
                self.warn(fatal, &detail).await;
                Err(RoundError::Fatal(fatal, detail))
            }
            Err(error) => Err(error),
        }
    }

    /// Requests other authorities if they expire in less than a year, warns once a day if that did not help,
    /// and reports those that are published.
    async fn tell_of_authorities(&self, round: &Round, told: &mut Told) {
        let now = self.clock.now();
        if round.stage == Stage::Stable && authority::is_due(&round.signers, now) {
            tracing::info!("the authorities are old: others are requested");
            if let Err(error) = self.cluster.request(Replaceable::Authorities).await {
                tracing::warn!(error = %chain(&error), "cannot request other authorities");
            }
        }
        if told.stage.replace(round.stage) != Some(round.stage) {
            tracing::info!(stage = ?round.stage, "the authorities are in this stage");
            if round.stage == Stage::Published {
                let message = "new CA certificates are published beside the old ones, and will \
                               sign: see \"Other authorities\" in the reference of services-bootstrap";
                self.event(AUTHORITIES_PUBLISHED.to_owned(), message.to_owned()).await;
            }
        }
        let age = |told: Timestamp| now.unix_seconds().saturating_sub(told.unix_seconds());
        let is_due = told.ends.is_none_or(|told| age(told) >= NOTICES);
        let notice = authority::notice(&round.authorities, now);
        if let Some(message) = notice.filter(|_| is_due) {
            tracing::warn!(notice = message, "an authority expires soon");
            self.event(AUTHORITY_ENDS.to_owned(), message).await;
            told.ends = Some(now);
        }
    }

    /// Records a warning on the pod; failing to do so must not keep the program from exiting.
    async fn warn(&self, fatal: Fatal, detail: &str) {
        self.event(fatal.code().to_string(), format!("{fatal}: {detail}")).await;
    }

    async fn event(&self, reason: String, message: String) {
        let warning = Warning {
            pod: self.pod.clone(),
            pod_uid: self.pod_uid.clone(),
            reason,
            message,
            at: self.clock.now(),
        };
        if let Err(error) = self.cluster.warn(&warning).await {
            tracing::warn!(error = %chain(&error), "no event was written");
        }
    }

    /// Waits for the next round, or for a restart of the vault. In the meantime NATS gets the locked-out users,
    /// and OpenSearch new passwords. Neither update waits for the other, and the next round waits for neither.
    async fn rest(&self, round: &Round) {
        let told = Box::pin(async {
            tokio::join!(self.tell_nats(round), self.tell_opensearch(round));
        });
        // All can be dropped at any await.
        tokio::select! {
            _ = tokio::time::timeout(round.next, told) => {}
            // Nobody else unseals a vault whose container restarted alone.
            () = self.sealing.restarted() => {
                tracing::info!("the vault restarted");
            }
        }
    }

    /// Takes snapshots when they are due, for as long as it is polled. Returns immediately if none are
    /// requested.
    pub async fn keep_snapshots(&self) {
        let Some(snapshots) = &self.snapshots else {
            return;
        };
        let age_hours = snapshots.age().map(|age| age.as_secs() / 3600);
        let directory = snapshots.directory.display();
        tracing::info!(%directory, age_hours, "snapshots of the vault are taken");
        let mut told = None;
        loop {
            let wait = match snapshots.ensure().await {
                Ok(Step::Taken { name, bytes }) => {
                    tracing::info!(name, bytes, "a snapshot of the vault was taken");
                    SNAPSHOTS.0
                }
                Ok(_) => SNAPSHOTS.0,
                Err(error) => {
                    self.tell_of_snapshot(snapshots, &error, &mut told).await;
                    SNAPSHOTS.1
                }
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Warns about a snapshot that was not taken; with an Event, once a day.
    async fn tell_of_snapshot(
        &self,
        snapshots: &Snapshots,
        error: &SnapshotError,
        told: &mut Option<Timestamp>,
    ) {
        let (error, now) = (chain(error), self.clock.now());
        let age_hours = snapshots.age().map(|age| age.as_secs() / 3600);
        tracing::warn!(error, age_hours, "no snapshot of the vault was taken");
        let age = |told: Timestamp| now.unix_seconds().saturating_sub(told.unix_seconds());
        if told.is_none_or(|told| age(told) >= NOTICES) {
            let latest = match age_hours {
                Some(hours) => format!("the latest one is {hours} hours old"),
                None => "there is none".to_owned(),
            };
            let message = format!("cannot take a snapshot of the vault, {latest}: {error}");
            self.event(SNAPSHOT_FAILED.to_owned(), message).await;
            *told = Some(now);
        }
    }

    async fn tell_opensearch(&self, round: &Round) {
        while let Err(error) = self.passwords.ensure(&round.authorities).await {
            let error = format!("{error:#}");
            tracing::warn!(error, "OpenSearch may not know all passwords yet");
            tokio::time::sleep(REVOCATIONS).await;
        }
    }

    async fn tell_nats(&self, round: &Round) {
        // Once per round: a server that lost its volume has no stream.
        let (mut stores, mut is_signed) = (false, false);
        loop {
            if let Err(error) = self.accounts.ensure(&round.authorities).await {
                let error = format!("{error:#}");
                tracing::warn!(error, "NATS does not know yet who is shut out");
            } else {
                is_signed = is_signed || self.replace_signers(round).await;
                stores = stores || self.ensure_events(round).await;
            }
            tokio::time::sleep(REVOCATIONS).await;
        }
    }

    /// Returns whether it is done.
    async fn replace_signers(&self, round: &Round) -> bool {
        let succeeded = self.accounts.succeed(&round.authorities).await;
        if let Err(error) = &succeeded {
            let error = format!("{error:#}");
            tracing::warn!(error, "the keys that sign for NATS may not be replaced yet");
        }
        succeeded.is_ok()
    }

    /// Returns whether it is done.
    async fn ensure_events(&self, round: &Round) -> bool {
        let ensured = self.accounts.ensure_events(&round.authorities).await;
        if let Err(error) = &ensured {
            let error = format!("{error:#}");
            tracing::warn!(error, "NATS does not store events yet");
        }
        ensured.is_ok()
    }
}

/// Wait before fixing drift that was fixed this many times in this round: each fix creates a root token.
fn before_mending(times: u32) -> Duration {
    match times.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => MENDED.saturating_mul(1 << doublings.min(6)).min(LOOK),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_mended_at_once_and_then_ever_more_rarely() {
        assert_eq!(before_mending(0), Duration::ZERO);
        assert_eq!(before_mending(1), MENDED);
        assert_eq!(before_mending(2), MENDED * 2);
        assert_eq!(before_mending(u32::MAX), LOOK);
    }
}
