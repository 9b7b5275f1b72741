//! How a node asks, before it reboots, whether the boot that it predicts would be accepted.
//!
//! ```text
//! PUT next-boot ─► after an attestation: the predicted registers; the answer is one word and a code
//! ```
//! Trustee has no such path.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::flow::NextBoot;
use tec_core::pcr::PcrIndex;

/// Name of the path, below the base path.
pub const PLACE: &str = "next-boot";
/// Largest body in bytes: 24 registers of less than 80.
pub const MAX_BODY: usize = 2048;

/// Body of `PUT next-boot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The predicted values of the SHA-256 bank; registers that cannot be predicted are left out.
    pub pcrs: BTreeMap<PcrIndex, Sha256Digest>,
}

/// Reply to `PUT next-boot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "answer")]
pub enum Answer {
    /// The server would release the key.
    Accepted,
    /// The server would refuse the boot.
    Refused {
        /// The code that the node would get.
        code: Code,
    },
    /// Registers that must match are not predicted.
    Undetermined {
        /// The registers.
        pcrs: Vec<PcrIndex>,
    },
}

impl From<&NextBoot> for Answer {
    fn from(next: &NextBoot) -> Self {
        match next {
            NextBoot::Accepted { .. } => Self::Accepted,
            NextBoot::Refused { .. } => Self::Refused { code: Code::PcrMismatch },
            NextBoot::Undetermined { pcrs } => Self::Undetermined { pcrs: pcrs.clone() },
        }
    }
}
