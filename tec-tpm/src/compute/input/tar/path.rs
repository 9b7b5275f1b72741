//! Paths and targets of links in a tar stream.

use super::error::TarError;
use crate::compute::resolve::MAX_PATH;

/// A path within the image: relative, without `.` and empty parts. None if it is not text.
pub(in crate::compute::input) fn plain(path: &[u8], at: u64) -> Result<Option<String>, TarError> {
    let Some(path) = text(path, at)? else {
        return Ok(None);
    };
    let parts = path.split('/').filter(|part| !matches!(*part, "" | "."));
    let parts: Vec<&str> = parts.collect();
    if parts.contains(&"..") {
        return Err(TarError::OutsidePath { offset: at, path });
    }
    Ok(Some(parts.join("/")))
}

pub(in crate::compute::input) fn text(bytes: &[u8], at: u64) -> Result<Option<String>, TarError> {
    if bytes.len() > MAX_PATH {
        return Err(TarError::TooLarge {
            offset: at,
            size: bytes.len() as u64,
            limit: MAX_PATH as u64,
        });
    }
    Ok(std::str::from_utf8(bytes).ok().map(str::to_owned))
}
