//! Kubernetes client errors as port errors.

use kube::Error;
use tec_core::port::{PortError, PortErrorKind};

/// Maximum number of bytes kept of a message: a validation rule that fails quotes the whole object.
const MAX_MESSAGE: usize = 1024;

/// The API server's answer. The client's own error prints the whole answer twice.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Refusal {
    message: String,
}

/// The port error for a client error; `operation` is what was tried, with the object concerned.
pub fn port_error(operation: impl Into<String>, error: Error) -> PortError {
    let port_error = PortError::new(kind(&error), operation);
    match error {
        Error::Api(status) => {
            let mut message = status.message.clone();
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
            port_error.because(Refusal { message })
        }
        other => port_error.because(other),
    }
}

fn kind(error: &Error) -> PortErrorKind {
    match error {
        // HTTP status codes as in the API conventions of Kubernetes, section "HTTP status codes".
        Error::Api(status) => match status.code {
            404 | 410 => PortErrorKind::NotFound,
            409 => PortErrorKind::Conflict,
            401 | 403 => PortErrorKind::Denied,
            400 | 413 | 422 => PortErrorKind::Invalid,
            408 | 429 | 500..=599 => PortErrorKind::Unavailable,
            _ => PortErrorKind::Internal,
        },
        Error::SerdeError(_) | Error::BuildRequest(_) => PortErrorKind::Invalid,
        // The rest are connections that failed or were cut off.
        _ => PortErrorKind::Unavailable,
    }
}

/// Whether the object already exists, or was changed by someone else.
pub fn is_conflict(error: &Error) -> bool {
    kind(error) == PortErrorKind::Conflict
}

/// Whether the object does not exist.
pub(super) fn is_not_found(error: &Error) -> bool {
    matches!(error, Error::Api(status) if status.code == 404)
}

/// The requested object, if it exists. The client itself treats a kind that the cluster does not
/// serve as a failure.
pub(super) fn if_found<T>(found: Result<Option<T>, Error>) -> Result<Option<T>, Error> {
    match found {
        Err(error) if is_not_found(&error) => Ok(None),
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn only_what_may_pass_is_retried() {
        let api = |code| {
            let status = Status { code, ..Status::default() };
            port_error("x", Error::Api(Box::new(status)))
        };
        assert!(api(503).is_retryable() && api(429).is_retryable());
        for (code, kind) in [
            (404, PortErrorKind::NotFound),
            (409, PortErrorKind::Conflict),
            (403, PortErrorKind::Denied),
            (422, PortErrorKind::Invalid),
        ] {
            assert_eq!(api(code).kind(), kind);
            assert!(!api(code).is_retryable());
        }
    }
}
