use serde_json::Value;
use serde_json::json;
use tec_core::ak::PublicKey;
use tec_core::attest::PinnedPcrs;
use tec_core::attest::Tee;
use tec_core::id::MachineId;
use tec_core::pcr::PcrIndex;

use super::*;

const MACHINE: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
const OTHER: &str = "00000000-7425-40de-944b-e07fc1f90ae7";

fn ak(fill: u8) -> PublicKey {
    let mut der = hex::decode("3059301306072a8648ce3d020106082a8648ce3d03010703420004").unwrap();
    der.extend([fill; 64]);
    PublicKey::from_der(&der).unwrap()
}

fn intent() -> PolicyIntent {
    let pinned = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK]
        .into_iter()
        .collect();
    PolicyIntent::new(PinnedPcrs::new(pinned).unwrap(), [Tee::Tpm]).unwrap()
}

fn machine() -> MachineId {
    MACHINE.parse().unwrap()
}

/// Runs the policy as a KBS does: until it wants nothing more.
fn attest(text: &str, input: &Value, store: &Value) -> Result<Verdict, PolicyError> {
    let policy = AttestationPolicy::parse(text)?;
    let mut known = std::collections::BTreeMap::new();
    for _ in 0..8 {
        match policy.evaluate(input, &known)? {
            Evaluation::Done(verdict) => return Ok(verdict),
            Evaluation::Wants(names) => {
                for name in names {
                    let value = store.get(&name).cloned().unwrap_or(Value::Null);
                    known.insert(name, value);
                }
            }
        }
    }
    panic!("the policy asks for ever more");
}

fn store() -> Value {
    json!({
        ak_reference_name(&ak(1)): ak_reference_value(&ak(1), &machine()),
        "tpm_pcr4": ["aa", "bb"],
        "tpm_pcr14": ["cc"],
    })
}

fn evidence() -> Value {
    json!({"tpm": {"pcr04": "bb", "pcr14": "cc", "ak_public": ak(1).to_base64()}})
}

fn claims_of(verdict: &Verdict) -> Value {
    let mut cpu = verdict.extensions.clone();
    cpu.insert("ear.status".into(), verdict.status().as_str().into());
    json!({"submods": {"cpu0": cpu}})
}

fn allows(claims: &Value, plugin: &str, path: &[&str]) -> bool {
    let policy = ResourcePolicy::parse(&intent().render_resource()).unwrap();
    let request = json!({"plugin": plugin, "resource-path": path, "query": {}});
    policy.allows(claims, &request).unwrap()
}

#[test]
fn the_machine_gets_its_own_path_and_no_other() {
    let verdict = attest(&intent().render_attestation(), &evidence(), &store()).unwrap();
    assert_eq!(verdict.status(), TrustTier::Affirming);
    assert_eq!(verdict.claims["executables"], 3);
    assert_eq!(verdict.extensions[MACHINE_CLAIM], MACHINE);
    let claims = claims_of(&verdict);
    assert!(allows(&claims, "resource", &["default", MACHINE, "root"]));
    assert!(!allows(&claims, "resource", &["default", OTHER, "root"]));
    assert!(!allows(&claims, "resource", &["other", MACHINE, "root"]));
    assert!(!allows(&claims, "resource", &["default", MACHINE, "home"]));
    assert!(!allows(&claims, "resource", &["default", MACHINE]));
    assert!(!allows(&claims, "pkcs11", &["default", MACHINE, "root"]));
}

#[test]
fn whatever_is_missing_or_wrong_is_denied_without_an_error() {
    let name = ak_reference_name(&ak(1));
    let tampered = |pointer: &str, value: Value| {
        let mut evidence = evidence();
        *evidence.pointer_mut(pointer).unwrap() = value;
        (evidence, store())
    };
    let stored = |name: &str, value: Value| {
        let mut store = store();
        store[name] = value;
        (evidence(), store)
    };
    let cases: Vec<(&str, (Value, Value))> = vec![
        ("register differs", tampered("/tpm/pcr04", json!("dd"))),
        (
            "register of another list",
            tampered("/tpm/pcr14", json!("aa")),
        ),
        ("register is no text", tampered("/tpm/pcr14", json!(null))),
        (
            "unknown key",
            tampered("/tpm/ak_public", json!(ak(2).to_base64())),
        ),
        ("key is no text", tampered("/tpm/ak_public", json!(7))),
        ("key is short", tampered("/tpm/ak_public", json!("AAAA"))),
        ("key revoked with null", stored(&name, json!(null))),
        ("key revoked with an object", stored(&name, json!({}))),
        ("key revoked with a list", stored(&name, json!([]))),
        (
            "value of a colliding key",
            stored(&name, ak_reference_value(&ak(2), &machine())),
        ),
        (
            "machine is no text",
            stored(&name, json!({"ak": ak(1).to_base64(), "machine": 1})),
        ),
        ("no list of values", stored("tpm_pcr4", json!(null))),
        ("values are text", stored("tpm_pcr4", json!("bb"))),
        ("empty list", stored("tpm_pcr4", json!([]))),
        (
            "other sort of evidence",
            (json!({"sample": evidence()["tpm"]}), store()),
        ),
        (
            "Azure evidence, not asked for",
            (json!({"az-snp-vtpm": {"tpm": evidence()["tpm"]}}), store()),
        ),
        ("nothing", (json!({}), store())),
    ];
    for (case, (evidence, store)) in cases {
        let verdict = attest(&intent().render_attestation(), &evidence, &store)
            .unwrap_or_else(|error| panic!("{case}: {error}"));
        let claims = claims_of(&verdict);
        assert!(verdict.status() > TrustTier::Affirming, "{case}");
        assert!(
            !allows(&claims, "resource", &["default", MACHINE, "root"]),
            "{case}"
        );
    }
}

#[test]
fn claims_that_are_missing_in_the_token_deny() {
    let path = ["default", MACHINE, "root"];
    let cpu = json!({"ear.status": "affirming", "tec.machine": MACHINE});
    assert!(allows(
        &json!({"submods": {"cpu0": cpu}}),
        "resource",
        &path
    ));
    for claims in [
        json!({}),
        json!({"submods": {}}),
        json!({"submods": {"gpu0": cpu}}),
        json!({"submods": {"cpu0": {"ear.status": "affirming"}}}),
        json!({"submods": {"cpu0": {"tec.machine": MACHINE}}}),
        json!({"submods": {"cpu0": {"ear.status": "warning", "tec.machine": MACHINE}}}),
        json!({"submods": {"cpu0": {"ear.status": "affirming", "tec.machine": null}}}),
        json!({"submods": {"cpu0": {"ear.status": "affirming", "tec.machine": [MACHINE]}}}),
    ] {
        assert!(!allows(&claims, "resource", &path), "{claims}");
    }
}

#[test]
fn azure_evidence_counts_when_asked_for_and_bound_by_its_key() {
    let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::AzSnpVtpm, Tee::Tpm]).unwrap();
    let text = intent.render_attestation();
    let azure = json!({"az-snp-vtpm": {"tpm": evidence()["tpm"]}});
    let verdict = attest(&text, &azure, &store()).unwrap();
    assert_eq!(verdict.status(), TrustTier::Affirming);
    let mut no_key = azure;
    no_key["az-snp-vtpm"]["tpm"]["ak_public"].take();
    let verdict = attest(&text, &no_key, &store()).unwrap();
    assert!(verdict.status() > TrustTier::Affirming);
}

#[test]
fn intents_without_reliable_evidence_are_refused() {
    let pinned = PinnedPcrs::boot_manager();
    assert!(matches!(
        PolicyIntent::new(pinned, []),
        Err(PolicyIntentError::NoTee)
    ));
    assert!(matches!(
        PolicyIntent::new(pinned, [Tee::Tpm, Tee::Sample]),
        Err(PolicyIntentError::Tee { tee: Tee::Sample })
    ));
}

#[test]
fn texts_are_the_same_every_time() {
    assert_eq!(intent().render_attestation(), intent().render_attestation());
    assert!(intent().render_attestation().is_ascii());
}

#[test]
fn policies_with_wrong_results_give_errors() {
    let run = |body: &str| {
        attest(
            &format!("package policy\nimport rego.v1\n{body}"),
            &json!({}),
            &json!({}),
        )
    };
    assert!(matches!(
        run("trust_claims := {\"wizardry\": 1}"),
        Err(PolicyError::Result { .. })
    ));
    assert!(matches!(
        run("trust_claims := {\"hardware\": 1000}"),
        Err(PolicyError::Result { .. })
    ));
    assert!(matches!(
        run("trust_claims := 1"),
        Err(PolicyError::Result { .. })
    ));
    assert!(matches!(
        run("extensions := [{\"name\": \"ear.status\", \"key\": 1, \"value\": \"affirming\"}]"),
        Err(PolicyError::Result { .. })
    ));
    let silent = run("x := 1").unwrap();
    assert_eq!(silent.status(), TrustTier::None);
    assert_eq!(silent.claims.len(), 8);
    assert!(matches!(
        AttestationPolicy::parse("package other\n"),
        Err(PolicyError::Package { .. })
    ));
    assert!(matches!(
        AttestationPolicy::parse("package policy\nallow if {"),
        Err(PolicyError::Parse { .. })
    ));
}

#[test]
fn a_policy_that_never_ends_wanting_is_cut_off() {
    let text = "package policy\nimport rego.v1\ntrust_claims := {\"hardware\": x}\nx := \
        count([v | some i in numbers.range(1, 1000); v := query_reference_value(sprintf(\"%d\", [i]))])";
    let policy = AttestationPolicy::parse(text).unwrap();
    assert!(matches!(
        policy.evaluate(&json!({}), &std::collections::BTreeMap::new()),
        Err(PolicyError::Evaluate { .. })
    ));
}

#[test]
fn tiers_are_those_of_the_contract() {
    for (value, tier) in [
        (0, TrustTier::None),
        (2, TrustTier::Affirming),
        (31, TrustTier::Affirming),
        (32, TrustTier::Warning),
        (33, TrustTier::Warning),
        (95, TrustTier::Warning),
        (96, TrustTier::Contraindicated),
        (-33, TrustTier::Warning),
        (-97, TrustTier::Contraindicated),
    ] {
        assert_eq!(TrustTier::of(value), tier, "{value}");
    }
}

#[test]
fn deeply_nested_policies_are_refused_without_parsing() {
    let text = format!("package policy\nx := {}", "[".repeat(70));
    assert!(matches!(
        AttestationPolicy::parse(&text),
        Err(PolicyError::Parse { .. })
    ));
}
