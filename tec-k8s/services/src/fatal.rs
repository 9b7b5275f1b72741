//! States in which continuing would destroy something: an admin must intervene.

use tec_core::code::Code;

/// Why a bootstrap program stops permanently. Each reason has its own exit code, so that a pod's
/// status distinguishes them.
///
/// # Security
/// None of them is ever handled by initializing again or by wiping: that would hide a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fatal {
    /// The vault is initialized, but the Secret with the wrapping key is gone.
    #[error("the vault is initialized, but the Secret with its wrapping key is missing")]
    AesSecretMissing,
    /// The vault is initialized, but the file with the wrapped key is missing.
    #[error("the vault is initialized, but its wrapped key is not on disk")]
    KeyFileMissing,
    /// The wrapped key cannot be unwrapped.
    #[error("the wrapped key of the vault does not open with the key of the Secret")]
    DecryptFailed,
    /// The vault does not accept the key.
    #[error("the vault refuses the unseal key that was stored for it")]
    UnsealRefused,
    /// Only the first pod may initialize a vault.
    #[error("this is not pod 0 of the StatefulSet, and there is no initialized peer")]
    NotFirst,
    /// The Secret says that a vault was set up, but its storage is empty.
    #[error("the vault's storage is empty, although the Secret says that it was set up")]
    StorageLost,
    /// The certificate authority is not mounted, or cannot be used.
    #[error("the certificate of the authority is not mounted or cannot be used")]
    CaNotMounted,
    /// An object of the vault differs and cannot be repaired without loss.
    #[error("an object in the vault is wrong, and repairing it would lose data")]
    Conflict,
}

impl Fatal {
    /// Exit code of the process.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::AesSecretMissing => 10,
            Self::KeyFileMissing => 11,
            Self::DecryptFailed => 12,
            Self::UnsealRefused => 13,
            Self::NotFirst => 14,
            Self::StorageLost => 15,
            Self::CaNotMounted => 16,
            Self::Conflict => 17,
        }
    }

    /// The page that says what to do.
    pub const fn code(self) -> Code {
        match self {
            Self::AesSecretMissing => Code::VaultSecretMissing,
            Self::KeyFileMissing => Code::VaultKeyFileMissing,
            Self::DecryptFailed => Code::VaultKeyBroken,
            Self::UnsealRefused => Code::VaultUnsealRefused,
            Self::NotFirst => Code::VaultNotFirst,
            Self::StorageLost => Code::VaultStorageLost,
            Self::CaNotMounted => Code::VaultCaNotMounted,
            Self::Conflict => Code::VaultConflict,
        }
    }
}
