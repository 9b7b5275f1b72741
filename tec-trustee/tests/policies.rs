//! The policies, case by case, on the engine of the embedded KBS; `crosscheck` runs the same table on
//! Trustee's engines.
#![cfg(feature = "kbs")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail by panicking"
)]

mod policy_cases;

use std::collections::BTreeMap;

use tec_trustee::policy::{AttestationPolicy, Evaluation, PolicyIntent, ResourcePolicy, Verdict};

use self::policy_cases::{Case, azure_too, cases};

/// The verdict of the compiled policy, which must match the interpreter's.
fn verdict(case: &Case) -> Verdict {
    let text = case.intent.render_attestation();
    let policy = AttestationPolicy::parse(&text).unwrap();
    assert!(policy.is_compiled(), "{}", case.name);
    let [compiled, interpreted] =
        [policy, AttestationPolicy::interpreted(&text).unwrap()].map(|policy| {
            let verdict = policy.decide(&case.evidence, |name| case.references.get(name).cloned());
            verdict.unwrap_or_else(|error| panic!("{}: {error}", case.name))
        });
    assert_eq!(compiled, interpreted, "{}", case.name);
    compiled
}

#[test]
fn every_case_of_the_table_is_decided_as_it_says_and_without_an_error() {
    for case in cases() {
        let verdict = verdict(&case);
        let text = case.intent.render_resource();
        let policy = ResourcePolicy::parse(&text).unwrap();
        assert!(policy.is_compiled(), "{}", case.name);
        let claims = case.token(verdict.status().as_str(), verdict.extensions.clone());
        for policy in [policy, ResourcePolicy::interpreted(&text).unwrap()] {
            let allowed = policy.allows(&claims, &case.request()).unwrap();
            assert_eq!(allowed, case.is_allowed, "{}: {verdict:?}", case.name);
        }
    }
}

#[test]
fn one_attestation_asks_for_its_own_key_and_one_list_per_register() {
    let case = cases().into_iter().find(|case| case.name == "Azure machine");
    let case = case.unwrap();
    let policy = AttestationPolicy::parse(&case.intent.render_attestation()).unwrap();
    let mut asked = BTreeMap::new();
    while let Evaluation::Wants(names) = policy.evaluate(&case.evidence, &asked).unwrap() {
        for name in names {
            let value = case.references.get(&name).cloned().unwrap_or_default();
            asked.insert(name, value);
        }
    }
    let names: Vec<&str> = asked.keys().map(String::as_str).collect();
    assert_eq!(names.len(), 4, "{names:?}");
    assert!(names.contains(&"snp_measurement") && names.contains(&"tpm_pcr4"));
}

#[test]
fn evidence_of_other_sorts_costs_no_look_up() {
    let case = cases().into_iter().find(|case| case.name == "sample evidence");
    let policy = AttestationPolicy::parse(&azure_too().render_attestation()).unwrap();
    let first = policy.evaluate(&case.unwrap().evidence, &BTreeMap::new());
    assert!(matches!(first.unwrap(), Evaluation::Done(_)));
}

#[test]
fn claims_are_published_with_the_machine() {
    let case = cases().into_iter().find(|case| case.name == "Azure machine");
    let verdict = verdict(&case.unwrap());
    assert_eq!(verdict.extensions["tec.machine"], "7c9e6679-7425-40de-944b-e07fc1f90ae7");
    assert_eq!(verdict.extensions["tec.site"], "north \"1\"");
    assert_eq!(verdict.extensions["tec.pcr04"], "bb".repeat(32));
}

#[test]
fn the_intent_is_read_from_its_text_and_from_no_other() {
    for case in cases() {
        let text = case.intent.render_attestation();
        let read = PolicyIntent::read_attestation(&text);
        assert_eq!(read.as_ref(), Some(&case.intent), "{}", case.name);
        let changed = text.replace("executables := 33", "executables := 3");
        assert_eq!(PolicyIntent::read_attestation(&changed), None);
        let longer = format!("{text}\nexecutables := 3\n");
        assert!(!AttestationPolicy::parse(&longer).unwrap().is_compiled());
    }
    let resource = azure_too().render_resource();
    assert!(PolicyIntent::is_resource_policy(&resource));
    let lax = resource.replace("== \"affirming\"", "!= \"none\"");
    assert!(!ResourcePolicy::parse(&lax).unwrap().is_compiled());
}
