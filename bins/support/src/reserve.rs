//! Disk space that what strangers cause leaves free. An audit line must be on disk before a disk key is released, so
//! if strangers could fill the disk, every node would be locked out.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tec_core::code::Code;
use tec_core::http::{ReplyStyle, refusal};

const MIB: u64 = 1 << 20;

/// Required free space at the state directory for what strangers cause.
#[derive(Debug)]
pub struct Reserve {
    place: PathBuf,
    bytes: u64,
    /// The state logged last, so that a flood of requests does not fill the log.
    was_low: AtomicBool,
}

impl Reserve {
    /// Keeps so many MiB of the file system of `place`; 0 keeps none.
    pub fn of(place: &Path, mib: u64) -> Self {
        Self {
            place: place.to_owned(),
            bytes: mib.saturating_mul(MIB),
            was_low: AtomicBool::new(false),
        }
    }

    /// A file system whose free space cannot be determined counts as full.
    pub fn is_low(&self) -> bool {
        if self.bytes == 0 {
            return false;
        }
        let free = free_bytes(&self.place);
        let is_low = free.as_ref().map_or(true, |free| *free < self.bytes);
        if self.was_low.swap(is_low, Ordering::Relaxed) != is_low {
            let (free, reserve) = (free.unwrap_or(0), self.bytes);
            if is_low {
                tracing::error!(
                    free,
                    reserve,
                    "the disk is nearly full: nobody can register, and machines that are bound by first use get few disk \
                     keys, and no record of refusals"
                );
            } else {
                tracing::info!(free, reserve, "there is space again");
            }
        }
        is_low
    }
}

fn free_bytes(place: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(place)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

/// The middleware for requests that create machines and keys: refuses them with `TEC-R507` while the disk is nearly full.
/// Health checks are not affected.
pub async fn keep_reserve(
    State((reserve, style)): State<(Arc<Reserve>, ReplyStyle)>,
    request: Request,
    next: Next,
) -> Response {
    if request.uri().path() != "/healthz" && reserve.is_low() {
        return refusal(style, Code::RegisterLowSpace).into_response();
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_that_no_disk_has_is_low_and_none_never_is() {
        let place = tempfile::tempdir().unwrap();
        assert!(Reserve::of(place.path(), u64::MAX).is_low());
        assert!(!Reserve::of(place.path(), 0).is_low());
        assert!(Reserve::of(&place.path().join("gone"), 1).is_low());
    }
}
