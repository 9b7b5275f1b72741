//! The page of `tec status --html`; that of a state directory also live at `tec serve --ui-addr`.

use std::cmp::Reverse;
use std::collections::HashSet;

use tec_core::attest::Attempt;
use tec_core::image::ExpectedPcrs;
use tec_core::migrate::{Authority, TrustAnchor as _};
use tec_core::port::{Clock as _, PortError};
use tec_support::SystemClock;
use tec_support::page::{Page, Seen, standing};

use crate::anchor::{Anchor, Place};
use crate::attempt::{OF_ONE, event_log_unused, without_event_log};
use crate::status::Status;

/// How many machines may show all of their attempts.
const SMALL_FLEET: usize = 200;
/// How far back to look for attempts of unknown machines.
const OF_UNKNOWN: usize = 200;

/// What an anchor knows, for people.
pub(crate) async fn page(anchor: &Anchor, status: Status) -> anyhow::Result<Page> {
    let known = anchor.known().await?;
    let machines: Vec<Seen> = known.into_iter().map(|known| (known.machine, known.name)).collect();
    let now = SystemClock.now();
    let images = anchor.approvals().await?;
    let live = images.iter().filter(|image| image.is_live());
    let live: Vec<_> = live.map(|one| one.image.name.clone()).collect();
    let attempts = attempts(anchor, &machines).await;
    let attempts = attempts.map_err(anchor.failed("read the attempts"))?;
    let mut page = standing(&machines, &live, &attempts);
    page.as_of = Some(now);
    page.lead = format!("As of {now}, from the last {} boot attempts.", attempts.len());
    if let Some([_, what]) = page.flow.first_mut() {
        let mut lines = status.server();
        if let Place::Directory(_, store) = &anchor.place {
            let authority = store.authority().await;
            let authority = authority.map_err(anchor.failed("read the authority"))?;
            lines.insert(0, authority_line(&authority));
        }
        *what = lines.join("\n");
    }
    page.warnings = status.unpinned.iter().map(ToString::to_string).collect();
    let mut seen = HashSet::new();
    let mut last: Vec<_> = attempts.iter().filter(|one| !one.unsigned).collect();
    last.retain(|one| one.machine.is_some() && seen.insert(one.machine));
    last.retain(|one| event_log_unused(one).is_some());
    page.warnings.extend(without_event_log(last.len()));
    page.coverage =
        status.coverage.into_iter().map(|one| (one.image.to_string(), one.coverage)).collect();
    page.needs_you = status.needs_you;
    Ok(page)
}

fn authority_line(authority: &Authority) -> String {
    format!("{} at epoch {}", authority.role(), authority.epoch())
}

/// The latest attempts of each machine, and of unknown ones; newest first. Attempts are read per machine, so
/// that a machine that boots often does not hide one that boots rarely. Of a large fleet only the last result
/// of each machine stays in memory.
async fn attempts(anchor: &Anchor, machines: &[Seen]) -> Result<Vec<Attempt>, PortError> {
    let known: HashSet<_> = machines.iter().map(|(machine, _)| Some(machine.id)).collect();
    let mut all = anchor.attempts.latest(None, OF_UNKNOWN).await?;
    all.retain(|attempt| !known.contains(&attempt.machine));
    for (machine, _) in machines {
        let mut own = anchor.attempts.latest(Some(machine.id), OF_ONE).await?;
        if machines.len() > SMALL_FLEET {
            own.retain(|attempt| !attempt.unsigned);
            own.truncate(1);
        }
        // The page compares, and approves nothing.
        for attempt in &mut own {
            attempt.measured = ExpectedPcrs::default();
        }
        all.extend(own);
    }
    all.sort_by_key(|attempt| Reverse(attempt.at));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tec_core::port::AttemptLog as _;

    use super::*;

    #[tokio::test]
    async fn a_machine_that_boots_often_hides_none_that_boots_rarely() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let store = crate::state::open(&path).unwrap();
        let [often, rarely] =
            ["7c9e6679-7425-40de-944b-e07fc1f90ae7", "b29cc891-b221-4b22-a410-2f39998fa3d9"];
        let attempt = |machine: Option<&str>, number: u32, second: u32| -> Attempt {
            serde_json::from_value(json!({
                "id": format!("00000000-0000-4000-8000-{number:012}"),
                "at": format!("2026-11-26T01:02:{second:02}Z"), "machine": machine, "ak": null,
                "ladder": tec_core::explain::Ladder::new(),
            }))
            .unwrap()
        };
        store.record(&attempt(Some(rarely), 0, 1)).await.unwrap();
        for number in 1..=300 {
            store.record(&attempt(None, number, 2)).await.unwrap();
        }
        store.record(&attempt(Some(often), 301, 3)).await.unwrap();
        let seen = [often, rarely].map(|id| -> Seen {
            let machine = json!({ "id": id, "registered_by": "admin", "state": "active",
                                  "registered_at": "2026-11-21T10:57:11Z" });
            (serde_json::from_value(machine).unwrap(), None)
        });
        let all = attempts(&Anchor::directory(&path, store), &seen).await.unwrap();
        let of = |at: usize| all[at].machine.map(|id| id.to_string());
        assert_eq!((of(0).as_deref(), of(all.len() - 1).as_deref()), (Some(often), Some(rarely)));
    }
}
