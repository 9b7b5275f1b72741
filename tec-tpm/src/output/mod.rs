//! The formats in which expected values are written and read: labels, reference values, lock files, text.
//!
//! *What it is*: pure functions between the types of this crate and the JSON and text that other programs
//! accept. The same input gives the same bytes.
//!
//! *What it is not*: a sender or a judge: what is read back is checked only for its form and, where events
//! are given, for folding to its values. For a bundle, the signature is checked, too.
//!
//! | form | write | read |
//! |---|---|---|
//! | image label `org.coreos.pcrs`, `compute-pcrs` | [`label`], [`register`] | [`read_label`] |
//! | this project's format for an image: values in all banks, gaps | [`PredictionReport`] | [`read_label`] |
//! | this project's format for a fleet: values with origins, tuples, gaps | [`FleetReport`] | |
//! | the next boot of a machine, compared with the current one | [`NextBoot`] | |
//! | signed bundle | [`ReferenceBundle::to_json`], [`BundleSigner`] | [`UntrustedBundle`] |
//! | comparison of two images | [`difference`] | |
//! | Trustee, ConfigMap | [`ReferenceValues::to_config_map`] | [`ReferenceValues::read_config_map`] |
//! | Trustee, message | [`ReferenceValues::to_message`] | [`ReferenceValues::read_message`] |
//! | `systemd-pcrlock` | [`pcrlock`] | |
//! | `tpm2_pcrread` | [`pcrread`] | [`read_pcrread`] |
//! | `measurements.json` of nodes and join services | [`measurements`] | `atls::Measurements` |
//!
//! # Example
//! ```
//! use tec_core::digest::Sha256Digest;
//! use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
//! use tec_core::pcr::PcrIndex;
//! use tec_tpm::output;
//!
//! let pcr4 = PcrIndex::BOOT_MANAGER;
//! let shim = ImageEvent::new("E", pcr4, Sha256Digest::of("shim"), "Pcr4Shim");
//! let image = ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr4, [shim])]);
//! let label = output::label(&image)?;
//! assert_eq!(output::read_label(&label)?, image);
//! # Ok::<(), output::OutputError>(())
//! ```

mod bundle;
mod difference;
mod fleet;
mod label;
mod measurements;
mod next_boot;
mod pcrlock;
mod pcrread;
mod prediction;
mod trustee;

use tec_core::pcr::PcrIndex;

pub use self::bundle::{
    BundleError, BundleSigner, ImageReference, MAX_BUNDLE, ParseImageReferenceError,
    ReferenceBundle, UntrustedBundle, VerifiedBundle,
};
pub use self::difference::{ComponentDiff, ExpectedDiff, difference, difference_text};
pub use self::fleet::{FleetReport, JointReport, RegisterReport, UndeterminedReport, ValueReport};
pub use self::label::{label, read_label, register};
pub use self::measurements::measurements;
pub use self::next_boot::{Accepted, CurrentBoot, NextBoot, NextRegister, Verdict};
pub use self::pcrlock::pcrlock;
pub use self::pcrread::{pcrread, read_pcrread};
pub use self::prediction::{
    PredictedEvent, PredictedRegister, PredictionReport, UnpredictableRegisters, root_text,
    shell_text, unpredictable_text,
};
pub use self::trustee::ReferenceValues;

/// Largest input that is read.
pub const MAX_INPUT: usize = 16 << 20;

/// A format cannot be written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// The input is too large.
    #[error("the text has {size} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Size of the input.
        size: usize,
        /// Limit.
        limit: usize,
    },
    /// The input is not JSON of this format, or cannot be converted to it.
    #[error("not the JSON of {form}")]
    Json {
        /// Name of the format.
        form: &'static str,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
    /// The value of a register is not the fold of its events.
    #[error("the events of PCR {0} do not produce its value")]
    Inconsistent(PcrIndex),
    /// The input contains a register more than once.
    #[error("it contains PCR {0} more than once")]
    Repeated(PcrIndex),
    /// A member has a value that the format does not allow.
    #[error("{member} is invalid in {form}")]
    Member {
        /// The member or line.
        member: String,
        /// Name of the format.
        form: &'static str,
    },
}

fn check_size(text: &str) -> Result<(), OutputError> {
    if text.len() > MAX_INPUT {
        return Err(OutputError::TooLarge { size: text.len(), limit: MAX_INPUT });
    }
    Ok(())
}

/// A register's number as it is printed: without a sign or leading zeros.
fn register_number(text: &str) -> Option<PcrIndex> {
    PcrIndex::all().find(|pcr| pcr.to_string() == text)
}

fn to_json<T: serde::Serialize + ?Sized>(
    value: &T,
    form: &'static str,
) -> Result<String, OutputError> {
    serde_json::to_string_pretty(value).map_err(|source| OutputError::Json { form, source })
}

fn from_json<T: serde::de::DeserializeOwned>(
    text: &str,
    form: &'static str,
) -> Result<T, OutputError> {
    check_size(text)?;
    serde_json::from_str(text).map_err(|source| OutputError::Json { form, source })
}

#[cfg(test)]
mod tests;
