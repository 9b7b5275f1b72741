//! Renewed certificates.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::StatusCode;
use serde_json::json;
use tec_k8s::render::Component;
use tokio::time::Instant;

use super::world::{CONFIG, SOON, World};

/// A certificate as stored by cert-manager and mounted by the kubelet: the entries are links into `..data`,
/// which is itself a link and is replaced as a whole.
struct MountedSecret(tempfile::TempDir);

impl MountedSecret {
    const ENTRIES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

    fn new() -> (Self, reqwest::Client) {
        let secret = Self(tempfile::tempdir().unwrap());
        for entry in Self::ENTRIES {
            symlink(Path::new("..data").join(entry), secret.path(entry)).unwrap();
        }
        let client = secret.renew("..2026_01_01");
        (secret, client)
    }

    fn path(&self, entry: &str) -> PathBuf {
        self.0.path().join(entry)
    }

    /// Installs a new certificate from a new CA; the returned client trusts only that CA.
    fn renew(&self, version: &str) -> reqwest::Client {
        let directory = self.path(version);
        fs::create_dir(&directory).unwrap();
        let authority = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca = params.self_signed(&authority).unwrap();
        let issuer = rcgen::Issuer::new(params, authority);
        let key = rcgen::KeyPair::generate().unwrap();
        let leaf = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        let leaf = leaf.signed_by(&key, &issuer).unwrap();
        let contents = [ca.pem(), leaf.pem(), key.serialize_pem()];
        for (entry, content) in Self::ENTRIES.into_iter().zip(contents) {
            fs::write(directory.join(entry), content).unwrap();
        }
        let fresh = self.path("..data_tmp");
        symlink(version, &fresh).unwrap();
        fs::rename(fresh, self.path("..data")).unwrap();
        let ca = reqwest::Certificate::from_pem(ca.pem().as_bytes()).unwrap();
        let client = reqwest::Client::builder().no_proxy().tls_certs_only([ca]);
        client.build().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_tls_secret_counts_without_a_restart() {
    let world = World::new("tls").await;
    world.cluster("c", &json!({ "publicTrusteeAddr": "kbs.example" })).await;
    for (component, path, expected) in [
        (Component::RegisterServer, CONFIG, StatusCode::OK),
        (Component::AttestationKeyRegister, "/register-ak", StatusCode::METHOD_NOT_ALLOWED),
    ] {
        let (secret, old) = MountedSecret::new();
        let (cert, key) = (secret.path("tls.crt"), secret.path("tls.key"));
        let flags = ["--cert-path".as_ref(), cert.as_os_str()];
        let flags = [&flags[..], &["--key-path".as_ref(), key.as_os_str()]].concat();
        let server = world.server(component, &flags).await;
        let url = format!("https://{}{path}", server.address);
        let answers = async |client: &reqwest::Client| {
            let answer = client.get(&url).send().await;
            answer.is_ok_and(|answer| answer.status() == expected)
        };
        let until = async |client: &reqwest::Client| {
            let end = Instant::now() + SOON;
            while !answers(client).await {
                assert!(Instant::now() < end, "{}", server.log().unwrap());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        until(&old).await;
        let new = secret.renew("..2026_02_02");
        until(&new).await;
        // A partial update is not used, and the previous certificate stays in use.
        fs::write(&cert, "no certificate").unwrap();
        let end = Instant::now() + SOON;
        while !server.log().unwrap().contains("certificate not reloaded") {
            assert!(Instant::now() < end, "{}", server.log().unwrap());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(answers(&new).await);
    }
}
