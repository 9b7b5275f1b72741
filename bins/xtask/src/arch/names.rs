//! Names of targets. `cargo clean --workspace` removes files by the name of a target, so a test that is named
//! like a dependency takes the compiled dependency with it, and everything above that is compiled again.

use std::collections::BTreeSet;

use crate::arch::Violation;
use crate::cargo::{self, Metadata, Package};

/// Kinds of targets that other packages link (The Cargo Book, "cargo metadata").
const LINKED: [&str; 3] = ["lib", "rlib", "proc-macro"];

pub(super) fn check(metadata: &Metadata, found: &mut Vec<Violation>) {
    let linked: BTreeSet<String> = metadata
        .packages()
        .filter(|package| !package.text("source").is_empty())
        .flat_map(Package::targets)
        .filter(|target| cargo::array(target, "kind").any(|kind| LINKED.iter().any(|k| kind == *k)))
        .map(file_name)
        .collect();
    for member in metadata.members() {
        for target in member.targets().filter(|target| linked.contains(&file_name(target))) {
            let name = cargo::text(target, "name");
            found.push(Violation::new(
                "target-name",
                format!("{}/Cargo.toml", member.name()),
                0,
                format!("the target {name} has the name of a dependency"),
                "rename it: cleaning the workspace would remove the compiled dependency",
            ));
        }
    }
}

/// The name of a target as it is in names of files.
fn file_name(target: &serde_json::Value) -> String {
    cargo::text(target, "name").replace('-', "_")
}
