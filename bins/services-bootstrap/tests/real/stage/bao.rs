//! OpenBao with raft storage, on a Unix socket in the test's directory.

use std::path::Path;
use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;
use std::time::Instant;

pub(crate) struct Bao {
    program: PathBuf,
    dir: PathBuf,
    child: Child,
}

impl Drop for Bao {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Bao {
    pub(crate) async fn start(program: PathBuf, dir: &Path) -> Self {
        let dir = dir.join("bao");
        std::fs::create_dir_all(dir.join("data")).unwrap();
        let socket = dir.join("s");
        // Raft elects itself only if it reaches its own address, even alone, and listens for itself
        // only beside a TCP listener.
        let [api, cluster] = [free_address(), free_address()];
        let config = format!(
            "storage \"raft\" {{\n  path = \"{data}\"\n  node_id = \"n0\"\n}}\n\
             api_addr = \"http://{api}\"\ncluster_addr = \"https://{cluster}\"\n\
             listener \"unix\" {{\n  address = \"{socket}\"\n  socket_mode = \"0600\"\n  \
             disable_unauthed_generate_root_endpoints = false\n}}\n\
             listener \"tcp\" {{\n  address = \"{api}\"\n  cluster_address = \"{cluster}\"\n  \
             tls_disable = true\n}}\n",
            data = dir.join("data").display(),
            socket = socket.display(),
        );
        std::fs::write(dir.join("config.hcl"), config).unwrap();
        let child = spawn(&program, &dir);
        let bao = Self {
            program,
            dir,
            child,
        };
        bao.ready().await;
        bao
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("s")
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The process dies as by a power cut, and begins anew: sealed.
    pub(crate) async fn restart(&mut self) {
        self.stop();
        let _ = std::fs::remove_file(self.socket());
        self.child = spawn(&self.program, &self.dir);
        self.ready().await;
    }

    /// As a volume that was lost.
    pub(crate) async fn wipe(&mut self) {
        self.stop();
        std::fs::remove_dir_all(self.dir.join("data")).unwrap();
        std::fs::create_dir(self.dir.join("data")).unwrap();
        self.restart().await;
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    async fn ready(&self) {
        let deadline = Instant::now() + Duration::from_mins(1);
        while tokio::net::UnixStream::connect(self.socket())
            .await
            .is_err()
        {
            assert!(Instant::now() < deadline, "no vault: {}", self.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

fn free_address() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn spawn(program: &Path, dir: &Path) -> Child {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .unwrap();
    Command::new(program)
        .arg("server")
        .arg("-config")
        .arg(dir.join("config.hcl"))
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}
