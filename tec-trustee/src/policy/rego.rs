//! Rego texts, and values in and out.

use std::num::NonZeroU32;
use std::time::Duration;

use regorus::Engine;
use regorus::utils::limits::ExecutionTimerConfig;
use serde::Deserialize as _;
use serde_json::Value;

use super::error::PolicyError;

/// Largest policy text.
const MAX_POLICY: usize = 256 * 1024;
/// Longest evaluation (the default policies take well below a millisecond), and the number of work units
/// between two checks of the clock.
pub(super) const TIMER: ExecutionTimerConfig = ExecutionTimerConfig {
    limit: Duration::from_secs(2),
    check_interval: NonZeroU32::MIN.saturating_add(255),
};

pub(super) fn parse(text: &str) -> Result<Engine, PolicyError> {
    if text.len() > MAX_POLICY {
        return Err(PolicyError::TooLarge(text.len()));
    }
    if parsing_effort(text) > MAX_PARSING_EFFORT {
        return Err(PolicyError::Parse("brackets are nested too deeply".to_owned()));
    }
    let mut engine = Engine::new();
    engine.set_execution_timer_config(TIMER);
    // A text that does not end with a line break sometimes fails to parse.
    let package = engine
        .add_policy("policy.rego".to_owned(), format!("{text}\n"))
        .map_err(|error| PolicyError::Parse(error.to_string()))?;
    if package != "data.policy" {
        return Err(PolicyError::Package(package));
    }
    Ok(engine)
}

/// Like [`parse`], and also analyzes the policy.
pub(super) fn analyzed(text: &str) -> Result<Engine, PolicyError> {
    let mut engine = parse(text)?;
    // There is no such rule, but the call makes the engine analyze the policy: once here, and not in every
    // clone that evaluates it.
    let _ = engine.eval_rule(String::new());
    Ok(engine)
}

/// Maximum [`parsing_effort`] of a text: a hundred brackets nine deep pass, twenty nested ones do not.
const MAX_PARSING_EFFORT: u64 = 1 << 16;

/// How hard a text is to parse: the parser tries each bracket in two ways, so the effort doubles with each
/// level. Brackets in strings and comments count too.
fn parsing_effort(text: &str) -> u64 {
    let (mut depth, mut effort) = (0_u32, 0_u64);
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => {
                depth = depth.saturating_add(1);
                effort = effort.saturating_add(1_u64.checked_shl(depth).unwrap_or(u64::MAX));
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    effort
}

pub(super) fn evaluation_failed(error: impl std::fmt::Display) -> PolicyError {
    PolicyError::Evaluate(error.to_string())
}

pub(super) fn to_rego(value: &Value) -> Result<regorus::Value, PolicyError> {
    regorus::Value::deserialize(value).map_err(evaluation_failed)
}

pub(super) fn from_rego(value: &regorus::Value) -> Result<Value, PolicyError> {
    serde_json::to_value(value).map_err(evaluation_failed)
}
