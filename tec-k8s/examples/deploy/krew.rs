//! The manifest of `kubectl tec` for krew. Digests are those of the release's archives, which
//! krew-release-bot substitutes for the braces.

use crate::{Files, REPOSITORY};

const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

pub(crate) fn files() -> Files {
    let mut text = format!(
        "# Written by `cargo xtask codegen` from tec-k8s; filled in by krew-release-bot.
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: tec
spec:
  version: {{{{ .TagName }}}}
  homepage: {REPOSITORY}
  shortDescription: See and steer Trusted Execution Clusters
  description: |
    Shows machines, attestation keys and approved images, approves and revokes them, says why a
    machine was refused, checks an installation, and collects a redacted support bundle.
  platforms:
"
    );
    text.extend(ARCHITECTURES.map(platform));
    Files::from([("tec.krew.yaml".to_owned(), text)])
}

fn platform(architecture: &str) -> String {
    let archive = format!("kubectl-tec-linux-{architecture}.tar.gz");
    let url = format!("{REPOSITORY}/releases/download/{{{{ .TagName }}}}/{archive}");
    format!(
        "  - selector:
      matchLabels:
        os: linux
        arch: {architecture}
    bin: kubectl-tec
    {{{{addURIAndSha \"{url}\" .TagName }}}}
"
    )
}
