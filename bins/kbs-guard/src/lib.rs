//! The parts of `kbs-guard`; its tests compose them without the program.

pub mod cli;
pub mod compose;
pub mod keys;
