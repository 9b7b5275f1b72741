//! Why a command failed, and how it is reported.

use std::error::Error;
use std::io;

use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::ignition::ParsePinConfigError;
use tec_core::luks::ParseLuksResourceError;
use tec_core::port::chain;
use tec_tpm::ak::AkHandle;
use tec_trustee::clevis::ClevisError;
use tec_trustee::client::SetupError;

use crate::disk::DiskError;
use crate::fetch::FetchError;
use crate::register::RegisterError;
use crate::report::Report;

/// A command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Clevis passed an invalid configuration.
    #[error("cannot read the pin's configuration")]
    Config(#[source] ParsePinConfigError),
    /// The TPM failed.
    #[error("cannot {operation}")]
    Tpm {
        /// What failed.
        operation: &'static str,
        /// The code, or a more specific one from the TPM adapter.
        code: Code,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// There is no attestation key.
    #[error("there is no attestation key at {handle}: {hint}")]
    NoAk {
        /// Handle where it should be.
        handle: AkHandle,
        /// What this means, or what to do.
        hint: &'static str,
    },
    /// The attestation key was not registered.
    #[error("cannot register the attestation key")]
    Register(#[source] RegisterError),
    /// The servers of the configuration cannot be used.
    #[error("cannot use the servers in the pin's configuration")]
    Servers(#[source] SetupError),
    /// No key was released.
    #[error("cannot fetch the disk key")]
    Fetch(#[source] FetchError),
    /// The released resource is not a disk key.
    #[error("cannot read the disk key")]
    Resource(#[source] ParseLuksResourceError),
    /// The passphrase cannot be sealed or opened. The cause may quote the header, so it is not
    /// reported.
    #[error("cannot {operation}")]
    Sealed {
        /// What failed.
        operation: &'static str,
        /// The cause.
        #[source]
        source: ClevisError,
    },
    /// The header of the disk cannot be read or changed.
    #[error("cannot use the header of the disk")]
    Disk(#[from] DiskError),
    /// A root file system beside the disk that was opened.
    #[error(
        "{0} is mounted as the root or below it, and is not on the disk that the released key opened"
    )]
    Beside(String),
    /// The CAs that a server hands out cannot be pinned.
    #[error("cannot use the CA certificates that {server} provides: {reason}")]
    Bundle {
        /// The server.
        server: String,
        /// What is wrong with them.
        reason: &'static str,
    },
    /// The admin's key cannot be used for sealing.
    #[error("cannot use the admin's key: {0}")]
    AdminKey(String),
    /// The disk key cannot be replaced.
    #[error("cannot rotate the disk key: {0}")]
    Rotation(&'static str),
    /// An admin canceled the rotation.
    #[error(
        "the rotation of the disk key was canceled or replaced; the disk opens as before (run `node-agent key \
         rotate` again to remove the key slot that is left)"
    )]
    NotCurrent,
    /// The next boot cannot be predicted.
    #[error("cannot predict the next boot")]
    Foretell {
        /// The code.
        code: Code,
        /// The cause.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// A file or a stream cannot be read or written.
    #[error("cannot {operation}")]
    Io {
        /// What failed.
        operation: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl Failure {
    /// A failure to read or write a file or a stream.
    pub fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let operation = operation.into();
        move |source| Self::Io { operation, source }
    }

    /// The code, which identifies the fix.
    pub fn code(&self) -> Code {
        match self {
            Self::Io { source, .. } if is_full(source) => Code::NodeFull,
            Self::Config(_) | Self::Servers(_) | Self::Io { .. } | Self::AdminKey(_) => {
                Code::NodeConfig
            }
            Self::NotCurrent => Code::RotationNotCurrent,
            Self::Sealed { .. } | Self::Disk(DiskError::Sealed { .. }) => Code::NodeHeader,
            Self::Disk(DiskError::Unsafe { .. }) => Code::NodeUnsafe,
            Self::Beside(_) => Code::NodeRoot,
            Self::Disk(_) | Self::Rotation(_) => Code::NodeDisk,
            Self::Tpm { code, .. } | Self::Foretell { code, .. } => *code,
            Self::Bundle { .. } => Code::TlsMaterial,
            Self::NoAk { .. } => Code::AkNotBound,
            Self::Register(error) => error.code(),
            Self::Fetch(error) => error.code(),
            Self::Resource(_) => Code::KeyMissing,
        }
    }

    /// Whether a server refused this node.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Fetch(error) if error.is_refusal())
    }

    /// The three lines for the console.
    pub fn report(&self, machine: Option<MachineId>) -> Report {
        let cause = match self {
            Self::Sealed { .. } => self.to_string(),
            Self::Disk(error @ DiskError::Sealed { .. }) => error.to_string(),
            _ => chain(self),
        };
        let attempt = match self {
            Self::Fetch(error) => error.attempt(),
            _ => None,
        };
        Report::new(self.code(), cause).of_attempt(attempt).of_machine(machine)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;
    use tec_core::ignition::PinConfig;
    use tec_trustee::clevis::SealedPassphrase;

    use super::*;

    #[test]
    fn a_broken_configuration_is_reported_with_its_cause() {
        let failure = Failure::Config(PinConfig::parse("{").unwrap_err());
        let report = failure.report(None);
        assert_eq!(report.code, Code::NodeConfig);
        assert!(report.cause.contains("not valid: EOF"), "{}", report.cause);
    }

    #[test]
    fn a_broken_header_is_reported_without_its_content() {
        let protected = URL_SAFE_NO_PAD.encode(
            r#"{"alg":"dir","enc":"A256GCM","clevis":{"pin":"canary","servers":"canary"}}"#,
        );
        let text = format!("{protected}..AAAAAAAAAAAAAAAA.AA.AAAAAAAAAAAAAAAAAAAAAA");
        let source = SealedPassphrase::parse(&text).unwrap_err();
        assert!(matches!(source, ClevisError::Config(_)));
        let operation = "read the sealed passphrase";
        let report = Failure::Sealed { operation, source }.report(None);
        assert_eq!(report.code, Code::NodeHeader);
        assert!(!report.to_string().contains("canary"));
    }
}
