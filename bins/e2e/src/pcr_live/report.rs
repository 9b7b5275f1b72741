//! The results of the boots, for people and for programs.

use std::fmt::Write as _;

use serde_json::{Value, json};
use tec_tpm::event_log::Bank;

use super::compare::{Difference, RegisterResult, Verdict};
use super::{CaseResult, Compared};

/// One row per case and register, one column per bank, followed by remarks on each case.
pub(super) fn table(results: &[CaseResult]) -> String {
    let banks: String = Bank::ALL.map(|bank| format!("{:>8}", bank.as_str())).concat();
    let mut text = format!("{:<22} {:>4} {:>7}{banks}\n", "boot", "PCR", "events");
    for result in results {
        let name = result.case.to_string();
        for register in result.compared.iter().flat_map(|c| &c.registers) {
            let pcr = register.pcr;
            let _ = writeln!(text, "{name:<22} {pcr:>4} {}", row(&register.verdict));
        }
    }
    text.push('\n');
    for result in results {
        text += &remarks(result);
    }
    text
}

fn row(verdict: &Verdict) -> String {
    let Verdict::Predicted { banks, events, .. } = verdict else {
        return format!("{:>7}{}", "-", format!("{:>8}", "-").repeat(Bank::ALL.len()));
    };
    let cell = |bank| match banks.get(&bank) {
        Some(values) if values.fit() => "ok",
        Some(_) => "WRONG",
        None => "off",
    };
    let banks = Bank::ALL.map(|bank| format!("{:>8}", cell(bank))).concat();
    let events = events.map_or_else(|| "no log".to_owned(), |events| events.to_string());
    format!("{events:>7}{banks}")
}

/// The remarks on a case, for which the table has no room.
fn remarks(result: &CaseResult) -> String {
    let directory = result.artefacts.display();
    let compared = match &result.compared {
        Ok(compared) => compared,
        Err(error) => return format!("{}: FAILED: {error:#}\n  see {directory}\n", result.case),
    };
    let word = if result.holds() { "as predicted" } else { "NOT as predicted" };
    let seconds = compared.took.as_secs_f64();
    let mut text = format!("{}: {word}, {seconds:.0} s, {directory}\n", result.case);
    if !compared.has_log {
        text += "  no event log: this boot loader enters the kernel past its EFI stub, so Linux \
                 publishes none; registers only\n";
    }
    for register in &compared.registers {
        text += &remark(register);
    }
    text
}

fn remark(register: &RegisterResult) -> String {
    let pcr = register.pcr;
    match &register.verdict {
        Verdict::Unpredictable(reason) => format!("  PCR {pcr} is not predicted: {reason}\n"),
        Verdict::Predicted { difference: Some(difference), .. } => {
            format!("  PCR {pcr}, {}\n", describe(difference))
        }
        Verdict::Predicted { .. } => String::new(),
    }
}

fn describe(difference: &Difference) -> String {
    let or_none = |side: &Option<String>| side.clone().unwrap_or_else(|| "nothing".to_owned());
    let banks: Vec<&str> = difference.banks.iter().map(|bank| bank.as_str()).collect();
    format!(
        "place {}: predicted {}, measured {}; digests that differ: {}",
        difference.place,
        or_none(&difference.predicted),
        or_none(&difference.logged),
        if banks.is_empty() { "none".to_owned() } else { banks.join(", ") },
    )
}

/// The results, for programs.
pub(super) fn json(results: &[CaseResult]) -> Value {
    json!({
        "as_predicted": results.iter().all(CaseResult::holds),
        "boots": results.iter().map(case).collect::<Vec<_>>(),
    })
}

fn case(result: &CaseResult) -> Value {
    let mut value = json!({
        "case": result.case.to_string(),
        "as_predicted": result.holds(),
        "artefacts": result.artefacts,
    });
    match &result.compared {
        Ok(Compared { registers, has_log, took }) => {
            value["seconds"] = json!(took.as_secs_f64());
            value["event_log"] = json!(has_log);
            value["pcrs"] = registers.iter().map(register).collect();
        }
        Err(error) => value["error"] = json!(format!("{error:#}")),
    }
    value
}

fn register(register: &RegisterResult) -> Value {
    let id = u8::from(register.pcr);
    match &register.verdict {
        Verdict::Unpredictable(reason) => json!({ "id": id, "unpredictable": reason }),
        Verdict::Predicted { banks, events, difference } => {
            let bank = |(bank, values): (&Bank, &super::compare::Values)| {
                let value = json!({
                    "as_predicted": values.fit(),
                    "predicted": hex::encode(&values.predicted),
                    "measured": hex::encode(&values.measured),
                });
                (bank.as_str().to_owned(), value)
            };
            let banks: serde_json::Map<String, Value> = banks.iter().map(bank).collect();
            json!({
                "id": id,
                "banks": banks,
                "events": events,
                "first_difference": difference.as_ref().map(|found| json!({
                    "place": found.place,
                    "predicted": found.predicted,
                    "measured": found.logged,
                })),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::anyhow;
    use tec_core::pcr::PcrIndex;

    use super::super::compare::Values;
    use super::*;

    fn results() -> Vec<CaseResult> {
        let values = |predicted: u8| Values { predicted: vec![predicted], measured: vec![2] };
        let wrong = Verdict::Predicted {
            banks: [(Bank::Sha1, values(2)), (Bank::Sha256, values(1))].into(),
            events: Some(1),
            difference: Some(Difference {
                place: 1,
                predicted: Some("Pcr4Shim (…) \"EFI/BOOT/BOOTX64.EFI\"".to_owned()),
                logged: None,
                banks: vec![Bank::Sha256],
            }),
        };
        let unknown = Verdict::Unpredictable("a secret".to_owned());
        let registers = [(PcrIndex::BOOT_MANAGER, wrong), (PcrIndex::MOK, unknown)];
        let registers = registers.map(|(pcr, verdict)| RegisterResult { pcr, verdict });
        let with = |name: &str, compared| CaseResult {
            case: name.parse().unwrap(),
            artefacts: "target/x".into(),
            compared,
        };
        let compared =
            Compared { registers: registers.into(), has_log: true, took: Duration::from_secs(40) };
        vec![with("trixie-sb-on", Ok(compared)), with("sid-uki", Err(anyhow!("no boot")))]
    }

    #[test]
    fn people_see_each_bank_and_the_first_event_that_differs() {
        let text = table(&results());
        assert!(
            text.contains("trixie-sb-on              4       1      ok   WRONG     off     off")
        );
        assert!(text.contains("trixie-sb-on             14       -       -"));
        assert!(text.contains("PCR 4, place 1: predicted Pcr4Shim"), "{text}");
        assert!(text.contains("PCR 14 is not predicted: a secret"));
        assert!(text.contains("sid-uki: FAILED: no boot"));
    }

    #[test]
    fn programs_get_both_values_and_every_reason() {
        let value = json(&results());
        assert_eq!(value["as_predicted"], false);
        let pcrs = &value["boots"][0]["pcrs"];
        assert_eq!(pcrs[0]["banks"]["sha256"]["predicted"], "01");
        assert_eq!(pcrs[0]["first_difference"]["place"], 1);
        assert_eq!(pcrs[1]["unpredictable"], "a secret");
        assert_eq!(value["boots"][1]["error"], "no boot");
    }
}
