//! `node-agent next-boot`: will this machine unlock after the next boot?
//!
//! Key brokers do not tell the node what they accept. With `--ask`, the node attests and asks whether one would
//! accept the predicted registers. Otherwise, a boot that leaves the pinned registers unchanged unlocks; for
//! any other boot, you must supply the accepted values.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tec_agent::Settings;
use tec_agent::failure::Failure;
use tec_agent::kbs::{client, fetch_error};
use tec_agent::machine::Pinned;
use tec_agent::tpm::NodeTpm;
use tec_core::code::Code;
use tec_core::endpoint::Endpoint;
use tec_core::pcr::PcrIndex;
use tec_core::port::{Entropy, chain};
use tec_support::exit::CodedError;
use tec_support::nextboot::{Judge, NextbootArgs, Running};
use tec_support::{exit, nextboot};
use tec_tpm::output::{NextBoot, Verdict};
use tec_trustee::client::RcarError;
use tec_trustee::next_boot::{Answer, Question};

use crate::output::Output;

/// Arguments of `next-boot`.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct NextBootArgs {
    /// What boots next, and on which machine
    #[command(flatten)]
    pub boot: NextbootArgs,
    /// Ask the key brokers in the pins of all disks; the server logs why it would refuse
    #[arg(long, conflicts_with_all = ["accepted", "pin_pcrs"], help_heading = "What is accepted")]
    pub ask: bool,
    /// Key broker to ask, optionally with the file of its CA; repeatable, tried in order (default: those in the
    /// pins of all disks)
    #[arg(
        long = "url",
        value_name = "URL[=CA-FILE]",
        value_parser = tec_support::endpoint::parse,
        requires = "ask",
        help_heading = "What is accepted"
    )]
    pub servers: Vec<Endpoint>,
    /// Interval in seconds between checks, until the next boot would be accepted (default: check once)
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub wait_every: Option<u64>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Predicts the next boot, and whether it would be accepted; repeats that if so told.
/// Errors: as [`next_boot`]. While waiting, errors are logged, and the next check follows.
pub async fn run(
    settings: &Settings,
    args: &NextBootArgs,
    entropy: &Arc<dyn Entropy>,
) -> Result<NextBoot, Failure> {
    loop {
        let next = next_boot(settings, args, entropy).await;
        let Some(seconds) = args.wait_every else {
            return next;
        };
        match next {
            Ok(next) if unlocks(&next) => return Ok(next),
            Ok(next) => {
                let verdict = next.verdict.as_ref().map(Verdict::to_string).unwrap_or_default();
                tracing::warn!(verdict, "the next boot would not unlock");
            }
            Err(error) => {
                let error = chain(&error);
                tracing::warn!(error, "cannot tell whether the next boot would unlock");
            }
        }
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
}

/// Predicts the next boot and compares it with the current one, whose registers and log are read here.
/// Errors: `Foretell`: a file cannot be read, or the boot cannot be predicted. `Disk`, `Servers`, `Tpm`, `Fetch` if a
/// key broker is asked.
pub async fn next_boot(
    settings: &Settings,
    args: &NextBootArgs,
    entropy: &Arc<dyn Entropy>,
) -> Result<NextBoot, Failure> {
    let pcrs = NodeTpm::open(settings).and_then(|tpm| tpm.pcrs());
    // Without a TPM the prediction is just as good, but there is nothing to compare it with.
    let pcrs = pcrs.inspect_err(|error| tracing::warn!(%error, "the registers cannot be read"));
    let values = pcrs.ok().map(|pcrs| {
        let values = PcrIndex::all().map(|index| (index, *pcrs.value(index)));
        values.collect()
    });
    let log = settings.read_event_log();
    let judge = if args.ask { Judge::Nobody } else { Judge::RunningBoot };
    let next =
        nextboot::foretell(&args.boot, &Running { values, log }, judge).map_err(|error| {
            let coded = error.chain().find_map(|cause| cause.downcast_ref());
            Failure::Foretell {
                code: coded.map_or(Code::ImageUnreadable, |CodedError { code, .. }| *code),
                source: error.into(),
            }
        })?;
    // A file that the machine does not start is a verdict that needs no server.
    if !args.ask || next.verdict.is_some() {
        return Ok(next);
    }
    asked(settings, args, next, entropy).await
}

/// Adds the answer of the first key broker that answers; with one that judges no boots in advance, such as
/// Trustee, whether the pinned registers change.
async fn asked(
    settings: &Settings,
    args: &NextBootArgs,
    mut next: NextBoot,
    entropy: &Arc<dyn Entropy>,
) -> Result<NextBoot, Failure> {
    let servers = match &args.servers[..] {
        [] => Pinned::read(&[]).map_err(Failure::Disk)?.servers,
        given => given.to_vec(),
    };
    if servers.is_empty() {
        tracing::warn!("no disk is bound to key brokers");
        return Ok(next);
    }
    let client = client(settings, &servers, entropy)?;
    let attester = NodeTpm::open(settings)?.attester(settings.read_event_log());
    let pcrs = next.stated();
    next.verdict = Some(match client.next_boot(&Question { pcrs }, &attester).await {
        Ok(Answer::Accepted) => Verdict::ServerAccepts,
        Ok(Answer::Undetermined { pcrs }) => Verdict::Undetermined { pcrs },
        // The error: it refuses this machine already.
        Ok(Answer::Refused { code }) | Err(RcarError::Denied { code: Some(code), .. }) => {
            Verdict::ServerRefuses { code }
        }
        Err(RcarError::Denied { code: None, .. }) => {
            tracing::warn!("the key broker judges no boots in advance");
            return Ok(next.beside_the_running_boot(args.boot.pins()));
        }
        Err(error) => return Err(Failure::Fetch(fetch_error(&servers, error))),
    });
    Ok(next)
}

fn unlocks(next: &NextBoot) -> bool {
    next.verdict.as_ref().is_none_or(Verdict::is_accepted)
}

/// The output without a final newline, and the exit code: 3 if the node would not unlock by itself.
pub fn answer(next: &NextBoot, output: Output) -> (String, u8) {
    let text = match output {
        Output::Json => json!(next).to_string(),
        Output::Text => next.text().trim_end().to_owned(),
    };
    (text, if unlocks(next) { exit::OK } else { exit::NOT_READY })
}
