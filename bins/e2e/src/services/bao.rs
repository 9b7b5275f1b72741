//! OpenBao with raft storage, on a Unix socket in its own directory.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::kube::{Guarded, eventually};
use crate::packages::tool;
use crate::process::Transcript;
use anyhow::Context as _;
use tec_services::shell::{Http, Target, Vault};

use tec_support::testing::free_address;

/// Deadline: longer than the ten seconds that a vault gives the API server.
const DEADLINE: Duration = Duration::from_secs(15);

/// A running vault. Stopped on drop, or with the process.
#[derive(Debug)]
pub struct Bao {
    dir: PathBuf,
    node: String,
    api: SocketAddr,
    cluster: SocketAddr,
    /// Addresses of the vaults whose storage it shares.
    joins: Vec<SocketAddr>,
    /// Another program than the one in the cache.
    program: Option<PathBuf>,
    /// Directory of the certificate of its TCP listener, as in the chart with several pods.
    tls: Option<PathBuf>,
    process: Option<Guarded>,
}

/// What protects the root key of a vault.
#[derive(Clone, Debug)]
pub enum Seal {
    /// A key that is given at each start.
    Shamir,
    /// Keys that the vault reads itself: the current one and, while it is being replaced, the previous one.
    /// Each has a name and a file of 32 bytes.
    Static {
        /// Name and file.
        current: (String, PathBuf),
        /// Name and file.
        previous: Option<(String, PathBuf)>,
    },
}

impl Seal {
    fn stanza(&self) -> String {
        let Self::Static { current, previous } = self else {
            return String::new();
        };
        let key = |which: &str, (id, file): &(String, PathBuf)| {
            let file = file.display();
            format!("  {which}_key_id = \"{id}\"\n  {which}_key = \"file://{file}\"\n")
        };
        let previous = previous.as_ref().map(|old| key("previous", old));
        format!(
            "seal \"static\" {{\n{}{}}}\n",
            key("current", current),
            previous.unwrap_or_default()
        )
    }
}

impl Bao {
    /// Writes the configuration below `dir`, which is created.
    pub fn prepare(dir: &Path, seal: &Seal) -> anyhow::Result<Self> {
        Self::node(dir, "bao", &[], seal)
    }

    /// One of several vaults that share their storage; those that it joins must already exist. It runs the same
    /// program, and has the same certificate.
    pub fn node(dir: &Path, name: &str, others: &[&Self], seal: &Seal) -> anyhow::Result<Self> {
        let dir = dir.join(name);
        fs::create_dir_all(dir.join("data"))?;
        let bao = Self {
            dir,
            node: name.to_owned(),
            api: free_address()?,
            cluster: free_address()?,
            joins: others.iter().map(|other| other.api).collect(),
            program: others.first().and_then(|other| other.program.clone()),
            tls: others.first().and_then(|other| other.tls.clone()),
            process: None,
        };
        bao.configure(seal)?;
        Ok(bao)
    }

    /// Makes the vault join these, from its next configuration on.
    pub fn join(&mut self, others: &[&Self]) {
        self.joins = others.iter().map(|other| other.api).collect();
    }

    /// Makes its TCP listener use `tls.crt` and `tls.key` in this directory, and `ca.crt` for those that it
    /// joins, from its next configuration on.
    pub fn serve_tls(&mut self, directory: PathBuf) {
        self.tls = Some(directory);
    }

    /// Makes the next start run this program, or the one in the cache.
    pub fn run_program(&mut self, program: Option<PathBuf>) {
        self.program = program;
    }

    /// Writes the configuration again, for the next start.
    pub fn configure(&self, seal: &Seal) -> anyhow::Result<()> {
        // Raft elects itself only if it reaches its own address, even alone, and listens for itself
        // only beside a TCP listener.
        let Self { node, api, cluster, .. } = self;
        let file = |name: &str| {
            let directory = self.tls.as_ref().map(|directory| directory.join(name));
            directory.map(|file| file.display().to_string()).unwrap_or_default()
        };
        let (scheme, trusts, tls) = match &self.tls {
            None => ("http", String::new(), "tls_disable = true".to_owned()),
            Some(_) => (
                "https",
                format!("    leader_ca_cert_file = \"{}\"\n", file("ca.crt")),
                format!(
                    "tls_cert_file = \"{}\"\n  tls_key_file = \"{}\"",
                    file("tls.crt"),
                    file("tls.key")
                ),
            ),
        };
        let join = |api: &SocketAddr| {
            let address = format!("    leader_api_addr = \"{scheme}://{api}\"\n");
            format!("  retry_join {{\n{address}{trusts}  }}\n")
        };
        let joins: String = self.joins.iter().map(join).collect();
        let config = format!(
            // Alone it need not wait long for others before it leads.
            "storage \"raft\" {{\n  path = \"{data}\"\n  node_id = \"{node}\"\n  \
             performance_multiplier = 1\n{joins}}}\n{seal}\
             api_addr = \"{scheme}://{api}\"\ncluster_addr = \"https://{cluster}\"\n\
             listener \"unix\" {{\n  address = \"{socket}\"\n  socket_mode = \"0600\"\n  \
             disable_unauthed_generate_root_endpoints = false\n}}\n\
             listener \"tcp\" {{\n  address = \"{api}\"\n  cluster_address = \"{cluster}\"\n  \
             {tls}\n}}\n",
            data = self.storage().display(),
            seal = seal.stanza(),
            socket = self.socket().display(),
        );
        fs::write(self.dir.join("config.hcl"), config)
            .context("cannot write the vault's configuration")
    }

    /// The program of the vault, and its arguments.
    pub fn command(&self) -> anyhow::Result<Vec<OsString>> {
        let config = self.dir.join("config.hcl");
        let program = match &self.program {
            Some(program) => program.clone(),
            None => tool("bin/bao")?,
        };
        let program = program.into_os_string();
        Ok(vec![program, "server".into(), "-config".into(), config.into()])
    }

    /// Like [`command`](Self::command), with the output in a separate log.
    pub fn command_with_log(&self, logs: &Transcript) -> anyhow::Result<Vec<OsString>> {
        let (log, _) = logs.file("bao")?;
        let script = r#"log=$1; shift; exec "$@" >>"$log" 2>&1"#;
        let mut command: Vec<OsString> = ["sh", "-c", script, "sh"].map(OsString::from).to_vec();
        command.push(log.into_os_string());
        command.extend(self.command()?);
        Ok(command)
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    /// The vault does not answer; the error contains its log.
    pub async fn start(&mut self, logs: &Transcript) -> anyhow::Result<()> {
        // A socket that a killed vault left would be taken for a running one.
        let _ = fs::remove_file(self.socket());
        let command = self.command()?;
        let (program, arguments) = command.split_first().context("the command names no program")?;
        let process = Guarded::start("bao", Path::new(program), arguments, &[], logs)?;
        let up = self.wait().await;
        let log = process.log()?;
        self.process = Some(process);
        up.with_context(|| format!("the vault does not start: {log}"))
    }

    /// Waits until its socket accepts connections.
    pub async fn wait(&self) -> anyhow::Result<()> {
        eventually("a vault that answers", async || {
            Ok(tokio::net::UnixStream::connect(self.socket()).await.is_ok())
        })
        .await
    }

    /// Kills it, like a power failure.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Empties the vault's storage, as if the volume were lost. The vault must not be running.
    pub fn wipe(&self) -> anyhow::Result<()> {
        fs::remove_dir_all(self.storage())?;
        fs::create_dir(self.storage())?;
        Ok(())
    }

    /// Directory of its storage.
    pub fn storage(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("s")
    }

    /// A client for it.
    pub fn vault(&self) -> Vault {
        Vault::new(Http::new(Target::Unix(self.socket()), DEADLINE))
    }
}
