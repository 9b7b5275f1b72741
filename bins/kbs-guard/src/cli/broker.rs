//! The command line of `key-broker`.

use std::path::PathBuf;

use clap::Parser;
use tec_support::evidence::EvidenceArgs;
use tec_support::front::FrontArgs;
use tec_support::pins::PinsArgs;

/// Releases disk keys to nodes that attest: the built-in key broker of a cluster.
///
/// It reads Machines, AttestationKeys, ApprovedImages and disk keys from the API server for each
/// request and keeps nothing itself, so any number of replicas can run.
#[derive(Clone, Debug, Parser)]
#[command(name = "key-broker", version)]
pub struct Args {
    /// Port to listen on
    #[arg(short, long, default_value_t = 8080)]
    pub port: u16,
    /// Private key that signs attestation tokens, PEM; the same for all replicas
    #[arg(long)]
    pub signer_key: PathBuf,
    /// File with 32 random bytes that replicas share, so that each can continue the sessions of the others
    /// (default: sessions belong to this process)
    #[arg(long)]
    pub session_key: Option<PathBuf>,
    /// CA certificates that nodes should trust for this server, PEM; read for each request. Nodes fetch them
    /// here and report that they trust them
    #[arg(long)]
    pub ca_path: Option<PathBuf>,
    /// Which registers a boot must match.
    #[command(flatten)]
    pub pins: PinsArgs,
    /// Which evidence is accepted.
    #[command(flatten)]
    pub evidence: EvidenceArgs,
    /// Listeners, TLS, limits and log.
    #[command(flatten)]
    pub front: FrontArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
        let words = ["key-broker", "--signer-key", "k", "--pcrs", "4,11"];
        assert_eq!(Args::parse_from(words).pins.pcrs.len(), 2);
        assert!(Args::try_parse_from(["key-broker"]).is_err(), "the signer is no option");
    }
}
