//! Why a policy cannot be used.

/// A policy cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// Longer than any sensible policy.
    #[error("the policy has {0} bytes, more than the limit of 262144")]
    TooLarge(usize),
    /// The text does not parse.
    #[error("cannot parse the policy: {0}")]
    Parse(String),
    /// The package is not `policy`.
    #[error("the package of the policy is {0:?} instead of \"policy\"")]
    Package(String),
    /// The evaluation failed.
    #[error("the policy cannot be evaluated: {0}")]
    Evaluate(String),
    /// The result does not have the prescribed form.
    #[error("the policy's result is malformed at {0}")]
    Result(String),
}
