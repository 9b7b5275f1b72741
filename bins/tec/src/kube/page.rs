//! The page of a cluster: what its objects say of each machine.

use tec_k8s::api::Machine;
use tec_support::page::{Mark, Page, Refusal, Row};

/// Machines and images. What differs in a refused boot is in the log of attempts, not in the objects.
pub(super) fn page(needs_you: &[String], machines: &[Machine], images: Vec<String>) -> Page {
    let rows: Vec<_> = machines.iter().map(row).collect();
    let refused = rows.iter().filter(|row| row.mark == Mark::No).map(|row| Refusal {
        who: row.machine.clone(),
        at: row.at.clone(),
        why: row.result.clone(),
        next: format!("kubectl tec explain {}", row.machine),
        ..Refusal::default()
    });
    let flow = [
        ("Trust anchor", "checks every boot".to_owned()),
        ("Images", format!("{} approved", images.len())),
        ("Machines", format!("{} registered", rows.len())),
        ("Keys", "released after attestation".to_owned()),
    ];
    Page {
        title: "Trusted machines".to_owned(),
        needs_you: needs_you.to_vec(),
        flow: flow.map(|(name, what)| [name.to_owned(), what]).into(),
        refusals: refused.collect(),
        images,
        machines: rows,
        ..Page::default()
    }
}

fn row(machine: &Machine) -> Row {
    let state = format!("{:?}", machine.state()).to_lowercase();
    let last = machine.status.as_ref().and_then(|status| status.last_attestation.clone());
    let machine = machine.spec.id.clone();
    let Some(last) = last else {
        let result = "no attempt yet".to_owned();
        return Row { machine, state, result, ..Row::default() };
    };
    let (mark, result) = match last.code {
        Some(code) => (Mark::No, format!("refused {code}")),
        None => (Mark::Ok, "attested".to_owned()),
    };
    let images = last.image.unwrap_or_default();
    let images = images.split(',').map(str::trim).filter(|name| !name.is_empty());
    let images = images.map(ToOwned::to_owned).collect();
    Row { machine, state, at: last.at, mark, result, images }
}
