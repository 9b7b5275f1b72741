//! `cargo xtask vm`: nodes in virtual machines with real firmware, from their first boot on; played
//! by the binary `vm` of tec-e2e.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::cargo::Metadata;
use crate::cargo::cargo;
use crate::pcr_live;
use crate::process;
use crate::term;
use crate::tools;
use crate::tools::Tools;
use crate::tools::targets;

/// Where everything is kept, below the target directory.
const ARTEFACTS: &str = "vm";
/// The programs on the host, and those in the machines.
const PROGRAMS: [&str; 2] = ["tec-e2e", "tec"];
const GUEST: &str = "tec-node";
const AGENT: &str = "node-agent";
/// Profile of what goes into an initramfs.
const AGENT_PROFILE: &str = "node";
/// All scenes, in order.
const SCENES: [&str; 7] = [
    "short",
    "update",
    "fleet",
    "cuts",
    "recovery",
    OPERATOR,
    "adversary",
];
/// The scene that needs the programs of Kubernetes, and ours for it.
const OPERATOR: &str = "operator";
const OF_OPERATOR: [&str; 3] = ["operator", "register-server", "attestation-key-register"];
/// What CI plays.
const SHORT: &str = "short";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Play this scene; may be given several times. Without: short
    #[arg(long = "scene", value_name = "NAME")]
    scenes: Vec<String>,
    /// Play every scene, which takes hours on a busy machine
    #[arg(long, conflicts_with = "scenes")]
    all: bool,
    /// How many machines lose their power during the first boot
    #[arg(long, default_value_t = 3)]
    cuts: u32,
}

/// Tools, build, scenes.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let tools = tools::ensure()?;
    tools::ensure_nodes(&tools)?;
    let names = |scenes: &[&str]| scenes.iter().map(|&scene| scene.to_owned()).collect();
    let scenes: Vec<String> = match (args.all, args.scenes.as_slice()) {
        (true, _) => names(&SCENES),
        (false, []) => names(&[SHORT]),
        (false, chosen) => chosen.to_vec(),
    };
    if scenes.iter().any(|scene| scene == OPERATOR) {
        tools::ensure_kubernetes(&tools)?;
        process::run(&mut build_of(root, &OF_OPERATOR))?;
    }
    play(root, &tools, &scenes, args.cuts)
}

/// What `cargo xtask test` plays.
pub(crate) fn check(root: &Path, tools: &Tools) -> Result<()> {
    play(root, tools, &[SHORT.to_owned()], 0)
}

fn play(root: &Path, tools: &Tools, scenes: &[String], cuts: u32) -> Result<()> {
    build(root)?;
    term::step("nodes in virtual machines");
    let target = Metadata::workspace(root)?.target_dir()?;
    let mut vm = process::command(target.join("debug/vm"));
    vm.arg("--node")
        .arg(target.join(pcr_live::PROFILE).join(GUEST))
        .arg("--agent")
        .arg(target.join(targets::NODE).join(AGENT_PROFILE).join(AGENT))
        .arg("--artefacts")
        .arg(target.join(ARTEFACTS))
        .args(["--cuts", &cuts.to_string()]);
    for scene in scenes {
        vm.args(["--scene", scene]);
    }
    tools.environment(&mut vm)?;
    process::run(vm.env("TEC_BIN_DIR", target.join("debug")))
}

fn build(root: &Path) -> Result<()> {
    term::step("build the programs of virtual nodes");
    process::run(&mut build_of(root, &PROGRAMS))?;
    pcr_live::build_guest(root, GUEST)?;
    let agent = ["build", "--package", AGENT, "--profile", AGENT_PROFILE];
    process::run(cargo(root).args(agent).args(["--target", targets::NODE]))
}

fn build_of(root: &Path, packages: &[&str]) -> Command {
    let mut build = cargo(root);
    build.args(["build", "--bins"]);
    build.args(packages.iter().flat_map(|package| ["--package", package]));
    build
}
