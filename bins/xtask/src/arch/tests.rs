//! The rules hold here, and each one fails on a copy of the workspace that breaks it.

use std::fs;
use std::sync::LazyLock;

use super::*;
use crate::cargo::workspace_root;

/// Violations of this repository.
static BEFORE: LazyLock<Vec<Violation>> =
    LazyLock::new(|| violations(&workspace_root().unwrap()).unwrap());

#[test]
fn this_repository_keeps_its_rules() {
    let list: Vec<String> = BEFORE.iter().map(ToString::to_string).collect();
    assert!(list.is_empty(), "{}", list.join("\n"));
}

/// Manifests, lock file and sources of the workspace, in a directory of their own.
fn copy() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_dir(&workspace_root().unwrap(), copy.path(), "");
    // Works offline: nothing that a test adds comes from a registry.
    fs::create_dir(copy.path().join(".cargo")).unwrap();
    write(copy.path(), ".cargo/config.toml", "[net]\noffline = true\n");
    copy
}

fn copy_dir(from: &Path, to: &Path, below: &str) {
    for entry in fs::read_dir(from.join(below)).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let file = format!("{below}{name}");
        if entry.file_type().unwrap().is_dir() {
            if !name.starts_with('.') && file != "target" {
                fs::create_dir(to.join(&file)).unwrap();
                copy_dir(from, to, &format!("{file}/"));
            }
        } else if below.is_empty()
            || Path::new(&name).extension().is_some_and(|end| end == "rs")
            || name == "Cargo.toml"
        {
            fs::copy(entry.path(), to.join(&file)).unwrap();
        }
    }
}

fn write(root: &Path, file: &str, text: &str) {
    fs::write(root.join(file), text).unwrap();
}

fn append(root: &Path, file: &str, text: &str) {
    let old = fs::read_to_string(root.join(file)).unwrap();
    write(root, file, &format!("{old}\n{text}\n"));
}

fn replace(root: &Path, file: &str, from: &str, to: &str) {
    let old = fs::read_to_string(root.join(file)).unwrap();
    assert!(old.contains(from), "{file} has no {from:?}");
    write(root, file, &old.replacen(from, to, 1));
}

/// Violations caused by a change to a copy, as rule and file.
fn broken_by(change: impl FnOnce(&Path)) -> Vec<(&'static str, String)> {
    // A copy has the violations of its original.
    let (copy, before) = (copy(), &*BEFORE);
    change(copy.path());
    violations(copy.path())
        .unwrap()
        .into_iter()
        .filter(|violation| !before.contains(violation))
        .map(|violation| (violation.rule, violation.file))
        .collect()
}

fn assert_broken(rule: &'static str, file: &str, change: impl FnOnce(&Path)) {
    let found = broken_by(change);
    assert!(found.contains(&(rule, file.to_owned())), "expected {rule} in {file}, found {found:?}");
}

/// Files that no module includes, so that crates compile exactly as before: rule, file and content.
const LOOSE_FILES: [(&str, &str, &str); 9] = [
    ("core-pure", "tec-core/src/loose_pure.rs", "fn f() { std::fs::read(\"x\"); }"),
    ("no-import-circle", "tec-core/src/ak/loose_a.rs", "use super::loose_b::B;"),
    ("tss-in-one-file", "tec-tpm/src/zzz.rs", "use tss_esapi::Context;"),
    ("kube-client-in-place", "tec-k8s/src/api/loose.rs", "use kube::Client;"),
    ("libraries-return", "tec-k8s/services/src/loose.rs", "fn f() { std::process::exit(1) }"),
    ("no-bare-allow", "tec-core/src/loose_allow.rs", "#[allow(dead_code)]\nfn f() {}"),
    ("no-bare-allow", "tec-core/src/loose_expect.rs", "#[expect(dead_code)]\nfn f() {}"),
    ("no-todo", "tec-core/src/loose_todo.rs", "fn f() { todo!() }"),
    ("expose-says-why", "tec-core/src/loose_secret.rs", "fn f(s: &S) { s.expose(\"\"); }"),
];

#[test]
fn what_no_file_may_contain_is_seen() {
    let long = "const A: u8 = 0;\n".repeat(601);
    let all = [&LOOSE_FILES[..], &[("file-size", "tec-core/src/loose_long.rs", &long)]].concat();
    let found = broken_by(|root| {
        for (_, file, text) in &all {
            write(root, file, text);
        }
        let back = "use crate::ak::{clock, loose_a::A};";
        write(root, "tec-core/src/ak/loose_b.rs", back);
    });
    for (rule, file, _) in all {
        assert!(found.contains(&(rule, file.to_owned())), "no {rule} in {file}: {found:?}");
    }
}

#[test]
fn what_the_core_may_not_pull_in_is_seen() {
    assert_broken("core-tree", "tec-core/Cargo.toml", |root| {
        append(root, "tec-core/Cargo.toml", "[dependencies.reqwest]\nworkspace = true");
    });
}

#[test]
fn what_verification_may_not_pull_in_is_seen() {
    assert_broken("tpm-tree", "tec-tpm/Cargo.toml", |root| {
        replace(root, "tec-tpm/Cargo.toml", "default = []", "default = [\"tss\"]");
    });
}

#[test]
fn adapters_that_depend_on_one_another_are_seen() {
    let depend = "\n[dev-dependencies.tec-tpm]\nworkspace = true";
    assert_broken("adapters-apart", "tec-k8s/Cargo.toml", |root| {
        append(root, "tec-k8s/Cargo.toml", depend);
    });
}

#[test]
fn a_path_that_the_floor_plan_names_in_vain_is_seen() {
    let found = broken_by(|root| {
        let text = "`tec-core/src/lib.rs` `bins/<program>/x` `tec-core/src/none.rs`\n";
        write(root, "docs/architecture.md", text);
    });
    let lost = found.iter().filter(|(rule, _)| *rule == "map-is-true");
    assert_eq!(lost.count(), 1, "{found:?}");
}

#[test]
fn a_program_that_depends_on_another_is_seen() {
    let depend = "\n[dependencies.services]\nworkspace = true";
    assert_broken("programs-apart", "bins/tec/Cargo.toml", |root| {
        append(root, "bins/tec/Cargo.toml", depend);
    });
}

#[test]
fn a_test_that_is_named_like_a_dependency_is_seen() {
    assert_broken("target-name", "tec-core/Cargo.toml", |root| {
        write(root, "tec-core/tests/http.rs", "");
    });
}

#[test]
fn build_scripts_in_libraries_are_seen() {
    for file in ["tec-tpm/build.rs", "tec-k8s/node/build.rs"] {
        assert_broken("no-build-script", file, |root| write(root, file, "fn main() {}"));
    }
}

#[test]
fn a_library_that_depends_on_what_programs_depend_on_is_seen() {
    let found = broken_by(|root| {
        for (library, name) in [("services", "anyhow"), ("operator", "tec-support")] {
            let depend = format!("\n[dependencies.{name}]\nworkspace = true");
            append(root, &format!("tec-k8s/{library}/Cargo.toml"), &depend);
        }
        // What is published is a library.
        replace(root, "bins/kbs-guard/Cargo.toml", "publish = false", "");
    });
    for folder in ["tec-k8s/services", "tec-k8s/operator", "bins/kbs-guard"] {
        let rule = ("no-program-parts", format!("{folder}/Cargo.toml"));
        assert!(found.contains(&rule), "no {rule:?} in {found:?}");
    }
}

#[test]
fn a_long_main_file_is_seen() {
    assert_broken("main-is-short", "bins/xtask/src/main.rs", |root| {
        append(root, "bins/xtask/src/main.rs", &"\n".repeat(151));
    });
}

#[test]
fn another_top_level_folder_is_seen() {
    assert_broken("top-level", "scripts", |root| {
        fs::create_dir(root.join("scripts")).unwrap();
    });
    assert_broken("top-level", "docs", |root| {
        fs::remove_dir_all(root.join("docs")).unwrap();
    });
}

#[test]
fn dependencies_from_elsewhere_are_seen() {
    assert_broken("no-git", "Cargo.toml", |root| {
        replace(
            root,
            "Cargo.toml",
            "[workspace.dependencies]",
            "[workspace.dependencies]\nelsewhere = { git = \"https://example.org/elsewhere\" }",
        );
    });
    assert_broken("workspace-dependency", "tec-tpm/Cargo.toml", |root| {
        append(root, "tec-tpm/Cargo.toml", "[dev-dependencies.hex]\nversion = \"0.4\"");
    });
    assert_broken("no-git", "Cargo.lock", |root| {
        let package = "[[package]]\nname = \"elsewhere\"\nversion = \"0.1.0\"\nsource = \"git+https://example.org/elsewhere#0\"";
        append(root, "Cargo.lock", package);
    });
}

#[test]
fn a_package_without_the_lints_is_seen() {
    assert_broken("workspace-lints", "bins/xtask/Cargo.toml", |root| {
        replace(root, "bins/xtask/Cargo.toml", "[lints]\nworkspace = true", "");
    });
}

#[test]
fn secrets_that_reveal_themselves_are_seen() {
    assert_broken("secrets-stay-secret", "tec-core/src/secret.rs", |root| {
        replace(
            root,
            "tec-core/src/secret.rs",
            "pub struct SecretBytes",
            "#[derive(Clone)]\npub struct SecretBytes",
        );
    });
}

#[test]
fn a_library_that_picks_what_binaries_pick_is_seen() {
    assert_broken("no-choice", "tec-tpm/registry/Cargo.toml", |root| {
        let manifest = "tec-tpm/registry/Cargo.toml";
        replace(
            root,
            manifest,
            "rustls.workspace = true",
            "rustls = { workspace = true, features = [\"ring\"] }",
        );
    });
    assert_broken("no-choice", "tec-k8s/Cargo.toml", |root| {
        let manifest = "tec-k8s/Cargo.toml";
        let old = fs::read_to_string(root.join(manifest)).unwrap();
        let feature = "latest-api = [\"k8s-openapi/latest\"]";
        if old.contains("[features]") {
            replace(root, manifest, "[features]", &format!("[features]\n{feature}"));
        } else {
            append(root, manifest, &format!("[features]\n{feature}"));
        }
    });
}

#[test]
fn promises_of_the_threat_model_without_a_test_are_seen() {
    let page = "docs/explanation/threat-model.md";
    assert_broken("threat-has-test", page, |root| {
        let row = "| attack | gate, code | test |\n|---|---|---|\n| a | b | `it_was_made_up` |\n";
        write(root, page, row);
    });
}
