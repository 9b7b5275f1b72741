//! Why a policy cannot be used.

/// A policy cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Longer than any sensible policy.
    #[error("the policy has {length} bytes, more than the limit of 262144")]
    TooLarge {
        /// Length of the input.
        length: usize,
    },
    /// The text does not parse.
    #[error("cannot parse the policy: {reason}")]
    Parse {
        /// Line, column and message.
        reason: String,
    },
    /// The package is not `policy`.
    #[error("the package of the policy is {package:?} instead of \"policy\"")]
    Package {
        /// What it is.
        package: String,
    },
    /// The evaluation failed.
    #[error("the policy cannot be evaluated: {reason}")]
    Evaluate {
        /// What went wrong.
        reason: String,
    },
    /// The result does not have the prescribed form.
    #[error("the policy's result is malformed at {at}")]
    Result {
        /// Rule or claim.
        at: String,
    },
}
