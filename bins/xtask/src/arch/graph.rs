//! Rules over what cargo resolves: the dependency trees of tec-core and tec-tpm, cryptography, and choices
//! that are left to binaries.

use std::path::Path;

use anyhow::Result;
use serde_json::Value;

use super::{CORE, Violation, names};
use crate::cargo::{Metadata, Package};
use crate::{cargo, process};

/// Libraries whose default features need no operating system: the pure domain, and verification.
const PURE: [(&str, &str, &str); 2] = [
    (
        CORE,
        "core-tree",
        "put it behind the feature `embedded` or `http`, or into an adapter; \
         `cargo tree --package tec-core --invert <name>` shows the way",
    ),
    (
        "tec-tpm",
        "tpm-tree",
        "put it behind a feature, so that quotes, logs and values can be verified anywhere; \
         `cargo tree --package tec-tpm --invert <name>` shows the way",
    ),
];

/// What these libraries never depend on: async runtimes, clusters, TLS, TPM libraries, databases. A name
/// stands for itself and for every name that starts with it and a hyphen.
const IMPURE: [&str; 18] = [
    "async-std",
    "aws-lc-rs",
    "axum",
    "hyper",
    "k8s-openapi",
    "kube",
    "libsqlite3-sys",
    "mio",
    "native-tls",
    "openssl",
    "reqwest",
    "ring",
    "rusqlite",
    "rustls",
    "smol",
    "tokio",
    "tonic",
    "tss-esapi",
];

/// Reviewed cryptography. Every other crate in the category "cryptography" is refused until it is reviewed
/// and added here.
const CRYPTOGRAPHY: [&str; 76] = [
    // RustCrypto, one generation (digest 0.11, rand_core 0.10).
    "aead",
    "aes",
    "aes-gcm",
    "aes-kw",
    "base16ct",
    "base64ct",
    "bcrypt",
    "block-buffer",
    "blowfish",
    "cfb-mode",
    "chacha20",
    "cipher",
    "cmov",
    "const-oid",
    "crypto-bigint",
    "crypto-common",
    "crypto-primes",
    "ctr",
    "ctutils",
    "der",
    "der_derive",
    "digest",
    "ecdsa",
    "ed25519",
    "elliptic-curve",
    "ghash",
    "hkdf",
    "hmac",
    "hpke", // RFC 9180 over these, tested against its vectors
    "p256",
    "p384",
    "p521",
    "pem-rfc7468",
    "pkcs1",
    "pkcs8",
    "polyval",
    "primefield",
    "primeorder",
    "rfc6979",
    "rsa",
    "sec1",
    "serdect",
    "sha1",
    "sha2",
    "signature",
    "spki",
    "universal-hash",
    "wnaf",
    "x509-cert",
    // dalek, of the same generation.
    "curve25519-dalek",
    "ed25519-dalek",
    "x25519-dalek",
    // Randomness, wiping, constant time.
    "getrandom",
    "ppv-lite86",
    "rand",
    "rand_core",
    "secrecy", // wipes the tokens of kube-client
    "subtle",
    "zeroize",
    "zeroize_derive",
    // TLS: rustls, with ring as the provider that binaries pick; certificates.
    "oid",
    "pem",
    "ring",
    "rustls",
    "rustls-native-certs",
    "rustls-pki-types",
    "rustls-webpki",
    "tokio-rustls",
    "untrusted",
    "x509-parser",
    // NATS keys, only in its own client; with the previous generation of dalek.
    "fiat-crypto",
    "nkeys",
    "signatory",
    // S3 checksums, not used for security, in object_store.
    "md-5",
    // The TPM software stack, behind tec-tpm's feature `tss`.
    "tss-esapi",
    "tss-esapi-sys",
];

/// Cryptography that is not categorized as such on crates.io, or is listed here to be kept out.
const KNOWN_CRYPTOGRAPHY: [&str; 16] = [
    "aws-lc-rs",
    "aws-lc-sys",
    "boring",
    "boring-sys",
    "getrandom",
    "jsonwebtoken",
    "josekit",
    "native-tls",
    "openssl",
    "openssl-sys",
    "rand",
    "rand_core",
    "ring",
    "rustls",
    "untrusted",
    "webpki",
];

/// Dependencies whose features pick a TLS provider or an API version.
const CHOOSERS: [&str; 11] = [
    "axum-server",
    "hyper-rustls",
    "k8s-openapi",
    "kube",
    "kube-client",
    "rcgen",
    "reqwest",
    "rustls",
    "tokio-rustls",
    "tonic",
    "tower-http",
];

/// What only programs depend on: command lines, errors for people, TLS providers, and what programs share.
const OF_PROGRAMS: [&str; 5] = ["anyhow", "aws-lc-rs", "clap", "ring", "tec-support"];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let mut found = Vec::new();
    for (library, rule, todo) in PURE {
        found.extend(pure_tree(root, library, rule, todo)?);
    }
    let metadata = Metadata::full(root)?;
    names::check(&metadata, &mut found);
    for package in metadata.packages() {
        unknown_cryptography(package, &mut found);
    }
    for library in metadata.members().filter(|member| member.is_published()) {
        no_choice(root, library, &mut found);
    }
    Ok(found)
}

fn pure_tree(
    root: &Path,
    library: &str,
    rule: &'static str,
    todo: &'static str,
) -> Result<Vec<Violation>> {
    let tree = process::capture(cargo::cargo(root).args([
        "tree",
        "--package",
        library,
        "--edges",
        "normal",
        "--prefix",
        "none",
        "--format",
        "{p}",
    ]))?;
    let mut names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    names.sort_unstable();
    names.dedup();
    let banned = |name: &&str| IMPURE.iter().any(|banned| is_of(name, banned));
    let violation = |name: &str| {
        let what = format!("{name} is in the dependency tree of {library} with default features");
        Violation::new(rule, format!("{library}/Cargo.toml"), 0, what, todo)
    };
    Ok(names.into_iter().filter(banned).map(violation).collect())
}

fn is_of(name: &str, family: &str) -> bool {
    name.strip_prefix(family).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '_']))
}

fn unknown_cryptography(package: Package<'_>, found: &mut Vec<Violation>) {
    let name = package.name();
    let is_ours = package.text("source").is_empty();
    let says_so = package.texts("categories").any(|c| c.starts_with("cryptography"))
        || package.texts("keywords").any(|k| k.starts_with("crypto"));
    if is_ours || !(says_so || KNOWN_CRYPTOGRAPHY.contains(&name)) || CRYPTOGRAPHY.contains(&name) {
        return;
    }
    found.push(Violation::new(
        "cryptography-known",
        "Cargo.lock",
        0,
        format!("{name} is cryptography that nobody looked at"),
        "do without it, or look at it and add it to the list in bins/xtask/src/arch/graph.rs",
    ));
}

/// A library's own dependencies, and the features enabled on them.
fn no_choice(root: &Path, library: Package<'_>, found: &mut Vec<Violation>) {
    let manifest = library.manifest();
    let manifest = manifest.strip_prefix(root).unwrap_or(manifest).display().to_string();
    for dependency in library.dependencies() {
        // Only normal dependencies have a null kind; tests may choose for themselves.
        if dependency.get("kind").is_some_and(|kind| !kind.is_null()) {
            continue;
        }
        let name = cargo::text(dependency, "name");
        if OF_PROGRAMS.contains(&name) {
            found.push(Violation::new(
                "no-program-parts",
                &manifest,
                0,
                format!("the library depends on {name}"),
                "take it as a parameter, use thiserror, or move the code to the program",
            ));
        }
        for feature in cargo::array(dependency, "features").filter_map(Value::as_str) {
            if is_choice_of_binaries(name, feature) {
                found.push(Violation::new(
                    "no-choice",
                    &manifest,
                    0,
                    format!("the library picks {name}/{feature}"),
                    "leave API version and TLS provider to the binary",
                ));
            }
        }
    }
}

/// Whether this feature of the dependency picks a version of the Kubernetes API or a TLS provider.
pub(super) fn is_choice_of_binaries(dependency: &str, feature: &str) -> bool {
    if !CHOOSERS.contains(&dependency) {
        return false;
    }
    let version = ["v1_", "latest", "earliest"];
    let provider =
        ["aws-lc", "aws_lc", "default-tls", "native-tls", "openssl", "ring", "tls-rustls"];
    let picks = |prefixes: &[&str]| prefixes.iter().any(|prefix| feature.starts_with(prefix));
    if dependency == "k8s-openapi" {
        return picks(&version);
    }
    let bundled = matches!(feature, "rustls" | "rustls-tls" | "tls-ring" | "tls-aws-lc");
    (picks(&provider) || bundled) && !feature.ends_with("no-provider")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(package: &Value) -> bool {
        let mut found = Vec::new();
        unknown_cryptography(Package::new(package), &mut found);
        !found.is_empty()
    }

    #[test]
    fn cryptography_is_refused_until_somebody_looked_at_it() {
        let source = "registry";
        let newcomer = json!({"name": "xor", "source": source, "categories": ["cryptography"]});
        assert!(refused(&newcomer));
        assert!(refused(&json!({"name": "openssl", "source": source})));
        assert!(!refused(&json!({"name": "sha2", "source": source, "keywords": ["crypto"]})));
        assert!(!refused(&json!({"name": "time", "source": source})));
        assert!(!refused(&json!({"name": "tec-core", "categories": ["cryptography"]})));
    }

    #[test]
    fn providers_and_versions_are_the_choice_of_binaries() {
        assert!(is_choice_of_binaries("k8s-openapi", "v1_35"));
        assert!(is_choice_of_binaries("rustls", "ring"));
        assert!(is_choice_of_binaries("reqwest", "default-tls"));
        assert!(!is_choice_of_binaries("reqwest", "rustls-no-provider"));
        assert!(!is_choice_of_binaries("axum-server", "tls-rustls-no-provider"));
        assert!(!is_choice_of_binaries("rustls", "std"));
    }

    #[test]
    fn a_family_is_the_crate_and_its_parts() {
        assert!(is_of("tokio", "tokio") && is_of("tokio-util", "tokio"));
        assert!(!is_of("ringbuf", "ring"));
    }
}
