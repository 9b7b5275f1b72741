//! What can be wrong with a log.

use super::bank::Bank;

/// A log cannot be read or replayed. Offsets count bytes from the start of the log.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventLogError {
    /// The log is larger than the limit.
    #[error("the log has {size} bytes, more than the limit of {limit}")]
    TooLarge {
        /// Size of the log.
        size: usize,
        /// Limit.
        limit: usize,
    },
    /// The log is empty or holds only padding.
    #[error("the log has no events")]
    Empty,
    /// A field or an announced length reaches past the end.
    #[error("offset {offset}: {field} needs {needed} bytes; {left} are left")]
    Truncated {
        /// Where the field begins.
        offset: usize,
        /// The field.
        field: &'static str,
        /// Bytes that it needs.
        needed: usize,
        /// Bytes that are left.
        left: usize,
    },
    /// More events than the limit.
    #[error("offset {offset}: more than {limit} events")]
    TooManyEvents {
        /// Where the first excess event begins.
        offset: usize,
        /// Limit.
        limit: usize,
    },
    /// The header announces no algorithms or too many.
    #[error("offset {offset}: the header announces {count} algorithms; 1 to {limit} are supported")]
    AlgorithmCount {
        /// Where the count is.
        offset: usize,
        /// The count.
        count: u32,
        /// Limit.
        limit: usize,
    },
    /// The header announces an algorithm twice, or with the wrong digest size.
    #[error(
        "offset {offset}: algorithm {algorithm:#06x} is announced with the wrong size, {size} bytes"
    )]
    Algorithm {
        /// Where the entry begins.
        offset: usize,
        /// `TPM_ALG_ID`.
        algorithm: u16,
        /// Announced digest size.
        size: u16,
    },
    /// The header's own length and the lengths within it disagree.
    #[error("offset {offset}: {extra} bytes after the end of the header's fields")]
    HeaderLength {
        /// Where the fields end.
        offset: usize,
        /// Bytes that are left over.
        extra: usize,
    },
    /// An event has more digests than the header has algorithms.
    #[error("offset {offset}: {count} digests; the header announces {announced}")]
    DigestCount {
        /// Where the count is.
        offset: usize,
        /// The count.
        count: u32,
        /// Number of algorithms in the header.
        announced: usize,
    },
    /// An event has a digest for an algorithm that the header lacks, or two for the same algorithm.
    #[error("offset {offset}: the digest of algorithm {algorithm:#06x} is unannounced or repeated")]
    Digest {
        /// Where the digest begins.
        offset: usize,
        /// `TPM_ALG_ID`.
        algorithm: u16,
    },
    /// A StartupLocality event is malformed, repeated, or comes after PCR 0 was extended.
    #[error("offset {offset}: StartupLocality event {reason}")]
    StartupLocality {
        /// Where the event begins.
        offset: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// The log does not cover the bank.
    #[error("the log has no {0} digests")]
    NoBank(Bank),
    /// An event that extends a register lacks the digest of the bank.
    #[error("offset {offset}: event {number} has no {bank} digest")]
    MissingDigest {
        /// Where the event begins.
        offset: usize,
        /// Number of the event.
        number: u32,
        /// Requested bank.
        bank: Bank,
    },
}
