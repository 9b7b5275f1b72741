//! An API server outage longer than the lifetime of leases and sessions.

use std::io::Write as _;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Freeze, Server, eventually, open, within};
use tec_e2e::load;
use tec_k8s::render::Component;
use tec_tpm::testing::SoftTpm;
use tokio::time::{Instant, sleep_until};

use crate::builtin::{KERNEL, World, boot, builtin};

/// Duration of the outage, unless `TEC_API_PAUSE_SECONDS` is set, for example to 300. First the API server
/// hangs, for half of that time or as long as it takes to see the answers that nodes get, then it is gone.
const SECONDS: u64 = 60;
/// Deadline for everything to continue: leases expire within 15 s, watches are retried within 30 s.
const SOON: Duration = Duration::from_mins(1);
/// Deadline for answers to nodes, even while the API server hangs.
const TOLD: Duration = Duration::from_secs(45);
const REGISTER: &str = "/ignition-clevis-pin-trustee";
const KEYS: &str = "/register-ak";

struct Node {
    http: reqwest::Client,
    servers: [Server; 2],
}

impl Node {
    async fn of(world: &World) -> Self {
        let bench = &world.bench;
        let start = async |component| {
            Server::start(&bench.plane, component, &bench.namespace, &[]).await.unwrap()
        };
        let servers = [
            start(Component::RegisterServer).await,
            start(Component::AttestationKeyRegister).await,
        ];
        Self { http: reqwest::Client::builder().no_proxy().build().unwrap(), servers }
    }

    /// The answer of the registration: status and body.
    async fn register(&self) -> (StatusCode, Value) {
        let url = format!("http://{}{REGISTER}", self.servers[0].address);
        read(self.http.get(url)).await
    }

    /// The answer to a key for a machine that no server knows.
    async fn submit(&self) -> (StatusCode, Value) {
        let url = format!("http://{}{KEYS}", self.servers[1].address);
        let machine = sample::machine_id(404).to_string();
        let body = json!({"public_key": sample::public_key(404).to_pem(), "uuid": machine});
        let sent = self.http.put(url).body(body.to_string());
        read(sent.header("content-type", "application/json")).await
    }

    /// Nodes get a code, and no process is in a state that a kubelet would restart.
    async fn is_told_to_wait(&self, world: &World, tpm: &SoftTpm) {
        let all = async { tokio::join!(self.register(), self.submit(), world.fetch(tpm)) };
        let told = tokio::time::timeout(TOLD, all).await;
        let (registered, kept, fetched) = told.unwrap();
        for (status, told) in [&registered, &kept] {
            assert_eq!(*status, StatusCode::SERVICE_UNAVAILABLE, "{told}");
            assert!(told.to_string().contains("TEC-R503"), "{told}");
        }
        assert!(fetched.is_err(), "no key without the API server");
        let own = self.servers.iter().map(|server| server.status.clone());
        for status in own.chain([world.status()]) {
            let alive = self.http.get(format!("http://{status}/livez")).send().await.unwrap();
            assert_eq!(alive.status(), StatusCode::OK);
        }
        let ready =
            self.http.get(format!("http://{}/readyz", world.status())).send().await.unwrap();
        assert_eq!(ready.status(), StatusCode::SERVICE_UNAVAILABLE, "the key broker says so");
    }
}

async fn read(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let answer = request.send().await.unwrap();
    let status = answer.status();
    (status, serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap_or_default())
}

/// Visible in the log even when the test passes.
fn tell(what: &str) {
    let _ = writeln!(std::io::stderr(), "{what}");
}

fn pause() -> Duration {
    let asked = std::env::var_os("TEC_API_PAUSE_SECONDS");
    let asked = asked.map(|text| text.to_str().unwrap().parse::<u64>().unwrap());
    let seconds = asked.unwrap_or(SECONDS);
    tell(&format!("API server away for {seconds} s (TEC_API_PAUSE_SECONDS=300: five minutes)"));
    Duration::from_secs(seconds)
}

async fn holder(bench: &Bench) -> anyhow::Result<Option<String>> {
    let lease = bench.objects::<Lease>()?.get_opt("trusted-cluster-operator").await?;
    Ok(lease.and_then(|lease| lease.spec?.holder_identity))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_api_server_that_was_away_for_minutes_is_taken_up_again_without_hands() {
    let tpm = SoftTpm::rsa(1);
    boot(&tpm, KERNEL);
    let bench = Bench::alone().await.unwrap();
    let mut world = World::on(bench, &open(builtin()), &tpm, 1).await;
    let key = world.disk_key().await;
    assert!(world.fetch(&tpm).await.unwrap().ct_eq(&key));
    let node = Node::of(&world).await;
    eventually("nodes register", async || Ok(node.register().await.0 == StatusCode::OK))
        .await
        .unwrap();

    let (begin, pause) = (Instant::now(), pause());
    world.bench.plane.freeze_api_server(Freeze::Stop).unwrap();
    node.is_told_to_wait(&world, &tpm).await;
    eventually("the leader gives up", async || Ok(world.bench.take_ended())).await.unwrap();
    world.bench.trust.restart_operator();
    // As a kubelet does, once.
    world.bench.start("two").unwrap();
    sleep_until(begin + pause / 2).await;
    world.bench.plane_mut().unwrap().stop_api_server();
    node.is_told_to_wait(&world, &tpm).await;
    sleep_until(begin + pause).await;
    assert!(!world.bench.take_ended(), "it waits, and is not restarted again and again");

    world.bench.plane_mut().unwrap().start_api_server().await.unwrap();
    let back = Instant::now();
    let leads = async || Ok(holder(&world.bench).await?.as_deref() == Some("two"));
    within(SOON, "the operator leads again", leads).await.unwrap();
    let mut machine = None;
    within(SOON, "nodes register", async || {
        let (status, body) = node.register().await;
        machine = load::machine_of(&body).ok();
        Ok(status == StatusCode::OK && machine.is_some())
    })
    .await
    .unwrap();
    let name = machine.unwrap().to_string();
    let secrets = world.bench.objects::<k8s_openapi::api::core::v1::Secret>().unwrap();
    let has_key = async || Ok(secrets.get_opt(&name).await?.is_some());
    within(SOON, "a new machine gets a disk key", has_key).await.unwrap();
    let mut refused = None;
    let released = within(SOON, "the key broker releases", async || {
        // The clock of a software TPM stands still, except for boots.
        boot(&tpm, KERNEL);
        let fetched = world.fetch(&tpm).await;
        refused = fetched.as_ref().err().copied();
        Ok(fetched.is_ok_and(|released| released.ct_eq(&key)))
    });
    let released = released.await;
    assert!(released.is_ok(), "{refused:?}");
    tell(&format!("all worked again {:?} after the API server was back", back.elapsed()));
    assert!(!world.bench.take_ended(), "nobody restarted it");
    world.bench.stop().await.unwrap();
}
