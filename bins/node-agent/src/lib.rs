//! The program of a node, over [`tec_agent`]: the Clevis pin `trustee`, and the command lines that Clevis and people
//! use.

pub mod args;
pub mod attest;
pub mod cli;
pub mod links;
pub mod next_boot;
pub mod output;
pub mod render;
pub mod settings;
pub mod stream;
