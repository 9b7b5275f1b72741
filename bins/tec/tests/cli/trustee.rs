//! `tec trustee`: configuration, policies and signer of a Trustee.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tec_core::ak::PublicKey;
use tec_core::testing::sample;
use tec_trustee::policy::{ak_reference_name, ak_reference_value};
use tempfile::TempDir;

use crate::world::{json, refused, said, str, tec, text, write};

const PATCH: [&str; 13] = [
    "trustee",
    "patch",
    "--tls-cert",
    "/etc/tls/tls.crt",
    "--tls-key",
    "/etc/tls/tls.key",
    "--signer-key",
    "/k/signer.key",
    "--signer-cert",
    "/k/signer.crt",
    "--trusted-cert",
    "/k/ca.crt",
    "--admin-key=/k/admin.pub",
];

fn with<'a>(first: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [first, more].concat()
}

#[test]
fn a_dangerous_configuration_is_refused_patched_and_then_good() {
    let dir = TempDir::new().unwrap();
    let text_of = "[http_server]\ninsecure_http = true\nsockets = [\"0.0.0.0:8080\"]\n\
        [attestation_token]\ninsecure_header_jwk = true\n";
    let file = write(dir.path(), "kbs.toml", text_of);
    let lint = ["trustee", "lint", str(&file)];
    let output = tec(&with(&lint, &["--output", "json"]));
    assert_eq!(output.status.code(), Some(1));
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rules: Vec<_> = findings.as_array().unwrap().iter().map(|f| &f["rule"]).collect();
    assert!(rules.contains(&&json!("self-signed-tokens")), "{rules:?}");

    let changes = text(&with(&PATCH, &[str(&file), "--dry-run"]));
    assert!(changes.contains("- attestation_token.insecure_header_jwk: true"), "{changes}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text_of);
    text(&with(&PATCH, &[str(&file), "--write"]));
    assert_eq!(text(&lint).trim(), "nothing to object to");
    let again = text(&with(&PATCH, &[str(&file), "--write"]));
    assert_eq!(again.trim(), "no difference");
}

#[test]
fn an_empty_configuration_is_created_and_compared_key_by_key() {
    let dir = TempDir::new().unwrap();
    let made = write(dir.path(), "new.toml", text(&PATCH));
    assert_eq!(text(&["trustee", "lint", str(&made)]).trim(), "nothing to object to");
    let older = write(dir.path(), "old.toml", "[admin]\ntype = \"DenyAll\"\n");
    let diff = text(&["trustee", "diff", str(&older), str(&made)]);
    assert!(diff.contains("+ admin.authorization_mode"), "{diff}");
}

#[test]
fn plain_http_is_configured_on_explicit_demand_only() {
    let without: Vec<&str> = PATCH.iter().copied().filter(|arg| !arg.contains("tls")).collect();
    refused(&without, 2, "--tls-cert");
    let made = text(&with(&without, &["--dangerous-plain-http", "--socket", "127.0.0.1:8081"]));
    assert!(made.contains("insecure_http = true"), "{made}");
}

#[test]
fn a_signer_is_made_once_kept_and_verified_by_openssl() {
    let dir = TempDir::new().unwrap();
    let signer = ["trustee", "signer", "--directory", str(dir.path())];
    let planned = json(&with(&signer, &["--dry-run"]));
    assert_eq!(planned["signer"]["outcome"], "issued");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    let first = json(&signer);
    assert_eq!(
        (&first["ca"]["outcome"], &first["signer"]["outcome"]),
        (&json!("issued"), &json!("issued"))
    );
    let file = |name: &str| dir.path().join(name);
    let before = std::fs::read(file("signer.crt")).unwrap();
    let second = json(&signer);
    assert_eq!(
        (&second["ca"]["outcome"], &second["signer"]["outcome"]),
        (&json!("kept"), &json!("kept"))
    );
    assert_eq!(std::fs::read(file("signer.crt")).unwrap(), before);

    // The service verifies with an OpenSSL store.
    let verify = |ca: &Path, certificate: &Path| {
        let mut openssl = Command::new("openssl");
        openssl.args(["verify", "-x509_strict", "-CAfile", str(ca), str(certificate)]);
        openssl.output().expect("openssl runs").status.success()
    };
    assert!(verify(&file("ca.crt"), &file("signer.crt")));
    let other = TempDir::new().unwrap();
    json(&["trustee", "signer", "--directory", str(other.path())]);
    assert!(!verify(&other.path().join("ca.crt"), &file("signer.crt")));
}

#[test]
fn files_of_a_signer_that_were_cut_off_are_made_anew_and_a_lost_ca_key_is_told() {
    let dir = TempDir::new().unwrap();
    let signer = ["trustee", "signer", "--directory", str(dir.path())];
    json(&signer);
    // Interrupted between the key and the certificate of a renewal.
    let other = TempDir::new().unwrap();
    json(&["trustee", "signer", "--directory", str(other.path())]);
    std::fs::copy(other.path().join("signer.key"), dir.path().join("signer.key")).unwrap();
    let mended = json(&signer);
    assert_eq!(
        (&mended["ca"]["outcome"], &mended["signer"]["outcome"]),
        (&json!("kept"), &json!("issued"))
    );
    std::fs::remove_file(dir.path().join("ca.key")).unwrap();
    refused(&signer, 1, "is missing: restore it");
}

#[test]
fn policies_are_printed_and_lax_ones_found() {
    let attestation = text(&[
        "trustee",
        "policy",
        "attestation",
        "--pcrs",
        "4,14",
        "--platform",
        "az-snp-vtpm",
        "--snp-measurement",
        "--snp-minimum-tcb",
        "4,0,22,213",
        "--claim",
        "tec.site:-70010=north",
        "--claim",
        "tec.boot:-70011=pcr4",
    ]);
    for part in [
        "\"tpm_pcr14\"",
        "snp_measurement",
        "\"213\"",
        "\"value\": \"north\"",
        "\"value\": registers.pcr04",
    ] {
        assert!(attestation.contains(part), "{part} in {attestation}");
    }
    let policy = ["trustee", "policy", "resource"];
    refused(&with(&policy, &["--snp-measurement"]), 1, "SNP reports");
    let unbound = text(&policy).replace("cpu[\"tec.machine\"] == path[1]", "true");

    let dir = TempDir::new().unwrap();
    let file = write(dir.path(), "policy.rego", unbound);
    let output = tec(&["trustee", "lint", "--resource-policy", str(&file)]);
    assert_eq!(output.status.code(), Some(1));
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(told.contains("refused allow-any-machine"), "{told}");
}

/// Evidence, reference values, and the machine's path.
struct Recorded {
    dir: TempDir,
    path: String,
}

impl Recorded {
    fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let (ak, machine): (PublicKey, _) = (sample::public_key(1), sample::machine_id(1));
        let good = json!({"tpm": {"ak_public": ak.to_base64(), "pcr04": "aa", "pcr14": "cc"}});
        let bad = json!({"tpm": {"ak_public": ak.to_base64(), "pcr04": "bb"}});
        let token = json!({"submods": {"cpu0": {
            "ear.status": "affirming", "tec.machine": machine,
            "ear.veraison.annotated-evidence": bad,
        }}});
        let values = json!({
            ak_reference_name(&ak): ak_reference_value(&ak, &machine), "tpm_pcr4": ["aa"],
        });
        for (name, content) in
            [("good", &good), ("bad", &bad), ("token", &token), ("values", &values)]
        {
            write(dir.path(), &format!("{name}.json"), content.to_string());
        }
        let path = format!("kbs:///default/{machine}/root");
        Self { dir, path }
    }

    fn file(&self, name: &str) -> String {
        str(&self.dir.path().join(name)).to_owned()
    }

    /// Exit code and outcomes.
    fn test(&self, claims: &[&str], more: &[&str]) -> (Option<i32>, Value) {
        let values = self.file("values.json");
        let files: Vec<String> = claims.iter().map(|name| self.file(name)).collect();
        let mut arguments =
            vec!["trustee", "test-policy", "--path", &self.path, "--output", "json"];
        for file in &files {
            arguments.extend(["--claims", file]);
        }
        if !more.contains(&"--reference-values") {
            arguments.extend(["--reference-values", &values]);
        }
        arguments.extend(more);
        let output = tec(&arguments);
        let parsed = serde_json::from_slice(&output.stdout);
        (output.status.code(), parsed.map_err(|_| said(&output)).unwrap())
    }
}

#[test]
fn recorded_evidence_is_allowed_or_denied_as_a_trustee_would() {
    let recorded = Recorded::new();
    let (code, outcomes) = recorded.test(&["good.json", "bad.json"], &[]);
    assert_eq!(code, Some(1));
    assert_eq!(
        (&outcomes[0]["decision"], &outcomes[0]["status"]),
        (&json!("allowed"), &json!("affirming"))
    );
    assert_eq!(
        (&outcomes[1]["decision"], &outcomes[1]["trust"]["executables"]),
        (&json!("denied"), &json!(33))
    );
    assert_eq!(recorded.test(&["good.json"], &[]).0, Some(0));
    assert_eq!(recorded.test(&["bad.json"], &["--expect", "deny"]).0, Some(0));
    let (_, outcomes) = recorded.test(&["good.json"], &["--pcrs", "4,14", "--expect", "deny"]);
    assert_eq!(outcomes[0]["missing"], json!(["tpm_pcr14"]));
}

#[test]
fn tokens_are_taken_as_issued_unless_their_evidence_is_to_be_appraised() {
    let recorded = Recorded::new();
    assert_eq!(recorded.test(&["token.json"], &[]).0, Some(0));
    let (code, outcomes) = recorded.test(&["token.json"], &["--appraise"]);
    assert_eq!((code, &outcomes[0]["decision"]), (Some(1), &json!("denied")));
    let other = format!("default/{}/root", sample::machine_id(2));
    let file = recorded.file("token.json");
    let denied = tec(&["trustee", "test-policy", "--claims", &file, "--path", &other]);
    assert_eq!(denied.status.code(), Some(1));
    let table = String::from_utf8(denied.stdout).unwrap();
    assert!(table.contains("affirming") && table.contains("denied"), "{table}");
}

#[test]
fn policies_and_values_come_from_files_too_and_errors_deny() {
    let recorded = Recorded::new();
    let ak = sample::public_key(1);
    let records = json!([
        {"version": "0.1.0", "name": "tpm_pcr4", "value": ["bb"]},
        {"version": "0.1.0", "name": ak_reference_name(&ak),
         "value": ak_reference_value(&ak, &sample::machine_id(1))},
    ]);
    let values = write(recorded.dir.path(), "list.json", records.to_string());
    assert_eq!(recorded.test(&["bad.json"], &["--reference-values", str(&values)]).0, Some(0));
    let failing = "package policy\nimport rego.v1\nallow := 1 / input.zero";
    let failing = write(recorded.dir.path(), "failing.rego", failing);
    let (code, outcomes) = recorded.test(&["good.json"], &["--resource-policy", str(&failing)]);
    assert_eq!((code, &outcomes[0]["decision"]), (Some(1), &json!("denied")));
    let broken = write(recorded.dir.path(), "broken.rego", "package policy\nallow {");
    let good = recorded.file("good.json");
    let test = ["trustee", "test-policy", "--claims", &good, "--path", &recorded.path];
    refused(&with(&test, &["--attestation-policy", str(&broken)]), 1, "cannot parse the policy");
}
