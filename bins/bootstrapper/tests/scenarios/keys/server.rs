//! Server programs that run during a test.

use std::fs::File;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tec_support::testing::free_address;

/// Python is slow to start on a busy machine.
const START_LIMIT: Duration = Duration::from_mins(1);

/// A process that listens on a loopback port.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts the command for an address, and waits until it listens.
    pub(crate) fn start(log: &Path, command: impl FnOnce(SocketAddr) -> Command) -> Self {
        let address = free_address().unwrap();
        let mut command = command(address);
        let log_file = File::create(log).unwrap();
        command.stdin(Stdio::null()).stdout(log_file.try_clone().unwrap()).stderr(log_file);
        let child = command.spawn().unwrap();
        let server = Self { child, address };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            let log = || std::fs::read_to_string(log).unwrap_or_default();
            assert!(begin.elapsed() < START_LIMIT, "{command:?}: {}", log());
            std::thread::park_timeout(Duration::from_millis(50));
        }
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program in the tools cache.
pub(crate) fn tool(name: &str) -> PathBuf {
    let cache = std::env::var_os("TEC_CACHE").map(PathBuf::from);
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/tec");
    let path = cache.unwrap_or_else(home).join("bin").join(name);
    let shown = path.display();
    assert!(path.is_file(), "{shown} is missing; run `cargo xtask tools`");
    path
}
