//! Checks that the file of a snapshot is whole, before it replaces anything or counts as a backup.
//!
//! The vault sends an archive and may stop in the middle of it without an error, because it has already sent
//! the status. The archive lists the digests of its members, so that this is detected.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::{fmt, io};

use flate2::read::GzDecoder;
use sha2::{Digest as _, Sha256};
use tar::Archive;

/// The member that lists the digests of the others.
const SUMS: &str = "SHA256SUMS";
/// The list encrypted under the vault's key, which is not known here.
const SEALED: &str = "SHA256SUMS.sealed";
/// The member with the content of the vault.
const STATE: &str = "state.bin";
/// Maximum size of the list in bytes, and maximum number of members.
const MOST: (u64, usize) = (4096, 16);
/// Size of a part that is read, in bytes.
const PART: usize = 64 * 1024;

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// It cannot be opened.
    #[error("cannot open {}", .0.display())]
    Open(PathBuf, #[source] io::Error),
    /// It ends too early, or is not an archive at all.
    #[error("{} is truncated, damaged, or not a snapshot", .0.display())]
    Broken(PathBuf, #[source] io::Error),
    /// A member is missing or was altered.
    #[error("{}: {defect}", .file.display())]
    Member {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        defect: Defect,
    },
}

/// What is wrong with a member of the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Defect {
    /// It is missing.
    Missing(String),
    /// It does not have the digest that the archive lists.
    Altered(String),
    /// The list of digests is malformed.
    List,
}

impl fmt::Display for Defect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(member) => write!(f, "the member {member:?} is missing"),
            Self::Altered(member) => write!(f, "the member {member:?} has another digest"),
            Self::List => f.write_str("the list of digests is malformed"),
        }
    }
}

/// Members of an archive, with their digests, and the digests that it lists.
#[derive(Default)]
struct Members {
    found: BTreeMap<String, String>,
    listed: Option<String>,
}

/// Reads the whole file, and compares the digests.
pub fn check(file: &Path) -> Result<(), ArchiveError> {
    let opened = File::open(file).map_err(|error| ArchiveError::Open(file.to_owned(), error))?;
    let members = Members::read(BufReader::new(opened));
    let members = members.map_err(|error| ArchiveError::Broken(file.to_owned(), error))?;
    let defect = |defect| ArchiveError::Member { file: file.to_owned(), defect };
    members.check().map_err(defect)
}

impl Members {
    fn read(from: impl Read) -> io::Result<Self> {
        let mut members = Self::default();
        let mut archive = Archive::new(GzDecoder::new(from));
        for member in archive.entries()?.take(MOST.1) {
            let mut member = member?;
            let name = member.path()?.display().to_string();
            if name == SUMS {
                let mut text = String::new();
                member.take(MOST.0).read_to_string(&mut text)?;
                members.listed = Some(text);
            } else {
                let digest = digest(&mut member)?;
                members.found.insert(name, digest);
            }
        }
        // The checksum of the compressed data comes last.
        io::copy(&mut archive.into_inner(), &mut io::sink())?;
        Ok(members)
    }

    fn check(mut self) -> Result<(), Defect> {
        let listed = self.listed.take().ok_or_else(|| Defect::Missing(SUMS.to_owned()))?;
        let mut has_state = false;
        for line in listed.lines() {
            // The form of sha256sum(1).
            let (digest, name) = line.split_once("  ").ok_or(Defect::List)?;
            match self.found.remove(name) {
                Some(found) if found == digest => has_state |= name == STATE,
                Some(_) => return Err(Defect::Altered(name.to_owned())),
                None => return Err(Defect::Missing(name.to_owned())),
            }
        }
        if !has_state {
            return Err(Defect::Missing(STATE.to_owned()));
        }
        // The vault writes it last.
        self.found.remove(SEALED).ok_or_else(|| Defect::Missing(SEALED.to_owned())).map(drop)
    }
}

/// SHA-256 of what is read, in hexadecimal.
pub(super) fn digest(from: &mut impl Read) -> io::Result<String> {
    let (mut digest, mut part) = (Sha256::new(), vec![0; PART]);
    loop {
        let read = from.read(&mut part)?;
        let Some(read) = part.get(..read).filter(|read| !read.is_empty()) else {
            return Ok(hex::encode(digest.finalize()));
        };
        digest.update(read);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn archive(members: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (name, content) in members {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len().try_into().unwrap());
            header.set_mode(0o600);
            builder.append_data(&mut header, name, *content).unwrap();
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    /// What is wrong with a file of these bytes.
    fn defect(bytes: &[u8]) -> Option<ArchiveError> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        check(file.path()).err()
    }

    fn whole() -> Vec<u8> {
        let state: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
        let sums = format!("{}  meta.json\n{}  state.bin\n", hash(b"{}"), hash(&state));
        archive(&[
            ("meta.json", b"{}"),
            ("state.bin", &state),
            (SUMS, sums.as_bytes()),
            (SEALED, b"sealed"),
        ])
    }

    fn hash(bytes: &[u8]) -> String {
        hex::encode(Sha256::digest(bytes))
    }

    #[test]
    fn a_whole_snapshot_is_good_and_one_that_was_cut_off_anywhere_is_not() {
        let whole = whole();
        assert!(defect(&whole).is_none());
        for length in [0, 1, 100, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
            let cut = defect(&whole[..length]);
            assert!(matches!(cut, Some(ArchiveError::Broken(..))), "{length}: {cut:?}");
        }
        let mut altered = whole.clone();
        altered[whole.len() / 2] ^= 1;
        assert!(defect(&altered).is_some());
        assert!(matches!(defect(b"no archive"), Some(ArchiveError::Broken(..))));
        assert!(matches!(check(Path::new("/nowhere")), Err(ArchiveError::Open(..))));
    }

    #[test]
    fn an_archive_with_other_members_is_not_a_snapshot() {
        let refused = |members: &[(&str, &[u8])]| match defect(&archive(members)) {
            Some(ArchiveError::Member { defect, .. }) => defect,
            other => panic!("{other:?}"),
        };
        let missing = |name: &str| Defect::Missing(name.to_owned());
        let sums = format!("{}  state.bin\n", hash(b"state"));
        let sums = sums.as_bytes();
        assert_eq!(refused(&[]), missing(SUMS));
        assert_eq!(refused(&[("state.bin", b"state")]), missing(SUMS));
        assert_eq!(refused(&[(SUMS, b"")]), missing(STATE));
        assert_eq!(refused(&[(SUMS, b"x")]), Defect::List);
        assert_eq!(refused(&[(SUMS, sums)]), missing(STATE));
        // What a vault leaves that fails at the end.
        assert_eq!(refused(&[("state.bin", b"state"), (SUMS, sums)]), missing(SEALED));
        let altered = refused(&[("state.bin", b"other"), (SUMS, sums), (SEALED, b"")]);
        assert_eq!(altered, Defect::Altered(STATE.to_owned()));
    }
}
