//! A real registry as a process, on the loopback.

use std::fs;
use std::net::TcpListener;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::image::Content;

/// The registry of the Distribution project, as Debian packages it.
pub(crate) struct RealRegistry {
    process: Child,
    pub(crate) host: String,
    _directory: TempDir,
}

impl Drop for RealRegistry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `user:s3cret:x`, made with crypt(3), bcrypt.
const HTPASSWD: &str = "user:$2b$04$Xau2E5SBLzbDHgTH1WBYCuN6a0LW64QMg4UPlKsS4QXf/CcyX8IBe\n";
pub(crate) const USER: (&str, &str) = ("user", "s3cret:x");

/// Whom the registry lets in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Everybody,
    User,
}

impl RealRegistry {
    pub(crate) async fn start(access: Access) -> Self {
        let directory = TempDir::new().unwrap();
        // Another process may take the port in between; then the registry ends, and it fails here.
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let host = format!("127.0.0.1:{port}");
        let root = directory.path();
        let mut config = format!(
            "version: 0.1\nlog: {{level: error}}\nhttp: {{addr: \"{host}\"}}\n\
             storage: {{filesystem: {{rootdirectory: \"{}\"}}}}\n",
            root.join("data").display()
        );
        if access == Access::User {
            let users = root.join("users");
            fs::write(&users, HTPASSWD).unwrap();
            let line = format!(
                "auth: {{htpasswd: {{realm: r, path: \"{}\"}}}}\n",
                users.display()
            );
            config.push_str(&line);
        }
        let file = root.join("config.yml");
        fs::write(&file, config).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("docker-registry is there: `cargo xtask tools` installs it");
        let registry = Self {
            process,
            host,
            _directory: directory,
        };
        registry.wait().await;
        registry
    }

    async fn wait(&self) {
        for _ in 0..600 {
            if tokio::net::TcpStream::connect(&self.host).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("the registry does not listen");
    }

    /// Pushes everything into a repository (Distribution Specification 1.1, "Push").
    pub(crate) async fn push(&self, repository: &str, content: &Content, access: Access) {
        let client = client();
        let base = format!("http://{}/v2/{repository}", self.host);
        let with = |request: reqwest::RequestBuilder| match access {
            Access::Everybody => request,
            Access::User => request.basic_auth(USER.0, Some(USER.1)),
        };
        for (digest, bytes) in &content.blobs {
            let begun = with(client.post(format!("{base}/blobs/uploads/")))
                .send()
                .await
                .unwrap();
            let place = begun.headers()["location"].to_str().unwrap().to_owned();
            let put = with(client.put(format!("{place}&digest={digest}")));
            let put = put.body(bytes.clone()).send().await.unwrap();
            assert_eq!(put.status(), 201, "{}", put.text().await.unwrap());
        }
        // Manifests before the indexes that list them.
        let mut manifests: Vec<_> = content.manifests.iter().collect();
        manifests.sort_by_key(|(_, (media_type, _))| media_type.contains("index"));
        for (digest, (media_type, bytes)) in manifests {
            let put = with(client.put(format!("{base}/manifests/{digest}")));
            let put = put.header("content-type", media_type).body(bytes.clone());
            let put = put.send().await.unwrap();
            assert_eq!(put.status(), 201, "{}", put.text().await.unwrap());
        }
    }
}

pub(crate) fn client() -> reqwest::Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().no_proxy().build().unwrap()
}
