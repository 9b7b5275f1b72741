//! Evidence named in the cluster object, as the operator passes it to key brokers.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use clap::Parser;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::code::Code;
use tec_core::port::{AttestationEvidence, Attester, PortError};
use tec_core::testing::{ManualClock, sample};
use tec_core::time::Timestamp;
use tec_e2e::kube::{Bench, eventually};
use tec_k8s::api::{AttestationRecord, TrustedExecutionCluster};
use tec_k8s::client::KubeRegistry;
use tec_support::SystemClock;
use tec_support::evidence::{EvidenceArgs, EvidenceSort, guests};
use tec_tpm::hcl::HclReport;
use tec_tpm::snp::{Policy, Report};
use tec_tpm::testing::SoftAzure;
use tec_tpm::verifier::{AzSnpEvidence, AzSnpVtpmVerifier};
use tec_trustee::client::RcarError;

use crate::builtin::{KERNEL, World, boot, builtin};
use crate::guard::bind;

/// Guests with either of two ID keys, on sufficiently recent hosts, in addition to plain TPMs.
fn azure() -> Value {
    json!({
        "kinds": ["Tpm", "AzSnpVtpm"],
        "snp": {
            "idKeys": ["1d".repeat(48), "2d".repeat(48)],
            "measurements": ["3d".repeat(48)],
            "minimumTcb": {"bootloader": 4, "tee": 0, "snp": 24, "microcode": 219},
        },
    })
}

/// The Deployment's arguments about evidence.
async fn arguments(deployments: &Api<Deployment>, name: &str) -> anyhow::Result<Vec<String>> {
    let found = deployments.get_opt(name).await?.and_then(|found| found.spec);
    let pod = found.and_then(|spec| spec.template.spec).unwrap_or_default();
    let all = pod.containers.into_iter().flat_map(|container| container.args.unwrap_or_default());
    let is_evidence = |line: &String| line.starts_with("--evidence") || line.starts_with("--snp-");
    Ok(all.filter(is_evidence).collect())
}

/// The evidence flags of a key broker.
#[derive(Parser)]
struct Broker {
    #[command(flatten)]
    evidence: EvidenceArgs,
}

/// Which guests a key broker with these arguments accepts.
fn policy(arguments: &[String]) -> Policy {
    let flags = ["key-broker"].into_iter().chain(arguments.iter().map(String::as_str));
    let flags = Broker::try_parse_from(flags).unwrap().evidence;
    assert_eq!(flags.evidence, [EvidenceSort::Tpm, EvidenceSort::AzSnpVtpm]);
    guests(&flags.snp_id_keys, &flags.snp_measurements, flags.snp_minimum_tcb).unwrap()
}

/// Appraises evidence recorded from an Azure virtual machine, for a nonce that no running broker would
/// choose.
fn judge(policy: Policy, recorded: &Value) -> Result<VerifiedEvidence, VerifyError> {
    // 2026-01-01, when the certificates of the recording are valid.
    let clock = ManualClock::new(Timestamp::from_unix_seconds(1_767_225_600));
    AzSnpVtpmVerifier::new(Arc::new(clock), policy).verify_evidence(recorded, b"challenge", None)
}

/// The evidence that tec-tpm verifies, in its JSON form.
fn recorded() -> Value {
    let fixtures = std::env::var_os("TEC_FIXTURES").unwrap();
    let path = Path::new(&fixtures).join("snp/trustee/evidence-v1.json");
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Accepts the guest and the host of the recording.
fn accepting(recorded: &Value) -> Value {
    let hcl = AzSnpEvidence::from_value(recorded).unwrap().hcl_report;
    let report = Report::parse(HclReport::parse(&hcl).unwrap().hardware_report()).unwrap();
    let tcb = report.reported_tcb;
    json!({
        "kinds": ["Tpm", "AzSnpVtpm"],
        "snp": {
            "idKeys": [hex::encode(report.id_key_digest)],
            "measurements": [hex::encode(report.measurement)],
            "minimumTcb": {
                "bootloader": tcb.bootloader,
                "tee": tcb.tee,
                "snp": tcb.snp,
                "microcode": tcb.microcode,
            },
        },
    })
}

#[tokio::test]
#[ignore = "needs snp-reports: set TEC_FIXTURES"]
async fn recorded_evidence_of_azure_passes_with_the_arguments_that_name_it_and_no_others() {
    let recorded = recorded();
    let accepting = accepting(&recorded);
    let mut bench = Bench::at_work_on(&builtin()).await.unwrap();
    let deployments = bench.objects::<Deployment>().unwrap();
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let mut last = Vec::new();
    let mut judged = async |evidence: &Value| {
        let patch = Patch::Merge(json!({"spec": {"evidence": evidence}}));
        clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
        let mut now = Vec::new();
        eventually("the key broker has other arguments", async || {
            now = arguments(&deployments, "key-broker").await?;
            Ok(now != last)
        })
        .await
        .unwrap();
        last.clone_from(&now);
        judge(policy(&now), &recorded)
    };
    let verified = judged(&accepting).await.unwrap();
    assert_eq!(verified.report_data, hex::encode("challenge"));
    for (place, value, part) in [
        ("/snp/idKeys/0", json!("1d".repeat(48)), "ID key"),
        ("/snp/measurements/0", json!("3d".repeat(48)), "measurement"),
        ("/snp/minimumTcb/microcode", json!(255), "microcode"),
    ] {
        let mut other = accepting.clone();
        *other.pointer_mut(place).unwrap() = value;
        let refused = judged(&other).await.unwrap_err();
        let VerifyError::Hardware { findings, .. } = &refused else { panic!("{refused:?}") };
        assert!(findings.contains(part), "{findings}");
    }
    bench.stop().await.unwrap();
}

#[tokio::test]
async fn key_brokers_follow_the_evidence_of_the_cluster_object_and_its_end() {
    let mut bench = Bench::at_work_on(&builtin()).await.unwrap();
    let deployments = bench.objects::<Deployment>().unwrap();
    let clusters = bench.objects::<TrustedExecutionCluster>().unwrap();
    let set = async |evidence: Value| {
        let patch = Patch::Merge(json!({"spec": {"evidence": evidence}}));
        clusters.patch("cluster", &PatchParams::default(), &patch).await.unwrap();
    };
    let exists = async || Ok(deployments.get_opt("key-broker").await?.is_some());
    eventually("the key broker is there", exists).await.unwrap();
    assert!(arguments(&deployments, "key-broker").await.unwrap().is_empty());
    let digest = |byte: &str| byte.repeat(48);
    let expected = [
        "--evidence=tpm".to_owned(),
        "--evidence=az-snp-vtpm".to_owned(),
        format!("--snp-id-key={}", digest("1d")),
        format!("--snp-id-key={}", digest("2d")),
        format!("--snp-measurement={}", digest("3d")),
        "--snp-minimum-tcb=4,0,24,219".to_owned(),
    ];
    set(azure()).await;
    let has_all = async || Ok(arguments(&deployments, "key-broker").await? == expected);
    eventually("the key broker has the arguments", has_all).await.unwrap();
    set(Value::Null).await;
    let has_none = async || Ok(arguments(&deployments, "key-broker").await?.is_empty());
    eventually("the key broker takes quotes of TPMs alone", has_none).await.unwrap();
    bench.stop().await.unwrap();
}

/// This machine's processor is not one of AMD's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_broker_looks_at_reports_of_azure_only_where_the_cluster_object_names_them() {
    let machine = SoftAzure::new(1);
    let mut named = builtin();
    named.spec.evidence = Some(serde_json::from_value(azure()).unwrap());
    // Only the verifier of Azure evidence returns a code.
    for (cluster, why) in [(builtin(), None), (named, Some(Code::QuoteInvalid))] {
        boot(machine.tpm(), KERNEL);
        let mut world = World::of(&cluster, machine.tpm(), 1).await;
        let key = world.disk_key().await;
        let refused = world.try_fetch(1, &machine).await.unwrap_err();
        let RcarError::Denied { code, .. } = &refused else { panic!("{refused:?}") };
        assert_eq!(*code, why, "{refused:?}");
        let released = world.try_fetch(1, machine.tpm()).await.unwrap();
        assert!(released.ct_eq(&key), "quotes of plain TPMs are taken as before");
        world.bench.stop().await.unwrap();
    }
}

/// Presents the recording for every request.
#[derive(Debug)]
struct Replay(Value);

#[async_trait]
impl Attester for Replay {
    fn tee(&self) -> Tee {
        Tee::AzSnpVtpm
    }

    async fn attest(&self, _: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        Ok(AttestationEvidence::new(self.tee(), self.0.clone()))
    }
}

/// A running broker can accept no recording, because the quote must cover its own nonce; nor can it accept
/// evidence made in a test, because the report must chain to AMD's roots, and there is no flag for others. So
/// what it would accept is tested above, with its arguments and the recording's nonce.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs snp-reports: set TEC_FIXTURES"]
async fn a_recording_of_a_guest_that_is_accepted_is_refused_by_a_running_key_broker_as_a_replay() {
    let recorded = recorded();
    let mut named = builtin();
    named.spec.evidence = Some(serde_json::from_value(accepting(&recorded)).unwrap());
    let machine = SoftAzure::new(1);
    boot(machine.tpm(), KERNEL);
    let mut world = World::of(&named, machine.tpm(), 1).await;
    let hcl = AzSnpEvidence::from_value(&recorded).unwrap().hcl_report;
    let key = HclReport::parse(&hcl).unwrap().runtime_data().unwrap().ak;
    let (client, clock) = (world.bench.admin().unwrap(), Arc::new(SystemClock));
    let registry = KubeRegistry::new(client, &world.bench.namespace, clock);
    bind(&registry, sample::machine_id(2), key).await;
    let replay = Replay(recorded);
    // Unknown for as long as operator and test write the same machine.
    eventually("the key is known, and its quote refused", async || {
        Ok(world.fetch_key_of(2, &replay).await.unwrap_err() == Code::QuoteInvalid)
    })
    .await
    .unwrap();
    let records = world.bench.objects::<AttestationRecord>().unwrap();
    let mut written = String::new();
    let told = eventually("the attempt is written", async || {
        let all = records.list(&ListParams::default()).await?;
        written = serde_json::to_string(&all.items)?;
        Ok(written.contains("another nonce"))
    });
    let told = told.await;
    assert!(told.is_ok(), "{written}");
    world.bench.stop().await.unwrap();
}
