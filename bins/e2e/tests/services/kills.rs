//! The controller is killed at each step; the next process reaches the same end state.

use std::path::PathBuf;

use services::bootstrap::controller::Controller;
use services::bootstrap::disk::Volume;
use services::bootstrap::guard;
use tec_core::plan;
use tec_core::plan::Shell;
use tec_core::port::EntropyRng;
use tec_core::secret::SecretArray;
use tec_e2e::services::bao::Seal;
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::stage::Stage;
use tec_services::shell::{BringUpShell, SetupShell};
use tec_services::vault::{
    BringUp, Effect, Event, Fresh, Method, Outcome, Rekey, RootPart, Setup, SetupEffect, SetupEvent,
};
use tec_support::serve::Shutdown;
use tokio::task::JoinSet;

use crate::vault::{assert_nowhere_in_plain, root_tokens, seal_status, stored_key};

/// A process that dies after this many steps: the last one is done, but its result is lost.
pub(crate) struct Dying<S> {
    pub(crate) shell: S,
    left: usize,
    pub(crate) steps: Vec<String>,
}

impl<S> Dying<S> {
    pub(crate) fn new(shell: S, left: usize) -> Self {
        Self { shell, left, steps: Vec::new() }
    }

    /// `None` if it is dead.
    fn live(&mut self, step: String) -> Option<()> {
        self.left = self.left.checked_sub(1)?;
        self.steps.push(step);
        Some(())
    }

    fn heard<T>(&self, event: Option<T>) -> Option<T> {
        event.filter(|_| self.left > 0)
    }
}

#[tonic::async_trait]
impl Shell<BringUp> for Dying<BringUpShell> {
    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        self.live(name(&effect))?;
        let event = Shell::<BringUp>::perform(&mut self.shell, effect).await;
        self.heard(event)
    }
}

#[tonic::async_trait]
impl Shell<Rekey> for Dying<BringUpShell> {
    async fn perform(&mut self, effect: Effect) -> Option<Event> {
        Shell::<BringUp>::perform(self, effect).await
    }
}

#[tonic::async_trait]
impl Shell<Setup> for Dying<SetupShell> {
    async fn perform(&mut self, effect: SetupEffect) -> Option<SetupEvent> {
        let step = match &effect {
            SetupEffect::Call(request) => format!("call {}", request.path),
            effect => word(&format!("{effect:?}")),
        };
        self.live(step)?;
        let event = self.shell.perform(effect).await;
        self.heard(event)
    }
}

fn name(effect: &Effect) -> String {
    match effect {
        Effect::Call(request) => {
            let does = match request.method {
                Method::Get | Method::List => "read",
                _ if request.path.contains("/lookup-") => "read",
                Method::Post => "post",
                Method::Delete => "delete",
            };
            format!("{does} {}", request.path)
        }
        Effect::Advance { to, .. } => format!("write progress {}", word(&to.to_string())),
        Effect::CreateSecret { .. }
        | Effect::WriteFile(_)
        | Effect::RemoveFile
        | Effect::WriteIntent { .. }
        | Effect::RemoveIntent => {
            format!("write {}", word(&format!("{effect:?}")))
        }
        effect => format!("do {}", word(&format!("{effect:?}"))),
    }
}

fn word(text: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.chars().take_while(|c| fits(*c)).collect()
}

/// One process, which dies after `steps`. Returns whether it finished.
async fn bring_up(controller: &Controller, steps: usize) -> bool {
    let mut rng = EntropyRng::new(&*controller.entropy);
    let fresh = Fresh { key: SecretArray::random(&mut rng), seed: SecretArray::random(&mut rng) };
    let platform = controller.platform.clone();
    let mut plan = BringUp::new(platform, controller.ordinal, RootPart::IfChanged, fresh);
    let (cluster, disk) = (controller.cluster.clone(), controller.disk.clone());
    let peers = controller.peers.clone();
    let shell = BringUpShell::new(controller.vault.clone(), cluster, disk, peers);
    let mut dying = Dying::new(shell, steps);
    plan::run(&mut plan, Event::Start, &mut dying).await;
    let end = dying.shell.end();
    assert!(end.is_none_or(|end| end == Ok(Outcome::Up)), "{end:?}");
    end.is_some()
}

pub(crate) async fn set_up(controller: &Controller, steps: usize) -> bool {
    let mut plan = Setup::new(controller.platform.clone());
    let (vault, cluster) = (controller.vault.clone(), controller.cluster.clone());
    let shell = SetupShell::new(vault, cluster, controller.token.clone(), controller.clock.clone());
    let mut dying = Dying::new(shell, steps);
    plan::run(&mut plan, SetupEvent::Start, &mut dying).await;
    dying.shell.into_end().is_some()
}

/// A vault run as in its pod, so that its storage can be emptied.
struct Guarded {
    stage: Stage,
    controller: Controller,
    _guard: JoinSet<anyhow::Result<()>>,
}

/// Starts a vault as in its pod; it ends with the set.
pub(crate) async fn guard(stage: &Stage) -> JoinSet<anyhow::Result<()>> {
    guard_with(stage, None).await
}

/// Like `guard`; the vault reads this certificate again when it changes.
pub(crate) async fn guard_with(
    stage: &Stage,
    certificate: Option<PathBuf>,
) -> JoinSet<anyhow::Result<()>> {
    let command = stage.bao.command_with_log(&stage.logs).unwrap();
    let volume = Volume::new(stage.path("volume"));
    let storage = stage.bao.storage();
    let (shutdown, signals) = Shutdown::on_signals().unwrap();
    let mut guard = JoinSet::new();
    guard.spawn(async move {
        let _signals = signals;
        guard::run(&command, &storage, &volume, certificate.as_ref(), shutdown).await
    });
    stage.bao.wait().await.unwrap();
    guard
}

async fn guarded() -> Guarded {
    let stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    let guard = guard(&stage).await;
    let controller = stage.controller(&[]).await.unwrap();
    Guarded { stage, controller, _guard: guard }
}

/// The same end state, whatever happened on the way.
async fn assert_up(guarded: &Guarded) {
    let Guarded { stage, controller, .. } = guarded;
    assert_eq!(seal_status(stage).await["sealed"], false);
    let key = stored_key(stage, controller).await;
    assert_eq!(root_tokens(stage, &key).await, 0, "a root token is left");
    assert_nowhere_in_plain(stage, &key);
    let secret = stage.secret("vault-aes").await.unwrap();
    let progress =
        &secret["metadata"]["annotations"]["trusted-execution-clusters.io/bootstrap-state"];
    assert!(progress.as_str().unwrap().starts_with("configured:"), "{progress}");
    stage.authorities().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_controller_that_always_dies_a_little_later_comes_to_the_same_end() {
    let guarded = guarded().await;
    let mut steps = 1;
    while !bring_up(&guarded.controller, steps).await {
        steps += 1;
    }
    let died = steps;
    steps = 1;
    while !set_up(&guarded.controller, steps).await {
        // A read and a write: each of the two is the last one now and then.
        steps += 5;
    }
    println!(
        "the controller died at {died} steps in bringing up, and up to step {steps} in setting up"
    );
    assert!(died > 20 && steps > 50, "{died}, {steps}");
    guarded.controller.round().await.unwrap();
    assert_up(&guarded).await;
}
