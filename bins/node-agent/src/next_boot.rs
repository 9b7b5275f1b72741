//! `node-agent next-boot`: will this machine unlock after the next boot?
//!
//! Servers do not tell the node what they accept. The node knows with which boot it was last accepted, so a
//! boot that leaves the pinned registers unchanged unlocks; for any other boot, you must supply the accepted
//! values.

use clap::Args;
use serde_json::json;
use tec_core::code::Code;
use tec_core::pcr::PcrIndex;
use tec_support::exit::CodedError;
use tec_support::nextboot::{Judge, NextbootArgs, Running};
use tec_support::{exit, nextboot};
use tec_tpm::output::{NextBoot, Verdict};

use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Flags;
use crate::tpm::NodeTpm;

/// Arguments of `next-boot`.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct NextBootArgs {
    /// What boots next, and on which machine
    #[command(flatten)]
    pub boot: NextbootArgs,
    /// Output format
    #[arg(long, value_enum, default_value_t = Output::Text)]
    pub output: Output,
}

/// Predicts the next boot and compares it with the current one, whose registers and log are read here.
///
/// # Errors
/// `Foretell`: a file cannot be read, or the boot cannot be predicted.
pub fn next_boot(flags: &Flags, args: &NextBootArgs) -> Result<NextBoot, Failure> {
    let pcrs = NodeTpm::open(flags).and_then(|tpm| tpm.pcrs());
    // Without a TPM the prediction is just as good, but there is nothing to compare it with.
    let pcrs = pcrs.inspect_err(|error| tracing::warn!(%error, "the registers cannot be read"));
    let values = pcrs.ok().map(|pcrs| {
        let values = PcrIndex::all().map(|index| (index, *pcrs.value(index)));
        values.collect()
    });
    let log = flags.read_event_log();
    nextboot::foretell(&args.boot, &Running { values, log }, Judge::RunningBoot).map_err(|error| {
        let coded = error.chain().find_map(|cause| cause.downcast_ref());
        Failure::Foretell {
            code: coded.map_or(Code::ImageUnreadable, |CodedError { code, .. }| *code),
            source: error.into(),
        }
    })
}

/// The output without a final newline, and the exit code: 3 if the node would not unlock by itself.
pub fn answer(next: &NextBoot, output: Output) -> (String, u8) {
    let unlocks = next.verdict.as_ref().is_none_or(Verdict::is_accepted);
    let text = match output {
        Output::Json => json!(next).to_string(),
        Output::Text => next.text().trim_end().to_owned(),
    };
    (text, if unlocks { exit::OK } else { exit::NOT_READY })
}
