//! `tec bootstrap check`.

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Value;
use tec_core::endpoint::Endpoint;
use tec_core::ignition::{MergeSource, render_merge};
use tec_core::machine::{Machine, MachineState, RegisteredBy};
use tec_core::port::{Clock as _, ImageRegistry, MachineRegistry};
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::exit::{FAILED, NOT_READY, OK};

use super::walk::Seen;
use super::{CheckArgs, walk};
use crate::args::Access;
use crate::kube;
use crate::output::{Check, Output, table};
use crate::state::{Endpoints, open_existing};

#[derive(Debug, Serialize)]
struct Report {
    ok: bool,
    /// Whether a node reaches everything, and accepts the certificates.
    nodes: Vec<Check>,
    /// Whether what nodes boot is approved, with reference values.
    images: Vec<Check>,
}

pub(super) async fn check(
    state_dir: &Path,
    access: Option<&Access>,
    args: &CheckArgs,
    output: &Output,
) -> anyhow::Result<u8> {
    let config = match &args.ignition {
        Some(path) => {
            std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?
        }
        None => own_config(state_dir)?,
    };
    let config: Value =
        serde_json::from_slice(&config).context("cannot parse the installer's config")?;
    let began = SystemClock.now();
    let seen = walk::walk(&config).await;
    forget(state_dir, &seen, began).await;
    let images = images(state_dir, access).await?;
    let all_ok = |checks: &[Check]| checks.iter().all(|check| check.ok);
    let (reached, approved) = (all_ok(&seen.checks), all_ok(&images));
    let report = Report { ok: reached && approved, nodes: seen.checks, images };
    output.print(&report, render)?;
    Ok(match (reached, approved) {
        (true, true) => OK,
        (true, false) => NOT_READY,
        (false, _) => FAILED,
    })
}

fn own_config(state_dir: &Path) -> anyhow::Result<Vec<u8>> {
    let own = Endpoints::read(state_dir)?;
    let source = MergeSource::new(Endpoint::new(own.register, own.ca));
    Ok(render_merge(&source)?)
}

/// Removes the machine that the check registered, if possible; otherwise it expires.
///
/// # Security
/// The server chose the ID of the machine: a machine that existed before, or is claimed, was not registered
/// by the check.
async fn forget(state_dir: &Path, seen: &Seen, began: Timestamp) {
    let Some(machine) = &seen.machine else { return };
    let Ok(store) = open_existing(state_dir) else {
        return;
    };
    let found = MachineRegistry::find(&*store, machine).await.ok().flatten();
    let is_new = |found: &Machine| {
        found.state == MachineState::Unclaimed
            && found.registered_by == RegisteredBy::FirstBoot
            && found.registered_at >= began
    };
    if found.as_ref().is_some_and(is_new)
        && let Err(error) = MachineRegistry::remove(&*store, machine).await
    {
        let error = tec_core::port::chain(&error);
        tracing::warn!(error, "the machine that was registered by looking stays");
    }
}

async fn images(state_dir: &Path, access: Option<&Access>) -> anyhow::Result<Vec<Check>> {
    let images = if let Some(access) = access {
        let (images, lagging) = kube::approvals(access).await?;
        if let Some(target) = lagging {
            let what = anyhow::anyhow!("not everything is published to {target} yet");
            return Ok(vec![Check::of("reference values", Err(what))]);
        }
        images
    } else if state_dir.exists() {
        ImageRegistry::list(&*open_existing(state_dir)?).await?
    } else {
        // Another party's anchor: only a node's view of it is available.
        return Ok(Vec::new());
    };
    let now = SystemClock.now();
    let live: Vec<_> = images.iter().filter(|image| image.is_live(now)).collect();
    if live.is_empty() {
        let what = anyhow::anyhow!("no image is approved, so no node gets a key");
        return Ok(vec![Check::of("images", Err(what))]);
    }
    let check = |image: &&tec_core::image::ApprovedImage| {
        let found = match image.expected.pcrs.as_slice() {
            [] => Err(anyhow::anyhow!("its measurements are not known yet")),
            pcrs => {
                let list: Vec<_> = pcrs.iter().map(|pcr| pcr.id.to_string()).collect();
                Ok(format!("reference values of PCR {}", list.join(", ")))
            }
        };
        Check::of(format!("image {}", image.name), found)
    };
    Ok(live.iter().map(check).collect())
}

fn render(report: &Report) -> String {
    let rows: Vec<_> = report.nodes.iter().chain(&report.images).map(Check::row).collect();
    table(["", "WHAT", "FOUND"], &rows)
}
