//! The operator as a process, with the rights that the packages give it.

use std::ffi::OsStr;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context as _;

use super::guarded::Guarded;
use super::operator::Bench;

/// Where cargo or `cargo xtask` put a program of the workspace.
///
/// # Errors
/// It was not built.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let bin_dir = match std::env::var_os("TEC_BIN_DIR") {
        Some(dir) => PathBuf::from(dir),
        None => {
            // A test lies in target/<profile>/deps, the programs one above.
            let test = std::env::current_exe()?;
            let profile = test.parent().and_then(Path::parent);
            profile.context("a test lies in a directory")?.to_owned()
        }
    };
    let program = bin_dir.join(name);
    anyhow::ensure!(program.is_file(), "run `cargo build --package {name}`");
    Ok(program)
}

impl Bench {
    /// Starts a replica as a process, with these further arguments. It ends with the value.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_program(&self, identity: &str, arguments: &[&str]) -> anyhow::Result<Guarded> {
        self.start_program_at(&self.plane.url(), identity, arguments)
    }

    /// The same, with another way to the API server.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_program_at(
        &self,
        api_server: &str,
        identity: &str,
        arguments: &[&str],
    ) -> anyhow::Result<Guarded> {
        let kubeconfig = self.kubeconfig(identity, api_server)?;
        let environment = [
            ("KUBECONFIG", kubeconfig.as_os_str()),
            ("POD_NAMESPACE", OsStr::new(&self.namespace)),
            ("POD_NAME", OsStr::new(identity)),
        ];
        let mut all = vec!["--metrics-addr", "127.0.0.1:0"];
        all.extend(arguments);
        let logs = self.plane.logs();
        Guarded::start("operator", &program("operator")?, all, &environment, logs)
    }
}
