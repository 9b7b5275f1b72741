//! Kubernetes as programs: control plane, kubelet, kube-proxy, kubeadm and kubectl from its Go module, etcd
//! and containerd from Debian.

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};

use super::{Tools, go, is_stamped, remove_dir, scratch, stamp};
use crate::term;

const NAME: &str = "kubernetes";
/// Minor and patch version; the main module has major version 1, its parts have 0.
const VERSION: &str = "34.3";
const PROGRAMS: [&str; 7] = [
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubeadm",
    "kubectl",
    "kubelet",
];
/// Components of Kubernetes that its main module replaces with directories of its own repository, and that a
/// build using it as a dependency must therefore name.
const PARTS: [&str; 31] = [
    "api",
    "apiextensions-apiserver",
    "apimachinery",
    "apiserver",
    "cli-runtime",
    "client-go",
    "cloud-provider",
    "cluster-bootstrap",
    "code-generator",
    "component-base",
    "component-helpers",
    "controller-manager",
    "cri-api",
    "cri-client",
    "csi-translation-lib",
    "dynamic-resource-allocation",
    "endpointslice",
    "externaljwt",
    "kms",
    "kube-aggregator",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "metrics",
    "mount-utils",
    "pod-security-admission",
    "sample-apiserver",
    "sample-cli-plugin",
    "sample-controller",
];

/// Builds the programs unless they exist.
pub(super) fn ensure(tools: &Tools) -> Result<()> {
    let wanted = format!("v1.{VERSION} {}", PROGRAMS.join(" "));
    let bin = tools.cache.join("bin");
    let is_there = |program: &str| bin.join(program).is_file();
    if is_stamped(tools, NAME, &wanted) && PROGRAMS.iter().all(|program| is_there(program)) {
        return Ok(());
    }
    term::note(&format!("go build of Kubernetes v1.{VERSION} (about eight minutes on two cores)"));
    let dir = scratch(tools, NAME)?;
    let packages = PROGRAMS.map(|program| format!("k8s.io/kubernetes/cmd/{program}"));
    let packages = packages.each_ref().map(String::as_str);
    go::build(tools, &dir, &[("go.mod", &module())], &version_flags(), ".", &packages)?;
    for program in PROGRAMS {
        let place = bin.join(program);
        fs::rename(dir.join(program), &place)
            .with_context(|| format!("cannot move {program} to {}", place.display()))?;
    }
    stamp(tools, NAME, &wanted)?;
    remove_dir(&dir)
}

/// The module file of a program with Kubernetes as a dependency.
fn module() -> String {
    let mut text = format!(
        "module tec-kubernetes\n\ngo 1.24.0\n\ngodebug default=go1.24\n\n\
         require k8s.io/kubernetes v1.{VERSION}\n\nreplace (\n"
    );
    for part in PARTS {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "\tk8s.io/{part} => k8s.io/{part} v0.{VERSION}");
    }
    text.push_str(")\n");
    text
}

/// Version information for the programs; without it, they report v0.0.0, and clients rely on that.
fn version_flags() -> String {
    let package = "k8s.io/component-base/version";
    let minor = VERSION.split('.').next().unwrap_or_default();
    format!(
        "-s -w -X {package}.gitVersion=v1.{VERSION} -X {package}.gitMajor=1 \
         -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_replaced_by_its_release() {
        let module = module();
        assert_eq!(module.matches(" => ").count(), PARTS.len());
        assert!(module.contains("\tk8s.io/kubectl => k8s.io/kubectl v0.34.3\n"));
        assert!(version_flags().contains("gitMinor=34 "));
    }
}
