//! `node-agent attest`: a manual attestation. `tec attest` uses it, too.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::ignition::NumRetries;
use tec_core::port::{Attester, Entropy, EntropyRng};
use tec_trustee::client::{Outcome, RcarError, RetryPolicy};
use tec_trustee::wire::token_claims;

use crate::failure::Failure;
use crate::kbs::{client, fetch_error};
use crate::settings::Flags;
use crate::tpm::NodeTpm;

/// Arguments of `attest`.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct AttestArgs {
    /// Key broker, optionally with the file of its CA; repeatable, tried in order
    #[arg(long = "url", value_name = "URL[=CA-FILE]", required = true, value_parser = tec_support::endpoint::parse)]
    pub servers: Vec<Endpoint>,
    /// Resource to fetch (default: print the claims of the token instead)
    #[arg(long, value_parser = tec_trustee::wire::parse_resource)]
    pub path: Option<ResourcePath>,
    /// Output file for the resource, mode 0600; the resource is never printed
    #[arg(long, value_name = "FILE", requires = "path")]
    pub write: Option<PathBuf>,
    /// Seconds after which no further round begins
    #[arg(long, default_value_t = 300)]
    pub deadline: u64,
}

/// Attests with the TPM, in one round unless the settings allow more, and returns the outcome as one JSON
/// object.
///
/// # Errors
/// `Tpm`, `Servers`, `Fetch`, and `Io` for the file.
pub async fn attest(
    flags: &Flags,
    args: &AttestArgs,
    entropy: &Arc<dyn Entropy>,
) -> Result<String, Failure> {
    let client = client(&args.servers, flags.timeout(), entropy).map_err(Failure::Servers)?;
    let attester = NodeTpm::open(flags)?.attester(flags.read_event_log());
    let attester: &dyn Attester = &attester;
    let rounds = flags.retries(Some(NumRetries::Rounds(1)));
    let policy = RetryPolicy::from_config(rounds).with_deadline(Duration::from_secs(args.deadline));
    let mut rng = EntropyRng::new(&**entropy);
    let failed = |error: RcarError| Failure::Fetch(fetch_error(&args.servers, error));
    let outcome = if let Some(path) = &args.path {
        let resource = policy.rounds(&mut rng, || client.fetch(path, attester)).await;
        let resource = resource.map_err(failed)?;
        if let Some(file) = &args.write {
            tec_support::files::write_private(file, resource.expose("the caller asked for a file"))
                .map_err(Failure::io(format!("write {}", file.display())))?;
        }
        Outcome::resource(path.clone(), resource.len())
    } else {
        let token = policy.rounds(&mut rng, || client.token(attester)).await;
        Outcome::token(token_claims(&token.map_err(failed)?).unwrap_or_default())
    };
    serde_json::to_string(&outcome).map_err(|error| Failure::io("write the outcome")(error.into()))
}
