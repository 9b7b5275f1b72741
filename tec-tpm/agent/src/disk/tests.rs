//! Doubles.

pub(crate) mod fake;
