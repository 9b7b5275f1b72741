//! Types of evidence.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Type of evidence, by its name on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Tee {
    /// A TPM quote.
    Tpm,
    /// A TPM quote of an Azure virtual machine, vouched for by an AMD SNP report.
    #[serde(alias = "azsnpvtpm")]
    AzSnpVtpm,
    /// No hardware at all; for tests only.
    Sample,
}

impl Tee {
    /// The name on the wire and in policies.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tpm => "tpm",
            Self::AzSnpVtpm => "az-snp-vtpm",
            Self::Sample => "sample",
        }
    }
}

impl fmt::Display for Tee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
