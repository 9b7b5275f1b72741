//! Evaluation with the semantics of Trustee's attestation service and its resource policy.
//!
//! Policies are parsed and analyzed once; an evaluation runs on a clone of the engine, which is reused
//! afterwards. Policies that we rendered are also compiled. Looking up reference values is asynchronous and
//! Rego is not, so an evaluation names the values that it wants and is run again with them:
//! [`Evaluation::Wants`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use regorus::Engine;
use serde_json::Value;

use super::compiled::Compiled;
use super::error::PolicyError;
use super::rego::{analyzed, evaluation_failed, from_rego, to_rego};
use super::verdict::{TrustTier, Verdict, verdict_of};

/// Name of the function that policies call (Trustee, attestation service).
const QUERY: &str = "query_reference_value";
/// Maximum number of reference values that one evaluation may ask for.
const MAX_WANTED: usize = 256;
/// Maximum number of rounds of an evaluation: names of reference values may depend on other reference values.
const MAX_ROUNDS: usize = 8;
/// How far an evaluation got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Evaluation {
    /// The evaluation is done.
    Done(Verdict),
    /// Run it again with these reference values added; those that do not exist are `null`.
    Wants(BTreeSet<String>),
}

/// Reference values as the function sees them: those that are known, and those that were requested but not
/// found.
#[derive(Debug, Default)]
struct References {
    known: BTreeMap<String, regorus::Value>,
    wanted: BTreeSet<String>,
}

/// A parsed attestation policy.
#[derive(Clone, Debug)]
pub struct AttestationPolicy {
    compiled: Option<Arc<Compiled>>,
    engine: Engine,
    /// Idle clones: no more than the number of evaluations that ran at the same time.
    idle: Arc<Mutex<Vec<Evaluator>>>,
}

/// A clone of an engine, and the reference values that its function looks up.
#[derive(Debug)]
struct Evaluator {
    engine: Engine,
    references: Arc<Mutex<References>>,
}

impl Evaluator {
    fn new(mut engine: Engine) -> Result<Self, PolicyError> {
        let references = Arc::<Mutex<References>>::default();
        let for_query = Arc::clone(&references);
        let function = move |arguments: Vec<regorus::Value>| Ok(query(&for_query, &arguments));
        engine.add_extension(QUERY.to_owned(), 1, Box::new(function)).map_err(evaluation_failed)?;
        Ok(Self { engine, references })
    }
}

/// A parsed resource policy.
#[derive(Clone, Debug)]
pub struct ResourcePolicy {
    compiled: Option<Arc<Compiled>>,
    engine: Engine,
}

/// Value of a rule, `None` when undefined.
fn rule(engine: &mut Engine, path: &str) -> Result<Option<Value>, PolicyError> {
    // The fast path treats a missing or partial rule as no rule.
    let value = match engine.eval_rule(path.to_owned()) {
        Ok(value) => value,
        Err(_) => queried(engine, path)?,
    };
    match value {
        regorus::Value::Undefined => Ok(None),
        value => from_rego(&value).map(Some),
    }
}

fn queried(engine: &mut Engine, path: &str) -> Result<regorus::Value, PolicyError> {
    let results = engine.eval_query(path.to_owned(), false).map_err(evaluation_failed)?;
    let value = results
        .result
        .first()
        .and_then(|result| result.expressions.first())
        .map(|expression| expression.value.clone());
    Ok(value.unwrap_or(regorus::Value::Undefined))
}

impl AttestationPolicy {
    /// Parses a policy.
    ///
    /// # Errors
    /// The text does not parse, or has another package.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let compiled = Compiled::attestation(text).map(Arc::new);
        let interpreted = Self::interpreted(text)?;
        Ok(Self { compiled, ..interpreted })
    }

    /// Like [`parse`](Self::parse), but for the interpreter alone: what Trustee does for each request.
    pub fn interpreted(text: &str) -> Result<Self, PolicyError> {
        Ok(Self { compiled: None, engine: analyzed(text)?, idle: Arc::default() })
    }

    /// Whether the policy is one of ours, so that approvals need no interpreter.
    pub fn is_compiled(&self) -> bool {
        self.compiled.is_some()
    }

    /// Evaluates the policy over annotated evidence, with the reference values in `references`.
    ///
    /// # Errors
    /// Runtime errors of the policy, and results that do not have the prescribed form.
    pub fn evaluate(
        &self,
        input: &Value,
        references: &BTreeMap<String, Value>,
    ) -> Result<Evaluation, PolicyError> {
        if let Some(compiled) = &self.compiled {
            let answer = compiled.run(compiled.seen(input)?, None, references)?;
            if let Some(verdict) = approval(&answer)? {
                return Ok(Evaluation::Done(verdict));
            }
        }
        self.interpret(input, references)
    }

    fn interpret(
        &self,
        input: &Value,
        references: &BTreeMap<String, Value>,
    ) -> Result<Evaluation, PolicyError> {
        let mut known = BTreeMap::new();
        for (name, value) in references {
            known.insert(name.clone(), to_rego(value)?);
        }
        let idle = self.idle.lock().pop();
        let mut evaluator = match idle {
            Some(evaluator) => evaluator,
            None => Evaluator::new(self.engine.clone())?,
        };
        evaluator.references.lock().known = known;
        evaluator.engine.set_input(to_rego(input)?);
        let verdict = verdict(&mut evaluator.engine);
        let wanted = std::mem::take(&mut *evaluator.references.lock()).wanted;
        if verdict.is_ok() {
            evaluator.engine.set_input(regorus::Value::Undefined);
            self.idle.lock().push(evaluator);
        }
        // A null in place of a value that was not fetched yet may make the policy fail: fetch first.
        if wanted.is_empty() {
            verdict.map(Evaluation::Done)
        } else if wanted.len() + references.len() > MAX_WANTED {
            Err(evaluation_failed("too many reference values are asked for"))
        } else {
            Ok(Evaluation::Wants(wanted))
        }
    }

    /// Evaluates the policy over annotated evidence to the end; `lookup` returns each reference value that it
    /// asks for, once, and `None` for those that do not exist.
    ///
    /// # Errors
    /// As for [`evaluate`](Self::evaluate), and a policy that never stops asking for values.
    pub fn decide(
        &self,
        input: &Value,
        mut lookup: impl FnMut(&str) -> Option<Value>,
    ) -> Result<Verdict, PolicyError> {
        let mut known = BTreeMap::new();
        for _ in 0..MAX_ROUNDS {
            match self.evaluate(input, &known)? {
                Evaluation::Done(verdict) => return Ok(verdict),
                Evaluation::Wants(names) => {
                    for name in names {
                        let value = lookup(&name).unwrap_or(Value::Null);
                        known.insert(name, value);
                    }
                }
            }
        }
        Err(evaluation_failed("reference values are asked for without end"))
    }
}

fn query(references: &Mutex<References>, arguments: &[regorus::Value]) -> regorus::Value {
    let Some(regorus::Value::String(name)) = arguments.first() else {
        return regorus::Value::Null;
    };
    let mut references = references.lock();
    if let Some(value) = references.known.get(name.as_ref()) {
        return value.clone();
    }
    references.wanted.insert(name.to_string());
    regorus::Value::Null
}

fn verdict(engine: &mut Engine) -> Result<Verdict, PolicyError> {
    let claims = rule(engine, "data.policy.trust_claims")?;
    let extensions = rule(engine, "data.policy.extensions")?;
    verdict_of(claims, extensions)
}

/// The verdict of a program that returned both results, if it is an approval.
fn approval(answer: &regorus::Value) -> Result<Option<Verdict>, PolicyError> {
    let part = |index: usize| answer.as_array().ok()?.get(index);
    let (Some(claims), Some(extensions)) = (part(0), part(1)) else {
        return Ok(None);
    };
    let verdict = verdict_of(Some(from_rego(claims)?), Some(from_rego(extensions)?))?;
    Ok(Some(verdict).filter(|verdict| verdict.status() == TrustTier::Affirming))
}

impl ResourcePolicy {
    /// Parses a policy.
    ///
    /// # Errors
    /// The text does not parse, or has another package.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let compiled = Compiled::resource(text).map(Arc::new);
        let interpreted = Self::interpreted(text)?;
        Ok(Self { compiled, ..interpreted })
    }

    /// Like [`parse`](Self::parse), but for the interpreter alone: what Trustee does for each request.
    pub fn interpreted(text: &str) -> Result<Self, PolicyError> {
        Ok(Self { compiled: None, engine: analyzed(text)? })
    }

    /// Whether the policy is one of ours, so that approvals need no interpreter.
    pub fn is_compiled(&self) -> bool {
        self.compiled.is_some()
    }

    /// Whether the policy allows the request: `data.policy.allow` is `true`; undefined and everything else
    /// means no. `claims` are those of the token, `request` is `{"plugin","resource-path","query"}`.
    pub fn allows(&self, claims: &Value, request: &Value) -> Result<bool, PolicyError> {
        let (claims, request) = (to_rego(claims)?, to_rego(request)?);
        if let Some(compiled) = &self.compiled {
            let nothing = BTreeMap::new();
            let allow = compiled.run(claims.clone(), Some(request.clone()), &nothing)?;
            if allow == regorus::Value::Bool(true) {
                return Ok(true);
            }
        }
        let mut engine = self.engine.clone();
        engine.add_data(request).map_err(evaluation_failed)?;
        engine.set_input(claims);
        Ok(rule(&mut engine, "data.policy.allow")? == Some(Value::Bool(true)))
    }
}
