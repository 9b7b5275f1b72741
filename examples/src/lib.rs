//! The examples are the binaries of this package; the library only lets rustdoc compile and run
//! the code of the README.

/// The README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Readme;
