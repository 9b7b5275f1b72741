//! `tec trustee test-policy`: policies over recorded claims.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Map, Value, json};
use tec_support::exit::{FAILED, OK};
use tec_trustee::policy::{AttestationPolicy, MACHINE_CLAIM, ResourcePolicy};
use tec_trustee::wire::token_claims;

use super::args::{Expected, TestArgs};
use super::config::read;
use super::policy::intent;
use crate::command::input;
use crate::output::{Output, table};

/// Largest file of claims or reference values: ten thousand keys are about 5 MiB.
const MAX_JSON: u64 = 64 << 20;

/// The outcome for one recording.
#[derive(Serialize)]
struct Outcome {
    claims: String,
    /// `ear.status` of `cpu0`.
    status: Option<String>,
    machine: Option<String>,
    /// The trust vector, if evidence was appraised.
    trust: BTreeMap<String, i8>,
    /// Reference values that the policy requested and that are missing.
    missing: Vec<String>,
    path: String,
    decision: &'static str,
    /// Why a policy failed; a failure counts as a denial.
    error: Option<String>,
}

struct Policies {
    attestation: AttestationPolicy,
    resource: ResourcePolicy,
    references: BTreeMap<String, Value>,
}

pub(super) fn run(args: &TestArgs, output: &Output) -> anyhow::Result<u8> {
    let policies = Policies::read(args)?;
    let mut decisions = Vec::new();
    for given in &args.claims {
        let (name, file) = input::named_file(given);
        let claims = claims(file)?;
        decisions.push(policies.decide(name, claims, args));
    }
    let expected = match args.expect {
        Expected::Allow => "allowed",
        Expected::Deny => "denied",
    };
    let is_expected = decisions.iter().all(|one| one.decision == expected);
    output.print(&decisions, |decisions| text(decisions))?;
    Ok(if is_expected { OK } else { FAILED })
}

impl Policies {
    fn read(args: &TestArgs) -> anyhow::Result<Self> {
        let attestation = match &args.attestation_policy {
            Some(file) => read(file)?,
            None => intent(&args.intent)?.render_attestation(),
        };
        let resource = match &args.resource_policy {
            Some(file) => read(file)?,
            None => intent(&args.intent)?.render_resource(),
        };
        let references = args.reference_values.as_deref().map(references).transpose()?;
        Ok(Self {
            attestation: AttestationPolicy::parse(&attestation)
                .context("cannot use the attestation policy")?,
            resource: ResourcePolicy::parse(&resource).context("cannot use the resource policy")?,
            references: references.unwrap_or_default(),
        })
    }

    fn decide(&self, name: String, claims: Value, args: &TestArgs) -> Outcome {
        let mut decision = Outcome {
            claims: name,
            status: None,
            machine: None,
            trust: BTreeMap::new(),
            missing: Vec::new(),
            path: args.path.to_string(),
            decision: "denied",
            error: None,
        };
        let token = match evidence_of(&claims, args.appraise) {
            None => Some(claims),
            Some(evidence) => self.appraise(evidence, &mut decision),
        };
        let Some(token) = token else {
            return decision;
        };
        let claim = |name: &str| {
            let claim = token.pointer("/submods/cpu0").and_then(|cpu| cpu.get(name));
            claim.and_then(Value::as_str).map(str::to_owned)
        };
        decision.status = claim("ear.status");
        decision.machine = claim(MACHINE_CLAIM);
        let path: Vec<&str> = args.path.segments().collect();
        let request = json!({"plugin": "resource", "resource-path": path, "query": {}});
        match self.resource.allows(&token, &request) {
            Ok(true) => decision.decision = "allowed",
            Ok(false) => {}
            Err(error) => decision.error = Some(error.to_string()),
        }
        decision
    }

    /// The claims of the token that an attestation service would issue for this evidence.
    fn appraise(&self, evidence: Value, decision: &mut Outcome) -> Option<Value> {
        let missing = &mut decision.missing;
        let verdict = self.attestation.decide(&evidence, |name| {
            let value = self.references.get(name).cloned();
            if value.is_none() {
                missing.push(name.to_owned());
            }
            value
        });
        let verdict = match verdict {
            Ok(verdict) => verdict,
            Err(error) => {
                decision.error = Some(error.to_string());
                return None;
            }
        };
        let mut cpu: Map<String, Value> = verdict.extensions.clone();
        cpu.insert("ear.status".to_owned(), verdict.status().as_str().into());
        cpu.insert("ear.veraison.annotated-evidence".to_owned(), evidence);
        decision.trust = verdict.claims;
        Some(json!({"submods": {"cpu0": cpu}}))
    }
}

/// The evidence to appraise: the input itself or, if requested, the evidence in a token.
fn evidence_of(claims: &Value, appraise: bool) -> Option<Value> {
    if claims.get("submods").is_none() {
        return Some(claims.clone());
    }
    let evidence = claims.pointer("/submods/cpu0/ear.veraison.annotated-evidence");
    appraise.then(|| evidence.cloned().unwrap_or_default())
}

/// Annotated evidence, claims of a token, or a token.
fn claims(file: &Path) -> anyhow::Result<Value> {
    let text = input::text(file, MAX_JSON)?;
    if let Some(claims) = token_claims(&text) {
        return Ok(claims);
    }
    let claims: Value = serde_json::from_str(&text)
        .with_context(|| format!("{} is neither JSON nor a token", file.display()))?;
    anyhow::ensure!(claims.is_object(), "{} contains no claims", file.display());
    Ok(claims)
}

/// An object of names and values, or records with `name` and `value`.
fn references(file: &Path) -> anyhow::Result<BTreeMap<String, Value>> {
    let text = input::text(file, MAX_JSON)?;
    let values: Value =
        serde_json::from_str(&text).with_context(|| format!("{} is not JSON", file.display()))?;
    let values = match values {
        Value::Object(values) => Some(values.into_iter().collect()),
        Value::Array(records) => records.into_iter().map(record).collect(),
        _ => None,
    };
    values.with_context(|| format!("{} contains no reference values", file.display()))
}

fn record(mut record: Value) -> Option<(String, Value)> {
    let name = record.get("name")?.as_str()?.to_owned();
    let value = record.get_mut("value")?.take();
    Some((name, value))
}

fn text(decisions: &[Outcome]) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let rows: Vec<[String; 5]> = decisions
        .iter()
        .map(|one| {
            [
                one.claims.clone(),
                or_dash(&one.status),
                or_dash(&one.machine),
                one.path.clone(),
                one.decision.to_owned(),
            ]
        })
        .collect();
    let mut text = table(["CLAIMS", "STATUS", "MACHINE", "PATH", "DECISION"], &rows);
    for one in decisions {
        if !one.missing.is_empty() {
            let missing = one.missing.join(", ");
            let _ = write!(text, "\n{}: no reference value {missing}", one.claims);
        }
        if let Some(error) = &one.error {
            let _ = write!(text, "\n{}: {error}", one.claims);
        }
    }
    text
}
