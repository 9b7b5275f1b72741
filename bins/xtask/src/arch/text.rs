//! Rules over the sources.

use super::Violation;
use super::source::Source;

/// Maximum number of lines of a file before its tests.
const MAX_LINES: usize = 600;
/// Maximum number of lines of a main.rs: it parses flags, composes and serves.
const MAX_MAIN_LINES: usize = 150;
/// The one module that may name types of tss_esapi.
const TSS: &str = "tec-tpm/src/tss";
/// Where a Kubernetes client may be held.
const KUBE: [&str; 16] = [
    "benches/benches/kube_broker",
    "benches/benches/kube_registration",
    "bins/bootstrapper/src",
    "bins/compute-pcrs/src",
    "bins/e2e/src/kube",
    "bins/e2e/tests",
    "bins/kbs-guard/src/compose",
    "bins/operator/src",
    "bins/registration/src",
    "bins/tec/src/kube",
    "examples/outside/operator",
    "tec-k8s/node/src/member",
    "tec-k8s/operator/src",
    "tec-k8s/src/client",
    "tec-k8s/src/controller",
    "tec-k8s/src/server",
];
/// The pure domain, and the rules of the subjects besides it.
const PURE: [&str; 3] = ["tec-core/src/", "tec-k8s/node/src/", "tec-k8s/services/src/"];
/// Their parts that perform I/O, each behind its feature.
const IMPURE_PARTS: [&str; 9] = [
    "tec-core/src/store/",
    "tec-core/src/http/",
    "tec-core/src/system.rs",
    "tec-core/src/testing/",
    "tec-k8s/node/src/atls/",
    "tec-k8s/node/src/host/",
    "tec-k8s/node/src/member/",
    "tec-k8s/node/src/rpc/",
    "tec-k8s/services/src/shell/",
];
/// What the pure domain may not use.
const IMPURE: [&str; 8] = [
    "std::fs",
    "std::net",
    "std::env",
    "std::process",
    "std::thread",
    "SystemTime::now",
    "Instant::now",
    "getrandom",
];
/// What a type that holds a secret may not derive or implement.
const REVEALING: [&str; 13] = [
    "Clone",
    "Copy",
    "Debug",
    "Serialize",
    "Deserialize",
    "PartialEq",
    "Eq",
    "PartialOrd",
    "Ord",
    "Hash",
    "Deref",
    "AsRef",
    "Display",
];

/// What ends a program, or says how it ended.
const EXITS: [&str; 3] = ["ExitCode", "process::abort", "process::exit"];

pub(super) fn check(sources: &[Source], libraries: &[&str]) -> Vec<Violation> {
    let mut found = Vec::new();
    one_file_names_tss(sources, &mut found);
    for source in sources {
        kube_client_in_place(source, &mut found);
        core_is_pure(source, &mut found);
        libraries_return(source, libraries, &mut found);
        sizes(source, &mut found);
        attributes(source, &mut found);
        secrets(source, &mut found);
        reasons(source, &mut found);
    }
    found
}

fn one_file_names_tss(sources: &[Source], found: &mut Vec<Violation>) {
    let mut home: Option<&str> = None;
    for source in sources {
        let Some(offset) = source.words("tss_esapi").next() else {
            continue;
        };
        let in_place = in_module(&source.file, TSS);
        if in_place && home.is_none() {
            home = Some(&source.file);
            continue;
        }
        found.push(Violation::new(
            "tss-in-one-file",
            &source.file,
            source.line_at(offset),
            "names tss_esapi, which one file below tec-tpm/src/tss may do",
            "use the types that this file offers, or extend it",
        ));
    }
}

/// Whether `file` is `module.rs` or lies below `module/`.
fn in_module(file: &str, module: &str) -> bool {
    file.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

fn kube_client_in_place(source: &Source, found: &mut Vec<Violation>) {
    if KUBE.iter().any(|module| in_module(&source.file, module)) {
        return;
    }
    for name in ["kube::Client", "kube::client::Client"] {
        for offset in source.words(name) {
            found.push(Violation::new(
                "kube-client-in-place",
                &source.file,
                source.line_at(offset),
                "holds a Kubernetes client outside the modules and programs that may",
                "take a port of tec-core, or move the code there",
            ));
        }
    }
}

fn core_is_pure(source: &Source, found: &mut Vec<Violation>) {
    let below = |dirs: &[&str]| dirs.iter().any(|dir| source.file.starts_with(dir));
    if !below(&PURE) || below(&IMPURE_PARTS) || source.is_test() {
        return;
    }
    for name in IMPURE {
        for offset in source.words(name) {
            if source.line_at(offset) <= source.lines_before_tests() {
                found.push(Violation::new(
                    "core-pure",
                    &source.file,
                    source.line_at(offset),
                    format!("the pure domain uses {name}"),
                    "take it as an argument or through a port",
                ));
            }
        }
    }
}

/// Only programs exit.
fn libraries_return(source: &Source, libraries: &[&str], found: &mut Vec<Violation>) {
    let is_of = |library: &&str| {
        let below = source.file.strip_prefix(*library);
        below.is_some_and(|below| below.starts_with("/src/"))
    };
    if !libraries.iter().any(is_of) || source.is_test() {
        return;
    }
    for name in EXITS {
        for offset in source.words(name) {
            found.push(Violation::new(
                "libraries-return",
                &source.file,
                source.line_at(offset),
                format!("a library uses {name}"),
                "return a value or an error; the program chooses the exit code",
            ));
        }
    }
}

fn sizes(source: &Source, found: &mut Vec<Violation>) {
    if source.is_test() || source.file.contains("/generated/") {
        return;
    }
    let lines = source.lines_before_tests();
    let is_main = source.file.starts_with("bins/") && source.file.ends_with("/src/main.rs");
    if is_main && lines > MAX_MAIN_LINES {
        found.push(Violation::new(
            "main-is-short",
            &source.file,
            lines,
            format!("a main.rs of {lines} lines, at most {MAX_MAIN_LINES}"),
            "main parses flags, composes and serves; move the rest into modules",
        ));
    }
    if lines > MAX_LINES {
        found.push(Violation::new(
            "file-size",
            &source.file,
            lines,
            format!("{lines} lines before the tests, at most {MAX_LINES}"),
            "split the module along its parts",
        ));
    }
}

fn attributes(source: &Source, found: &mut Vec<Violation>) {
    if source.file.contains("/generated/") {
        return;
    }
    for opening in ["#[allow(", "#![allow("] {
        for (offset, _) in source.code.match_indices(opening) {
            found.push(Violation::new(
                "no-bare-allow",
                &source.file,
                source.line_at(offset),
                "switches a lint off with allow",
                "use #[expect(lint, reason = \"…\")], which also tells when it is no longer needed",
            ));
        }
    }
    for opening in ["#[expect(", "#![expect("] {
        for (offset, _) in source.code.match_indices(opening) {
            let rest = source.code.get(offset..).unwrap_or_default();
            let attribute = rest.split(")]").next().unwrap_or_default();
            if !attribute.contains("reason") {
                found.push(Violation::new(
                    "no-bare-allow",
                    &source.file,
                    source.line_at(offset),
                    "expects a lint without saying why",
                    "add reason = \"…\"",
                ));
            }
        }
    }
}

fn secrets(source: &Source, found: &mut Vec<Violation>) {
    if source.file != "tec-core/src/secret.rs" {
        return;
    }
    for (offset, _) in source.code.match_indices("derive(") {
        let rest = source.code.get(offset..).unwrap_or_default();
        let list = rest.split(')').next().unwrap_or_default();
        let of_secret = ["struct ", "enum "]
            .iter()
            .filter_map(|item| rest.find(item).map(|at| at + item.len()))
            .min()
            .and_then(|at| rest.get(at..))
            .is_some_and(|name| name.starts_with("Secret"));
        let revealing =
            list.split(|c: char| !c.is_alphanumeric()).find(|word| REVEALING.contains(word));
        if let Some(name) = revealing.filter(|_| of_secret) {
            found.push(reveals(source, offset, name));
        }
    }
    for name in REVEALING.iter().filter(|name| **name != "Debug") {
        for offset in source.words(name) {
            let rest = source.code.get(offset + name.len()..).unwrap_or_default();
            let line = rest.split('{').next().unwrap_or_default();
            if line.contains(" for Secret") {
                found.push(reveals(source, offset, name));
            }
        }
    }
}

fn reveals(source: &Source, offset: usize, name: &str) -> Violation {
    Violation::new(
        "secrets-stay-secret",
        &source.file,
        source.line_at(offset),
        format!("a type that holds a secret has {name}"),
        "compare with ct_eq, copy with duplicate, and show nothing",
    )
}

/// `expose("why")` and `duplicate("why")` state a reason.
fn reasons(source: &Source, found: &mut Vec<Violation>) {
    for call in [".expose(", ".duplicate("] {
        for (offset, _) in source.code.match_indices(call) {
            let argument = source.text.get(offset + call.len()..).unwrap_or_default();
            let literal = argument.trim_start().strip_prefix('"');
            let content = literal.and_then(|literal| literal.split('"').next());
            if content.is_some_and(|content| content.trim().is_empty()) {
                found.push(Violation::new(
                    "expose-says-why",
                    &source.file,
                    source.line_at(offset),
                    "exposes a secret without a reason",
                    "say in the argument why this place needs it",
                ));
            }
        }
    }
}
