//! The operator as a process, with the permissions that the packages grant.

use std::ffi::OsStr;
use std::path::Path;

use tec_k8s::render::REGISTRY_VARIABLE;

use super::control_plane::ControlPlane;
use super::guarded::Guarded;
use super::operator::Bench;
use crate::packages::REGISTRY;
use crate::settings::own_program;

/// Starts a replica with this name that reconciles a namespace, with the permissions of a kubeconfig and these
/// additional arguments.
pub fn start_operator_with(
    plane: &ControlPlane,
    namespace: &str,
    (identity, kubeconfig): (&str, &Path),
    arguments: &[&str],
) -> anyhow::Result<Guarded> {
    let environment = [
        ("KUBECONFIG", kubeconfig.as_os_str()),
        ("POD_NAMESPACE", OsStr::new(namespace)),
        ("POD_NAME", OsStr::new(identity)),
        (REGISTRY_VARIABLE, OsStr::new(REGISTRY)),
    ];
    let mut all = vec!["--metrics-addr", "127.0.0.1:0"];
    all.extend(arguments);
    let program = own_program("operator")?;
    Guarded::start("operator", &program, all, &environment, plane.logs())
}

impl Bench {
    /// Starts a replica as a process, with these additional arguments. It is stopped on drop.
    pub fn start_program(&self, identity: &str, arguments: &[&str]) -> anyhow::Result<Guarded> {
        self.start_program_at(&self.plane.url(), identity, arguments)
    }

    /// Like [`start_program`](Self::start_program), with a different URL for the API server.
    pub fn start_program_at(
        &self,
        api_server: &str,
        identity: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Guarded> {
        let kubeconfig = self.kubeconfig_at(identity, api_server)?;
        let who = (identity, kubeconfig.as_path());
        start_operator_with(&self.plane, &self.namespace, who, arguments)
    }
}
