//! The program `operator` as a process.

use std::ffi::OsStr;
use std::path::Path;

use super::control_plane::ControlPlane;
use super::guarded::Guarded;
use crate::settings::own_program;

/// Starts a replica of this name that looks after a namespace, with the rights of a kubeconfig.
///
/// # Errors
/// The program is missing.
pub fn start_operator(
    plane: &ControlPlane,
    namespace: &str,
    identity: &str,
    kubeconfig: &Path,
) -> anyhow::Result<Guarded> {
    let environment = [
        ("KUBECONFIG", kubeconfig.as_os_str()),
        ("POD_NAMESPACE", OsStr::new(namespace)),
        ("POD_NAME", OsStr::new(identity)),
    ];
    let program = own_program("operator")?;
    let arguments = ["--metrics-addr", "127.0.0.1:0"];
    Guarded::start("operator", &program, arguments, &environment, plane.logs())
}
