//! Symbolic links within an image: its root is the root of all paths, wherever the image is.

use std::collections::VecDeque;
use std::io;
use std::io::Read;

/// Maximum number of symbolic links on the way to one file: Linux's own limit (path_resolution(7)).
const MAX_LINKS: usize = 40;
/// Longest path: `PATH_MAX` of Linux (limits.h).
pub(super) const MAX_PATH: usize = 4096;
/// Deepest folder.
pub(super) const MAX_DEPTH: usize = 64;

/// Where `path` leads, as if the image were mounted as the root of a machine: absolute links begin
/// at its root, and `..` does not leave it. `link_of` returns the target of a link, and none for
/// everything else.
///
/// # Errors
/// [`InvalidInput`](io::ErrorKind::InvalidInput) if `path` itself is not relative and plain, or if
/// there are too many links in a row; also any error of `link_of`.
pub(super) fn resolve(
    path: &str,
    mut link_of: impl FnMut(&str) -> io::Result<Option<String>>,
) -> io::Result<String> {
    let mut ahead: VecDeque<String> = parts(path).map(str::to_owned).collect();
    if path.starts_with('/') || path.len() > MAX_PATH || ahead.iter().any(|part| is_dots(part)) {
        return Err(refuse("the path is not relative and plain"));
    }
    let mut resolved = String::new();
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        match part.as_str() {
            "." => continue,
            ".." => {
                parent(&mut resolved);
                continue;
            }
            _ => push(&mut resolved, &part),
        }
        let Some(target) = link_of(&resolved)? else {
            continue;
        };
        links += 1;
        if links > MAX_LINKS || target.len() > MAX_PATH {
            return Err(refuse("too many symbolic links follow each other"));
        }
        if target.starts_with('/') {
            resolved.clear();
        } else {
            parent(&mut resolved);
        }
        for part in parts(&target).rev() {
            ahead.push_front(part.to_owned());
        }
    }
    Ok(resolved)
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty())
}

fn is_dots(part: &str) -> bool {
    part == "." || part == ".."
}

fn push(path: &mut String, part: &str) {
    if !path.is_empty() {
        path.push('/');
    }
    path.push_str(part);
}

fn parent(path: &mut String) {
    path.truncate(path.rfind('/').unwrap_or(0));
}

fn refuse(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

/// All of a stream of at most `limit` bytes.
///
/// # Errors
/// [`FileTooLarge`](io::ErrorKind::FileTooLarge) if it is longer; also any error of the reader.
pub(super) fn all(reader: impl Read, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let size = reader.take(limit + 1).read_to_end(&mut bytes)?;
    if size as u64 > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok(bytes)
}

pub(super) fn too_large(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follow(path: &str, links: &[(&str, &str)]) -> io::Result<String> {
        resolve(path, |at| {
            let found = links.iter().find(|(name, _)| *name == at);
            Ok(found.map(|(_, target)| (*target).to_owned()))
        })
    }

    #[test]
    fn links_stay_within_the_root() {
        let links = [
            ("lib", "usr/lib"),
            ("usr/lib/up", "../../../../../etc/./x"),
            ("absolute", "/usr//lib/"),
            ("usr/lib/chain", "../../absolute/file"),
        ];
        for (path, expected) in [
            ("a/b", "a/b"),
            ("", ""),
            ("lib/x", "usr/lib/x"),
            ("lib/up", "etc/x"),
            ("absolute/x", "usr/lib/x"),
            ("lib/chain", "usr/lib/file"),
        ] {
            assert_eq!(follow(path, &links).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn loops_and_paths_that_are_not_plain_are_refused() {
        let links = [("loop", "loop"), ("a", "b"), ("b", "/a")];
        for path in ["loop", "a", "loop/x", "../x", "/etc/passwd", "x/./y"] {
            let error = follow(path, &links).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path}");
        }
        assert!(follow(&"x/".repeat(MAX_PATH), &links).is_err());
    }
}
