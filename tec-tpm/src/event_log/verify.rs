//! What a log proves together with quoted values.

use std::borrow::Cow;

use tec_core::attest::LogEvidence;
use tec_core::boot::words_after;
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
    /// quoted value is the reset value. Logs end before systemd runs: its [words](words_after) are appended where
    /// they lead to the quoted value.
    ///
    /// A log without a complete SHA-256 bank is [`LogEvidence::Broken`].
    pub fn evidence_against(&self, quoted: &PcrValues) -> LogEvidence {
        let replay = match self.replay_sha256() {
            Ok(replay) => replay,
            Err(error) => return LogEvidence::Broken { reason: error.to_string() },
        };
        let mut events: Vec<_> = self.events().iter().filter_map(Event::logged).collect();
        let mut replayed = PcrSet::default();
        let mut next = self.events().last().map_or(0, |event| event.number.saturating_add(1));
        for (pcr, value) in replay.iter() {
            let words = words_after(pcr, value, quoted.value(pcr), next);
            if value == quoted.value(pcr) || !words.is_empty() {
                replayed = replayed.with(pcr);
            }
            next = next.saturating_add(u32::try_from(words.len()).unwrap_or(0));
            events.extend(words);
        }
        LogEvidence::Parsed { events, replayed, cut: None }
    }

    /// As [`evidence_against`](Self::evidence_against), for a log whose rest could not be read.
    pub(crate) fn evidence_cut(
        &self,
        quoted: &PcrValues,
        why: Option<&EventLogError>,
    ) -> LogEvidence {
        let mut evidence = self.evidence_against(quoted);
        if let LogEvidence::Parsed { cut, .. } = &mut evidence {
            *cut = why.map(ToString::to_string);
        }
        evidence
    }
}

/// Reads a log that was sent with evidence, as far as it can be read. One that has no readable header or no
/// SHA-256 bank is [`LogEvidence::Broken`].
pub fn evidence(log: &[u8], quoted: &PcrValues) -> LogEvidence {
    match EventLog::read(log) {
        Ok((log, cut)) => log.evidence_cut(quoted, cut.as_ref()),
        Err(error) => LogEvidence::Broken { reason: error.to_string() },
    }
}
