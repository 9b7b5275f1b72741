use serde_json::{Value, json};
use tec_core::ak::PublicKey;
use tec_core::attest::{PinnedPcrs, Tee};
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
    let pinned = [PcrIndex::BOOT_MANAGER, PcrIndex::MOK].into_iter().collect();
    PolicyIntent::new(PinnedPcrs::new(pinned).unwrap(), [Tee::Tpm]).unwrap()
}

fn machine() -> MachineId {
    MACHINE.parse().unwrap()
}

fn attest(text: &str, input: &Value, store: &Value) -> Result<Verdict, PolicyError> {
    let policy = AttestationPolicy::parse(text)?;
    policy.decide(input, |name| store.get(name).cloned())
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
fn claims_that_are_missing_in_the_token_deny() {
    let path = ["default", MACHINE, "root"];
    let cpu = json!({"ear.status": "affirming", "tec.machine": MACHINE});
    assert!(allows(&json!({"submods": {"cpu0": cpu}}), "resource", &path));
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
fn intents_without_reliable_evidence_are_refused() {
    let pinned = PinnedPcrs::boot_manager();
    assert!(matches!(PolicyIntent::new(pinned, []), Err(PolicyIntentError::NoTee)));
    assert!(matches!(
        PolicyIntent::new(pinned, [Tee::Tpm, Tee::Sample]),
        Err(PolicyIntentError::Tee(Tee::Sample))
    ));
}

#[test]
fn what_tokens_cannot_carry_is_no_claim() {
    let text = |text: &str| ClaimValue::Text(text.to_owned());
    let add = |name: &str, key, value| intent().with_claim(name, key, value);
    assert!(add("site", -70_010, text("north \"1\" \\")).is_ok());
    for (name, key, value) in [
        (MACHINE_CLAIM, -70_010, text("x")),
        ("ear.status", -70_010, text("affirming")),
        ("a b", -70_010, text("x")),
        ("", -70_010, text("x")),
        ("site", -75_001, text("x")),
        ("site", -70_000, text("x")),
        ("site", -3_000_000_000, text("x")),
        ("site", 10, text("x")),
        ("site", -70_010, text("a\nb")),
        ("site", -70_010, text(&"x".repeat(129))),
    ] {
        let result = add(name, key, value);
        assert!(matches!(result, Err(PolicyIntentError::Claim { .. })), "{name} {key}");
    }
    let one = add("site", -70_010, text("x")).unwrap();
    assert!(one.clone().with_claim("site", -70_011, text("y")).is_err());
    assert!(one.with_claim("place", -70_010, text("y")).is_err());
}

#[test]
fn reports_are_demanded_only_of_evidence_that_has_one() {
    let demanded = SnpRequirement::default().with_approved_measurement();
    assert!(matches!(intent().with_snp(demanded), Err(PolicyIntentError::NoSnp)));
}

fn rules(findings: Result<Vec<crate::config::Finding>, PolicyError>) -> Vec<crate::config::Rule> {
    findings.unwrap().iter().map(|found| found.rule).collect()
}

#[test]
fn resource_policies_that_give_too_much_are_found() {
    use crate::config::Rule;
    let with = |body: &str| {
        let text = format!("package policy\nimport rego.v1\ndefault allow := false\n{body}");
        rules(lint_resource(&text))
    };
    assert_eq!(rules(lint_resource(&intent().render_resource())), []);
    let binds = "\tcpu[\"tec.machine\"] == path[1]\n";
    let unbound = intent().render_resource().replace(binds, "");
    assert_eq!(rules(lint_resource(&unbound)), [Rule::AllowAnyMachine]);
    assert_eq!(with("allow if true"), [Rule::AllowAll]);
    assert_eq!(with("allow if input.submods"), [Rule::AllowAll]);
    assert_eq!(with(""), [Rule::DenyOwn]);
    // What Trustee's built-in policy does.
    let built_in = "allow if not input.submods.cpu0[\"ear.veraison.annotated-evidence\"].sample";
    assert_eq!(with(built_in), [Rule::AllowAll]);
    let any_hardware = "allow if input.submods.cpu0[\"ear.veraison.annotated-evidence\"].tpm";
    assert_eq!(
        with(any_hardware),
        [Rule::AllowUnaffirmed, Rule::AllowAnyMachine, Rule::AllowDevices]
    );
    let any_status = "allow if input.submods.cpu0[\"ear.status\"]";
    assert!(with(any_status).contains(&Rule::AllowSample));
    let cpu_only = "allow if {\n\
        input.submods.cpu0[\"ear.status\"] == \"affirming\"\n\
        input.submods.cpu0[\"tec.machine\"] == data[\"resource-path\"][1]\n}";
    assert_eq!(with(cpu_only), [Rule::AllowDevices]);
    assert!(lint_resource("package other").is_err());
}

#[test]
fn attestation_policies_that_affirm_strangers_are_found() {
    use crate::config::Rule;
    let tees = [Tee::Tpm, Tee::AzSnpVtpm];
    let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), tees).unwrap();
    assert_eq!(rules(lint_attestation(&intent.render_attestation())), []);
    let all = "package policy\nimport rego.v1\ntrust_claims := {\"executables\": 3}";
    assert_eq!(rules(lint_attestation(all)), [Rule::AffirmUnknown; 4]);
}

#[test]
fn texts_are_the_same_every_time() {
    assert_eq!(intent().render_attestation(), intent().render_attestation());
    assert!(intent().render_attestation().is_ascii());
}

#[test]
fn policies_with_wrong_results_give_errors() {
    let run = |body: &str| {
        attest(&format!("package policy\nimport rego.v1\n{body}"), &json!({}), &json!({}))
    };
    assert!(matches!(run("trust_claims := {\"wizardry\": 1}"), Err(PolicyError::Result(_))));
    assert!(matches!(run("trust_claims := {\"hardware\": 1000}"), Err(PolicyError::Result(_))));
    assert!(matches!(run("trust_claims := 1"), Err(PolicyError::Result(_))));
    assert!(matches!(
        run("extensions := [{\"name\": \"ear.status\", \"key\": 1, \"value\": \"affirming\"}]"),
        Err(PolicyError::Result(_))
    ));
    let silent = run("x := 1").unwrap();
    assert_eq!(silent.status(), TrustTier::None);
    assert_eq!(silent.claims.len(), 8);
    assert!(matches!(AttestationPolicy::parse("package other\n"), Err(PolicyError::Package(_))));
    assert!(matches!(
        AttestationPolicy::parse("package policy\nallow if {"),
        Err(PolicyError::Parse(_))
    ));
}

#[test]
fn a_policy_that_never_ends_wanting_is_cut_off() {
    let text = "package policy\nimport rego.v1\ntrust_claims := {\"hardware\": x}\nx := \
        count([v | some i in numbers.range(1, 1000); v := query_reference_value(sprintf(\"%d\", [i]))])";
    let policy = AttestationPolicy::parse(text).unwrap();
    assert!(matches!(
        policy.evaluate(&json!({}), &std::collections::BTreeMap::new()),
        Err(PolicyError::Evaluate(_))
    ));
}

#[test]
fn tiers_are_those_of_ear() {
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
    assert!(matches!(AttestationPolicy::parse(&text), Err(PolicyError::Parse(_))));
}
