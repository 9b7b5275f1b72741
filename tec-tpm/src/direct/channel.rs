//! One command after the other, and what can go wrong with one.

use std::time::Duration;
use std::{fmt, io};

use super::answer::{Answer, AnswerError};
use super::code::ResponseCode;
use super::command::Command;
use super::transport::Transport;
use crate::tpm::TpmError;
use crate::wire::WireError;

/// Maximum number of attempts with a busy TPM: about ten seconds, which covers a self-test.
const ATTEMPTS: u32 = 100;
const PAUSE: Duration = Duration::from_millis(100);

/// A command got no usable answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The TPM refused.
    #[error("the TPM answers {0}")]
    Refused(ResponseCode),
    /// Nothing was sent or received.
    #[error("the TPM cannot be reached")]
    Transport(#[source] io::Error),
    /// The received bytes are not an answer to the command.
    #[error("the TPM's answer cannot be read")]
    Answer(#[source] AnswerError),
    /// An earlier answer did not arrive; one that arrives now might be the earlier one.
    #[error("the connection to the TPM failed earlier")]
    Broken,
}

impl From<WireError> for CommandError {
    fn from(error: WireError) -> Self {
        Self::Answer(error.into())
    }
}

/// The attempted operation, and what went wrong with it.
pub(super) fn failed(operation: &'static str) -> impl Fn(CommandError) -> TpmError {
    move |error| match error {
        CommandError::Refused(code) if code.is_lockout() => TpmError::Lockout(operation),
        error => TpmError::Command { operation, source: Box::new(error) },
    }
}

/// The channel to a TPM, with commands and answers in step.
pub(super) struct Channel {
    transport: Box<dyn Transport>,
    is_broken: bool,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.transport.fmt(f)
    }
}

impl Channel {
    pub(super) fn new(transport: Box<dyn Transport>) -> Self {
        Self { transport, is_broken: false }
    }

    /// Sends a command, repeatedly while the TPM is busy, and returns the successful answer.
    pub(super) fn run(&mut self, command: &Command) -> Result<Answer, CommandError> {
        let bytes = command.encode();
        let mut attempts = ATTEMPTS;
        loop {
            attempts -= 1;
            match self.exchange(&bytes, command.answers_with_handle())? {
                Ok(answer) => return Ok(answer),
                Err(code) if code.means_again() && attempts > 0 => pause(),
                Err(code) => return Err(CommandError::Refused(code)),
            }
        }
    }

    fn exchange(
        &mut self,
        command: &[u8],
        with_handle: bool,
    ) -> Result<Result<Answer, ResponseCode>, CommandError> {
        if self.is_broken {
            return Err(CommandError::Broken);
        }
        let transmitted = self.transport.transmit(command);
        self.is_broken = transmitted.is_err();
        let answer = transmitted.map_err(CommandError::Transport)?;
        Answer::read(answer, with_handle).map_err(CommandError::Answer)
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a busy TPM tells nobody when it is ready; the number of pauses is bounded"
)]
fn pause() {
    std::thread::sleep(PAUSE);
}
