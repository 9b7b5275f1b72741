//! Codes as text.

use std::fmt;

use super::Code;

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl std::str::FromStr for Code {
    type Err = UnknownCodeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.iter().copied().find(|code| code.as_str() == text).ok_or(UnknownCodeError)
    }
}

/// The string is not a known code.
#[derive(Debug, thiserror::Error)]
#[error("unknown error code")]
#[non_exhaustive]
pub struct UnknownCodeError;
