//! Components: downloaded, verified by hash, and only then opened.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component as Part, Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use crate::ticket::{Component, ComponentForm};
use flate2::read::GzDecoder;
use reqwest::StatusCode;
use sha2::{Digest as _, Sha256};
use tec_core::digest::Sha256Digest;
use tec_core::port::{PortError, PortErrorKind};

use super::KubeadmPaths;

/// Maximum size of a download, and of the content of an archive: a kubelet binary has 80 MiB.
const MAX_BYTES: u64 = 1024 * 1024 * 1024;
/// Maximum number of entries in an archive.
const MAX_ENTRIES: usize = 4096;
/// Number of attempts at one download, with waits that double.
const ATTEMPTS: u32 = 5;
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// Mode of installed files (Constellation).
const EXECUTABLE: u32 = 0o544;
/// Statuses after which another attempt may succeed (Constellation).
const RETRIED: [StatusCode; 6] = [
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::TOO_EARLY,
    StatusCode::TOO_MANY_REQUESTS,
    StatusCode::BAD_GATEWAY,
    StatusCode::SERVICE_UNAVAILABLE,
    StatusCode::GATEWAY_TIMEOUT,
];

/// A component that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum ComponentError {
    #[error("cannot reach the server")]
    Http(#[source] reqwest::Error),
    #[error("the server answers {0}")]
    Status(StatusCode),
    #[error("the content has the wrong SHA-256 digest, {found}")]
    Hash { found: Sha256Digest },
    #[error("the content exceeds {limit} {unit}")]
    TooLarge { limit: u64, unit: &'static str },
    #[error("{path:?} in the archive is not a file or directory inside it")]
    Entry { path: PathBuf },
    #[error("cannot read or write a file")]
    File(#[from] io::Error),
}

impl ComponentError {
    fn is_passing(&self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::Status(status) => RETRIED.contains(status),
            _ => false,
        }
    }

    fn during(self, operation: String) -> PortError {
        let kind = match &self {
            Self::Http(_) | Self::File(_) => PortErrorKind::Unavailable,
            Self::Status(_) if self.is_passing() => PortErrorKind::Unavailable,
            _ => PortErrorKind::Invalid,
        };
        PortError::new(kind, operation).because(self)
    }
}

/// Path where a component is stored until it is installed.
pub(super) fn cached(paths: &KubeadmPaths, component: &Component) -> PathBuf {
    let directory = paths.scratch().join("components");
    directory.join(component.hash.to_string())
}

/// Downloads a component unless it is there, and checks it. Nothing is installed.
pub(super) async fn fetch(
    client: &reqwest::Client,
    paths: &KubeadmPaths,
    component: &Component,
) -> Result<(), PortError> {
    let place = cached(paths, component);
    let failed = |error: ComponentError| error.during(format!("download {}", component.url));
    if !is_there(&place, &component.hash) {
        let mut wait = FIRST_WAIT;
        for attempt in 1..=ATTEMPTS {
            match download(client, component, &place).await {
                Ok(()) => break,
                Err(error) if error.is_passing() && attempt < ATTEMPTS => {
                    tokio::time::sleep(wait).await;
                    wait *= 2;
                }
                Err(error) => return Err(failed(error)),
            }
        }
    }
    if component.form == ComponentForm::Archive {
        blocking(move || unpack(&place, None)).await.map_err(failed)?;
    }
    Ok(())
}

async fn blocking(
    work: impl FnOnce() -> Result<(), ComponentError> + Send + 'static,
) -> Result<(), ComponentError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other)?
}

fn is_there(place: &Path, hash: &Sha256Digest) -> bool {
    let mut hasher = Sha256::new();
    let read =
        File::open(place).and_then(|mut file| io::copy(&mut file, &mut Hashing(&mut hasher)));
    read.is_ok() && Sha256Digest::new(hasher.finalize().into()) == *hash
}

struct Hashing<'h>(&'h mut Sha256);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn download(
    client: &reqwest::Client,
    component: &Component,
    place: &Path,
) -> Result<(), ComponentError> {
    let directory = place.parent().unwrap_or_else(|| Path::new("/"));
    fs::create_dir_all(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    let response = client.get(&component.url).send().await;
    let mut response = response.map_err(ComponentError::Http)?;
    if !response.status().is_success() {
        return Err(ComponentError::Status(response.status()));
    }
    let (mut hasher, mut size) = (Sha256::new(), 0_u64);
    while let Some(chunk) = response.chunk().await.map_err(ComponentError::Http)? {
        size += chunk.len() as u64;
        if size > MAX_BYTES {
            let (limit, unit) = (MAX_BYTES, "bytes");
            return Err(ComponentError::TooLarge { limit, unit });
        }
        hasher.update(&chunk);
        file.write_all(&chunk)?;
    }
    let found = Sha256Digest::new(hasher.finalize().into());
    if found != component.hash {
        return Err(ComponentError::Hash { found });
    }
    file.as_file().sync_all()?;
    let file = file.persist(place).map_err(|error| error.error)?;
    let owner_only = fs::Permissions::from_mode(0o500);
    Ok(file.set_permissions(owner_only)?)
}

/// Installs a component that was fetched.
pub(super) async fn install(paths: &KubeadmPaths, component: &Component) -> Result<(), PortError> {
    let from = cached(paths, component);
    let to = paths.of_host(&component.install_path);
    let form = component.form;
    let installed = blocking(move || match form {
        ComponentForm::File => place_file(&mut File::open(&from)?, &to),
        ComponentForm::Archive => unpack(&from, Some(&to)),
    });
    let operation = format!("install {}", component.install_path);
    installed.await.map_err(|error| error.during(operation))
}

fn place_file(from: &mut dyn io::Read, to: &Path) -> Result<(), ComponentError> {
    let directory = to.parent().unwrap_or_else(|| Path::new("/"));
    fs::create_dir_all(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    io::copy(from, &mut file)?;
    let file = file.persist(to).map_err(|error| error.error)?;
    file.set_permissions(fs::Permissions::from_mode(EXECUTABLE))?;
    Ok(file.sync_all()?)
}

/// Reads an archive to its end; with a destination, extracts its content there. Links and devices, names that
/// lead outside, and more than is reasonable are refused.
fn unpack(archive: &Path, to: Option<&Path>) -> Result<(), ComponentError> {
    // One byte more than allowed is enough to tell.
    let bounded = GzDecoder::new(File::open(archive)?).take(MAX_BYTES + 1);
    let mut archive = tar::Archive::new(bounded);
    let mut entries = 0_usize;
    for entry in archive.entries()? {
        let mut entry = entry?;
        entries += 1;
        if entries > MAX_ENTRIES {
            let (limit, unit) = (MAX_ENTRIES as u64, "entries");
            return Err(ComponentError::TooLarge { limit, unit });
        }
        let path = entry.path()?.into_owned();
        let kind = entry.header().entry_type();
        let inside = path.components().all(|part| matches!(part, Part::Normal(_) | Part::CurDir));
        if !inside || !(kind.is_file() || kind.is_dir()) {
            return Err(ComponentError::Entry { path });
        }
        let path: PathBuf =
            path.components().filter(|part| matches!(part, Part::Normal(_))).collect();
        match to {
            Some(to) if kind.is_file() => place_file(&mut entry, &to.join(&path))?,
            Some(to) => fs::create_dir_all(to.join(&path))?,
            None => drop(io::copy(&mut entry, &mut io::sink())?),
        }
    }
    if archive.into_inner().limit() == 0 {
        let (limit, unit) = (MAX_BYTES, "bytes");
        return Err(ComponentError::TooLarge { limit, unit });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use tar::{EntryType, Header};

    use super::*;

    fn archive(entries: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, kind, content) in entries {
            let mut header = Header::new_gnu();
            // As in a hostile archive: without the checks of the library's own writer.
            header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(*kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o777);
            header.set_cksum();
            builder.append(&header, *content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    fn unpacked(bytes: &[u8]) -> (tempfile::TempDir, Result<(), ComponentError>) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("archive"), bytes).unwrap();
        let done = unpack(&dir.path().join("archive"), Some(&dir.path().join("to/bin")));
        (dir, done)
    }

    #[test]
    fn files_and_directories_are_unpacked_and_can_be_run() {
        let (dir, done) = unpacked(&archive(&[
            ("./", EntryType::Directory, b""),
            ("./bridge", EntryType::Regular, b"plugin"),
        ]));
        done.unwrap();
        let file = dir.path().join("to/bin/bridge");
        assert_eq!(fs::read(&file).unwrap(), b"plugin");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, EXECUTABLE);
    }

    /// Answers two requests with this; returns the server's URL.
    fn serve(body: &'static [u8]) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/kubelet", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().take(2) {
                let mut stream = stream.unwrap();
                let mut head = io::BufReader::new(&stream);
                let mut line = String::new();
                while line != "\r\n" {
                    line.clear();
                    io::BufRead::read_line(&mut head, &mut line).unwrap();
                }
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
                )
                .unwrap();
                stream.write_all(body).unwrap();
            }
        });
        url
    }

    #[tokio::test]
    async fn a_component_with_other_bytes_is_refused() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (client, dir) = (reqwest::Client::new(), tempfile::tempdir().unwrap());
        let paths = KubeadmPaths::under(dir.path());
        let hash = format!("sha256:{}", Sha256Digest::of(b"the kubelet"));
        let from = |url: &str| Component::new(url, &hash, "/kubelet", ComponentForm::File).unwrap();
        let other = from(&serve(b"something else"));
        let refused = fetch(&client, &paths, &other).await.unwrap_err();
        assert_eq!(refused.kind(), PortErrorKind::Invalid);
        assert!(!cached(&paths, &other).exists());
        let good = from(&serve(b"the kubelet"));
        fetch(&client, &paths, &good).await.unwrap();
        // Somebody changes what was downloaded: it is downloaded again.
        let place = cached(&paths, &good);
        fs::remove_file(&place).unwrap();
        fs::write(&place, b"something else").unwrap();
        fetch(&client, &paths, &good).await.unwrap();
        assert_eq!(fs::read(&place).unwrap(), b"the kubelet");
    }

    #[test]
    fn what_leads_out_of_an_archive_or_is_no_file_is_refused() {
        for (path, kind) in [
            ("../escape", EntryType::Regular),
            ("a/../../escape", EntryType::Regular),
            ("/escape", EntryType::Regular),
            ("link", EntryType::Symlink),
            ("hard", EntryType::Link),
            ("device", EntryType::Char),
            ("pipe", EntryType::Fifo),
        ] {
            let (dir, done) = unpacked(&archive(&[(path, kind, b"")]));
            assert!(matches!(done, Err(ComponentError::Entry { .. })), "{path}");
            assert!(!dir.path().join("escape").exists());
        }
        let many = vec![("a", EntryType::Regular, &b""[..]); MAX_ENTRIES + 1];
        let (_dir, done) = unpacked(&archive(&many));
        assert!(matches!(done, Err(ComponentError::TooLarge { .. })));
    }
}
