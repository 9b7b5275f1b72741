//! Which evidence a server takes: flags, and the verifier that they ask for.

use std::sync::Arc;

use clap::Args;
use clap::ValueEnum;
use tec_core::attest::Tee;
use tec_core::port::Clock;
use tec_core::port::Verifier;
use tec_tpm::snp::Policy;
use tec_tpm::verifier::AzSnpVtpmVerifier;
use tec_tpm::verifier::ByTee;
use tec_tpm::verifier::TpmVerifier;

/// Sorts of evidence, and which guests of them. There is no flag for evidence without hardware.
#[derive(Clone, Debug, Args)]
#[expect(
    clippy::exhaustive_structs,
    reason = "a command line, built field by field"
)]
pub struct EvidenceArgs {
    /// Sort of evidence that is taken; may be given several times.
    #[arg(long, value_name = "SORT", value_enum, default_value = "tpm")]
    pub evidence: Vec<EvidenceSort>,
    /// SHA-384 of an ID key whose guests are accepted, 96 hexadecimal digits; with
    /// `--evidence az-snp-vtpm`. May be given several times.
    #[arg(long = "snp-id-key", value_name = "DIGEST", value_parser = parse_sha384)]
    pub snp_id_keys: Vec<[u8; 48]>,
    /// Measurement of a guest that is accepted, 96 hexadecimal digits; with
    /// `--evidence az-snp-vtpm`. May be given several times.
    #[arg(long = "snp-measurement", value_name = "DIGEST", value_parser = parse_sha384)]
    pub snp_measurements: Vec<[u8; 48]>,
}

/// Sorts of evidence that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum EvidenceSort {
    /// A quote of a TPM.
    Tpm,
    /// A quote of an Azure virtual machine's TPM, with an SNP report that vouches for it.
    AzSnpVtpm,
}

impl From<EvidenceSort> for Tee {
    fn from(sort: EvidenceSort) -> Self {
        match sort {
            EvidenceSort::Tpm => Self::Tpm,
            EvidenceSort::AzSnpVtpm => Self::AzSnpVtpm,
        }
    }
}

/// Parses a digest of a command line.
///
/// # Errors
/// It has not 96 hexadecimal digits.
pub fn parse_sha384(text: &str) -> Result<[u8; 48], String> {
    let mut digest = [0; 48];
    hex::decode_to_slice(text, &mut digest)
        .map_err(|_| "a SHA-384 digest has 96 hexadecimal digits".to_owned())?;
    Ok(digest)
}

impl EvidenceArgs {
    /// A verifier for each sort that is taken.
    ///
    /// # Errors
    /// Evidence of virtual machines is asked for, and nothing says of which.
    pub fn verifier(&self, clock: &Arc<dyn Clock>) -> anyhow::Result<ByTee> {
        let mut verifier = ByTee::new();
        for sort in &self.evidence {
            let one: Arc<dyn Verifier> = match sort {
                EvidenceSort::Tpm => Arc::new(TpmVerifier::new()),
                EvidenceSort::AzSnpVtpm => {
                    Arc::new(AzSnpVtpmVerifier::new(clock.clone(), self.snp_policy()?))
                }
            };
            verifier = verifier.with((*sort).into(), one);
        }
        Ok(verifier)
    }

    fn snp_policy(&self) -> anyhow::Result<Policy> {
        Policy::of_guests(&self.snp_id_keys, &self.snp_measurements).ok_or_else(|| {
            anyhow::anyhow!(
                "with --evidence az-snp-vtpm, --snp-id-key or --snp-measurement must say which \
                 guests are accepted, or any software in a genuine guest could claim any TPM to be \
                 its own"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::SystemClock;

    #[derive(Parser)]
    struct Server {
        #[command(flatten)]
        evidence: EvidenceArgs,
    }

    fn tees(flags: &[&str]) -> anyhow::Result<Vec<Tee>> {
        let server = Server::try_parse_from(["server"].iter().chain(flags))?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        Ok(server.evidence.verifier(&clock)?.tees().collect())
    }

    #[test]
    fn only_tpm_evidence_is_taken_unless_more_is_asked_for() {
        let digest = "1d".repeat(48);
        assert_eq!(tees(&[]).unwrap(), [Tee::Tpm]);
        for flag in ["--snp-id-key", "--snp-measurement"] {
            let azure = ["--evidence", "az-snp-vtpm", flag, &digest];
            assert_eq!(tees(&azure).unwrap(), [Tee::AzSnpVtpm]);
            let both = [&azure[..], &["--evidence", "tpm"]].concat();
            assert_eq!(tees(&both).unwrap(), [Tee::Tpm, Tee::AzSnpVtpm]);
        }
        assert!(tees(&["--evidence", "sample"]).is_err());
        assert!(tees(&["--snp-id-key", "1d"]).is_err());
    }

    #[test]
    fn any_genuine_guest_is_not_enough() {
        let error = tees(&["--evidence", "az-snp-vtpm"]).unwrap_err();
        assert!(error.to_string().contains("--snp-id-key"), "{error}");
    }
}
