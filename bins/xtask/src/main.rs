//! The only entry point for repository tasks: `cargo xtask <verb>`.
//!
//! Contains only flags and dispatch; each verb is a module. Nothing here needs a system library, so that a
//! fresh machine can build it and let `cargo xtask tools` install the rest.

mod api;
mod arch;
mod areas;
mod bench;
mod bootstrap_demo;
mod cargo;
mod check;
mod cluster;
mod codegen;
mod count;
mod demo;
mod dist;
mod docs;
mod e2e;
mod foreign;
mod fuzz;
mod images;
mod lanes;
mod needs;
mod outside;
mod pcr_live;
mod process;
mod programs;
mod room;
mod services;
mod suites;
mod term;
mod test;
mod tools;
mod vm;
mod walk;
mod words;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Builds, checks and shows TEC", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Set up missing tools: Debian packages, ignition-validate, real Debian boot files
    Tools(tools::Args),
    /// Check formatting, lints, documentation, architecture and generated files
    Check,
    /// Run everything that CI runs: tools, check, tests, examples, demo, real boots, fuzz smoke
    Test(test::Args),
    /// Package the libraries, and build programs of other workspaces against them
    Outside(outside::Args),
    /// Play the main use case end to end and write target/demo/report.html
    Demo(demo::Args),
    /// Run a Kubernetes node with real pods on this machine: up, down, shell; as root
    Cluster(cluster::Args),
    /// Create a cluster with real kubeadm in namespaces: init, two joins, two boots; as root
    BootstrapDemo,
    /// Run the tests on a real Kubernetes API server
    E2e(e2e::Args),
    /// Start a platform's services from an empty directory
    ServicesDemo(services::Args),
    /// Write the generated pages and manifests, or compare them
    Codegen(codegen::Args),
    /// Check the invariants of docs/architecture.md that a program can check
    Arch(arch::Args),
    /// Build the images of a release, for amd64 and arm64, and print their digests
    Images(images::Args),
    /// Build a release: archives, packages, images, charts, bills of materials, digests
    Dist(dist::Args),
    /// Build the documentation site in target/docs and check its links
    Docs,
    /// Run the benchmarks and print the ratios to their baselines
    Bench(bench::Args),
    /// Run the fuzz targets on the stable toolchain
    Fuzz(fuzz::Args),
    /// Boot virtual machines with Debian's packages and compare them with the predicted PCRs
    PcrLive(pcr_live::Args),
    /// Boot nodes in virtual machines, from Ignition's first boot to the opened root
    Vm(vm::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            term::failure(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<()> {
    let root = cargo::workspace_root()?;
    match verb {
        Verb::Tools(args) => tools::run(&args, &pcr_live::default_suites()),
        Verb::Check => check::run(&root),
        Verb::Test(args) => test::run(&root, &args),
        Verb::Outside(args) => outside::run(&root, args).map(drop),
        Verb::Demo(args) => demo::run(&root, &args),
        Verb::Cluster(args) => cluster::run(&root, &args),
        Verb::BootstrapDemo => bootstrap_demo::run(&root),
        Verb::E2e(args) => e2e::run(&root, &args),
        Verb::ServicesDemo(args) => services::run(&root, &args),
        Verb::Codegen(args) => codegen::run(&root, &args),
        Verb::Arch(args) => {
            let chosen: PathBuf = args.root.unwrap_or(root);
            if args.lines {
                arch::print_lines(&chosen)?;
            }
            arch::run(&chosen)
        }
        Verb::Images(args) => images::run(&root, &args),
        Verb::Dist(args) => dist::run(&root, &args),
        Verb::Docs => docs::run(&root),
        Verb::Bench(args) => bench::run(&root, &args),
        Verb::Fuzz(args) => fuzz::run(&root, &args),
        Verb::PcrLive(args) => pcr_live::run(&root, &args),
        Verb::Vm(args) => vm::run(&root, &args),
    }
}
