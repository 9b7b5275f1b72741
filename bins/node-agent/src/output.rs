//! Output format.

use clap::ValueEnum;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Output {
    /// Plain text
    Text,
    /// One JSON object
    Json,
}
