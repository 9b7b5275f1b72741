//! What a log proves together with quoted values.

use std::borrow::Cow;

use tec_core::attest::LogEvidence;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet, PcrValues};

use super::bank::Bank;
use super::error::EventLogError;
use super::event::Event;
use super::parse::EventLog;

/// Proof that the events of the chosen registers fold to their quoted values.
///
/// Only [`EventLog::verify`] creates one. It proves the digests, registers and order of
/// [`events`](Self::events), and the bytes that [`measured`](Self::measured) returns. It does not
/// prove the types of events or any other data.
#[derive(Clone, Debug)]
pub struct VerifiedLog<'a> {
    log: EventLog<'a>,
    registers: PcrSet,
}

impl<'a> VerifiedLog<'a> {
    /// The chosen registers.
    pub fn registers(&self) -> PcrSet {
        self.registers
    }

    /// The locality at which the TPM was started, according to the log; PCR 0 starts with it.
    pub fn startup_locality(&self) -> u8 {
        self.log.startup_locality()
    }

    /// The events that extend a chosen register, in order.
    pub fn events(&self) -> impl Iterator<Item = &Event<'a>> {
        let proven =
            |event: &&Event<'a>| event.extends().is_some_and(|pcr| self.registers.contains(pcr));
        self.log.events().iter().filter(proven)
    }

    /// Those [`events`](Self::events) whose measured bytes the log holds, with these bytes.
    pub fn measured(&self) -> impl Iterator<Item = (&Event<'a>, Cow<'a, [u8]>)> {
        self.events().filter_map(|event| Some((event, event.measured(Bank::Sha256)?)))
    }
}

/// A log does not prove the chosen registers.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyLogError {
    /// No register was chosen, so anything would pass.
    #[error("no register was chosen to verify the log against")]
    NothingChosen,
    /// The log has no complete SHA-256 bank.
    #[error("the log cannot be replayed")]
    Replay(#[source] EventLogError),
    /// The fold differs from the quoted value.
    #[error("PCR {pcr}: the log replays to {replayed}, but the quoted value is {quoted}")]
    Mismatch {
        /// First register that differs.
        pcr: PcrIndex,
        /// The value that the log replays to.
        replayed: Sha256Digest,
        /// The quoted value.
        quoted: Sha256Digest,
    },
}

impl<'a> EventLog<'a> {
    /// Verifies the log against quoted values, for the registers in `chosen`.
    ///
    /// # Errors
    /// [`VerifyLogError`] when a chosen register does not replay to its quoted value.
    ///
    /// # Security
    /// `quoted` must come from a quote whose signature and nonce are verified.
    pub fn verify(
        self,
        quoted: &PcrValues,
        chosen: PcrSet,
    ) -> Result<VerifiedLog<'a>, VerifyLogError> {
        if chosen.is_empty() {
            return Err(VerifyLogError::NothingChosen);
        }
        let replayed = self.replay_sha256().map_err(VerifyLogError::Replay)?;
        let differs = |pcr: &PcrIndex| replayed.value(*pcr) != quoted.value(*pcr);
        if let Some(pcr) = chosen.iter().find(differs) {
            return Err(VerifyLogError::Mismatch {
                pcr,
                replayed: *replayed.value(pcr),
                quoted: *quoted.value(pcr),
            });
        }
        Ok(VerifiedLog { log: self, registers: chosen })
    }

    /// The log as evidence together with quoted values: every event that extends a register, and
    /// the registers that the log explains. Registers without an event count as explained when the
    /// quoted value is the reset value.
    ///
    /// A log without a complete SHA-256 bank is [`LogEvidence::Broken`].
    pub fn evidence_against(&self, quoted: &PcrValues) -> LogEvidence {
        match self.replay_sha256() {
            Ok(replayed) => LogEvidence::Parsed {
                events: self.events().iter().filter_map(Event::logged).collect(),
                replayed: PcrIndex::all()
                    .filter(|pcr| replayed.value(*pcr) == quoted.value(*pcr))
                    .collect(),
            },
            Err(error) => LogEvidence::Broken { reason: error.to_string() },
        }
    }
}

/// Reads a log that was sent with evidence; one that does not parse is [`LogEvidence::Broken`].
pub fn evidence(log: &[u8], quoted: &PcrValues) -> LogEvidence {
    match EventLog::parse(log) {
        Ok(log) => log.evidence_against(quoted),
        Err(error) => LogEvidence::Broken { reason: error.to_string() },
    }
}
