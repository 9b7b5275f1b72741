//! `node-agent attest`: attests now, without fetching a key. `tec attest` uses it, too.
//!
//! ```text
//! --url, or the pins of all disks ─► one quote ─► one handshake ─┬─ affirming token ─► attested, 0
//!                                                                ├─ other token, or denied ─► refused, 3
//!                                                                └─ no answer ─► cannot ask, 1
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tec_agent::Settings;
use tec_agent::failure::Failure;
use tec_agent::kbs::{client, fetch_error, refusal};
use tec_agent::machine::Pinned;
use tec_agent::report::Report;
use tec_agent::tpm::NodeTpm;
use tec_core::endpoint::Endpoint;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::ignition::NumRetries;
use tec_core::port::{Attester, Entropy, EntropyRng};
use tec_support::exit;
use tec_trustee::client::{Outcome, RcarError, RetryPolicy};
use tec_trustee::wire::token_claims;

use crate::settings::Flags;
use crate::stream;

/// Arguments of `attest`.
#[derive(Args, Clone, Debug)]
#[non_exhaustive]
pub struct AttestArgs {
    /// Additional LUKS2 devices, such as files, whose pins name key brokers
    #[arg(conflicts_with = "servers")]
    pub devices: Vec<PathBuf>,
    /// Key broker, optionally with the file of its CA; repeatable, tried in order (default: the key brokers in
    /// the pins of all disks)
    #[arg(long = "url", value_name = "URL[=CA-FILE]", value_parser = tec_support::endpoint::parse)]
    pub servers: Vec<Endpoint>,
    /// Resource to fetch (default: print the claims of the token instead)
    #[arg(long, requires = "servers", value_parser = tec_trustee::wire::parse_resource)]
    pub path: Option<ResourcePath>,
    /// Output file for the resource, mode 0600; the resource is never printed
    #[arg(long, value_name = "FILE", requires = "path")]
    pub write: Option<PathBuf>,
    /// Seconds after which no further round begins
    #[arg(long, default_value_t = 300)]
    pub deadline: u64,
}

/// The answer of a key broker.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attested {
    /// The output, without a final newline: one JSON object for the servers of the command line, a sentence
    /// for those of the pins.
    pub shown: Option<String>,
    /// Why the boot was refused, if it was.
    pub refused: Option<Report>,
}

impl Attested {
    /// Prints the answer, and returns the exit code: 3 if the boot was refused.
    /// Errors: `Io` if the output cannot be written.
    pub fn print(&self, flags: &Flags) -> Result<u8, Failure> {
        if let Some(shown) = &self.shown {
            stream::write_line(shown)?;
        }
        Ok(self.refused.as_ref().map_or(exit::OK, |report| {
            flags.show(report);
            exit::NOT_READY
        }))
    }
}

/// Attests with the TPM, in one round unless the settings allow more.
/// Errors: `Disk`, `Tpm`, `Servers`, `Fetch` if no server answered, and `Io` for the file.
pub async fn attest(
    settings: &Settings,
    args: &AttestArgs,
    entropy: &Arc<dyn Entropy>,
) -> Result<Attested, Failure> {
    if !args.servers.is_empty() {
        let machine = args.path.as_ref().and_then(ResourcePath::machine);
        let asked = ask(settings, args, &args.servers, entropy).await;
        return answered(asked, machine, outcome_text);
    }
    let pinned = Pinned::read(&args.devices).map_err(Failure::Disk)?;
    if pinned.servers.is_empty() {
        let shown = Some("no disk is bound to key brokers".to_owned());
        return Ok(Attested { shown, refused: None });
    }
    let asked = ask(settings, args, &pinned.servers, entropy).await;
    let machine = pinned.machine();
    let name = machine.map_or_else(|| "the machine".to_owned(), |id| format!("machine {id}"));
    answered(asked, machine, |outcome| match refusal(outcome) {
        None => Ok(Some(format!("{name} attested"))),
        Some(_) => Ok(None),
    })
}

/// One quote and one handshake; with a path, also the resource.
async fn ask(
    settings: &Settings,
    args: &AttestArgs,
    servers: &[Endpoint],
    entropy: &Arc<dyn Entropy>,
) -> Result<Outcome, Failure> {
    let client = client(settings, servers, entropy)?;
    let attester = NodeTpm::open(settings)?.attester(settings.read_event_log());
    let attester: &dyn Attester = &attester;
    let rounds = settings.retries(Some(NumRetries::Rounds(1)));
    let policy = RetryPolicy::from_config(rounds).with_deadline(Duration::from_secs(args.deadline));
    let mut rng = EntropyRng::new(&**entropy);
    let failed = |error: RcarError| Failure::Fetch(fetch_error(servers, error));
    let Some(path) = &args.path else {
        let token = policy.rounds(&mut rng, || client.token(attester)).await;
        return Ok(Outcome::token(token_claims(&token.map_err(failed)?).unwrap_or_default()));
    };
    let resource = policy.rounds(&mut rng, || client.fetch(path, attester)).await;
    let resource = resource.map_err(failed)?;
    if let Some(file) = &args.write {
        tec_support::files::write_private(file, resource.expose("the caller asked for a file"))
            .map_err(Failure::io(format!("write {}", file.display())))?;
    }
    Ok(Outcome::resource(path.clone(), resource.len()))
}

fn outcome_text(outcome: &Outcome) -> Result<Option<String>, Failure> {
    let text = serde_json::to_string(outcome);
    text.map(Some).map_err(|error| Failure::io("write the outcome")(error.into()))
}

/// Distinguishes a refusal, which is an answer, from a failure to get one.
fn answered(
    asked: Result<Outcome, Failure>,
    machine: Option<MachineId>,
    show: impl FnOnce(&Outcome) -> Result<Option<String>, Failure>,
) -> Result<Attested, Failure> {
    let (shown, refused) = match asked {
        Ok(outcome) => (show(&outcome)?, refusal(&outcome)),
        Err(failure) if failure.is_refusal() => (None, Some(failure.report(None))),
        Err(failure) => return Err(failure),
    };
    Ok(Attested { shown, refused: refused.map(|report| of_machine(report, machine)) })
}

/// The command to run next names the machine, not the attempt: the machine's next attempt may replace this
/// one at the server.
fn of_machine(mut report: Report, machine: Option<MachineId>) -> Report {
    if machine.is_none() {
        return report;
    }
    if let Some(attempt) = report.attempt.take() {
        report.cause = format!("attempt {attempt}");
    }
    report.of_machine(machine)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ID: &str = "7c9e6679-7425-40de-944b-e07fc1f90ae7";

    fn token(status: &str, refused: Option<&str>) -> Outcome {
        let part = json!({ "ear.status": status, "tec.refused": refused });
        Outcome::token(json!({ "jti": ID, "submods": { "cpu0": part } }))
    }

    #[test]
    fn the_next_command_of_a_refusal_names_the_machine() {
        let machine = ID.parse().unwrap();
        let asked = Ok(token("none", Some("TEC-A412")));
        let attested = answered(asked, Some(machine), |_| Ok(None)).unwrap();
        let text = attested.refused.unwrap().to_string();
        assert!(text.contains(&format!("see: tec explain {ID}, tec image approve")), "{text}");
        assert!(text.contains(&format!("\nattempt {ID}\n")), "{text}");
    }
}
