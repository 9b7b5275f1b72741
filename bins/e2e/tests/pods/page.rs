//! The tutorial, word for word, on the node.

use std::os::unix::fs::symlink;
use std::path::Path;

use tec_e2e::kube::program;
use tec_e2e::packages::{REGISTRY, directory, tool};
use tec_e2e::pods::{ADDRESS, Charts};
use tec_e2e::transcript::execute;

pub(crate) fn every_command_prints_what_the_page_says(charts: &Charts, image: &str) {
    let root = directory().join("../../..");
    let home = tempfile::tempdir().unwrap();
    let programs = home.path().join("bin");
    std::fs::create_dir(&programs).unwrap();
    for (name, program) in [
        ("helm", tool("bin/helm").unwrap()),
        ("kubectl-tec", program("tec").unwrap()),
        ("node-agent", program("node-agent").unwrap()),
    ] {
        symlink(program, programs.join(name)).unwrap();
    }
    let mut shell = charts.command("bash");
    let known = shell.get_envs().find(|(name, _)| *name == "PATH").and_then(|(_, value)| value);
    let known = known.unwrap().to_owned();
    let path = [programs].into_iter().chain(std::env::split_paths(&known));
    shell
        .current_dir(&root)
        .env("PATH", std::env::join_paths(path).unwrap())
        .env("HOME", home.path())
        .env("WORK", home.path())
        .env("ADDRESS", ADDRESS)
        .env("REGISTRY", REGISTRY)
        .env("IMAGE", image);
    let kubeconfig = own_kubeconfig(charts, home.path());
    shell.env("KUBECONFIG", kubeconfig);
    execute(&root.join("docs/tutorial/a-cluster-with-kubectl.md"), &mut shell).unwrap();
}

/// A copy, because the page sets the namespace of its context.
fn own_kubeconfig(charts: &Charts, home: &Path) -> std::path::PathBuf {
    let file = home.join("config");
    let content = charts.everywhere(&["config", "view", "--raw", "--flatten"]).unwrap();
    std::fs::write(&file, content).unwrap();
    file
}
