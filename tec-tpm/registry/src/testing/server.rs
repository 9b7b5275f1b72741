//! A real registry as a process, on loopback.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Client, RequestBuilder};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::content::Content;
use crate::tls;

/// The registry of the Distribution project; stopped on drop.
#[derive(Debug)]
pub struct RealRegistry {
    process: Child,
    pusher: Pusher,
    _directory: TempDir,
}

/// Pushes to a registry, wherever it runs.
#[derive(Debug)]
pub struct Pusher {
    host: String,
    scheme: &'static str,
    access: Access,
    client: Client,
}

/// Who has access to the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Everyone.
    Everybody,
    /// [`USER`].
    User,
}

/// Name and password of the only user.
pub const USER: (&str, &str) = ("user", "s3cret:x");
/// The same user, with the password as a bcrypt hash (crypt(3)).
const HTPASSWD: &str = "user:$2b$04$Xau2E5SBLzbDHgTH1WBYCuN6a0LW64QMg4UPlKsS4QXf/CcyX8IBe\n";
/// Time limit for the registry to start, even on a busy machine.
const READY: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(50);

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The path where `cargo xtask tools` puts it, or else where it is installed.
fn program() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("TEC_CACHE")
        .or_else(|| variable("XDG_CACHE_HOME").map(|dir| dir.join("tec")))
        .or_else(|| variable("HOME").map(|dir| dir.join(".cache/tec")));
    let kept = cache.map(|cache| cache.join("bin/docker-registry"));
    let kept = kept.filter(|path| path.is_file());
    kept.unwrap_or_else(|| PathBuf::from("docker-registry"))
}

fn client(roots: &[Vec<u8>], provider: &Arc<CryptoProvider>) -> io::Result<Client> {
    let config = tls::config(roots, provider).map_err(io::Error::other)?;
    let client = Client::builder().no_proxy().tls_backend_preconfigured(config).build();
    client.map_err(io::Error::other)
}

fn failed(what: impl Into<String>) -> io::Error {
    io::Error::other(what.into())
}

impl RealRegistry {
    /// Starts a registry on a free port, without TLS, and waits until it listens.
    ///
    /// # Errors
    /// It is not installed (`cargo xtask tools`), or does not listen.
    pub async fn start(access: Access, provider: &Arc<CryptoProvider>) -> io::Result<Self> {
        let directory = TempDir::new()?;
        let root = directory.path();
        // Another process may take the port in between; then the registry ends, and this fails.
        let host = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let auth = match access {
            Access::Everybody => String::new(),
            Access::User => {
                let users = root.join("users");
                fs::write(&users, HTPASSWD)?;
                let users = users.display();
                format!("auth: {{htpasswd: {{realm: r, path: \"{users}\"}}}}\n")
            }
        };
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nhttp: {{addr: \"{host}\"}}\n\
             storage: {{filesystem: {{rootdirectory: \"{}\"}}}}\n{auth}",
            root.join("data").display()
        );
        let file = root.join("config.yml");
        fs::write(&file, config)?;
        let process = Command::new(program())
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                failed(format!("start docker-registry (cargo xtask tools): {error}"))
            })?;
        let registry =
            Self { process, pusher: Pusher::new(host, access, provider)?, _directory: directory };
        registry.pusher.wait().await?;
        Ok(registry)
    }

    /// Host and port.
    pub fn host(&self) -> &str {
        &self.pusher.host
    }

    /// Lets a tag point to an image; see [`Pusher::tag`].
    pub async fn tag(
        &self,
        repository: &str,
        content: &Content,
        digest: &str,
        tag: &str,
    ) -> io::Result<()> {
        self.pusher.tag(repository, content, digest, tag).await
    }

    /// Pushes everything into a repository; see [`Pusher::push`].
    pub async fn push(&self, repository: &str, content: &Content) -> io::Result<()> {
        self.pusher.push(repository, content).await
    }
}

impl Pusher {
    /// Pushes to this host and port in plain HTTP.
    fn new(host: String, access: Access, provider: &Arc<CryptoProvider>) -> io::Result<Self> {
        Ok(Self { host, scheme: "http", access, client: client(&[], provider)? })
    }

    /// Pushes over TLS to a registry whose certificate this CA (PEM) issued.
    pub fn with_ca(
        host: impl Into<String>,
        access: Access,
        ca: &str,
        provider: &Arc<CryptoProvider>,
    ) -> io::Result<Self> {
        let root = CertificateDer::from_pem_slice(ca.as_bytes()).map_err(io::Error::other)?;
        let client = client(&[root.to_vec()], provider)?;
        Ok(Self { host: host.into(), scheme: "https", access, client })
    }

    /// Waits until the registry accepts connections.
    pub async fn wait(&self) -> io::Result<()> {
        let listens = async {
            while TcpStream::connect(&self.host).await.is_err() {
                tokio::time::sleep(POLL).await;
            }
        };
        let waited = tokio::time::timeout(READY, listens).await;
        waited.map_err(|_| failed("the registry does not listen"))
    }

    /// Pushes everything into a repository (Distribution Specification 1.1, "Push").
    pub async fn push(&self, repository: &str, content: &Content) -> io::Result<()> {
        let base = format!("{}://{}/v2/{repository}", self.scheme, self.host);
        for (digest, bytes) in &content.blobs {
            let begun = self.client.post(format!("{base}/blobs/uploads/"));
            let begun = self.with_user(begun).send().await.map_err(io::Error::other)?;
            let place = begun.headers().get(LOCATION).and_then(|place| place.to_str().ok());
            let place = place.ok_or_else(|| failed("no place to push to"))?;
            let put = format!("{place}&digest={digest}");
            self.put(self.client.put(put).body(bytes.clone())).await?;
        }
        // Manifests before the indexes that list them.
        let mut manifests: Vec<_> = content.manifests.iter().collect();
        manifests.sort_by_key(|(_, (media_type, _))| media_type.contains("index"));
        for (digest, (media_type, bytes)) in manifests {
            let put = self.client.put(format!("{base}/manifests/{digest}"));
            let put = put.header(CONTENT_TYPE, media_type).body(bytes.clone());
            self.put(put).await?;
        }
        Ok(())
    }

    /// Lets a tag point to an image that was pushed before.
    pub async fn tag(
        &self,
        repository: &str,
        content: &Content,
        digest: &str,
        tag: &str,
    ) -> io::Result<()> {
        let (media_type, bytes) =
            content.manifests.get(digest).ok_or_else(|| failed("no such image"))?;
        let url = format!("{}://{}/v2/{repository}/manifests/{tag}", self.scheme, self.host);
        let put = self.client.put(url).header(CONTENT_TYPE, media_type).body(bytes.clone());
        self.put(put).await
    }

    async fn put(&self, request: RequestBuilder) -> io::Result<()> {
        let answer = self.with_user(request).send().await.map_err(io::Error::other)?;
        let status = answer.status();
        if status == 201 {
            return Ok(());
        }
        let text = answer.text().await.unwrap_or_default();
        Err(failed(format!("the push ended with {status}: {text}")))
    }

    fn with_user(&self, request: RequestBuilder) -> RequestBuilder {
        match self.access {
            Access::Everybody => request,
            Access::User => request.basic_auth(USER.0, Some(USER.1)),
        }
    }
}
