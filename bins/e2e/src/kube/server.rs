//! The servers that nodes reach, as processes with the permissions of their service accounts.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::Value;
use tec_k8s::render::{Component, Installation, Object};
use tokio::time::Instant;

use super::control_plane::ControlPlane;
use super::guarded::Guarded;

/// Deadline for a server to be ready, on a machine that is also busy otherwise.
const READY: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(50);

/// A running server.
#[derive(Debug)]
pub struct Server {
    process: Guarded,
    /// Address for nodes, without scheme.
    pub address: String,
    /// Address of probes and metrics.
    pub status: String,
}

impl Server {
    /// Starts the server of a component in a namespace, and waits until it is ready. It has the Role in its
    /// package.
    ///
    /// # Errors
    /// The server is not built, or does not become ready; the error contains its log.
    pub async fn start(
        plane: &ControlPlane,
        component: Component,
        namespace: &str,
        flags: &[&OsStr],
    ) -> anyhow::Result<Self> {
        let kubeconfig = plane.component(component, namespace).await?;
        Self::start_with(plane, component, (namespace, &kubeconfig), flags).await
    }

    /// Like [`start`](Self::start), with a different kubeconfig.
    ///
    /// # Errors
    /// The server is not built, or does not become ready; the error contains its log.
    pub async fn start_with(
        plane: &ControlPlane,
        component: Component,
        (namespace, kubeconfig): (&str, &Path),
        flags: &[&OsStr],
    ) -> anyhow::Result<Self> {
        let name = component.service_account();
        let mut arguments: Vec<&OsStr> = [
            "--bind=127.0.0.1",
            "--port=0",
            "--metrics-addr=127.0.0.1:0",
            "--log-form=json",
            "--rate=100000",
            "--namespace",
            namespace,
        ]
        .map(OsStr::new)
        .to_vec();
        if !flags.iter().any(|flag| is_certificate(flag)) {
            arguments.push(OsStr::new("--dangerous-plain-http"));
        }
        arguments.extend(flags);
        let environment = [("KUBECONFIG", kubeconfig.as_os_str())];
        let program = program(name)?;
        let process = Guarded::start(name, &program, arguments, &environment, plane.logs())?;
        let mut server = Self { process, address: String::new(), status: String::new() };
        server.wait().await?;
        Ok(server)
    }

    async fn wait(&mut self) -> anyhow::Result<()> {
        let client = reqwest::Client::builder().no_proxy().build()?;
        let end = Instant::now() + READY;
        loop {
            self.address = self.said("listening")?;
            self.status = self.said("probes and metrics")?;
            if !self.address.is_empty() && !self.status.is_empty() {
                let probe = client.get(format!("http://{}/readyz", self.status));
                if probe.send().await.is_ok_and(|answer| answer.status() == 200) {
                    return Ok(());
                }
            }
            let log = || self.process.log().unwrap_or_default();
            anyhow::ensure!(Instant::now() < end, "the server is not ready: {}", log());
            tokio::time::sleep(POLL).await;
        }
    }

    /// The address in the log line with this message; empty if there is none yet.
    fn said(&self, message: &str) -> anyhow::Result<String> {
        let log = self.process.log()?;
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let fields = lines.filter_map(|line| line.get("fields").cloned());
        let text = |fields: &Value, name: &str| {
            let value = fields.get(name).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        let mut told = fields.filter(|fields| text(fields, "message") == message);
        Ok(told.next().map(|fields| text(&fields, "address")).unwrap_or_default())
    }

    /// Its output so far.
    pub fn log(&self) -> anyhow::Result<String> {
        self.process.log()
    }
}

fn is_certificate(flag: &OsStr) -> bool {
    let flag = flag.as_encoded_bytes();
    flag.starts_with(b"--cert-path") || flag == b"--dangerous-plain-http"
}

impl ControlPlane {
    /// A kubeconfig for the program of a component, with the permissions that its package grants.
    pub async fn component(
        &self,
        component: Component,
        namespace: &str,
    ) -> anyhow::Result<PathBuf> {
        let name = component.service_account();
        let token = self.account_token(namespace, name, &role(component)?).await?;
        self.kubeconfig(&format!("{namespace}-{name}"), &token)
    }
}

/// The rules of a component's packaged Role.
fn role(component: Component) -> anyhow::Result<Vec<PolicyRule>> {
    let name = format!("{}-role", component.service_account());
    let objects = tec_k8s::render::operator(&Installation::default());
    let roles = objects.into_iter().filter_map(|object| match object {
        Object::Role(role) => Some(role),
        _ => None,
    });
    let mut named = roles.filter(|role| role.metadata.name.as_deref() == Some(&name));
    let role = named.next().with_context(|| format!("there is no Role {name}"))?;
    Ok(role.rules.unwrap_or_default())
}

/// A program of this workspace.
pub fn program(name: &str) -> anyhow::Result<PathBuf> {
    let program = programs()?.join(name);
    anyhow::ensure!(
        program.is_file(),
        "{} is missing; `cargo xtask e2e` builds it",
        program.display()
    );
    Ok(program)
}

/// A program of this workspace as a static program, for images.
pub fn static_program(name: &str) -> anyhow::Result<PathBuf> {
    let programs = programs()?;
    let profile = programs.file_name().context("the programs have no folder")?;
    let program = programs.with_file_name("x86_64-unknown-linux-musl").join(profile).join(name);
    anyhow::ensure!(
        program.is_file(),
        "{} is missing; `cargo xtask test` builds it",
        program.display()
    );
    Ok(program)
}

/// A test is in `target/<profile>/deps`, the programs one level above.
fn programs() -> anyhow::Result<PathBuf> {
    if let Some(directory) = std::env::var_os("TEC_BIN_DIR") {
        return Ok(directory.into());
    }
    let test = std::env::current_exe()?;
    let above = test.parent().and_then(Path::parent);
    Ok(above.context("this test lies outside a target directory")?.to_owned())
}
