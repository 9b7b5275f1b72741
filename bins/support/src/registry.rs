//! Registry options on the command line.

use std::fs;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tec_registry::{Credentials, Mirror, Platform, RegistryOptions};

/// Registries, mirrors, credentials and trusted CAs.
#[derive(Clone, Debug, Default, Args)]
#[non_exhaustive]
pub struct RegistryArgs {
    /// Pull secret (.dockerconfigjson of a mounted Secret); the first that matches is used.
    #[arg(long, value_name = "FILE")]
    pub pull_secret: Vec<PathBuf>,
    /// Mirror to try before the registry: registry.example/team=mirror.local:5000/copies
    #[arg(long, value_name = "FROM=TO")]
    pub mirror: Vec<Mirror>,
    /// CA of a private registry or mirror, PEM.
    #[arg(long, value_name = "FILE")]
    pub registry_ca: Vec<PathBuf>,
    /// Registry or mirror that speaks plain HTTP: anyone on the network path sees pull secrets.
    #[arg(long, value_name = "HOST:PORT")]
    pub dangerous_plain_registry: Vec<String>,
    /// Platform whose image is taken from an index.
    #[arg(long, default_value = "linux/amd64")]
    pub platform: Platform,
}

impl RegistryArgs {
    /// Reads the files.
    pub fn options(&self) -> anyhow::Result<RegistryOptions> {
        Ok(RegistryOptions {
            credentials: self.credentials()?,
            mirrors: self.mirror.clone(),
            roots: self.roots()?,
            dangerous_plain_http: self.dangerous_plain_registry.iter().cloned().collect(),
            platform: self.platform.clone(),
        })
    }

    /// The same flags for a program that does not have the files; `None` if a flag names a file.
    pub fn without_files(&self) -> Option<Vec<String>> {
        if !self.pull_secret.is_empty() || !self.registry_ca.is_empty() {
            return None;
        }
        let mirrors = self.mirror.iter().map(|mirror| ("--mirror", mirror.to_string()));
        let plain = self.dangerous_plain_registry.iter();
        let plain = plain.map(|host| ("--dangerous-plain-registry", host.clone()));
        let platform = [("--platform", self.platform.to_string())];
        let flags = mirrors.chain(plain).chain(platform);
        Some(flags.flat_map(|(flag, value)| [flag.to_owned(), value]).collect())
    }

    fn credentials(&self) -> anyhow::Result<Credentials> {
        let mut all = Credentials::default();
        for file in &self.pull_secret {
            let shown = file.display();
            let json = fs::read(file).with_context(|| format!("cannot read {shown}"))?;
            let more = Credentials::parse(&json);
            let more = more.with_context(|| format!("cannot use the pull secret {shown}"))?;
            all = all.and(more);
        }
        Ok(all)
    }

    fn roots(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let mut all = Vec::new();
        for file in &self.registry_ca {
            let what = || format!("{} contains no certificate in PEM", file.display());
            let before = all.len();
            for certificate in CertificateDer::pem_file_iter(file).with_context(what)? {
                all.push(certificate.with_context(what)?.to_vec());
            }
            anyhow::ensure!(all.len() > before, what());
        }
        Ok(all)
    }
}
