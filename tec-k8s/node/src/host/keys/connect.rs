//! Settings that the clients of all buckets share.

use std::time::Duration;

use object_store::{BackoffConfig, ClientOptions, Error, RetryConfig};
use tec_core::port::{PortError, PortErrorKind};
use tec_core::secret::SecretBytes;

/// Time limit of a connection with its TLS handshake.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Time limit of one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(20);
/// Time limit of all attempts at one request; the caller is waiting for a ticket.
const RETRY_LIMIT: Duration = Duration::from_secs(20);
const ATTEMPTS: usize = 3;

/// Credentials as text, for the crate that keeps them.
pub(super) fn text(secret: &SecretBytes) -> Result<String, PortError> {
    let text = std::str::from_utf8(secret.expose("authenticate to the bucket"));
    let malformed = |_| PortError::new(PortErrorKind::Invalid, "take the secret of a bucket");
    text.map(str::to_owned).map_err(malformed)
}

pub(super) fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: ATTEMPTS,
        retry_timeout: RETRY_LIMIT,
    }
}

pub(super) fn options() -> ClientOptions {
    ClientOptions::new().with_connect_timeout(CONNECT_LIMIT).with_timeout(REQUEST_LIMIT)
}

pub(super) fn unusable(error: Error) -> PortError {
    PortError::new(PortErrorKind::Invalid, "use the bucket as the URI says").because(error)
}
