//! The table of cases on Trustee's engines: v0.16 to v0.21.

#[path = "../../tests/policy_cases/mod.rs"]
mod policy_cases;

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use tec_trustee::policy::TrustTier;

use self::policy_cases::{Case, cases};

/// The result of an attestation policy: trust claims and extensions.
type Appraisal = (Value, Value);

/// One module per version, since each has its own types.
macro_rules! engine {
    ($module:ident, $name:ident) => {
        mod $module {
            use ::$name::{Engine, Value as Rego};

            use super::*;

            fn engine(policy: &str, input: &Value) -> Engine {
                let mut engine = Engine::new();
                let package = engine.add_policy("policy.rego".into(), policy.into()).unwrap();
                assert_eq!(package, "data.policy");
                engine.set_input(Rego::from_json_str(&input.to_string()).unwrap());
                engine
            }

            fn rule(engine: &mut Engine, name: &str) -> Value {
                let value = engine.eval_rule(name.to_owned()).unwrap();
                if value == Rego::Undefined {
                    return Value::Null;
                }
                serde_json::from_str(&value.to_json_str().unwrap()).unwrap()
            }

            pub(crate) fn attest(
                policy: &str,
                input: &Value,
                references: &BTreeMap<String, Value>,
            ) -> Appraisal {
                let mut engine = engine(policy, input);
                let references = references.clone();
                let query = move |arguments: Vec<Rego>| {
                    let name = arguments[0].as_string().unwrap();
                    let value = references.get(name.as_ref()).unwrap_or(&Value::Null);
                    Ok(Rego::from_json_str(&value.to_string()).unwrap())
                };
                let name = "query_reference_value".to_owned();
                engine.add_extension(name, 1, Box::new(query)).unwrap();
                let claims = rule(&mut engine, "data.policy.trust_claims");
                (claims, rule(&mut engine, "data.policy.extensions"))
            }

            pub(crate) fn allows(policy: &str, claims: &Value, request: &Value) -> bool {
                let mut engine = engine(policy, claims);
                let request = Rego::from_json_str(&request.to_string()).unwrap();
                engine.add_data(request).unwrap();
                rule(&mut engine, "data.policy.allow") == Value::Bool(true)
            }
        }
    };
}

engine!(v0_16, regorus_0_2);
engine!(v0_19, regorus_0_5);
engine!(v0_20, regorus_0_10);
engine!(v0_21, regorus_0_11);

/// `ear.status`: the worst tier of all claims (Trustee, attestation service).
fn status(claims: &Value) -> &'static str {
    let claims = claims.as_object().unwrap().values();
    let tiers = claims.map(|value| TrustTier::of(value.as_i64().unwrap().try_into().unwrap()));
    tiers.max().unwrap_or(TrustTier::None).as_str()
}

fn extensions(list: &Value) -> Map<String, Value> {
    let entries = list.as_array().into_iter().flatten();
    let entry = |entry: &Value| {
        assert!(entry["key"].is_i64(), "{entry}");
        (entry["name"].as_str().unwrap().to_owned(), entry["value"].clone())
    };
    entries.map(entry).collect()
}

fn run(
    attest: impl Fn(&str, &Value, &BTreeMap<String, Value>) -> Appraisal,
    allows: impl Fn(&str, &Value, &Value) -> bool,
) {
    for case in cases() {
        let Case { intent, evidence, references, .. } = &case;
        let (claims, list) = attest(&intent.render_attestation(), evidence, references);
        let token = case.token(status(&claims), extensions(&list));
        let allowed = allows(&intent.render_resource(), &token, &case.request());
        assert_eq!(allowed, case.is_allowed, "{}: {claims} {list}", case.name);
    }
}

#[test]
fn the_engine_of_v0_16_decides_every_case_as_the_table_says() {
    run(v0_16::attest, v0_16::allows);
}

#[test]
fn the_engine_of_v0_17_to_v0_19_decides_every_case_as_the_table_says() {
    run(v0_19::attest, v0_19::allows);
}

#[test]
fn the_engine_of_v0_20_decides_every_case_as_the_table_says() {
    run(v0_20::attest, v0_20::allows);
}

#[test]
fn the_engine_of_v0_21_decides_every_case_as_the_table_says() {
    run(v0_21::attest, v0_21::allows);
}
