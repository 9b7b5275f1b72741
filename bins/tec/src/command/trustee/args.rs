//! The command line of `tec trustee`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use tec_core::id::ResourcePath;
use tec_core::pcr::PcrIndex;
use tec_support::evidence::{EvidenceSort, parse_tcb};
use tec_trustee::policy::SnpTcb;

use crate::args::DryRun;
use tec_support::pins::parse_pcr;

#[derive(Debug, Subcommand)]
pub(crate) enum TrusteeCommand {
    /// Check a configuration and policies; exit code 1 if something must not be deployed.
    Lint(LintArgs),
    /// Compare two configurations, key by key.
    Diff {
        /// First configuration.
        before: PathBuf,
        /// Second configuration.
        after: PathBuf,
    },
    /// Patch a configuration: apply the given settings, and remove insecure ones.
    Patch(Box<PatchArgs>),
    /// Create the key and the certificates of the token signer, or renew them before they expire.
    Signer {
        /// Directory of ca.key, ca.crt, signer.key and signer.crt.
        #[arg(long)]
        directory: PathBuf,
        #[command(flatten)]
        dry_run: DryRun,
    },
    /// Print a policy that binds machines to their own disk keys.
    Policy {
        /// Policy to print.
        which: PolicyName,
        #[command(flatten)]
        intent: IntentArgs,
    },
    /// Evaluate policies over recorded claims, offline; exit code 1 if a decision is not the expected one.
    TestPolicy(Box<TestArgs>),
}

#[derive(Debug, Args)]
#[group(id = "checked", required = true, multiple = true)]
pub(crate) struct LintArgs {
    /// Configuration of the KBS.
    #[arg(group = "checked")]
    pub(crate) config: Option<PathBuf>,
    /// Name of a policy on a read-only mount, for example default_cpu; repeatable.
    #[arg(long = "mounted-policy", value_name = "NAME")]
    pub(crate) mounted_policies: Vec<String>,
    /// Resource policy to test with tokens that must not pass.
    #[arg(long, value_name = "FILE", group = "checked")]
    pub(crate) resource_policy: Option<PathBuf>,
    /// Attestation policy to test with evidence that nothing vouches for.
    #[arg(long, value_name = "FILE", group = "checked")]
    pub(crate) attestation_policy: Option<PathBuf>,
}

/// Paths are as seen by the KBS.
#[derive(Debug, Args)]
#[command(next_help_heading = "Content of the configuration, with paths as the KBS sees them")]
pub(crate) struct PatchArgs {
    /// Configuration to patch (default: create a new one).
    pub(crate) config: Option<PathBuf>,
    /// Listening address of the KBS.
    #[arg(long, default_value = "0.0.0.0:8080")]
    pub(crate) socket: String,
    /// TLS certificate chain of the KBS.
    #[arg(long, requires = "tls_key", required_unless_present = "dangerous_plain_http")]
    pub(crate) tls_cert: Option<String>,
    /// TLS private key of the KBS.
    #[arg(long, requires = "tls_cert")]
    pub(crate) tls_key: Option<String>,
    /// Listen without TLS, which is safe only on loopback behind the guard.
    #[arg(long, conflicts_with = "tls_cert")]
    pub(crate) dangerous_plain_http: bool,
    /// Private key of the token signer.
    #[arg(long)]
    pub(crate) signer_key: String,
    /// Certificate of the token signer.
    #[arg(long)]
    pub(crate) signer_cert: String,
    /// CA that tokens must chain to; repeatable.
    #[arg(long = "trusted-cert", value_name = "PATH", required = true)]
    pub(crate) trusted_certs: Vec<String>,
    /// Public key of the admin (default: the admin API is closed).
    #[arg(long)]
    pub(crate) admin_key: Option<String>,
    /// Directory where the KBS stores its data, or below which files are mounted.
    #[arg(long, default_value = "/opt/trustee/storage")]
    pub(crate) storage_dir: String,
    /// Write the file in place instead of printing the text.
    #[arg(long, requires = "config", help_heading = "What to do")]
    pub(crate) write: bool,
    /// Print what would change, and change nothing.
    #[arg(long, conflicts_with = "write", help_heading = "What to do")]
    pub(crate) dry_run: bool,
}

/// The two policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// `default_cpu` of the attestation service.
    Attestation,
    /// The resource policy of the KBS.
    Resource,
}

/// A claim that a policy adds to tokens: `NAME:KEY=VALUE`.
#[derive(Clone, Debug)]
pub(crate) struct ClaimArg {
    pub(crate) name: String,
    pub(crate) key: i64,
    pub(crate) value: String,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "What the policies shall enforce")]
pub(crate) struct IntentArgs {
    /// Registers that must have approved values, separated by commas.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = parse_pcr,
        default_value = "4"
    )]
    pub(crate) pcrs: Vec<PcrIndex>,
    /// Type of evidence to accept; repeatable.
    #[arg(long = "platform", value_enum, default_value = "tpm")]
    pub(crate) platforms: Vec<EvidenceSort>,
    /// Require an approved launch measurement of SNP guests: reference value `snp_measurement`.
    #[arg(long)]
    pub(crate) snp_measurement: bool,
    /// Oldest accepted firmware of SNP hosts: boot loader, TEE, SNP and microcode, separated by commas.
    #[arg(long, value_name = "B,T,S,M", value_parser = parse_snp_tcb)]
    pub(crate) snp_minimum_tcb: Option<SnpTcb>,
    /// Additional claim for tokens, with a key below -65536; the value `pcr<n>` stands for the register.
    #[arg(long = "claim", value_name = "NAME:KEY=VALUE", value_parser = parse_claim)]
    pub(crate) extension_claims: Vec<ClaimArg>,
}

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Recorded claims: annotated evidence, or a token with its claims or as a JWT; repeatable. Evidence is
    /// appraised; tokens are used as issued, without verifying signatures.
    #[arg(long, value_name = "[NAME=]FILE", required = true)]
    pub(crate) claims: Vec<String>,
    /// Appraise the evidence in tokens again, instead of using the tokens as issued.
    #[arg(long)]
    pub(crate) appraise: bool,
    /// Reference values: an object of names and values, or the list of a ConfigMap.
    #[arg(long, value_name = "FILE")]
    pub(crate) reference_values: Option<PathBuf>,
    /// Path of the requested resource.
    #[arg(long, value_parser = tec_trustee::wire::parse_resource)]
    pub(crate) path: ResourcePath,
    /// Expected decision for all claims.
    #[arg(long, value_enum, default_value_t = Expected::Allow)]
    pub(crate) expect: Expected,
    /// Attestation policy (default: generated from the flags below).
    #[arg(long, value_name = "FILE")]
    pub(crate) attestation_policy: Option<PathBuf>,
    /// Resource policy (default: generated from the flags below).
    #[arg(long, value_name = "FILE")]
    pub(crate) resource_policy: Option<PathBuf>,
    // Last, because its heading applies to all flags after it.
    #[command(flatten)]
    pub(crate) intent: IntentArgs,
}

/// Decision that a test expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Expected {
    /// The resource is released.
    Allow,
    /// The resource is denied.
    Deny,
}

fn parse_snp_tcb(text: &str) -> Result<SnpTcb, String> {
    let tcb = parse_tcb(text)?;
    Ok(SnpTcb { bootloader: tcb.bootloader, tee: tcb.tee, snp: tcb.snp, microcode: tcb.microcode })
}

fn parse_claim(text: &str) -> Result<ClaimArg, String> {
    let form = || format!("{text:?} is not NAME:KEY=VALUE");
    let (name, rest) = text.split_once(':').ok_or_else(form)?;
    let (key, value) = rest.split_once('=').ok_or_else(form)?;
    Ok(ClaimArg {
        name: name.to_owned(),
        key: key.parse().map_err(|_| form())?,
        value: value.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_versions_make_a_tcb() {
        let tcb = parse_tcb("4,0,22,213").unwrap();
        assert_eq!((tcb.bootloader, tcb.tee, tcb.snp, tcb.microcode), (4, 0, 22, 213));
        for bad in ["", "1,2,3", "1,2,3,4,5", "1,2,3,256", "a,b,c,d"] {
            assert!(parse_tcb(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn claims_have_a_name_a_key_and_a_value() {
        let claim = parse_claim("tec.site:-70010=north=1").unwrap();
        assert_eq!(
            (claim.name.as_str(), claim.key, claim.value.as_str()),
            ("tec.site", -70_010, "north=1")
        );
        for bad in ["", "a", "a=b", "a:b=c", "a:1"] {
            assert!(parse_claim(bad).is_err(), "{bad}");
        }
    }
}
