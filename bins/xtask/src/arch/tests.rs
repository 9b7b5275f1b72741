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

/// A rule, the file that breaks it, and how.
type Breach = (&'static str, &'static str, fn(&Path));

/// Files that no module includes, so that crates compile exactly as before: rule, file and content.
const LOOSE_FILES: [(&str, &str, &str); 10] = [
    ("core-pure", "tec-core/src/loose_pure.rs", "fn f() { std::fs::read(\"x\"); }"),
    ("expose-says-why", "tec-core/src/loose_secret.rs", "fn f(s: &S) { s.expose(\"\"); }"),
    ("kube-client-in-place", "tec-k8s/src/api/loose.rs", "use kube::Client;"),
    ("libraries-return", "tec-k8s/services/src/loose.rs", "fn f() { std::process::exit(1) }"),
    ("no-bare-allow", "tec-core/src/loose_allow.rs", "#[allow(dead_code)]\nfn f() {}"),
    ("no-bare-allow", "tec-core/src/loose_expect.rs", "#[expect(dead_code)]\nfn f() {}"),
    ("no-build-script", "tec-k8s/node/build.rs", "fn main() {}"),
    ("no-build-script", "tec-tpm/build.rs", "fn main() {}"),
    ("no-import-circle", "tec-core/src/ak/loose_a.rs", "use super::loose_b::B;"),
    ("tss-in-one-file", "tec-tpm/src/zzz.rs", "use tss_esapi::Context;"),
];

/// Breaches that cargo can still resolve, all at once.
const BREACHES: [Breach; 16] = [
    ("adapters-apart", "tec-k8s/Cargo.toml", |root| {
        depend(root, "tec-k8s", "dev-dependencies.tec-tpm");
    }),
    ("core-tree", "tec-core/Cargo.toml", |root| depend(root, "tec-core", "dependencies.reqwest")),
    ("file-size", "tec-core/src/loose_long.rs", |root| {
        write(root, "tec-core/src/loose_long.rs", &"const A: u8 = 0;\n".repeat(601));
    }),
    ("main-is-short", "bins/xtask/src/main.rs", |root| {
        append(root, "bins/xtask/src/main.rs", &"\n".repeat(151));
    }),
    ("map-is-true", "docs/architecture.md", |root| {
        let text = "`tec-core/src/lib.rs` `bins/<program>/x` `tec-core/src/none.rs`\n";
        write(root, "docs/architecture.md", text);
    }),
    ("no-choice", "tec-k8s/Cargo.toml", |root| {
        let feature = "[features]\nlatest-api = [\"k8s-openapi/latest\"]";
        replace(root, "tec-k8s/Cargo.toml", "[features]", feature);
    }),
    ("no-choice", "tec-tpm/registry/Cargo.toml", |root| {
        let chosen = "rustls = { workspace = true, features = [\"ring\"] }";
        replace(root, "tec-tpm/registry/Cargo.toml", "rustls.workspace = true", chosen);
    }),
    ("no-program-parts", "bins/kbs-guard/Cargo.toml", |root| {
        // What is published is a library.
        replace(root, "bins/kbs-guard/Cargo.toml", "publish = false", "");
    }),
    ("no-program-parts", "tec-k8s/operator/Cargo.toml", |root| {
        depend(root, "tec-k8s/operator", "dependencies.tec-support");
    }),
    ("no-program-parts", "tec-k8s/services/Cargo.toml", |root| {
        depend(root, "tec-k8s/services", "dependencies.anyhow");
    }),
    ("programs-apart", "bins/tec/Cargo.toml", |root| {
        depend(root, "bins/tec", "dependencies.services");
    }),
    ("secrets-stay-secret", "tec-core/src/secret.rs", |root| {
        let name = "pub struct SecretBytes";
        replace(root, "tec-core/src/secret.rs", name, &format!("#[derive(Clone)]\n{name}"));
    }),
    ("target-name", "tec-core/Cargo.toml", |root| write(root, "tec-core/tests/http.rs", "")),
    ("threat-has-test", "docs/explanation/threat-model.md", |root| {
        let row = "| attack | gate, code | test |\n|---|---|---|\n| a | b | `it_was_made_up` |\n";
        write(root, "docs/explanation/threat-model.md", row);
    }),
    ("top-level", "scripts", |root| fs::create_dir(root.join("scripts")).unwrap()),
    ("tpm-tree", "tec-tpm/Cargo.toml", |root| {
        replace(root, "tec-tpm/Cargo.toml", "default = []", "default = [\"tss\"]");
    }),
];

/// Breaches that must be seen although cargo may not resolve them.
const UNRESOLVED: [Breach; 5] = [
    ("no-git", "Cargo.lock", |root| {
        let source = "source = \"git+https://example.org/elsewhere#0\"";
        let package = format!("[[package]]\nname = \"elsewhere\"\nversion = \"0.1.0\"\n{source}");
        append(root, "Cargo.lock", &package);
    }),
    ("no-git", "Cargo.toml", |root| {
        let section = "[workspace.dependencies]";
        let git = format!("{section}\nelsewhere = {{ git = \"https://example.org/elsewhere\" }}");
        replace(root, "Cargo.toml", section, &git);
    }),
    ("top-level", "docs", |root| fs::remove_dir_all(root.join("docs")).unwrap()),
    ("workspace-dependency", "tec-tpm/Cargo.toml", |root| {
        append(root, "tec-tpm/Cargo.toml", "[dev-dependencies.hex]\nversion = \"0.4\"");
    }),
    ("workspace-lints", "bins/xtask/Cargo.toml", |root| {
        replace(root, "bins/xtask/Cargo.toml", "[lints]\nworkspace = true", "");
    }),
];

fn depend(root: &Path, package: &str, name: &str) {
    append(root, &format!("{package}/Cargo.toml"), &format!("\n[{name}]\nworkspace = true"));
}

fn assert_seen(breaches: &[Breach], found: &[(&str, String)]) {
    let is_seen = |breach: &&Breach| found.contains(&(breach.0, breach.1.to_owned()));
    let unseen: Vec<_> =
        breaches.iter().filter(|breach| !is_seen(breach)).map(|one| (one.0, one.1)).collect();
    assert!(unseen.is_empty(), "not seen: {unseen:?}\nfound: {found:?}");
}

#[test]
fn each_breach_of_a_rule_is_seen() {
    let found = broken_by(|root| {
        for (_, file, text) in LOOSE_FILES {
            write(root, file, text);
        }
        let back = "use crate::ak::{clock, loose_a::A};";
        write(root, "tec-core/src/ak/loose_b.rs", back);
        for (_, _, change) in BREACHES {
            change(root);
        }
    });
    for (rule, file, _) in LOOSE_FILES {
        assert!(found.contains(&(rule, file.to_owned())), "no {rule} in {file}: {found:?}");
    }
    assert_seen(&BREACHES, &found);
    let lost = found.iter().filter(|(rule, _)| *rule == "map-is-true");
    assert_eq!(lost.count(), 1, "what is there is not said to be missing: {found:?}");
}

#[test]
fn breaches_are_seen_in_manifests_that_cargo_cannot_resolve() {
    let found = broken_by(|root| {
        for (_, _, change) in UNRESOLVED {
            change(root);
        }
    });
    assert_seen(&UNRESOLVED, &found);
}
