//! Key and certificates of the token signer, as files.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Serialize;
use tec_core::port::{Clock as _, EntropyRng};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_support::exit::OK;
use tec_support::files::write_private;
use tec_support::{SystemClock, SystemEntropy};
use tec_trustee::signer::{IssuedSigner, SignerCa};

use super::config::read;
use crate::args::DryRun;
use crate::command::input;
use crate::output::Output;

/// Largest PEM file to read.
const MAX_PEM: u64 = 16 << 10;

/// What was done with the files.
#[derive(Serialize)]
struct Report {
    ca: FileReport,
    signer: FileReport,
}

#[derive(Serialize)]
struct FileReport {
    certificate: PathBuf,
    /// `kept` or `issued`.
    outcome: &'static str,
    ends_at: Timestamp,
}

impl FileReport {
    fn new(certificate: PathBuf, is_new: bool, ends_at: Timestamp) -> Self {
        Self { certificate, outcome: if is_new { "issued" } else { "kept" }, ends_at }
    }

    fn line(&self) -> String {
        let (file, outcome) = (self.certificate.display(), self.outcome);
        format!("{outcome}  {file}  until {}", self.ends_at)
    }
}

/// A key with its certificate.
struct Pair {
    key: PathBuf,
    certificate: PathBuf,
}

impl Pair {
    fn new(directory: &Path, name: &str) -> Self {
        Self {
            key: directory.join(format!("{name}.key")),
            certificate: directory.join(format!("{name}.crt")),
        }
    }

    /// Reads both files, if both exist.
    fn read(&self) -> anyhow::Result<Option<(SecretBytes, String)>> {
        if !self.key.exists() || !self.certificate.exists() {
            return Ok(None);
        }
        let key = SecretBytes::new(input::read(&self.key, MAX_PEM)?);
        Ok(Some((key, read(&self.certificate)?)))
    }

    /// Writes the certificate last: a key without one was never used.
    fn write(&self, key: &SecretBytes, certificate: &str) -> anyhow::Result<()> {
        for (file, content) in [
            (&self.key, key.expose("write the key to a file of mode 0600")),
            (&self.certificate, certificate.as_bytes()),
        ] {
            write_private(file, content)
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        Ok(())
    }
}

/// Creates what is missing, and renews what expires soon. Can be run again at any time.
pub(super) fn ensure(directory: &Path, dry_run: DryRun, output: &Output) -> anyhow::Result<u8> {
    let (ca_files, files) = (Pair::new(directory, "ca"), Pair::new(directory, "signer"));
    let mut rng = EntropyRng::new(&SystemEntropy);
    let now = SystemClock.now();
    let known = ca(&ca_files)?;
    let is_new_ca = known.is_none();
    let ca = match known {
        Some(ca) => ca,
        None => SignerCa::generate(&mut rng, now)?,
    };
    let current = signer(&files)?;
    let issued = match &current {
        Some(current) => ca.renew(current, &mut rng, now)?,
        None => Some(ca.issue(&mut rng, now)?),
    };
    if !dry_run.dry_run {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        if is_new_ca {
            ca_files.write(&ca.key_pem()?, &ca.certificate_pem()?)?;
        }
        if let Some(issued) = &issued {
            files.write(issued.key_pem(), &issued.certificate_pem()?)?;
        }
    }
    let ends_at = issued.as_ref().or(current.as_ref()).map(IssuedSigner::ends_at);
    let report = Report {
        ca: FileReport::new(ca_files.certificate, is_new_ca, ca.ends_at()),
        signer: FileReport::new(files.certificate, issued.is_some(), ends_at.unwrap_or_default()),
    };
    output.print(&report, |report| format!("{}\n{}", report.ca.line(), report.signer.line()))?;
    Ok(OK)
}

fn ca(files: &Pair) -> anyhow::Result<Option<SignerCa>> {
    let Some((key, certificate)) = files.read()? else {
        if files.certificate.exists() {
            bail!(
                "{} exists, but its key {} is missing: restore it, because a new CA would not be \
                 trusted in its place",
                files.certificate.display(),
                files.key.display()
            );
        }
        return Ok(None);
    };
    let ca = SignerCa::from_pem(&key, &certificate);
    Ok(Some(ca.with_context(|| files.key.display().to_string())?))
}

/// A key without its certificate, or with the certificate of the previous key, was left by an interrupted
/// run.
fn signer(files: &Pair) -> anyhow::Result<Option<IssuedSigner>> {
    let Some((key, certificate)) = files.read()? else {
        return Ok(None);
    };
    match IssuedSigner::from_pem(&key, &certificate) {
        Ok(signer) => Ok(Some(signer)),
        Err(tec_trustee::signer::SignerError::Pair(_)) => Ok(None),
        Err(error) => Err(error).with_context(|| files.key.display().to_string()),
    }
}
