//! `tec attest` against an embedded key broker in this process.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use tec_core::attest::{PinnedPcrs, Tee};
use tec_core::port::{EntropyRng, KeyBroker as _, PolicySlot};
use tec_core::testing::sample;
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::verifier::TpmVerifier;
use tec_trustee::kbs::{Kbs, KbsConfig, MemoryBackend};
use tec_trustee::policy::PolicyIntent;
use tec_trustee::token::TokenSigner;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::world::{json, refused, str, text, write};

/// A broker on loopback, running until it is dropped.
struct Broker {
    url: String,
    backend: Arc<MemoryBackend>,
    runtime: Runtime,
}

impl Broker {
    fn start() -> Self {
        let runtime = Runtime::new().unwrap();
        let backend = Arc::new(MemoryBackend::new());
        let signer = TokenSigner::random(&mut EntropyRng::new(&SystemEntropy));
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let verifier = Arc::new(TpmVerifier::new());
        let config = KbsConfig::new(backend.clone(), verifier, signer, clock, entropy);
        let router = Kbs::new(config.dangerous_accept_sample()).router();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        runtime.spawn(async move { axum::serve(listener, router).await.unwrap() });
        let broker = Self { url, backend, runtime };
        let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm]).unwrap();
        broker.policy(PolicySlot::Attestation, &intent.render_attestation());
        broker.policy(PolicySlot::Resource, &intent.render_resource());
        let (path, secret) = (sample::secret_path(1), sample::secret(1));
        let secret = broker.backend.put(&path, &secret);
        broker.runtime.block_on(secret).unwrap();
        broker
    }

    fn policy(&self, slot: PolicySlot, text: &str) {
        self.runtime.block_on(self.backend.set_policy(slot, text)).unwrap();
    }

    #[cfg(feature = "soft")]
    fn value(&self, name: &str, value: &serde_json::Value) {
        let set = self.backend.set_reference_value(name, value);
        self.runtime.block_on(set).unwrap();
    }
}

#[test]
fn sample_evidence_gets_a_token_that_affirms_nothing_and_no_key() {
    let broker = Broker::start();
    let attest = ["attest", "--attester", "sample", "--url", &broker.url];
    let claims = json(&attest);
    let cpu = &claims["submods"]["cpu0"];
    assert_ne!(cpu["ear.status"], "affirming");
    assert_eq!(cpu["ear.veraison.annotated-evidence"]["sample"]["svn"], "1");
    assert!(text(&attest).starts_with("a token was issued\ncpu0: "));
    let path = sample::secret_path(1).to_string();
    refused(&[&attest[..], &["--path", &path]].concat(), 1, "TEC-");
}

#[test]
fn a_resource_goes_into_a_private_file_and_nowhere_else() {
    let broker = Broker::start();
    let all = "package policy\nimport rego.v1\nallow if true";
    broker.policy(PolicySlot::Resource, all);
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("key");
    let path = format!("kbs:///{}", sample::secret_path(1));
    let attest = ["attest", "--attester", "sample", "--url", &broker.url, "--path", &path];
    let report = json(&[&attest[..], &["--write", str(&file)]].concat());
    let written = std::fs::read(&file).unwrap();
    assert_eq!(written, sample::secret(1).expose("compare"));
    assert_eq!(report, json!({"path": sample::secret_path(1), "bytes": written.len()}));
    let mode = std::fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn brokers_are_tried_in_order() {
    let broker = Broker::start();
    // Port 1 is reserved (tcpmux) and unused.
    let nobody = "http://127.0.0.1:1";
    let attest = ["attest", "--attester", "sample", "--url", nobody, "--url", &broker.url];
    assert!(json(&attest)["submods"].is_object());
    refused(&["attest", "--attester", "sample", "--url", nobody], 1, "TEC-A401");
    refused(&["attest", "--attester", "sample", "--url", "kbs:8080"], 2, "http(s)://host");
}

/// A stand-in for node-agent.
fn script(dir: &Path, body: &str) -> String {
    let file = write(dir, "node-agent", format!("#!/bin/sh\n{body}\n"));
    let executable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&file, executable).unwrap();
    str(&file).to_owned()
}

#[test]
fn evidence_of_the_tpm_is_left_to_the_node_agent() {
    let dir = TempDir::new().unwrap();
    let said = dir.path().join("said");
    let body =
        format!("echo \"$@\" > {}; echo '{{\"claims\":{{\"submods\":{{}}}}}}'", said.display());
    let agent = script(dir.path(), &body);
    let attest = ["attest", "--url", "http://kbs:8080", "--node-agent", &agent];
    assert_eq!(json(&attest), json!({"submods": {}}));
    assert_eq!(
        std::fs::read_to_string(&said).unwrap().trim(),
        "attest --url http://kbs:8080 --rounds 1 --deadline 300 --timeout 60"
    );
    let agent = script(dir.path(), "echo 'TEC-N500 no TPM' >&2; exit 1");
    refused(&["attest", "--url", "http://kbs:8080", "--node-agent", &agent], 1, "TEC-N500");
    refused(&["attest", "--url", "http://kbs:8080", "--node-agent", "/no/such"], 1, "--node-agent");
}

#[cfg(feature = "soft")]
#[test]
fn a_tpm_in_software_gets_the_key_that_its_own_key_is_registered_for() {
    use tec_trustee::policy::{ak_reference_name, ak_reference_value};

    let broker = Broker::start();
    let attest = ["attest", "--attester", "soft", "--seed", "7", "--url", &broker.url];
    let claims = json(&attest);
    let tpm = &claims["submods"]["cpu0"]["ear.veraison.annotated-evidence"]["tpm"];
    let path = sample::secret_path(1).to_string();
    refused(&[&attest[..], &["--path", &path]].concat(), 1, "TEC-");

    let tpm_of_seed = tec_tpm::testing::SoftTpm::rsa(7);
    let ak = tpm_of_seed.public_key();
    assert_eq!(tpm["ak_public"], ak.to_base64());
    broker.value(&ak_reference_name(&ak), &ak_reference_value(&ak, &sample::machine_id(1)));
    broker.value("tpm_pcr4", &json!([tpm["pcr04"]]));
    let report = json(&[&attest[..], &["--path", &path]].concat());
    assert_eq!(report["path"], path);
}

#[cfg(not(feature = "soft"))]
#[test]
fn a_tpm_in_software_is_not_built_in() {
    let attest = ["attest", "--attester", "soft", "--url", "http://kbs:8080"];
    refused(&attest, 2, "invalid value 'soft'");
}
