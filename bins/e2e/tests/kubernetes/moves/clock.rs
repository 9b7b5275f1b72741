//! Clocks that are days apart, and expired certificates.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use tec_core::migrate::{Goal, MigrateOutcome, Quiet, Role, migrate};
use tec_core::port::Clock as _;
use tec_core::testing::ManualClock;
use tec_e2e::anchor::Anchor;
use tec_e2e::process::Transcript;
use tec_e2e::settings::Settings;
use tec_support::{SystemClock, SystemEntropy};

use super::pair::Pair;

const DAY: i64 = 86_400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clocks_that_are_days_apart_decide_nothing() {
    let pair = Pair::with(3).await;
    let off = |days: i64| {
        let at = SystemClock.now().plus_seconds(days * DAY);
        Arc::new(ManualClock::new(at))
    };
    let (source, target, admin) = (off(30), off(-30), off(-3000));
    let source = pair.source.registry_at(source);
    let target = pair.target.registry_at(target);
    let goals = [Goal::Copy, Goal::Verify, Goal::Cutover, Goal::Rollback, Goal::Cutover];
    for goal in goals {
        let clocks = (&*admin as _, &SystemEntropy as _);
        let ran = migrate(goal, (&source, &target), clocks, &Quiet).await;
        assert_eq!(ran.outcome, MigrateOutcome::Reached, "{goal:?}: {:?}", ran.error);
        pair.holds(&format!("{goal:?}")).await;
        // The clock of the moving side jumps, too.
        admin.advance_seconds(-DAY);
    }
    assert_eq!(pair.roles().await, [Role::ServeOnly, Role::Active]);
}

/// `tec serve` with an expired certificate; also stands in for an API server.
fn ended_server(directory: &std::path::Path) -> Anchor {
    let settings = Settings::for_tests(&directory.join("unused.html")).unwrap();
    let logs = Arc::new(Transcript::new(directory.join("server")).unwrap());
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2020, 2, 1);
    let key = KeyPair::generate().unwrap();
    let chain = params.self_signed(&key).unwrap().pem();
    let at = |name: &str| directory.join(name).display().to_string();
    std::fs::write(at("ended.pem"), &chain).unwrap();
    std::fs::write(at("ended.key"), key.serialize_pem()).unwrap();
    let flags = [
        format!("--tls-cert={}", at("ended.pem")),
        format!("--tls-key={}", at("ended.key")),
        format!("--tls-ca={}", at("ended.pem")),
    ];
    let flags = flags.each_ref().map(String::as_str);
    Anchor::start(&settings, &directory.join("state"), &logs, &flags).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_whose_certificate_ended_gets_nothing() {
    let pair = Pair::with(1).await;
    let directory = tempfile::tempdir().unwrap();
    let server = ended_server(directory.path());
    let kubeconfig = directory.path().join("kubeconfig");
    let [url, ..] = server.urls().unwrap();
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": url, "certificate-authority": directory.path().join("ended.pem"),
        }}],
        "users": [{"name": "test", "user": {"token": "none"}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    });
    std::fs::write(&kubeconfig, config.to_string()).unwrap();
    for verb in ["plan", "apply", "cutover"] {
        let mut command = pair.command(verb, &[]);
        let words: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let own = words.iter().filter(|word| !word.to_string_lossy().starts_with("--to-"));
        let mut other = std::process::Command::new(command.get_program());
        other.args(own).arg("--to-namespace=some");
        other.arg("--to-kubeconfig").arg(&kubeconfig);
        command = other;
        let said = pair.run(command).unwrap_err();
        assert!(said.contains("TEC-C503"), "{said}");
        assert!(said.to_lowercase().contains("expired"), "{said}");
    }
    let record = pair.source.authority().await;
    assert!(record.is_alone(), "nothing was given up: {record:?}");
    let check = server.foretells(&["bootstrap", "check"]);
    assert!(check.is_err(), "no node would accept it: {check:?}");
}
