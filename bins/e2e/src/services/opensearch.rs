//! An OpenSearch node with what its initializer wrote. `cargo xtask tools --opensearch` sets it up.

use std::ffi::OsStr;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::kube::Guarded;
use crate::packages::tool;
use anyhow::Context as _;
use http::Method;
use serde_json::Value;
use tec_core::secret::SecretBytes;
use tec_services::opensearch;
use tec_services::shell::{Http, Target};
use tec_support::certificate::Certificate;
use tokio::time::Instant;

use crate::services::stage::Stage;
use tec_support::testing::free_address;

/// The user that runs OpenSearch if the test runs as root, which OpenSearch refuses: nobody.
const NOBODY: u32 = 65_534;
/// A start takes half a minute on two cores, and longer if other tests run.
const START: Duration = Duration::from_mins(4);
const LOOK: Duration = Duration::from_millis(500);
const DEADLINE: Duration = Duration::from_secs(30);
/// Where the security plugin reports whether all ten types are in its index. Needs no login.
const HEALTH: &str = "/_plugins/_security/health";

/// Where it listens, and where its files are.
#[derive(Debug)]
#[non_exhaustive]
pub struct Place {
    /// For clients.
    pub listen: SocketAddr,
    /// Host and port for clients, with a name from its certificate.
    pub address: String,
    transport: SocketAddr,
    conf: PathBuf,
    dir: PathBuf,
}

/// A running node. Stopped on drop, or with the process.
#[derive(Debug)]
pub struct OpenSearch {
    place: Place,
    process: Guarded,
}

/// An answer: status and JSON.
#[derive(Debug)]
#[non_exhaustive]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The body; null if it is not JSON.
    pub body: Value,
}

impl Place {
    /// A place on a stage.
    pub fn on(stage: &Stage) -> anyhow::Result<Self> {
        let listen = free_address()?;
        let account = stage.cluster.account("opensearch")?;
        Ok(Self {
            listen,
            address: format!("localhost:{}", listen.port()),
            transport: free_address()?,
            conf: stage.shared(&account),
            dir: stage.path("opensearch"),
        })
    }

    /// Flags of its initializer.
    pub fn flags(&self, stage: &Stage) -> anyhow::Result<Vec<String>> {
        let at = |name: &str| self.dir.join(name).display().to_string();
        let host = stage.cluster.account("opensearch")?.host();
        let pairs = [
            ("--listen", self.listen.to_string()),
            ("--transport", self.transport.to_string()),
            ("--data", at("data")),
            ("--logs", at("logs")),
            ("--node-name", host),
            ("--heap", "512".to_owned()),
        ];
        let pairs = pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]);
        Ok(std::iter::once("opensearch".to_owned()).chain(pairs).collect())
    }
}

impl OpenSearch {
    /// File with the authorities that it trusts.
    pub fn trusted(&self) -> PathBuf {
        self.place.conf.join("certs/ca.crt")
    }

    /// Starts it with the files that its initializer left, and waits until its security is set up.
    ///
    /// # Errors
    /// OpenSearch is missing, or does not come up; the error contains its log.
    pub async fn start(stage: &Stage, place: Place, authorities: &str) -> anyhow::Result<Self> {
        let program = tool("opensearch/bin/opensearch")?;
        let home = program.ancestors().nth(2).context("its home")?;
        for name in ["data", "logs", "tmp"] {
            fs::create_dir_all(place.dir.join(name))?;
        }
        let jdk = home.join("jdk");
        let tmp = place.dir.join("tmp");
        let environment: [(&str, &OsStr); 3] = [
            ("OPENSEARCH_JAVA_HOME", jdk.as_os_str()),
            ("OPENSEARCH_PATH_CONF", place.conf.as_os_str()),
            ("OPENSEARCH_TMPDIR", tmp.as_os_str()),
        ];
        let is_root = fs::metadata("/proc/self")?.uid() == 0;
        let process = if is_root {
            // As in a pod, where initializer and node run as the same user.
            hand_over(&place.conf)?;
            hand_over(&place.dir)?;
            let program = program.to_string_lossy();
            let drop = format!("--reuid={NOBODY} --regid={NOBODY} --clear-groups");
            // It lies below a home that only root may enter. Without the securebit, access(2) would not
            // look at the capability.
            let keep = "--inh-caps=-all,+dac_read_search --ambient-caps=+dac_read_search \
                        --securebits=+no_setuid_fixup";
            let words = drop.split(' ').chain(keep.split(' ')).chain([&*program]);
            Guarded::start("opensearch", Path::new("setpriv"), words, &environment, &stage.logs)?
        } else {
            let none: [&str; 0] = [];
            Guarded::start("opensearch", &program, none, &environment, &stage.logs)?
        };
        let node = Self { place, process };
        node.until_up(authorities).await?;
        Ok(node)
    }

    async fn until_up(&self, authorities: &str) -> anyhow::Result<()> {
        let end = Instant::now() + START;
        let nobody = self.client(authorities, &Arc::default())?;
        let mut did_run = false;
        loop {
            let health = ask(&nobody, Method::GET, HEALTH, None, None).await;
            if health.is_ok_and(|health| health.body["status"] == "UP") {
                return Ok(());
            }
            let is_running = self.process.is_running();
            if Instant::now() > end || (did_run && !is_running) {
                anyhow::bail!("OpenSearch does not start: {}", self.process.log()?);
            }
            did_run |= is_running;
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Host and port for clients.
    pub fn address(&self) -> &str {
        &self.place.address
    }

    /// A client that trusts these authorities, and presents a certificate if it has one.
    pub fn client(&self, authorities: &str, own: &Arc<Certificate>) -> anyhow::Result<Http> {
        let config = own.client_config(authorities.as_bytes())?;
        let target = Target::tls(self.address(), Arc::new(config))?;
        Ok(Http::new(target, DEADLINE))
    }
}

/// Calls as a user with this password, or anonymously.
pub async fn ask(
    client: &Http,
    method: Method,
    path: &str,
    user: Option<(&str, &SecretBytes)>,
    body: Option<&str>,
) -> anyhow::Result<Answer> {
    let login = user.map(|(user, password)| opensearch::login(user, password));
    let headers: Vec<_> = login.iter().map(|login| ("authorization", login)).collect();
    let body = body.map(|body| SecretBytes::new(body.as_bytes().to_vec()));
    let reply = client.call(method, path, &headers, body.as_ref()).await?;
    Ok(Answer {
        status: reply.status,
        body: serde_json::from_slice(&reply.body).unwrap_or_default(),
    })
}

fn hand_over(path: &Path) -> anyhow::Result<()> {
    chown(path, Some(NOBODY), Some(NOBODY))
        .with_context(|| format!("cannot hand over {}", path.display()))?;
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            hand_over(&entry?.path())?;
        }
    }
    Ok(())
}
