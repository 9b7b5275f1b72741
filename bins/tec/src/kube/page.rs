//! The page of a cluster: what its objects say about each machine.

use tec_core::code::Code;
use tec_core::port::Clock as _;
use tec_k8s::api::Machine;
use tec_support::SystemClock;
use tec_support::page::{Mark, Page, Refusal, Row};

/// Machines and images. The differences of a refused boot are in the log of attempts, not in the objects.
pub(super) fn page(
    (warnings, needs_you): (Vec<String>, Vec<String>),
    machines: &[Machine],
    images: Vec<String>,
) -> Page {
    let rows: Vec<_> = machines.iter().map(row).collect();
    let refused = machines.iter().filter_map(refusal);
    let flow = [
        ("Trust anchor", "checks every boot".to_owned()),
        ("Images", format!("{} approved", images.len())),
        ("Machines", format!("{} registered", rows.len())),
        ("Keys", "released after attestation".to_owned()),
    ];
    Page {
        as_of: Some(SystemClock.now()),
        title: "Trusted machines".to_owned(),
        warnings,
        needs_you,
        flow: flow.map(|(name, what)| [name.to_owned(), what]).into(),
        refusals: refused.collect(),
        images,
        machines: rows,
        ..Page::default()
    }
}

/// The code appears only once, in the heading.
fn refusal(machine: &Machine) -> Option<Refusal> {
    let last = machine.status.as_ref()?.last_attestation.as_ref()?;
    let code = last.code.clone()?;
    let title = code.parse::<Code>().map(Code::title).unwrap_or_default();
    Some(Refusal {
        who: machine.spec.id.clone(),
        at: last.at.clone(),
        why: title.to_owned(),
        next: format!("kubectl tec explain {}", machine.spec.id),
        code,
        ..Refusal::default()
    })
}

fn row(machine: &Machine) -> Row {
    let state = machine.state();
    let last = machine.status.as_ref().and_then(|status| status.last_attestation.clone());
    let machine = machine.spec.id.clone();
    let Some(last) = last else {
        let result = "no attempt yet".to_owned();
        return Row { machine, result, ..Row::default() }.of(state);
    };
    let (mark, result) = match last.code {
        Some(code) => (Mark::No, format!("refused {code}")),
        None => (Mark::Ok, "attested".to_owned()),
    };
    let images = last.image.unwrap_or_default();
    let images = images.split(',').map(str::trim).filter(|name| !name.is_empty());
    let images = images.map(ToOwned::to_owned).collect();
    Row { machine, at: last.at, mark, result, images, ..Row::default() }.of(state)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_refusal_shows_its_code_once_as_heading() {
        let machine: Machine = serde_json::from_value(json!({
            "apiVersion": "trusted-execution-clusters.io/v1alpha1", "kind": "Machine",
            "metadata": { "name": "one" },
            "spec": { "id": "7c9e6679-7425-40de-944b-e07fc1f90ae7" },
            "status": { "lastAttestation": { "at": "2026-11-26T01:02:03Z", "code": "TEC-A412" } },
        }))
        .unwrap();
        let mut page = page((Vec::new(), Vec::new()), &[machine], Vec::new());
        assert_eq!(page.refusals[0].code, "TEC-A412");
        assert!(!page.refusals[0].why.is_empty());
        page.machines.clear();
        assert_eq!(page.render().matches("TEC-A412").count(), 1);
    }
}
