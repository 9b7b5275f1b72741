//! Addresses in tracked files: every host of a URL, and every registry of an image, is known to exist, belongs to
//! the project that the text means, or is reserved for examples.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::Violation;
use crate::walk::files_below;

/// Hosts, or hosts with the beginning of a path, in URLs and in references to images and Go modules, and why each
/// is there. Hosts that many projects share need a path: another project's part of them is not ours.
const KNOWN: [(&str, &str); 34] = [
    ("cloudkms.googleapis.com", "key service of Google Cloud"),
    ("containerd.io", "API group of containerd"),
    ("docker.io", "default registry of references to images; OpenBao publishes there"),
    ("ghcr.io/confidential-containers/key-broker-service", "where Trustee is published"),
    ("github.com/confidential-containers/kbs/errors", "types of errors in Trustee's protocol"),
    ("github.com/confidential-containers/trustee", "project, source of the program in tests"),
    ("github.com/coredns/coredns", "Go module, pinned"),
    ("github.com/coreos/ignition", "Go module, pinned"),
    ("github.com/edgelesssys/constellation", "project that is compared"),
    ("github.com/latchset/clevis", "project that is compared"),
    ("github.com/open-telemetry/opentelemetry-collector-contrib", "Go module, pinned"),
    ("github.com/rust-lang/crates.io-index", "registry of crates, as Cargo names it"),
    ("github.com/sigstore/cosign", "program that signs images"),
    ("github.com/trusted-execution-clusters/operator", "project whose objects are taken over"),
    ("github.com/vale-cli/vale", "Go module, pinned"),
    ("go.dev/doc", "documentation of Go"),
    ("go.etcd.io", "Go module, pinned"),
    ("go.opentelemetry.io", "Go module, pinned"),
    ("golang.org/toolchain", "Go itself as a module, pinned"),
    ("index.docker.io/v1", "key of Docker Hub in config.json"),
    ("json-schema.org", "name of a schema"),
    ("k8s.io", "Go modules and API groups of Kubernetes"),
    ("kairos.io", "project that is compared"),
    ("kdsintf.amd.com", "key distribution service of AMD"),
    ("keepachangelog.com", "format of the changelog"),
    ("keylime.dev", "project that is compared"),
    ("kubernetes.io", "documentation and API groups of Kubernetes"),
    ("login.microsoftonline.com", "tokens of Azure"),
    ("quay.io/fedora/fedora-coreos", "image of an operating system in tests"),
    ("semver.org", "what versions mean"),
    ("sh.rustup.rs", "installer of Rust in CI"),
    ("sqlite.org", "documentation of SQLite"),
    ("www.apache.org/licenses", "the license"),
    ("www.w3.org", "names of XML namespaces"),
];
/// Names without a scheme that look like addresses: API groups, and prefixes of labels and types.
const GROUPS: [(&str, &str); 8] = [
    ("cert-manager.io", "API group"),
    ("helm.sh/resource-policy", "annotation that Helm reads"),
    ("monitoring.coreos.com", "API group of the Prometheus operator"),
    ("node.cilium.io", "taint of Cilium"),
    ("operators.coreos.com", "API group of the Operator Lifecycle Manager"),
    ("tk8s.io", "part of an escaped text in a Go template"),
    (
        "trusted-execution-clusters.io",
        "API group of the custom resources, kept for existing clusters",
    ),
    ("type.googleapis.com", "prefix of types in gRPC details"),
];
/// Domains whose subdomains all belong to the same owner.
const DOMAINS: [&str; 6] = [
    ".k8s.io",
    ".kubernetes.io",
    ".trusted-execution-clusters.io",
    // Storage and vaults of the platforms, below which each customer has a name.
    ".blob.core.chinacloudapi.cn",
    ".blob.core.windows.net",
    ".vault.azure.net",
];
/// Reserved for examples and tests (RFC 2606, RFC 6761), or resolved inside one network only (RFC 9476, RFC 6762).
const RESERVED: [&str; 10] = [
    "example",
    "example.com",
    "example.net",
    "example.org",
    "internal",
    "invalid",
    "local",
    "localhost",
    "svc",
    "test",
];
const SCHEMES: [&str; 4] = ["https://", "http://", "oci://", "docker://"];
/// Ends of names that are taken for hosts without a scheme; file names end otherwise.
const PUBLIC: [&str; 6] = [".com", ".dev", ".io", ".net", ".org", ".sh"];
/// Lists of packages, which other rules check; and inputs of fuzz targets.
const SKIPPED: [&str; 5] = ["Cargo.lock", "corpus", "go.mod", "go.sum", "target"];

pub(super) fn check(root: &Path) -> Result<Vec<Violation>> {
    let is_hidden = |name: &str| name.starts_with('.') && name != ".github";
    let mut found = Vec::new();
    for file in files_below(root, |name| !is_hidden(name) && !SKIPPED.contains(&name))? {
        let bytes = fs::read(root.join(&file)).with_context(|| format!("cannot read {file}"))?;
        // Anything else is no text.
        if let Ok(text) = std::str::from_utf8(&bytes) {
            found.extend(unknown(&file, text));
        }
    }
    Ok(found)
}

/// The unknown addresses in a file.
fn unknown(file: &str, text: &str) -> Vec<Violation> {
    let lines = (1..).zip(text.lines());
    let places = lines.flat_map(|(number, line)| addresses(line).map(move |place| (number, place)));
    let unknown = places.filter(|(_, (place, is_url))| !is_known(place, *is_url));
    let violation = |(number, (place, _)): (usize, (&str, bool))| {
        Violation::new(
            "host-is-known",
            file,
            number,
            format!("{place} is not a known address"),
            "remove it, use example.org, or add it with its reason to bins/xtask/src/arch/hosts.rs",
        )
    };
    unknown.map(violation).collect()
}

/// Addresses in a line without their scheme, and whether they had one.
fn addresses(line: &str) -> impl Iterator<Item = (&str, bool)> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-._/:@".contains(c);
    line.split(move |c: char| !is_part(c)).filter_map(|word| {
        let url = SCHEMES.iter().find_map(|scheme| word.split_once(scheme));
        match url {
            Some((_, place)) => Some((place, true)),
            None => looks_public(word).then_some((word, false)),
        }
    })
}

/// Whether a word without a scheme begins with a public host and goes on with a path.
fn looks_public(word: &str) -> bool {
    word.split_once('/').is_some_and(|(host, path)| {
        PUBLIC.iter().any(|end| host.strip_suffix(end).is_some_and(|name| !name.is_empty()))
            && !host.contains(['@', ':'])
            && path.starts_with(|c: char| c.is_ascii_alphanumeric())
    })
}

fn is_known(place: &str, is_url: bool) -> bool {
    let host = place.split(['/', ':']).next().unwrap_or_default();
    let last = host.rsplit('.').next().unwrap_or_default();
    // One label, a number or the rest of a placeholder is the name of no host on the internet.
    let is_public =
        host.contains('.') && last.len() > 1 && !last.contains(|c: char| c.is_ascii_digit());
    let below = |known: &&str| {
        host.strip_suffix(*known).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let starts = |known: &str| {
        let rest = place.trim_end_matches(['.', ':']).strip_prefix(known);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':', '@']))
    };
    !is_public
        || RESERVED.iter().any(below)
        || DOMAINS.iter().any(|domain| host.ends_with(domain))
        || KNOWN.iter().any(|(known, _)| starts(known))
        || (!is_url && GROUPS.iter().any(|(known, _)| starts(known)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<usize> {
        unknown("a.md", text).into_iter().map(|violation| violation.line).collect()
    }

    // The addresses are put together here, because this file is checked, too.
    #[test]
    fn unknown_hosts_registries_and_repositories_are_seen() {
        let (ours, hub) = ("trusted-execution-clusters", "quay.io");
        for text in [
            format!("image: {hub}/{ours}/tec:v1"),
            format!("see https://github.{}/{ours}/tec/blob/main/a.md", "com"),
            format!("<https://{ours}.{}/docs>", "io"),
            format!("oci://ghcr.{}/somebody/chart", "io"),
            format!("https://example.org.evil.{}", "dev"),
            format!("https://kubernetes.io.evil.{}", "dev"),
        ] {
            assert_eq!(found(&format!("fine\n{text}\n")), [2], "{text}");
        }
    }

    #[test]
    fn reserved_names_groups_and_known_projects_are_fine() {
        let text =
            "https://kbs.example.org:8080 http://localhost:1 https://10.0.0.1/x registry.invalid/a
            apiVersion: trusted-execution-clusters.io/v1alpha1, rbac.authorization.k8s.io/v1
            https://github.com/confidential-containers/trustee, registry.k8s.io/pause:3.10
            https://kms.{region}.cloud http://kbs-service:8080 src/a.rs/b a@sha256:00";
        assert_eq!(found(text), [0_usize; 0]);
    }

    #[test]
    fn every_known_address_is_in_order_and_has_a_reason() {
        for list in [&KNOWN[..], &GROUPS[..]] {
            assert!(list.is_sorted_by_key(|(place, _)| *place));
            assert!(list.iter().all(|(_, why)| !why.is_empty()));
        }
    }
}
