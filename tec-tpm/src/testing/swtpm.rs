//! Runs real `swtpm` processes, one per test.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{fs, io};

use tempfile::TempDir;

/// CMD_SHUTDOWN of the control channel (swtpm_ioctls(3)).
const CMD_SHUTDOWN: [u8; 4] = 3_u32.to_be_bytes();
/// TPM2_Shutdown(TPM_SU_CLEAR): tag, size, command code, type (TPM 2.0 Library Part 3,
/// "TPM2_Shutdown").
const TPM2_SHUTDOWN_CLEAR: [u8; 12] = [0x80, 0x01, 0, 0, 0, 12, 0, 0, 0x01, 0x45, 0, 0];
/// Number of pairs of ports to try before giving up.
const PORT_ATTEMPTS: usize = 20;
/// Number of 5 ms steps that a start may take.
const START_STEPS: usize = 2000;
const STEP: Duration = Duration::from_millis(5);
/// How long a shutdown may take.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The emulator could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SwtpmError {
    /// A program could not be started; is it installed?
    #[error("cannot start {program}")]
    Spawn {
        /// The program.
        program: &'static str,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A program failed.
    #[error("{program} failed: {log}")]
    Failed {
        /// The program.
        program: &'static str,
        /// Output of the program.
        log: String,
    },
    /// A file of the state directory could not be used.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No free pair of ports was found.
    #[error("no two neighboring ports are free")]
    Ports,
}

/// The certificate authority that certified an emulator's endorsement key.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct EkCa {
    /// Root certificate in PEM.
    pub root_pem: String,
    /// Issuing CA certificate in PEM.
    pub issuer_pem: String,
}

/// A running `swtpm` with its own state directory; both are removed when it is dropped.
#[derive(Debug)]
pub struct Swtpm {
    directory: TempDir,
    running: Option<Running>,
    ca: Option<EkCa>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    port: u16,
}

impl Swtpm {
    /// Starts a new TPM without endorsement key certificate.
    ///
    /// # Errors
    /// [`SwtpmError`], for example when `swtpm` is not installed.
    pub fn start() -> Result<Self, SwtpmError> {
        let directory = state_directory()?;
        Self::run(directory, None)
    }

    /// Starts a copy of a TPM whose state is in a directory.
    ///
    /// # Errors
    /// [`SwtpmError`], for example when there is no such state.
    pub fn of_state(state: &Path) -> Result<Self, SwtpmError> {
        /// What swtpm names the file of the state that a TPM keeps (swtpm(8)).
        const PERMANENT: &str = "tpm2-00.permall";
        let directory = state_directory()?;
        let (from, to) = (state.join(PERMANENT), directory.path().join(PERMANENT));
        fs::copy(&from, to).map_err(|source| SwtpmError::File { path: from, source })?;
        Self::run(directory, None)
    }

    /// Manufactures a TPM with an endorsement key certificate from a CA of its own, and starts it.
    ///
    /// # Errors
    /// [`SwtpmError`], for example when `swtpm_setup` is not installed.
    pub fn manufacture() -> Result<Self, SwtpmError> {
        let directory = state_directory()?;
        let ca = manufacture(directory.path())?;
        Self::run(directory, Some(ca))
    }

    fn run(directory: TempDir, ca: Option<EkCa>) -> Result<Self, SwtpmError> {
        let running = Running::start(directory.path())?;
        Ok(Self { directory, running: Some(running), ca })
    }

    /// TCTI configuration of libtss2 for this TPM. It changes with [`restart`](Self::restart).
    pub fn tcti(&self) -> String {
        let port = self.running.as_ref().map_or(0, |running| running.port);
        format!("swtpm:host=127.0.0.1,port={port}")
    }

    /// The CA of a manufactured TPM.
    pub fn ca(&self) -> Option<&EkCa> {
        self.ca.as_ref()
    }

    /// Where the TPM keeps its state.
    pub fn state_path(&self) -> &Path {
        self.directory.path()
    }

    /// Reboots the machine: the same TPM, with its registers reset. Close connections first.
    ///
    /// # Errors
    /// [`SwtpmError`] when it does not restart.
    pub fn restart(&mut self) -> Result<(), SwtpmError> {
        if let Some(running) = self.running.take() {
            running.stop();
        }
        self.running = Some(Running::start(self.directory.path())?);
        Ok(())
    }
}

impl Drop for Swtpm {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
        }
    }
}

impl Running {
    fn start(directory: &Path) -> Result<Self, SwtpmError> {
        for _ in 0..PORT_ATTEMPTS {
            let Some(port) = free_ports() else { continue };
            if let Some(running) = Self::start_on(directory, port)? {
                return Ok(running);
            }
        }
        Err(SwtpmError::Ports)
    }

    /// `None` when it ended immediately, because another process took a port in the meantime.
    fn start_on(directory: &Path, port: u16) -> Result<Option<Self>, SwtpmError> {
        let pid_file = directory.join("swtpm.pid");
        remove(&pid_file)?;
        let mut child = Command::new("swtpm")
            .arg("socket")
            .arg("--tpm2")
            .args(["--flags", "not-need-init,startup-clear"])
            .args(["--tpmstate", &format!("dir={}", directory.display())])
            .args(["--server", &format!("type=tcp,bindaddr=127.0.0.1,port={port}")])
            .args(["--ctrl", &format!("type=tcp,bindaddr=127.0.0.1,port={}", port + 1)])
            .args(["--pid", &format!("file={}", pid_file.display())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|source| SwtpmError::Spawn { program: "swtpm", source })?;
        // It writes its id after both ports are bound; connecting instead might reach another's.
        for _ in 0..START_STEPS {
            if fs::read_to_string(&pid_file).is_ok_and(|id| id.trim() == child.id().to_string()) {
                return Ok(Some(Self { child, port }));
            }
            if child.try_wait().is_ok_and(|status| status.is_some()) {
                return Ok(None);
            }
            wait_a_step();
        }
        Self { child, port }.kill();
        Err(SwtpmError::Failed { program: "swtpm", log: "it did not come up in time".to_owned() })
    }

    /// Shuts down as firmware and power supply do; a process that does not answer is killed.
    fn stop(mut self) {
        let ended = self.shut_down().is_ok() && self.ended();
        if !ended {
            self.kill();
        }
    }

    fn shut_down(&self) -> io::Result<()> {
        exchange::<10>(self.port, &TPM2_SHUTDOWN_CLEAR)?;
        exchange::<4>(self.port + 1, &CMD_SHUTDOWN)
    }

    fn ended(&mut self) -> bool {
        (0..START_STEPS).any(|_| {
            let ended = self.child.try_wait().is_ok_and(|status| status.is_some());
            if !ended {
                wait_a_step();
            }
            ended
        })
    }

    fn kill(mut self) {
        // Fails only when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exchange<const N: usize>(port: u16, request: &[u8]) -> io::Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(SHUTDOWN_TIMEOUT))?;
    stream.write_all(request)?;
    stream.read_exact(&mut [0; N])
}

#[expect(
    clippy::disallowed_methods,
    reason = "a child that starts or ends tells nobody; the callers bound the number of steps"
)]
fn wait_a_step() {
    std::thread::sleep(STEP);
}

/// libtss2 expects the control channel on the port after the TPM's.
fn free_ports() -> Option<u16> {
    let first = TcpListener::bind(("127.0.0.1", 0)).ok()?;
    let port = first.local_addr().ok()?.port();
    TcpListener::bind(("127.0.0.1", port.checked_add(1)?)).ok()?;
    Some(port)
}

fn state_directory() -> Result<TempDir, SwtpmError> {
    tempfile::Builder::new()
        .prefix("swtpm-")
        .tempdir()
        .map_err(|source| SwtpmError::File { path: std::env::temp_dir(), source })
}

fn remove(path: &Path) -> Result<(), SwtpmError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(SwtpmError::File { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), SwtpmError> {
    fs::write(path, text).map_err(|source| SwtpmError::File { path: path.to_owned(), source })
}

fn read(path: &Path) -> Result<String, SwtpmError> {
    fs::read_to_string(path).map_err(|source| SwtpmError::File { path: path.to_owned(), source })
}

/// Creates the endorsement keys and their certificates, with a CA inside the state directory.
fn manufacture(directory: &Path) -> Result<EkCa, SwtpmError> {
    let ca = directory.join("ca");
    fs::create_dir(&ca).map_err(|source| SwtpmError::File { path: ca.clone(), source })?;
    let setup = write_setup(directory, &ca)?;
    let output = Command::new("swtpm_setup")
        .args(["--tpm2", "--create-ek-cert", "--pcr-banks", "sha1,sha256,sha384"])
        .arg("--tpmstate")
        .arg(directory)
        .arg("--config")
        .arg(&setup)
        .stdin(Stdio::null())
        .output()
        .map_err(|source| SwtpmError::Spawn { program: "swtpm_setup", source })?;
    if !output.status.success() {
        let log = [output.stdout, output.stderr].concat();
        return Err(SwtpmError::Failed {
            program: "swtpm_setup",
            log: String::from_utf8_lossy(&log).into_owned(),
        });
    }
    Ok(EkCa {
        root_pem: read(&ca.join("swtpm-localca-rootca-cert.pem"))?,
        issuer_pem: read(&ca.join("issuercert.pem"))?,
    })
}

/// The three configuration files that swtpm_setup(8) and swtpm_localca(8) need.
fn write_setup(directory: &Path, ca: &Path) -> Result<PathBuf, SwtpmError> {
    let localca = directory.join("localca.conf");
    let at = ca.display();
    write(
        &localca,
        &format!(
            "statedir = {at}\nsigningkey = {at}/signkey.pem\nissuercert = {at}/issuercert.pem\n\
             certserial = {at}/certserial\n"
        ),
    )?;
    let options = directory.join("localca.options");
    write(
        &options,
        "--tpm-manufacturer IBM\n--tpm-model swtpm-libtpms\n--tpm-version 2\n\
         --platform-manufacturer test\n--platform-version 1\n--platform-model test\n",
    )?;
    let setup = directory.join("setup.conf");
    write(
        &setup,
        &format!(
            "create_certs_tool = swtpm_localca\ncreate_certs_tool_config = {}\n\
             create_certs_tool_options = {}\n",
            localca.display(),
            options.display()
        ),
    )?;
    Ok(setup)
}
