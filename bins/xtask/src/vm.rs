//! `cargo xtask vm`: runs nodes in virtual machines with real firmware, starting from their first boot;
//! played by the binary `vm` of tec-e2e.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Result, bail};

use crate::cargo::Metadata;
use crate::tools::targets::Arch;
use crate::tools::{Tools, targets};
use crate::{dist, images, lanes, pcr_live, process, programs, term, tools};

/// Directory of all files, below the target directory.
const ARTEFACTS: &str = "vm";
/// The programs on the host, and those in the machines.
const PROGRAMS: [&str; 4] = ["bootstrapper", "join-service", "tec", "vm"];
const GUEST: &str = "tec-node";
const AGENT: &str = "node-agent";
/// Profile of programs in an initramfs.
const AGENT_PROFILE: &str = "node";
/// All scenes; those that take longest start first.
const SCENES: [&str; 17] = [
    "network",
    "network-dracut",
    "debian",
    "debian-uki",
    "debian-13",
    "debian-13-uki",
    "debian-sid",
    "debian-sid-uki",
    "rotation",
    JOIN,
    "adversary",
    "update",
    "recovery",
    BOOTSTRAP,
    CLUSTER,
    "cuts",
    SHORT,
];
/// The scenes that need the programs of Kubernetes, and this project's programs for clusters.
const WITH_OPERATOR: [&str; 2] = [CLUSTER, JOIN];
/// The scenes in a network namespace of their own, and the scene with the same system.
const IN_NETWORK: [(&str, &str); 2] = [("network", "debian"), ("network-dracut", "debian-13-uki")];
/// The scene on a node with real pods.
const CLUSTER: &str = "cluster";
/// The scene that CI plays.
const SHORT: &str = "short";
const BOOTSTRAP: &str = "bootstrap";
const JOIN: &str = "join";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Play this scene; repeatable (default: short)
    #[arg(long = "scene", value_name = "NAME")]
    scenes: Vec<String>,
    /// Play every scene, as many at a time as there are processors
    #[arg(long, conflicts_with = "scenes")]
    all: bool,
    /// Debian package that the scenes of distributions install; repeatable (default: of the node's program, as it is
    /// in this tree)
    #[arg(long = "package", value_name = "FILE")]
    packages: Vec<PathBuf>,
    #[command(flatten)]
    power: Power,
}

/// Power failures, in scenes that have them.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Power {
    /// Number of power failures, in scenes that have them
    #[arg(long, default_value_t = 3)]
    cuts: u32,
    /// Seed of the random times of power failures
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Sets up tools, builds, and plays the scenes.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_nodes(&tools)?;
    let names = |scenes: &[&str]| scenes.iter().map(|&scene| scene.to_owned()).collect();
    let scenes: Vec<String> = match (args.all, args.scenes.as_slice()) {
        (true, _) => names(&SCENES),
        (false, []) => names(&[SHORT]),
        (false, chosen) => chosen.to_vec(),
    };
    if scenes.iter().any(|scene| WITH_OPERATOR.contains(&scene.as_str())) {
        tools::ensure_kubernetes(&tools)?;
        programs::build(root, &programs::OF_CLUSTERS)?;
    }
    let mut packages = args.packages.clone();
    for scene in &scenes {
        let network = in_network(scene);
        if network.is_some() {
            tools::ensure_networks(&tools)?;
        }
        if tools::ensure_distribution(&tools, network.unwrap_or(scene))? && packages.is_empty() {
            packages.push(dist::node_package(root, &tools)?);
        }
    }
    if scenes.iter().any(|scene| scene == CLUSTER) {
        tools::ensure_pods(&tools)?;
        images::compile_for_tests(root, &programs::OF_CLUSTERS)?;
    }
    play(root, &tools, &scenes, args.power, &packages)
}

/// Plays the scenes of `cargo xtask test`.
pub(crate) fn check(root: &Path, tools: &Tools) -> Result<()> {
    play(root, tools, &[SHORT.to_owned(), BOOTSTRAP.to_owned()], Power { cuts: 0, seed: 1 }, &[])
}

fn play(
    root: &Path,
    tools: &Tools,
    scenes: &[String],
    power: Power,
    packages: &[PathBuf],
) -> Result<()> {
    build(root, tools)?;
    term::step("nodes in virtual machines");
    let target = Metadata::workspace(root)?.target_dir()?;
    let command = |scene: &str| {
        let mut command = command(&target, tools, scene, power)?;
        for package in packages {
            command.arg("--package").arg(package);
        }
        anyhow::Ok(command)
    };
    if let [scene] = scenes {
        return process::run(&mut command(scene)?);
    }
    let play = |scene: &str| process::output(&mut command(scene)?);
    let failed = at_once(scenes, &play)?;
    if !failed.is_empty() {
        bail!("these scenes failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Plays all scenes, prints each one when it is over, and returns the failed ones. A machine keeps one
/// processor busy.
fn at_once(
    scenes: &[String],
    play: &(dyn Fn(&str) -> Result<Output> + Sync),
) -> Result<Vec<String>> {
    let one = |scene: &String| -> Result<Option<String>> {
        let output = play(scene)?;
        term::out(&String::from_utf8_lossy(&output.stdout));
        if output.status.success() {
            return Ok(None);
        }
        term::failure(&String::from_utf8_lossy(&output.stderr));
        Ok(Some(scene.clone()))
    };
    let ended: Result<Vec<_>> =
        lanes::at_once(scenes, lanes::per_processor(), &one)?.into_iter().collect();
    Ok(ended?.into_iter().flatten().collect())
}

fn command(target: &Path, tools: &Tools, scene: &str, power: Power) -> Result<Command> {
    let program = target.join("debug/vm");
    let mut vm = if in_network(scene).is_some() {
        let mut apart = process::command("unshare");
        apart.arg("--net").arg(program);
        apart
    } else {
        process::command(program)
    };
    vm.arg("--node")
        .arg(target.join(pcr_live::PROFILE).join(GUEST))
        .arg("--agent")
        .arg(target.join(targets::NODE).join(AGENT_PROFILE).join(AGENT))
        .arg("--artefacts")
        .arg(target.join(ARTEFACTS).join(scene))
        .args(["--cuts", &power.cuts.to_string(), "--seed", &power.seed.to_string()])
        .args(["--scene", scene])
        .env("TEC_BIN_DIR", target.join("debug"));
    tools.environment(&mut vm)?;
    Ok(vm)
}

/// The scene with the same system, of one in a network namespace of its own.
fn in_network(scene: &str) -> Option<&'static str> {
    IN_NETWORK.iter().find(|(name, _)| *name == scene).map(|(_, system)| *system)
}

/// Builds the programs in the machines, and those that play the scenes.
pub(crate) fn build(root: &Path, tools: &Tools) -> Result<()> {
    programs::build(root, &PROGRAMS)?;
    term::step("build the programs of virtual nodes");
    pcr_live::build_guest(root, GUEST)?;
    tools::ensure_dist(tools)?;
    dist::node_agent(root, tools, Arch::Amd64).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_scene_is_played_once_and_what_fails_is_named() {
        let played = Mutex::new(Vec::new());
        let play = |scene: &str| {
            played.lock().unwrap().push(scene.to_owned());
            let code = i32::from(scene == "cuts") << 8;
            Ok(Output {
                status: ExitStatus::from_raw(code),
                stdout: Vec::new(),
                stderr: Vec::new(),
            })
        };
        let scenes = SCENES.map(str::to_owned);
        assert_eq!(at_once(&scenes, &play).unwrap(), ["cuts"]);
        let mut played = played.into_inner().unwrap();
        played.sort();
        let mut all = scenes.to_vec();
        all.sort();
        assert_eq!(played, all);
    }
}
