//! `tec trustee`: configuration, policies and token signer of a Trustee that runs elsewhere.

mod args;
mod config;
mod policy;
mod signer;
mod trial;

pub(crate) use self::args::TrusteeCommand;
use crate::output::Output;

/// Largest configuration or policy to read.
const MAX_TEXT: u64 = 1 << 20;

pub(crate) fn trustee(command: TrusteeCommand, output: &Output) -> anyhow::Result<u8> {
    match command {
        TrusteeCommand::Lint(args) => config::lint(&args, output),
        TrusteeCommand::Diff { before, after } => config::diff(&before, &after, output),
        TrusteeCommand::Patch(args) => config::patch(&args, output),
        TrusteeCommand::Signer { directory, dry_run } => {
            signer::ensure(&directory, dry_run, output)
        }
        TrusteeCommand::Policy { which, intent } => policy::print(which, &intent),
        TrusteeCommand::TestPolicy(args) => trial::run(&args, output),
    }
}
