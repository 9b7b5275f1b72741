//! `tec status`.

use std::path::Path;

use tec_support::exit::{NOT_READY, OK};

use crate::anchor::Anchor;
use crate::attempt::{one_line, without_event_log};
use crate::image::CoveredImage;
use crate::output::{Output, write_page};
use crate::page;
use crate::status::{SeenMachine, Status};

pub(crate) async fn status(
    anchor: &Anchor,
    html: Option<&Path>,
    output: &Output,
) -> anyhow::Result<u8> {
    let status = Status::of(anchor).await?;
    let is_ready = status.is_ready();
    if let Some(file) = html {
        write_page(&page::page(anchor, status).await?, file)?;
    } else {
        output.print(&status, render)?;
    }
    Ok(if is_ready { OK } else { NOT_READY })
}

fn render(status: &Status) -> String {
    let mut lines = status.server();
    let counts = &status.machines;
    lines.push(format!(
        "machines      {} active, {} unclaimed, {} quarantined, {} revoked, {} retired",
        counts.active, counts.unclaimed, counts.quarantined, counts.revoked, counts.retired
    ));
    lines.push(format!("images        {} approved", status.images_live));
    lines.extend(CoveredImage::lines(&status.coverage));
    lines.extend(status.unpinned.iter().map(ToString::to_string));
    lines.extend(without_event_log(status.without_event_log.len()));
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
