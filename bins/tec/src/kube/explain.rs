//! `tec explain` on a cluster: what the cluster knows about a machine's last attempt, with every check if
//! there is a record.

use serde::Serialize;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::id::{AttemptId, MachineId};
use tec_core::machine::MachineState;
use tec_core::port::{AttemptLog as _, PortErrorKind};
use tec_k8s::api::{LastAttestation, Machine};
use tec_k8s::client::AttemptRecords;
use tec_support::exit::{CodedError, OK};

use super::access::Cluster;
use super::lookup::find;
use super::{failed, of};
use crate::args::MachineRef;
use crate::attempt::page;
use crate::attempt::render as every_check;
use crate::output::Output;

#[derive(Debug, Serialize)]
struct Explanation {
    machine: String,
    verdict: Verdict,
    last_attempt: Option<LastAttestation>,
    code: Option<Explained>,
    /// Every check of that attempt, if the cluster has its record.
    attempt: Option<Attempt>,
    /// Conditions that indicate a problem: type, reason, message.
    conditions: Vec<[String; 3]>,
}

#[derive(Debug, Serialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Attested,
    Refused,
    NeverSeen,
    Revoked,
    Retired,
    Quarantined,
}

#[derive(Debug, Serialize)]
struct Explained {
    code: Code,
    title: &'static str,
    cause: &'static str,
    fix: &'static str,
}

pub(crate) async fn explain(
    cluster: &Cluster,
    subject: Option<&str>,
    output: &Output,
) -> anyhow::Result<u8> {
    let Some(subject) = subject else {
        let attempts = AttemptRecords::new(of(cluster)).latest(None, 1).await;
        let mut attempts = attempts.map_err(failed("look up the latest attempt"))?;
        let none = || {
            CodedError::new(
                Code::NoAttempt,
                format!("no boot is recorded in {}", cluster.namespace),
            )
        };
        output.print(&attempts.pop().ok_or_else(none)?, every_check)?;
        return Ok(OK);
    };
    match find(cluster, &MachineRef { machine: subject.to_owned() }).await {
        Ok(machine) => {
            let attempt = recorded(cluster, machine.machine_id()?).await?;
            output.print(&explanation(&machine, attempt), render)?;
        }
        Err(error) if error.code == Code::ClusterMissing => {
            output.print(&of_id(cluster, subject).await?, every_check)?;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(OK)
}

/// The attempt with an ID, from all records.
async fn of_id(cluster: &Cluster, subject: &str) -> anyhow::Result<Attempt> {
    let missing = || {
        let context = format!("no machine and no attempt {subject} in {}", cluster.namespace);
        CodedError::new(Code::ClusterMissing, context)
    };
    let id: AttemptId = subject.parse().map_err(|_| missing())?;
    let found = AttemptRecords::new(of(cluster)).find(&id).await;
    Ok(found.map_err(failed("look up the attempt"))?.ok_or_else(missing)?)
}

/// The last attempt that the machine signed; anyone could have made unsigned attempts in its name. Without
/// permission to read records, the machine's status is used.
pub(super) async fn recorded(cluster: &Cluster, id: MachineId) -> anyhow::Result<Option<Attempt>> {
    let records = AttemptRecords::new(of(cluster));
    match records.latest(Some(id), usize::MAX).await {
        Ok(attempts) => Ok(attempts.into_iter().find(|attempt| !attempt.unsigned)),
        Err(error) if matches!(error.kind(), PortErrorKind::Denied | PortErrorKind::NotFound) => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// The attempt, as the status records it.
fn last_of(attempt: &Attempt) -> LastAttestation {
    let mut last = LastAttestation::default();
    last.at = attempt.at.to_string();
    last.attempt = Some(attempt.id.to_string());
    last.code = attempt.ladder.code.map(|code| code.to_string());
    last
}

fn explanation(machine: &Machine, attempt: Option<Attempt>) -> Explanation {
    let status = machine.status.clone().unwrap_or_default();
    // The record is written before the status; the status stays when the record is removed.
    let last = attempt.as_ref().map(last_of).or(status.last_attestation);
    let code = last.as_ref().and_then(|last| last.code.as_deref());
    let verdict = match (machine.state(), &last, code) {
        (MachineState::Revoked, _, _) => Verdict::Revoked,
        (MachineState::Retired, _, _) => Verdict::Retired,
        (MachineState::Quarantined, _, _) => Verdict::Quarantined,
        (_, None, _) => Verdict::NeverSeen,
        (_, Some(_), None) => Verdict::Attested,
        (_, Some(_), Some(_)) => Verdict::Refused,
    };
    let wrong = status.conditions.iter().filter(|c| c.status != "True");
    Explanation {
        machine: machine.spec.id.clone(),
        verdict,
        code: code.and_then(|code| code.parse().ok()).map(explained),
        conditions: wrong.map(|c| [c.type_.clone(), c.reason.clone(), c.message.clone()]).collect(),
        last_attempt: last,
        attempt,
    }
}

fn explained(code: Code) -> Explained {
    Explained { code, title: code.title(), cause: code.cause(), fix: code.fix() }
}

fn render(explanation: &Explanation) -> String {
    let id = &explanation.machine;
    let when = explanation.last_attempt.as_ref().map(|last| {
        let attempt = last.attempt.as_deref().unwrap_or("without id");
        format!("attempt {attempt} at {}", last.at)
    });
    let when = when.unwrap_or_default();
    let mut lines = vec![match explanation.verdict {
        Verdict::Attested => format!("machine {id} got its key: {when}"),
        Verdict::Refused => format!("machine {id} was refused: {when}"),
        Verdict::NeverSeen => {
            format!("machine {id} never sent evidence, so it did not reach the key broker")
        }
        Verdict::Revoked => format!("machine {id} is revoked, so it gets no key"),
        Verdict::Retired => format!("machine {id} is retired, so it gets no key"),
        Verdict::Quarantined => format!(
            "machine {id} is quarantined, so it gets no key: kubectl tec machine release {id}"
        ),
    }];
    let conditions = explanation.conditions.iter();
    lines.extend(
        conditions.map(|[kind, reason, message]| format!("  not {kind}: {reason} {message}")),
    );
    if let Some(attempt) = &explanation.attempt {
        lines.push(every_check(attempt));
    } else if let Some(explained) = &explanation.code {
        lines.push(page(explained.code));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use tec_core::explain::Gate;
    use tec_core::testing::sample;
    use tec_k8s::api::MachineSpec;

    use super::*;

    fn machine(code: Option<&str>) -> Machine {
        let mut spec = MachineSpec::default();
        spec.id = "7c9e6679-7425-40de-944b-e07fc1f90ae7".to_owned();
        let mut machine = Machine::new("machine", spec);
        let mut last = LastAttestation::default();
        last.at = "2026-11-21T04:31:00Z".to_owned();
        last.code = code.map(str::to_owned);
        machine.status.get_or_insert_default().last_attestation = Some(last);
        machine
    }

    #[test]
    fn a_refusal_comes_with_cause_and_fix() {
        let explanation = explanation(&machine(Some("TEC-A412")), None);
        assert_eq!(explanation.verdict, Verdict::Refused);
        let text = render(&explanation);
        assert!(text.contains("TEC-A412"), "{text}");
        assert!(text.contains("fix:"), "{text}");
    }

    #[test]
    fn the_record_is_newer_than_the_status_and_shows_every_check() {
        let mut attempt = sample::attempt(7, Some(1));
        attempt.ladder.fail(Gate::Pcrs, "PCR 4: the kernel differs");
        let explanation = explanation(&machine(None), Some(attempt.clone()));
        assert_eq!(explanation.verdict, Verdict::Refused);
        let text = render(&explanation);
        assert!(text.contains("PCR 4: the kernel differs"), "{text}");
        assert!(text.contains(&attempt.id.to_string()), "{text}");
        assert_eq!(text.matches("cause:").count(), 1, "{text}");
    }

    #[test]
    fn a_machine_that_never_came_is_told_apart_from_one_that_was_refused() {
        let mut silent = machine(None);
        silent.status = None;
        assert_eq!(explanation(&silent, None).verdict, Verdict::NeverSeen);
        assert_eq!(explanation(&machine(None), None).verdict, Verdict::Attested);
    }

    #[test]
    fn a_code_of_another_release_is_no_reason_to_fail() {
        let explanation = explanation(&machine(Some("TEC-A999")), None);
        assert_eq!(explanation.verdict, Verdict::Refused);
        assert!(explanation.code.is_none());
    }
}
