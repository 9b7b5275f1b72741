//! The gates and their states.

use serde::{Deserialize, Serialize};

use super::PcrMismatch;
use crate::code::Code;

/// A gate between power-on and the key, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Gate {
    /// The node reached a server.
    ReachedServer,
    /// The TLS session is established.
    Tls,
    /// The machine is registered and not revoked.
    MachineKnown,
    /// The signing key is bound to this machine.
    AkBound,
    /// The quote is fresh and its signature valid.
    NonceAndSignature,
    /// The quote covers the pinned registers.
    PcrSelection,
    /// The event log replays to the quoted values.
    EventLog,
    /// The pinned registers are those of an approved image, or of a state between approved images.
    Pcrs,
    /// Firmware, option ROMs and Secure Boot policy are those of the machine's baseline.
    Platform,
    /// The TPM counters did not go backwards: its state was neither copied nor restored.
    TpmHistory,
    /// The release policy allows this path.
    ReleasePolicy,
    /// The key exists and was released.
    Key,
}

impl Gate {
    /// All gates in order.
    pub const ALL: [Self; 12] = [
        Self::ReachedServer,
        Self::Tls,
        Self::MachineKnown,
        Self::AkBound,
        Self::NonceAndSignature,
        Self::PcrSelection,
        Self::EventLog,
        Self::Pcrs,
        Self::Platform,
        Self::TpmHistory,
        Self::ReleasePolicy,
        Self::Key,
    ];

    /// The code for a failure at this gate.
    pub fn code(self) -> Code {
        match self {
            Self::ReachedServer => Code::ServerUnreachable,
            Self::Tls => Code::TlsFailed,
            Self::MachineKnown => Code::MachineUnknown,
            Self::AkBound => Code::AkNotBound,
            Self::NonceAndSignature => Code::QuoteInvalid,
            Self::PcrSelection => Code::SelectionWrong,
            Self::EventLog => Code::EventLogMismatch,
            Self::Pcrs => Code::PcrMismatch,
            Self::Platform => Code::PlatformChanged,
            Self::TpmHistory => Code::TpmSetBack,
            Self::ReleasePolicy => Code::ReleaseDenied,
            Self::Key => Code::KeyMissing,
        }
    }

    /// The gate in words.
    pub fn label(self) -> &'static str {
        match self {
            Self::ReachedServer => "reached server",
            Self::Tls => "TLS",
            Self::MachineKnown => "machine known",
            Self::AkBound => "AK bound to this machine",
            Self::NonceAndSignature => "nonce and signature",
            Self::PcrSelection => "PCR selection",
            Self::EventLog => "event log replays",
            Self::Pcrs => "each PCR against approved images",
            Self::Platform => "firmware and Secure Boot policy",
            Self::TpmHistory => "TPM continues where it was",
            Self::ReleasePolicy => "release policy",
            Self::Key => "key",
        }
    }
}

/// State of one gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum StepState {
    /// Passed.
    Passed,
    /// Failed: the attempt stopped here.
    Failed,
    /// Does not apply to this attempt.
    Skipped,
    /// An earlier gate failed, or the attempt went no further.
    NotReached,
}

/// One gate of a ladder, and its state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Step {
    /// The gate.
    pub gate: Gate,
    /// Its state.
    pub state: StepState,
    /// What was observed; shown to admins, never to the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// The checks of one attempt, always all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ladder {
    /// The gates in order.
    pub steps: Vec<Step>,
    /// Code of the refusal, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// The differences, component by component, if a register does not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mismatch: Option<Box<PcrMismatch>>,
}

impl Default for Ladder {
    fn default() -> Self {
        Self::new()
    }
}

impl Ladder {
    /// A ladder before its first gate.
    pub fn new() -> Self {
        let step = |gate| Step { gate, state: StepState::NotReached, detail: String::new() };
        Self { steps: Gate::ALL.into_iter().map(step).collect(), code: None, mismatch: None }
    }

    fn set(&mut self, gate: Gate, state: StepState, detail: String) {
        if let Some(step) = self.steps.iter_mut().find(|step| step.gate == gate) {
            step.state = state;
            step.detail = detail;
        }
    }

    /// Marks a gate as passed.
    pub fn pass(&mut self, gate: Gate, detail: impl Into<String>) {
        self.set(gate, StepState::Passed, detail.into());
    }

    /// Marks a gate as not applicable.
    pub fn skip(&mut self, gate: Gate, detail: impl Into<String>) {
        self.set(gate, StepState::Skipped, detail.into());
    }

    /// Marks a gate as failed; the first failure gives the code.
    pub fn fail(&mut self, gate: Gate, detail: impl Into<String>) {
        self.set(gate, StepState::Failed, detail.into());
        self.code.get_or_insert_with(|| gate.code());
    }

    /// Marks the register gate as failed, with what differs.
    pub fn fail_pcrs(&mut self, mismatch: Box<PcrMismatch>) {
        self.fail(Gate::Pcrs, mismatch.summary());
        self.mismatch = Some(mismatch);
    }

    /// Marks the gate "nonce and signature" as failed, with the code for evidence that cannot be
    /// parsed.
    pub fn fail_malformed(&mut self, detail: impl Into<String>) {
        self.code.get_or_insert(Code::EvidenceMalformed);
        self.fail(Gate::NonceAndSignature, detail);
    }

    /// Marks the gate "release policy" as failed, with the code for a quarantined machine, whatever
    /// failed before.
    pub fn fail_quarantined(&mut self) {
        self.code = Some(Code::MachineQuarantined);
        self.fail(Gate::ReleasePolicy, "the machine is quarantined");
    }

    /// The gate that stopped the attempt.
    pub fn first_failure(&self) -> Option<&Step> {
        self.steps.iter().find(|step| step.state == StepState::Failed)
    }

    /// Whether the key was released.
    pub fn is_released(&self) -> bool {
        self.steps.iter().any(|step| step.gate == Gate::Key && step.state == StepState::Passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_gives_the_code() {
        let mut ladder = Ladder::new();
        ladder.pass(Gate::ReachedServer, "");
        ladder.fail(Gate::AkBound, "unknown key");
        assert_eq!(ladder.code, Some(Code::AkNotBound));
        assert_eq!(ladder.first_failure().unwrap().gate, Gate::AkBound);
        assert_eq!(ladder.steps.len(), Gate::ALL.len());
        assert_eq!(ladder.steps[11].state, StepState::NotReached);
    }

    #[test]
    fn every_gate_has_a_code_of_its_own_in_the_attest_family() {
        let mut codes: Vec<_> = Gate::ALL.iter().map(|g| g.code()).collect();
        assert!(codes.iter().all(|c| c.as_str().starts_with("TEC-A4")));
        codes.dedup();
        assert_eq!(codes.len(), Gate::ALL.len());
    }
}
