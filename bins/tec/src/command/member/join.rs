//! `tec node join`: makes the node that it runs on a member of the cluster whose join services the platform
//! names.

use std::path::PathBuf;

use bootstrapper::instance::finding::coded;
use bootstrapper::instance::run::run_join;
use bootstrapper::instance::settings::Settings;
use bootstrapper::instance::survey::{JoinServiceSeen, Survey, survey};
use clap::Args;
use serde::Serialize;
use tec_core::ak::Fingerprint;
use tec_core::port::{PortError, chain};
use tec_node::lock::MarkerState;
use tec_support::exit::{FAILED, NOT_READY, OK};
use tec_support::program;
use tec_support::program::Settings as _;

use crate::args::DryRun;
use crate::output::{Check, Output, table};

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// Settings file of the bootstrapper, TOML.
    #[arg(long, env = "TEC_BOOTSTRAPPER_CONFIG", default_value = "/etc/tec/bootstrapper.toml")]
    config: PathBuf,
    #[command(flatten)]
    dry_run: DryRun,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// The key that a join service must trust.
    ak: Fingerprint,
    ready: bool,
    checks: Vec<Check>,
}

/// With `--dry-run`: exit code 0 if the node could join, 3 if the only problem is that no join service
/// answers, otherwise 1. Without `--dry-run`: as for `bootstrapper run`, which also serves Init.
pub(crate) async fn join(args: JoinArgs, output: &Output) -> anyhow::Result<u8> {
    let settings = Settings::read(&args.config)?;
    // Needed to fetch components. Fails only if a provider is already installed, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if !args.dry_run.dry_run {
        return run_join(&settings, program::stopped()?).await.map_err(coded);
    }
    let survey = survey(&settings).await?;
    let ak = survey.ak;
    let (node, services) = checks(survey);
    let is_ok = |check: &Check| check.ok;
    let (fit, met) = (node.iter().all(is_ok), services.iter().any(is_ok));
    let report =
        Report { ak, ready: fit && met, checks: node.into_iter().chain(services).collect() };
    output.print(&report, |report| {
        let rows: Vec<_> = report.checks.iter().map(Check::row).collect();
        let checks = table(["", "WHAT", "FOUND"], &rows);
        format!("attestation key {}\n{checks}", report.ak)
    })?;
    Ok(match (fit, met) {
        (true, true) => OK,
        (true, false) => NOT_READY,
        (false, _) => FAILED,
    })
}

fn told<T>(
    found: Result<T, PortError>,
    say: impl FnOnce(T) -> anyhow::Result<String>,
) -> anyhow::Result<String> {
    match found {
        Ok(found) => say(found),
        Err(error) => Err(anyhow::anyhow!("{}", chain(&error))),
    }
}

/// Checks of the node, and of the join services.
fn checks(survey: Survey) -> (Vec<Check>, Vec<Check>) {
    let marker = told(survey.marker, |state| match state {
        MarkerState::Unset => Ok("in no cluster".to_owned()),
        MarkerState::Set(found) => Err(anyhow::anyhow!("already in a cluster: {found}")),
    });
    let disk = told(survey.disk, |(id, is_new)| {
        anyhow::ensure!(is_new, "disk {id} belongs to a cluster: recover it first");
        Ok(format!("{id}, new"))
    });
    let instance = told(survey.instance, |this| {
        Ok(format!("{}, {} at {}", this.name, this.role, this.address))
    });
    let node = vec![
        Check::of("TPM", marker),
        Check::of("state disk", disk),
        Check::of("metadata", instance),
    ];
    let services = match survey.services {
        Ok(found) if found.is_empty() => {
            let found = anyhow::anyhow!("the platform does not name a control plane");
            vec![Check::of("join services", Err(found))]
        }
        Ok(found) => {
            let met = || Ok("both ends took each other's evidence".to_owned());
            let check = |one: JoinServiceSeen| {
                let what = format!("join service {}", one.address);
                Check::of(what, told(one.met, |()| met()))
            };
            found.into_iter().map(check).collect()
        }
        Err(error) => {
            let found = anyhow::anyhow!("{}", chain(&error));
            vec![Check::of("join services", Err(found))]
        }
    };
    (node, services)
}
