//! The command line.

use std::path::PathBuf;

use clap::Parser;
use tec_support::front::FrontArgs;

use crate::setting::Files;

/// Registers the attestation keys of nodes.
#[derive(Clone, Debug, Parser)]
#[command(name = "attestation-key-register", version)]
pub(crate) struct Args {
    /// Port to listen on
    #[arg(short, long, default_value_t = 8001)]
    pub(crate) port: u16,
    /// CA certificates, PEM, that certificates of endorsement keys must chain to under the policy
    /// EndorsementKey. Read again when the file changes
    #[arg(long)]
    ek_roots: Option<PathBuf>,
    /// File with the 32-byte key that all replicas share, so that any of them accepts the answer to a
    /// challenge (default: a random key per process). Read again when the file changes
    #[arg(long, value_name = "FILE")]
    challenge_key_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) front: FrontArgs,
}

impl Args {
    pub(crate) fn files(&self) -> Files {
        Files { roots: self.ek_roots.clone(), challenge_key: self.challenge_key_file.clone() }
    }
}
