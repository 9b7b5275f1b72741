//! `tec attest`: a manual attestation, to see what a key broker finds and releases.
//!
//! Only `node-agent` talks to this machine's TPM, because it links the TPM software stack; this program runs
//! on admins' machines, without it. So `node-agent attest` produces TPM evidence, and this program only
//! evidence that needs no TPM.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use tec_core::endpoint::Endpoint;
use tec_core::id::ResourcePath;
use tec_core::ignition::NumRetries;
use tec_core::port::{Attester, EntropyRng};
use tec_support::exit::{CodedError, FAILED, OK};
use tec_support::files::write_private;
use tec_support::{SystemEntropy, endpoint};
use tec_trustee::client::{Deadlines, Outcome, RcarClient, RcarError, RetryPolicy, SampleAttester};
use tec_trustee::wire::token_claims;

use crate::output::Output;

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(crate) struct AttestArgs {
    /// Key broker, optionally with the file of its CA; repeatable, tried in order.
    #[arg(
        long = "url",
        value_name = "URL[=CA-FILE]",
        required = true,
        value_parser = known_endpoint
    )]
    servers: Vec<(String, Endpoint)>,
    /// Resource to fetch (default: print the claims of the token instead).
    #[arg(long, value_parser = tec_trustee::wire::parse_resource)]
    path: Option<ResourcePath>,
    /// Output file for the resource, mode 0600; the resource is never printed.
    #[arg(long, value_name = "FILE", requires = "path")]
    write: Option<PathBuf>,
    /// Source of the evidence.
    #[arg(long, value_enum, default_value_t = AttesterName::Tpm)]
    attester: AttesterName,
    /// Maximum number of rounds over the brokers; a denial is final.
    #[arg(long, default_value = "1")]
    rounds: NonZeroU32,
    /// Seconds after which no further round begins.
    #[arg(long, default_value_t = 300)]
    deadline: u64,
    /// Timeout of one request, in seconds.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Program that accesses the TPM, for `--attester tpm`.
    #[arg(long, env = "TEC_NODE_AGENT", default_value = "node-agent")]
    node_agent: PathBuf,
    /// Number from which the keys of `--attester soft` are derived.
    #[cfg(feature = "soft")]
    #[arg(long, default_value_t = 1, hide = true)]
    seed: u64,
}

/// A server, both as text and parsed.
fn known_endpoint(text: &str) -> anyhow::Result<(String, Endpoint)> {
    Ok((text.to_owned(), endpoint::parse(text)?))
}

/// Source of the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AttesterName {
    /// The TPM of this machine, through `node-agent`.
    Tpm,
    /// Sample evidence, which anyone can produce; for trying the protocol with a broker.
    Sample,
    /// A software TPM with keys that anyone can produce.
    #[cfg(feature = "soft")]
    #[value(hide = true)]
    Soft,
}

pub(crate) async fn attest(args: AttestArgs, output: &Output) -> anyhow::Result<u8> {
    let outcome = match args.attester {
        AttesterName::Tpm => match node_agent(&args)? {
            Some(outcome) => outcome,
            // It has already printed why.
            None => return Ok(FAILED),
        },
        AttesterName::Sample => with(&args, &SampleAttester::default()).await?,
        #[cfg(feature = "soft")]
        AttesterName::Soft => with(&args, &tec_tpm::testing::SoftTpm::rsa(args.seed)).await?,
    };
    match &outcome {
        Outcome::Token { claims, .. } => output.print(claims, |_| outcome.to_string())?,
        _ => output.print(&outcome, Outcome::to_string)?,
    }
    Ok(OK)
}

async fn with(args: &AttestArgs, attester: &dyn Attester) -> anyhow::Result<Outcome> {
    let servers: Vec<Endpoint> = args.servers.iter().map(|(_, server)| server.clone()).collect();
    let timeout = Duration::from_secs(args.timeout);
    let deadlines = Deadlines::new(CONNECT.min(timeout), timeout);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = RcarClient::new(&servers, deadlines, &provider, Arc::new(SystemEntropy))?;
    let policy = RetryPolicy::from_config(Some(NumRetries::Rounds(args.rounds.get())))
        .with_deadline(Duration::from_secs(args.deadline));
    let mut rng = EntropyRng::new(&SystemEntropy);
    let Some(path) = &args.path else {
        let token = policy.rounds(&mut rng, || client.token(attester)).await;
        let claims = token_claims(&token.map_err(coded)?).context("the token is not a JWT")?;
        return Ok(Outcome::token(claims));
    };
    let resource = policy.rounds(&mut rng, || client.fetch(path, attester)).await;
    let resource = resource.map_err(coded)?;
    if let Some(file) = &args.write {
        write_private(file, resource.expose("the caller asked for a file"))
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(Outcome::resource(path.clone(), resource.len()))
}

fn coded(error: RcarError) -> CodedError {
    CodedError::caused(error.code(), "no key broker released anything", error)
}

/// Delegates to the program with the TPM; `None` if that program failed and printed the reason on stderr.
fn node_agent(args: &AttestArgs) -> anyhow::Result<Option<Outcome>> {
    let mut command = Command::new(&args.node_agent);
    command.arg("attest");
    for (given, _) in &args.servers {
        command.arg("--url").arg(given);
    }
    if let Some(path) = &args.path {
        command.arg("--path").arg(path.as_str());
    }
    if let Some(file) = &args.write {
        command.arg("--write").arg(file);
    }
    for (flag, number) in [
        ("--rounds", u64::from(args.rounds.get())),
        ("--deadline", args.deadline),
        ("--timeout", args.timeout),
    ] {
        command.arg(flag).arg(number.to_string());
    }
    let shown = args.node_agent.display();
    let result =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().with_context(|| {
            format!("cannot run {shown} (select the program with --node-agent)")
        })?;
    // A refused node gets a token, too; what it says is worth a look.
    let is_answer = matches!(result.status.code(), Some(0 | 3)) && !result.stdout.is_empty();
    if !is_answer {
        return Ok(None);
    }
    let outcome = serde_json::from_slice(&result.stdout);
    Ok(Some(outcome.with_context(|| {
        format!(
            "cannot parse the output of {shown}: it may be a \
             different version"
        )
    })?))
}
