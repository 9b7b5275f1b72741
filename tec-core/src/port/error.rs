//! One opaque error for all ports.

use std::error::Error;
use std::io;

use crate::code::Code;

/// Kind of failure, which alone determines whether to retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortErrorKind {
    /// The thing does not exist.
    NotFound,
    /// Someone else was faster, or the state does not allow the call.
    Conflict,
    /// Not allowed.
    Denied,
    /// Try again later.
    Unavailable,
    /// The request can never succeed.
    Invalid,
    /// A defect, or damaged data.
    Internal,
}

/// A port failed.
#[derive(Debug, thiserror::Error)]
#[error("{operation}")]
pub struct PortError {
    kind: PortErrorKind,
    operation: String,
    code: Option<Code>,
    #[source]
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl PortError {
    /// A failure of `operation`, for example `store the key of machine 7c9e…`.
    pub fn new(kind: PortErrorKind, operation: impl Into<String>) -> Self {
        Self { kind, operation: operation.into(), code: None, source: None }
    }

    /// Adds the cause.
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds the code that tells users what to do.
    pub fn with_code(mut self, code: Code) -> Self {
        self.code = Some(code);
        self
    }

    /// Kind of failure.
    pub fn kind(&self) -> PortErrorKind {
        self.kind
    }

    /// The code, if the implementation knows a better one than the caller.
    pub fn code(&self) -> Option<Code> {
        self.code
    }

    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        self.kind == PortErrorKind::Unavailable
    }
}

/// An error and its causes in one line, each cause once: `a: b: c`.
pub fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// An error and its causes. An [`io::Error`] shows the cause of the error that it wraps, but not that error
/// itself; here it comes next.
pub fn causes<'e>(
    error: &'e (dyn Error + 'static),
) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        match error.downcast_ref().and_then(io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => error.source(),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_prints_each_cause_once() {
        let error = PortError::new(PortErrorKind::Unavailable, "store the key")
            .because(std::io::Error::other("disk on fire"));
        assert_eq!(chain(&error), "store the key: disk on fire");
        assert!(error.is_retryable());
    }
}
