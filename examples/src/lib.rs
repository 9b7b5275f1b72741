//! The examples are the binaries of this package; the library only lets rustdoc compile and run the code on
//! the page about libraries.

/// The page about libraries.
#[cfg(doctest)]
#[doc = include_str!("../../docs/reference/libraries.md")]
#[derive(Debug)]
#[non_exhaustive]
pub struct Libraries;
