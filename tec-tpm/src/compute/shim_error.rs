//! Why it is not known what shim measures.

use super::sbat::{SbatError, SbatRevocation};

/// What shim measures is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShimError {
    /// The section that identifies the shim is missing or is not text.
    #[error("there is no .data.ident section to identify the shim")]
    NoVersion,
    /// A version that has not been observed.
    #[error("the measurements of shim {0} are not known; select a profile to override")]
    UnknownVersion(String),
    /// There is no section with the vendor's keys.
    #[error("there is no .vendor_cert section")]
    NoVendorKeys,
    /// The section with the vendor's keys is inconsistent.
    #[error(".vendor_cert offset {offset}: {size} bytes exceed the section")]
    VendorKeys {
        /// Where the part begins.
        offset: usize,
        /// Size of the part.
        size: usize,
    },
    /// There is no section with revocation levels, or it is inconsistent.
    #[error("there is no readable .sbatlevel section")]
    SbatLevel,
    /// shim's own section `.sbat` cannot be read.
    #[error("shim's own .sbat section cannot be read")]
    Sbat(#[source] SbatError),
    /// The level in force revokes shim itself.
    #[error("this boot would be refused: the level in force revokes shim itself")]
    Revoked(#[source] SbatRevocation),
    /// MokManager asks the user before the boot continues.
    #[error(
        "cannot predict this boot: MokManager would prompt first, because a request is pending \
         in {variable} (reboot and finish it in MokManager)"
    )]
    PendingRequest {
        /// Variable with the request.
        variable: &'static str,
    },
    /// The policy requires images that keep data and code apart (NX), which is not supported.
    #[error("variable MokPolicy requires NX in images, which is not supported")]
    NxPolicy,
    /// The mirror of the machine owner keys does not begin with this shim's own keys.
    #[error(
        "MokListRT was written by a different shim, so the user's keys cannot be identified \
         without that shim"
    )]
    ForeignMirror,
}
