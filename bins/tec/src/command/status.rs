//! `tec status`.

use std::path::Path;

use serde::Serialize;
use tec_core::ak::AkState;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::machine::MachineState;
use tec_core::port::{AkRegistry, AttemptLog, Clock as _, ImageRegistry};
use tec_support::SystemClock;
use tec_support::exit::{NOT_READY, OK};

use super::coded;
use super::machine::all;
use crate::attempt::one_line;
use crate::output::{Output, write_page};
use crate::page;
use crate::state::{Endpoints, Running, open_existing};

/// How many refusals are shown.
const REFUSALS: usize = 5;
/// How far back refusals are looked for, in attempts.
const LOOK_BACK: usize = 200;

#[derive(Serialize)]
struct Status {
    /// Whether `tec serve` runs on the state directory.
    running: bool,
    endpoints: Option<Endpoints>,
    machines: Counts,
    keys_waiting: usize,
    images_live: usize,
    refusals: Vec<Attempt>,
    needs_you: Vec<String>,
}

#[derive(Serialize)]
struct Counts {
    unclaimed: usize,
    active: usize,
    quarantined: usize,
    revoked: usize,
    retired: usize,
}

pub(crate) async fn status(
    state_dir: &Path,
    html: Option<&Path>,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    let unavailable = || coded(Code::StoreUnavailable, "read the store");
    let machines = all(&store).await?;
    let count = |state| machines.iter().filter(|machine| machine.state == state).count();
    let keys = AkRegistry::list(&*store, None).await.map_err(unavailable())?;
    let now = SystemClock.now();
    let images = ImageRegistry::list(&*store).await.map_err(unavailable())?;
    let mut refusals = store.latest(None, LOOK_BACK).await.map_err(unavailable())?;
    refusals.retain(|attempt| attempt.ladder.code.is_some());
    refusals.truncate(REFUSALS);
    let mut status = Status {
        running: Running::is(state_dir),
        endpoints: Endpoints::read(state_dir).ok(),
        machines: Counts {
            unclaimed: count(MachineState::Unclaimed),
            active: count(MachineState::Active),
            quarantined: count(MachineState::Quarantined),
            revoked: count(MachineState::Revoked),
            retired: count(MachineState::Retired),
        },
        keys_waiting: keys.iter().filter(|key| key.state == AkState::Pending).count(),
        images_live: images.iter().filter(|image| image.is_live(now)).count(),
        refusals,
        needs_you: Vec::new(),
    };
    status.needs_you = needs_you(&status);
    if let Some(file) = html {
        let mut page = page::page(&store).await?;
        page.needs_you.clone_from(&status.needs_you);
        write_page(&page, file)?;
    } else {
        output.print(&status, render)?;
    }
    Ok(if status.images_live == 0 || !status.running { NOT_READY } else { OK })
}

fn needs_you(status: &Status) -> Vec<String> {
    let mut list = Vec::new();
    if !status.running {
        list.push("the server is stopped, so no node registers or unlocks: tec serve".to_owned());
    }
    if status.images_live == 0 {
        list.push("no image is approved, so no node gets a key: tec image approve".to_owned());
    }
    if status.keys_waiting > 0 {
        list.push(format!("{} keys wait for approval: tec ak list", status.keys_waiting));
    }
    if !status.refusals.is_empty() {
        list.push("boots were refused: tec explain <attempt>".to_owned());
    }
    list
}

fn render(status: &Status) -> String {
    let mut lines =
        vec![format!("server        {}", if status.running { "running" } else { "stopped" })];
    if let Some(endpoints) = &status.endpoints {
        lines.push(format!("registration  {}", endpoints.register));
        lines.push(format!("AK            {}", endpoints.ak));
        lines.extend(endpoints.kbs.iter().map(|kbs| format!("key broker    {}", kbs.url)));
    }
    let counts = &status.machines;
    lines.push(format!(
        "machines      {} active, {} unclaimed, {} quarantined, {} revoked, {} retired",
        counts.active, counts.unclaimed, counts.quarantined, counts.revoked, counts.retired
    ));
    lines.push(format!("images        {} approved", status.images_live));
    lines.extend(status.refusals.iter().map(one_line));
    lines.push(match status.needs_you.as_slice() {
        [] => "nothing needs you".to_owned(),
        list => format!("needs you:\n  {}", list.join("\n  ")),
    });
    lines.join("\n")
}
