//! The parts of `kbs-guard` and `key-broker`; tests compose them without the programs.

pub mod cli;
pub mod compose;
pub mod keys;
