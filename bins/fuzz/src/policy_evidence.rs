//! The rendered policies over arbitrary evidence, claims and paths.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use serde_json::{Value, json};
use tec_core::id::MachineId;
use tec_trustee::policy::{
    AttestationPolicy, Evaluation, MACHINE_CLAIM, ResourcePolicy, TrustTier, Verdict,
    ak_reference_name, ak_reference_value,
};

use crate::Seed;
use crate::policy_text::intent;
use crate::sample::{MACHINE, OTHER_MACHINE, p256_tpm, rsa_tpm};

/// Rounds of an evaluation that requests reference values.
const ROUNDS: usize = 8;
/// The approved values of the two pinned registers.
const APPROVED: [&str; 2] = ["aa", "bb"];

/// Rego decides like a few lines of Rust: affirming exactly for a known key with approved registers, and a
/// disk key exactly for the machine that attested.
pub(crate) fn policy_evidence(data: &[u8]) {
    let Ok(input) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    if input.get("claims").is_some() {
        check_resource(&input);
    } else {
        check_attestation(&input);
    }
}

fn policies() -> &'static (AttestationPolicy, ResourcePolicy) {
    static POLICIES: OnceLock<(AttestationPolicy, ResourcePolicy)> = OnceLock::new();
    POLICIES.get_or_init(|| {
        let attestation = AttestationPolicy::parse(&intent().render_attestation());
        let resource = ResourcePolicy::parse(&intent().render_resource());
        let policies = (attestation.expect("it parses"), resource.expect("it parses"));
        assert!(policies.0.is_compiled() && policies.1.is_compiled());
        policies
    })
}

/// One machine is bound to the ECC key; the RSA key was revoked.
fn reference_value(name: &str) -> Value {
    let machine: MachineId = MACHINE.parse().expect("a machine id");
    let bound = p256_tpm().public_key();
    if name == ak_reference_name(&bound) {
        ak_reference_value(&bound, &machine)
    } else if matches!(name, "tpm_pcr4" | "tpm_pcr14") {
        json!(APPROVED)
    } else {
        Value::Null
    }
}

fn evaluate(input: &Value) -> Verdict {
    let mut known = BTreeMap::new();
    for _ in 0..ROUNDS {
        match policies().0.evaluate(input, &known) {
            Ok(Evaluation::Done(verdict)) => return verdict,
            Ok(Evaluation::Wants(names)) => {
                known.extend(names.into_iter().map(|name| {
                    let value = reference_value(&name);
                    (name, value)
                }));
            }
            Err(error) => panic!("the rendered policy fails: {error}"),
        }
    }
    panic!("the rendered policy asks for ever more");
}

fn check_attestation(input: &Value) {
    let verdict = evaluate(input);
    let text = |member: &str| input.get("tpm")?.get(member)?.as_str();
    let known = text("ak_public") == Some(p256_tpm().public_key().to_base64().as_str());
    let booted = ["pcr04", "pcr14"]
        .into_iter()
        .all(|pcr| text(pcr).is_some_and(|value| APPROVED.contains(&value)));
    let affirming = verdict.status() == TrustTier::Affirming;
    assert_eq!(affirming, known && booted, "{input}");
    let machine = verdict.extensions.get(MACHINE_CLAIM);
    assert_eq!(machine.and_then(Value::as_str), known.then_some(MACHINE), "{input}");
}

fn check_resource(input: &Value) {
    let part = |name: &str| input.get(name).cloned().unwrap_or_default();
    let (claims, path) = (part("claims"), part("path"));
    // A KBS always passes a list of strings.
    let texts = |list: &Vec<Value>| list.iter().all(Value::is_string);
    if !path.as_array().is_some_and(texts) {
        return;
    }
    let request = json!({"plugin": part("plugin"), "resource-path": path, "query": part("query")});
    let cpu = |claim: &str| claims.get("submods")?.get("cpu0")?.get(claim)?.as_str();
    let own = match path.as_array().map(Vec::as_slice) {
        Some([first, machine, last]) => {
            first == "default" && last == "root" && machine.as_str() == cpu(MACHINE_CLAIM)
        }
        _ => false,
    };
    let attested = cpu("ear.status") == Some("affirming") && cpu(MACHINE_CLAIM).is_some();
    let expected = part("plugin") == "resource" && own && attested;
    let allowed = policies().1.allows(&claims, &request);
    let allowed = allowed.unwrap_or_else(|error| panic!("the rendered policy fails: {error}"));
    assert_eq!(allowed, expected, "{input}");
}

pub(crate) fn seeds() -> Vec<Seed> {
    let evidence = |ak: String, pcr04: &str| {
        json!({
            "tpm": {"ak_public": ak, "pcr04": pcr04, "pcr14": "bb"},
            "report_data": "00", "init_data": null,
        })
    };
    let claims = |machine: &str, status: &str| {
        json!({
            "claims": {"submods": {"cpu0": {"ear.status": status, MACHINE_CLAIM: machine}}},
            "plugin": "resource", "path": ["default", MACHINE, "root"], "query": {"a": "b"},
        })
    };
    let known = p256_tpm().public_key().to_base64();
    [
        ("approved", evidence(known.clone(), "aa")),
        ("not_approved", evidence(known, "cc")),
        ("unknown_key", evidence(rsa_tpm().public_key().to_base64(), "aa")),
        ("azure", json!({"az-snp-vtpm": {"tpm": {"pcr04": "aa"}}})),
        ("own_path", claims(MACHINE, "affirming")),
        ("path_of_another", claims(OTHER_MACHINE, "affirming")),
        ("warning", claims(MACHINE, "warning")),
    ]
    .map(|(name, value)| Seed::new(name, value.to_string()))
    .into()
}
