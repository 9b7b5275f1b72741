//! Arguments of the commands about disks.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use tec_core::endpoint::Endpoint;

use crate::output::Output;

/// Arguments of `rebind`.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct RebindArgs {
    /// LUKS2 device
    pub device: PathBuf,
    /// Key broker, optionally with the file of its CA; repeatable, tried in order. They replace the list on
    /// the disk
    #[arg(long = "url", value_name = "URL[=CA-FILE]", required = true, value_parser = tec_support::endpoint::parse)]
    pub servers: Vec<Endpoint>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Arguments of `refresh-ca` and `key rotate`.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct DisksArgs {
    /// Additional LUKS2 devices, such as files, besides all block devices that are bound to servers
    pub devices: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Subcommands of `recovery`.
#[derive(Clone, Debug, Subcommand)]
pub enum RecoveryCommand {
    /// Create a recovery key unless the disk has one
    Enroll(RecoveryArgs),
    /// Create a new recovery key, and remove the slot of the old one
    Renew(RecoveryArgs),
}

/// Arguments of both.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct RecoveryArgs {
    /// LUKS2 device, already bound to servers
    pub device: PathBuf,
    /// File with the admin's public key, a JWK on P-256 or P-521 with `"alg":"ECDH-ES+A256KW"`
    #[arg(long, env = "TEC_ADMIN_KEY", value_name = "FILE")]
    pub admin_key: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Subcommands of `key`.
#[derive(Clone, Debug, Subcommand)]
pub enum KeyCommand {
    /// Replace the disk key by the one that the server has pending, if any
    Rotate(DisksArgs),
}
