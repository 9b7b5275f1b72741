//! Our own policies as programs of the engine's register machine, which runs them in a fraction of the
//! interpreter's time.
//!
//! Only texts that [`PolicyIntent`] renders are compiled: tests and fuzzing compare the results of both.
//! Other policies are left to the interpreter, which is what Trustee runs.

use std::collections::BTreeMap;
use std::iter::repeat_n;
use std::sync::Arc;

use parking_lot::Mutex;
use regorus::languages::rego::compiler::Compiler;
use regorus::rvm::{Program, RegoVM};
use regorus::{Engine, Rc, Value};
use serde_json::Value as Json;

use super::PolicyIntent;
use super::error::PolicyError;
use super::rego::{TIMER, evaluation_failed, parse, to_rego};

/// Rules that the policies do not have: Trustee's function as a question to the host, named after what is
/// asked for so that the answers can be supplied beforehand; and both results in one, which is undefined when
/// one of them is.
const HOST: &str = "
package policy

query_reference_value(name) := __builtin_host_await(name, name)
";
const ANSWER: &str = "
package tec.answer

verdict := [data.policy.trust_claims, data.policy.extensions]
";
/// Number of times that an answer is supplied. The rules that ask are evaluated once.
const ANSWERS: usize = 2;

/// A program, and the idle machines that run it.
#[derive(Debug)]
pub(super) struct Compiled {
    text: String,
    program: Arc<Program>,
    idle: Mutex<Vec<RegoVM>>,
}

impl Compiled {
    /// The attestation policy `text`, if it is one of ours.
    pub(super) fn attestation(text: &str) -> Option<Self> {
        PolicyIntent::read_attestation(text)?;
        let mut engine = parse(text).ok()?;
        add(&mut engine, "host.rego", HOST)?;
        add(&mut engine, "answer.rego", ANSWER)?;
        let function = Box::new(|_| Ok(Value::Undefined));
        engine.add_extension("__builtin_host_await".to_owned(), 2, function).ok()?;
        Self::new(text, engine, "data.tec.answer.verdict")
    }

    /// The resource policy `text`, if it is one of ours.
    pub(super) fn resource(text: &str) -> Option<Self> {
        PolicyIntent::is_resource_policy(text).then_some(())?;
        Self::new(text, parse(text).ok()?, "data.policy.allow")
    }

    fn new(text: &str, mut engine: Engine, entry: &str) -> Option<Self> {
        let policy = engine.compile_with_entrypoint(&Rc::from(entry)).ok()?;
        let program = Compiler::compile_from_policy(&policy, &[entry]).ok()?;
        Some(Self { text: text.to_owned(), program, idle: Mutex::default() })
    }

    fn machine(&self) -> RegoVM {
        let idle = self.idle.lock().pop();
        idle.unwrap_or_else(|| {
            let mut machine = RegoVM::new();
            machine.load_program(Arc::clone(&self.program));
            machine.set_execution_timer_config(Some(TIMER));
            machine
        })
    }

    /// Evidence without the registers that the text does not name, and so does not read: most of the
    /// evidence.
    pub(super) fn seen(&self, evidence: &Json) -> Result<Value, PolicyError> {
        let Json::Object(members) = evidence else {
            return to_rego(evidence);
        };
        let seen = |name: &str| !is_register(name) || self.text.contains(name);
        members
            .iter()
            .filter(|(name, _)| seen(name))
            .map(|(name, value)| Ok((Value::from(name.as_str()), self.seen(value)?)))
            .collect::<Result<BTreeMap<_, _>, _>>()
            .map(Value::from)
    }

    /// Runs the program once. Values that it asks for and that are not in `references` are undefined, and so
    /// are errors: a pass counts; everything else is left to the interpreter.
    pub(super) fn run(
        &self,
        input: Value,
        data: Option<Value>,
        references: &BTreeMap<String, Json>,
    ) -> Result<Value, PolicyError> {
        let mut machine = self.machine();
        machine.set_input(input);
        if let Some(data) = data {
            machine.set_data(data).map_err(evaluation_failed)?;
        }
        let mut answers = Vec::with_capacity(references.len());
        for (name, value) in references {
            answers.push((Value::from(name.as_str()), repeat_n(to_rego(value)?, ANSWERS)));
        }
        machine.set_host_await_responses(answers);
        let value = machine.execute_entry_point_by_index(0).map_err(evaluation_failed)?;
        self.idle.lock().push(machine);
        Ok(value)
    }
}

/// `pcr00` to `pcr23` (Trustee, verifiers).
fn is_register(name: &str) -> bool {
    let index = name.strip_prefix("pcr");
    index.is_some_and(|index| index.len() == 2 && index.bytes().all(|byte| byte.is_ascii_digit()))
}

fn add(engine: &mut Engine, name: &str, text: &str) -> Option<()> {
    let added = engine.add_policy(name.to_owned(), text.to_owned());
    added.map(drop).ok()
}
