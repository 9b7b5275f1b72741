//! Form of what is printed.

use clap::ValueEnum;

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Output {
    /// For people.
    Text,
    /// One JSON object.
    Json,
}
