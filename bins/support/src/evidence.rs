//! The evidence that a server accepts: flags, and the verifier they select.

use std::sync::Arc;

use clap::{Args, ValueEnum};
use tec_core::attest::Tee;
use tec_core::port::{Clock, Verifier};
use tec_tpm::snp::{Policy, Tcb};
use tec_tpm::verifier::{AzSnpVtpmVerifier, ByTee, TpmVerifier};

/// Types of evidence, and which guests are accepted. There is no flag for evidence without hardware.
#[derive(Clone, Debug, Args)]
pub struct EvidenceArgs {
    /// Type of evidence to accept; repeatable
    #[arg(long, value_name = "TYPE", value_enum, default_value = "tpm")]
    pub evidence: Vec<EvidenceSort>,
    /// SHA-384 of an ID key whose guests are accepted, 96 hexadecimal digits; with `--evidence az-snp-vtpm`;
    /// repeatable
    #[arg(long = "snp-id-key", value_name = "DIGEST", value_parser = parse_sha384)]
    pub snp_id_keys: Vec<[u8; 48]>,
    /// Measurement of an accepted guest, 96 hexadecimal digits; with `--evidence az-snp-vtpm`; repeatable
    #[arg(long = "snp-measurement", value_name = "DIGEST", value_parser = parse_sha384)]
    pub snp_measurements: Vec<[u8; 48]>,
    /// Oldest accepted firmware of SNP hosts: boot loader, TEE, SNP and microcode, separated by commas; with
    /// `--evidence az-snp-vtpm`
    #[arg(long, value_name = "B,T,S,M", value_parser = parse_tcb)]
    pub snp_minimum_tcb: Option<Tcb>,
}

/// Types of evidence that can be selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum EvidenceSort {
    /// A quote of a TPM
    Tpm,
    /// A quote of an Azure virtual machine's TPM, with an SNP report that vouches for it
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

/// Parses a digest from the command line.
pub fn parse_sha384(text: &str) -> Result<[u8; 48], String> {
    let mut digest = [0; 48];
    hex::decode_to_slice(text, &mut digest)
        .map_err(|_| "a SHA-384 digest has 96 hexadecimal digits".to_owned())?;
    Ok(digest)
}

/// Parses firmware versions: boot loader, TEE, SNP and microcode, separated by commas.
pub fn parse_tcb(text: &str) -> Result<Tcb, String> {
    let part = |part: &str| {
        part.parse::<u8>().map_err(|_| format!("{part:?} is not a number from 0 to 255"))
    };
    let parts: Vec<u8> = text.split(',').map(part).collect::<Result<_, _>>()?;
    match parts[..] {
        [bootloader, tee, snp, microcode] => Ok(Tcb { fmc: 0, bootloader, tee, snp, microcode }),
        _ => Err("four numbers are needed: boot loader, TEE, SNP, microcode".to_owned()),
    }
}

/// Which guests are accepted, and how old their host may be; `None` if no flag names any guests.
pub fn guests(
    id_keys: &[[u8; 48]],
    measurements: &[[u8; 48]],
    minimum: Option<Tcb>,
) -> Option<Policy> {
    let policy = Policy::of_guests(id_keys, measurements)?;
    Some(match minimum {
        Some(minimum) => policy.with_minimum_tcb_of_all(minimum),
        None => policy,
    })
}

impl EvidenceArgs {
    /// A verifier for each accepted type.
    /// Errors: evidence of virtual machines is accepted, but no flag selects any.
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
        if self.snp_minimum_tcb.is_none() {
            tracing::warn!(
                "SNP hosts with any firmware are accepted, however old: set --snp-minimum-tcb"
            );
        }
        let (id_keys, measurements) = (&self.snp_id_keys, &self.snp_measurements);
        guests(id_keys, measurements, self.snp_minimum_tcb).ok_or_else(|| {
            anyhow::anyhow!(
                "--evidence az-snp-vtpm needs --snp-id-key or --snp-measurement to select the accepted guests: otherwise software in any genuine guest could claim any TPM as its own"
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
    fn firmware_that_is_too_old_is_named_in_four_numbers() {
        let digest = [0x1d; 48];
        let text = "1d".repeat(48);
        let flags = ["--snp-id-key", &text, "--snp-minimum-tcb", "4,0,24,219"];
        let server = Server::try_parse_from(["server"].iter().chain(&flags)).unwrap();
        let minimum = Tcb { bootloader: 4, snp: 24, microcode: 219, ..Tcb::default() };
        let expected = Policy::new().with_id_keys([digest]).with_minimum_tcb_of_all(minimum);
        assert_eq!(server.evidence.snp_policy().unwrap(), expected);
        for wrong in ["4,0,24", "4,0,24,256", "4,0,24,-1", ""] {
            assert!(parse_tcb(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn any_genuine_guest_is_not_enough() {
        let error = tees(&["--evidence", "az-snp-vtpm"]).unwrap_err();
        assert!(error.to_string().contains("--snp-id-key"), "{error}");
    }
}
