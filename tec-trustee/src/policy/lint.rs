//! What is wrong with policies, found by trying them on tokens and evidence that must not pass.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tec_core::pcr::PCR_COUNT;

use super::{AttestationPolicy, MACHINE_CLAIM, PolicyError, ResourcePolicy, TrustTier};
use crate::config::{Finding, Rule};

const MACHINE: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
const OTHER: &str = "16fd2706-8baf-433b-82eb-8c7fada847da";

/// One token, and what it would mean if it passed.
struct Trial {
    rule: Rule,
    what: &'static str,
    claims: Value,
}

/// Tries a resource policy on tokens that must not obtain a machine's disk key, and on the one that must
/// obtain it. Each rule is reported once.
///
/// It cannot find everything: a policy may still allow a case that none of the trials covers.
///
/// # Errors
/// `Parse`, `Package`, `TooLarge`. A policy that fails on a token denies it.
pub fn lint_resource(text: &str) -> Result<Vec<Finding>, PolicyError> {
    let policy = ResourcePolicy::parse(text)?;
    let request = json!({
        "plugin": "resource", "resource-path": ["default", MACHINE, "root"], "query": {},
    });
    let allows = |claims: &Value| policy.allows(claims, &request).unwrap_or(false);
    let mut findings: Vec<Finding> = Vec::new();
    for trial in trials() {
        let is_known = findings.iter().any(|finding| finding.rule == trial.rule);
        if !is_known && allows(&trial.claims) {
            findings.push(Finding::new(trial.rule, trial.what));
        }
        if findings.iter().any(|finding| finding.rule == Rule::AllowAll) {
            // Everything else follows from it.
            return Ok(findings);
        }
    }
    if !allows(&token("affirming", "tpm", Some(MACHINE))) {
        findings.push(Finding::new(Rule::DenyOwn, "an affirmed token of the machine itself"));
    }
    Ok(findings)
}

fn trials() -> Vec<Trial> {
    let trial = |rule, what, claims| Trial { rule, what, claims };
    vec![
        trial(Rule::AllowAll, "a token without any claim", json!({})),
        trial(Rule::AllowAll, "a token without evidence", json!({"submods": {}})),
        trial(
            Rule::AllowSample,
            "evidence without hardware, not affirmed",
            token("contraindicated", "sample", None),
        ),
        trial(
            Rule::AllowUnaffirmed,
            "the status \"contraindicated\"",
            token("contraindicated", "tpm", Some(MACHINE)),
        ),
        trial(
            Rule::AllowUnaffirmed,
            "the status \"warning\"",
            token("warning", "tpm", Some(MACHINE)),
        ),
        trial(Rule::AllowUnaffirmed, "the status \"none\"", token("none", "tpm", Some(MACHINE))),
        trial(
            Rule::AllowAnyMachine,
            "an affirmed token that names no machine",
            token("affirming", "tpm", None),
        ),
        trial(
            Rule::AllowAnyMachine,
            "an affirmed token of another machine",
            token("affirming", "tpm", Some(OTHER)),
        ),
        trial(
            Rule::AllowDevices,
            "an affirmed machine with a device that is not",
            json!({"submods": {
                "cpu0": submodule("affirming", "tpm", Some(MACHINE)),
                "gpu0": {"ear.status": "contraindicated"},
            }}),
        ),
    ]
}

fn token(status: &str, tee: &str, machine: Option<&str>) -> Value {
    json!({"submods": {"cpu0": submodule(status, tee, machine)}})
}

fn submodule(status: &str, tee: &str, machine: Option<&str>) -> Value {
    json!({
        "ear.status": status,
        MACHINE_CLAIM: machine,
        "ear.veraison.annotated-evidence": {tee: {"svn": "1", "ak_public": "", "pcr04": ""}},
    })
}

/// Tries an attestation policy on evidence for which there is no reference value: it must affirm none of it.
///
/// # Errors
/// `Parse`, `Package`, `TooLarge`. A policy that fails on evidence affirms nothing.
pub fn lint_attestation(text: &str) -> Result<Vec<Finding>, PolicyError> {
    let policy = AttestationPolicy::parse(text)?;
    let mut tpm: BTreeMap<String, String> =
        (0..PCR_COUNT).map(|index| (format!("pcr{index:02}"), "0".repeat(64))).collect();
    tpm.insert("ak_public".to_owned(), "MFkw".to_owned());
    let azure = json!({
        "tpm": tpm, "policy_debug_allowed": "false", "measurement": "AAAA",
        "reported_tcb_bootloader": "255", "reported_tcb_tee": "255",
        "reported_tcb_snp": "255", "reported_tcb_microcode": "255",
    });
    let evidence = [
        ("no evidence at all", json!({})),
        ("evidence without hardware", json!({"sample": {"svn": "1", "debug": false}})),
        ("a TPM that nobody knows", json!({"tpm": tpm})),
        ("an Azure machine that nobody knows", json!({"az-snp-vtpm": azure})),
    ];
    let affirms = |input: &Value| {
        let verdict = policy.decide(input, |_| None);
        verdict.is_ok_and(|verdict| verdict.status() == TrustTier::Affirming)
    };
    Ok(evidence
        .iter()
        .filter(|(_, input)| affirms(input))
        .map(|(what, _)| Finding::new(Rule::AffirmUnknown, *what))
        .collect())
}
