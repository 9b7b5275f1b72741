//! Throwaway certificates and keys.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};

/// The files that a control plane needs to start.
#[derive(Debug)]
pub(super) struct Pki {
    /// Certificate of the authority, PEM.
    pub(super) ca: String,
    /// File with the certificate of the authority.
    pub(super) ca_file: PathBuf,
    /// Certificate and key of the API server.
    pub(super) server: [PathBuf; 2],
    /// Key that signs service account tokens.
    pub(super) accounts_key: PathBuf,
    /// Key that verifies them.
    pub(super) accounts_public: PathBuf,
}

impl Pki {
    /// Creates everything in this directory.
    pub(super) fn create(dir: &Path) -> anyhow::Result<Self> {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority_key = KeyPair::generate()?;
        let ca = authority.self_signed(&authority_key)?.pem();
        let issuer = Issuer::new(authority, authority_key);
        let mut server = CertificateParams::new(vec![
            "localhost".to_owned(),
            "kubernetes.default.svc".to_owned(),
        ])?;
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        server.subject_alt_names.push(SanType::IpAddress(loopback));
        let server_key = KeyPair::generate()?;
        let certificate = server.signed_by(&server_key, &issuer)?.pem();
        let accounts = KeyPair::generate()?;
        let write = |name: &str, text: &str| {
            let path = dir.join(name);
            fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
            anyhow::Ok(path)
        };
        Ok(Self {
            ca_file: write("ca.crt", &ca)?,
            server: [
                write("server.crt", &certificate)?,
                write("server.key", &server_key.serialize_pem())?,
            ],
            accounts_key: write("accounts.key", &accounts.serialize_pem())?,
            accounts_public: write("accounts.pub", &accounts.public_key_pem())?,
            ca,
        })
    }
}
