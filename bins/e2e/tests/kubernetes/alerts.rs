//! Each alert fires in the situation it is meant for, based on what the programs really serve at /metrics.

use std::ffi::OsStr;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::rbac::v1::Role;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use serde_json::json;
use tec_core::code::Code;
use tec_core::machine::{Machine as Known, RegisteredBy};
use tec_core::port::Clock as _;
use tec_core::testing::sample;
use tec_e2e::kube::{Bench, Link, Prometheus, Server, eventually, open, plain_cluster};
use tec_k8s::api::{ApprovedImage, ApprovedImageSpec, AttestationKey, BrokerKind, Machine};
use tec_k8s::render::{Component, Installation, Object};
use tec_k8s::signal::{Alert, Condition};
use tec_support::{SystemClock, tls};
use tec_tpm::testing::SoftTpm;

use crate::builtin;
use crate::guard;

const OPERATOR: &str = "trusted-cluster-operator-metrics";
const GUARD: &str = "kbs-metrics";
const BROKER: &str = "key-broker-metrics";
const REGISTER: &str = "register-server-metrics";
const KEYS: &str = "attestation-key-register-metrics";
/// The operator's role in tests.
const ROLE: &str = "trusted-cluster-operator";

fn now() -> i64 {
    SystemClock.now().unix_seconds()
}

/// The metrics served at this address.
async fn metrics(address: &str) -> Option<String> {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client.get(format!("http://{address}/metrics")).send().await.ok()?;
    Some(answer.text().await.unwrap())
}

/// Scrapes until the wrong-clock alert fires, or no longer fires.
pub(crate) async fn until_the_clock_alert(job: &str, address: &str, fires: bool) {
    let mut prometheus = Prometheus::default();
    let mut text = None;
    let came = eventually("the alert", async || {
        text = metrics(address).await;
        prometheus.scrape(&[(job, text.as_deref())]);
        Ok(text.is_some() && prometheus.fires("TecClockSkewed", now()) == fires)
    })
    .await;
    assert!(came.is_ok(), "TecClockSkewed over {job} fires: {fires}: {text:?}");
}

/// Scrapes until the alerts fire.
async fn until_they_fire(prometheus: &mut Prometheus, job: &str, address: &str, alerts: &[&str]) {
    let mut quiet = Vec::new();
    let came = eventually("the alerts fire", async || {
        let text = metrics(address).await;
        prometheus.scrape(&[(job, text.as_deref())]);
        quiet = alerts.to_vec();
        quiet.retain(|name| !prometheus.fires(name, now()));
        Ok(quiet.is_empty())
    })
    .await;
    assert!(came.is_ok(), "{quiet:?}: {:?}", metrics(address).await);
}

/// The lease is held by a replica that is gone.
async fn foreign_lease(bench: &Bench) {
    let time = jiff::Timestamp::from_second(now()).unwrap();
    let lease = Lease {
        metadata: ObjectMeta { name: Some(ROLE.to_owned()), ..ObjectMeta::default() },
        spec: Some(LeaseSpec {
            holder_identity: Some("gone".to_owned()),
            lease_duration_seconds: Some(5),
            acquire_time: Some(MicroTime(time)),
            renew_time: Some(MicroTime(time)),
            ..LeaseSpec::default()
        }),
    };
    bench.create(&lease).await.unwrap();
}

/// Two objects with one ID, a key without its machine, an image that cannot be read.
async fn trouble(bench: &Bench) {
    let known = |number| {
        let id = sample::machine_id(number);
        Machine::from_core(&Known::unclaimed(id, RegisteredBy::Admin, SystemClock.now()))
    };
    bench.create(&known(1)).await.unwrap();
    let mut copy = known(1);
    copy.metadata.name = Some("copy".to_owned());
    bench.create(&copy).await.unwrap();
    bench.create(&AttestationKey::from_core(&sample::ak(1, 7))).await.unwrap();
    let mut spec = ApprovedImageSpec::default();
    spec.image = format!("127.0.0.1:1/os@sha256:{:064x}", 1);
    bench.create(&ApprovedImage::new("one", spec)).await.unwrap();
}

/// Reports the failure of a Job, as when its pod fails.
async fn break_job(bench: &Bench) {
    let jobs = bench.objects::<Job>().unwrap();
    let of_images = ListParams::default().labels("kind=compute-pcrs");
    let mut name = None;
    eventually("the Job is there", async || {
        name = jobs.list(&of_images).await?.iter().map(kube::ResourceExt::name_any).next();
        Ok(name.is_some())
    })
    .await
    .unwrap();
    let condition = |kind| json!({"type": kind, "status": "True", "reason": "BackoffLimitExceeded", "message": "it broke"});
    let conditions = [condition("FailureTarget"), condition("Failed")];
    let time = Time(jiff::Timestamp::from_second(now()).unwrap());
    let failed = json!({"status": {"startTime": time, "conditions": conditions}});
    let params = PatchParams::default();
    jobs.patch_status(&name.unwrap(), &params, &Patch::Merge(failed)).await.unwrap();
}

/// Revokes the operator's permission for Services.
async fn take_a_right(bench: &Bench) {
    let roles = bench.objects::<Role>().unwrap();
    let mut role = roles.get(ROLE).await.unwrap();
    for rule in role.rules.iter_mut().flatten() {
        if rule.resources.iter().flatten().any(|resource| resource == "services") {
            rule.verbs.retain(|verb| ["get", "list", "watch"].contains(&verb.as_str()));
        }
    }
    roles.replace(ROLE, &PostParams::default(), &role).await.unwrap();
    // A missing object is applied again.
    let services = bench.objects::<Service>().unwrap();
    services.delete("kbs-service", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn alerts_over_the_operator_fire() {
    let bench = Bench::new().await.unwrap();
    bench.create(&plain_cluster("cluster")).await.unwrap();
    foreign_lease(&bench).await;
    let mut program = bench.start_program("one", &["--log-form=json"]).unwrap();
    let address = guard::said(&program, "started").await.to_string();
    let mut prometheus = Prometheus::default();
    until_they_fire(&mut prometheus, OPERATOR, &address, &["TecNoLeader"]).await;
    trouble(&bench).await;
    break_job(&bench).await;
    let alerts = [
        "TecNoApprovedImage",
        "TecImageFailed",
        "TecMachineFailing",
        "TecKeysWait",
        "TecTrusteeBehind",
    ];
    until_they_fire(&mut prometheus, OPERATOR, &address, &alerts).await;
    assert!(!prometheus.fires("TecOperatorDown", now()));
    assert!(!prometheus.fires("TecNoLeader", now()));
    assert!(!prometheus.fires("TecReconcileFails", now()));
    take_a_right(&bench).await;
    until_they_fire(&mut prometheus, OPERATOR, &address, &["TecReconcileFails"]).await;
    program.kill();
    until_they_fire(&mut prometheus, OPERATOR, &address, &["TecOperatorDown"]).await;
}

#[tokio::test]
async fn the_alert_of_a_wrong_clock_fires_over_the_operator_until_it_is_right() {
    let bench = Bench::new().await.unwrap();
    let link = Link::new(bench.admin().unwrap()).await.unwrap();
    bench.create(&plain_cluster("cluster")).await.unwrap();
    let program = bench.start_program_at(link.url(), "one", &["--log-form=json"]).unwrap();
    let address = guard::said(&program, "started").await.to_string();
    for ahead in [0, 3600, 0, -3600, 0] {
        link.set_clock(ahead);
        until_the_clock_alert(OPERATOR, &address, ahead != 0).await;
    }
}

/// Flags for a certificate that expires in this many days.
fn certificate(days: i64, directory: &std::path::Path) -> [String; 2] {
    let ca = tls::new_ca(SystemClock.now()).unwrap();
    // Leaf certificates are valid for 90 days.
    let issued = SystemClock.now().plus_seconds((days - 90) * 86_400);
    let (pair, _) = tls::issue(&ca, &["localhost".to_owned()], issued).unwrap();
    let [cert, key] = ["tls.crt", "tls.key"].map(|name| directory.join(name));
    std::fs::write(&cert, &pair.chain).unwrap();
    std::fs::write(&key, pair.key.expose("the test's server reads it")).unwrap();
    [format!("--cert-path={}", cert.display()), format!("--key-path={}", key.display())]
}

#[tokio::test]
async fn alerts_over_the_registration_servers_fire() {
    let bench = Bench::new().await.unwrap();
    bench.create(&open(plain_cluster("cluster"))).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let flags = certificate(3, directory.path());
    let flags = flags.each_ref().map(OsStr::new);
    let start = async |component, flags: &[&OsStr]| {
        Server::start(&bench.plane, component, &bench.namespace, flags).await.unwrap()
    };
    let register = start(Component::RegisterServer, &[]).await;
    let keys = start(Component::AttestationKeyRegister, &flags).await;
    let mut prometheus = Prometheus::default();
    let scrape = async |prometheus: &mut Prometheus, register: Option<&Server>| {
        let of = async |server: Option<&Server>| metrics(&server?.status).await;
        let [register, keys] = [of(register).await, of(Some(&keys)).await];
        prometheus.scrape(&[(REGISTER, register.as_deref()), (KEYS, keys.as_deref())]);
    };
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let ask = async || {
        let url = format!("http://{}/nothing", register.address);
        client.get(url).send().await.unwrap().status()
    };
    assert_eq!(ask().await, 404);
    scrape(&mut prometheus, Some(&register)).await;
    assert!(!prometheus.fires("TecRegistrationFails", now()));
    assert!(!prometheus.fires("TecRegistrationDown", now()));
    assert!(prometheus.fires("TecCertificateEnds", now()));
    assert!(!prometheus.fires("TecCertificateEnds", now() - 5 * 86_400));
    // Only one of the servers.
    assert_eq!(ask().await, 404);
    scrape(&mut prometheus, Some(&register)).await;
    assert!(prometheus.fires("TecRegistrationFails", now()));
    drop(register);
    scrape(&mut prometheus, None).await;
    assert!(prometheus.fires("TecRegistrationDown", now()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_over_the_guard_fire() {
    let tpm = guard::approved_boot();
    let world = guard::World::new(&tpm).await;
    world.unlock(&tpm).await;
    let address = guard::metrics_address(&world.pod.program).await.to_string();
    let mut prometheus = Prometheus::default();
    let scrape = async |prometheus: &mut Prometheus| {
        prometheus.scrape(&[(GUARD, metrics(&address).await.as_deref())]);
    };
    scrape(&mut prometheus).await;
    assert_eq!(world.fetch_key_of(2, &tpm).await.unwrap_err(), Code::ReleaseDenied);
    scrape(&mut prometheus).await;
    assert!(prometheus.fires("TecForeignKeyAsked", now()));
    assert!(prometheus.fires("TecAttestationsRefused", now()));
    assert!(!prometheus.fires("TecKeyBrokerDown", now()));
    prometheus.scrape(&[(GUARD, None)]);
    assert!(prometheus.fires("TecKeyBrokerDown", now()));
    eventually("people are told", async || {
        let events = world.events().await;
        Ok(events.iter().any(|(reason, _)| reason == "ResourcePolicyDenied"))
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_over_the_built_in_key_broker_fire() {
    let tpm = SoftTpm::rsa(1);
    builtin::boot(&tpm, builtin::KERNEL);
    let world = builtin::World::new(&tpm, 1).await;
    world.disk_key().await;
    world.fetch(&tpm).await.unwrap();
    let address = world.status();
    let mut prometheus = Prometheus::default();
    let scrape = async |prometheus: &mut Prometheus| {
        prometheus.scrape(&[(BROKER, metrics(&address).await.as_deref())]);
    };
    scrape(&mut prometheus).await;
    assert!(!prometheus.fires("TecAttestationsRefused", now()));
    assert_eq!(world.fetch_key_of(2, &tpm).await.unwrap_err(), Code::ReleaseDenied);
    scrape(&mut prometheus).await;
    assert!(prometheus.fires("TecForeignKeyAsked", now()));
    assert!(prometheus.fires("TecAttestationsRefused", now()));
    assert!(!prometheus.fires("TecKeyBrokerDown", now()));
    prometheus.scrape(&[(BROKER, None)]);
    assert!(prometheus.fires("TecKeyBrokerDown", now()));
}

/// Names of Services with a metrics port.
fn scraped(services: impl IntoIterator<Item = Service>) -> Vec<String> {
    let has_port = |service: &Service| {
        let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
        ports.into_iter().any(|port| port.name.as_deref() == Some("metrics"))
            && service.labels().get("app.kubernetes.io/part-of").map(String::as_str)
                == Some("trusted-execution-clusters")
    };
    services.into_iter().filter(has_port).map(|service| service.name_any()).collect()
}

#[tokio::test]
async fn every_job_that_an_alert_names_is_a_service_that_is_scraped() {
    let objects = tec_k8s::render::operator(&Installation::default());
    let mut found = scraped(objects.into_iter().filter_map(|object| match object {
        Object::Service(service) => Some(*service),
        _ => None,
    }));
    for kind in [BrokerKind::Trustee, BrokerKind::Builtin] {
        let mut cluster = plain_cluster("cluster");
        cluster.spec.key_broker = Some(kind);
        let mut bench = Bench::at_work_on(&cluster).await.unwrap();
        let services = bench.objects::<Service>().unwrap();
        eventually("three programs are scraped", async || {
            let here = scraped(services.list(&ListParams::default()).await?);
            let all = here.len() == 3;
            found.extend(here);
            Ok(all)
        })
        .await
        .unwrap();
        bench.stop().await.unwrap();
    }
    for alert in Alert::ALL {
        for condition in alert.any_of {
            if let Condition::Down(jobs) = condition {
                for job in *jobs {
                    assert!(found.iter().any(|name| name == job), "{job} of {found:?}");
                }
            }
        }
    }
}
