//! `tec status`.

use std::path::Path;

use tec_support::exit::{NOT_READY, OK};

use crate::attempt::one_line;
use crate::output::{Output, write_page};
use crate::page;
use crate::state::open_existing;
use crate::status::{SeenMachine, Status};

pub(crate) async fn status(
    state_dir: &Path,
    html: Option<&Path>,
    output: &Output,
) -> anyhow::Result<u8> {
    let store = open_existing(state_dir)?;
    let status = Status::of(state_dir, &store).await?;
    if let Some(file) = html {
        write_page(&page::page(state_dir, &store).await?, file)?;
    } else {
        output.print(&status, render)?;
    }
    Ok(if status.images_live == 0 || !status.running { NOT_READY } else { OK })
}

fn render(status: &Status) -> String {
    let mut lines = status.server();
    let counts = &status.machines;
    lines.push(format!(
        "machines      {} active, {} unclaimed, {} quarantined, {} revoked, {} retired",
        counts.active, counts.unclaimed, counts.quarantined, counts.revoked, counts.retired
    ));
    lines.push(format!("images        {} approved", status.images_live));
    lines.extend(status.unpinned.iter().map(ToString::to_string));
    if let Some(SeenMachine { machine, seen }) = &status.last_seen {
        lines.push(format!("last seen     machine {machine} {} ago, {}", seen.age(), seen.result));
    }
    if status.refused_now > 0 {
        lines.push(format!("refused now   {} machines", status.refused_now));
    }
    lines.extend(status.refusals.iter().map(one_line));
    lines.push(match status.needs_you.as_slice() {
        [] => "nothing needs you".to_owned(),
        list => format!("needs you:\n  {}", list.join("\n  ")),
    });
    lines.join("\n")
}
