//! The links under which Clevis finds the pin.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io};

use tec_agent::failure::Failure;

use crate::cli::LINKS;

/// Links the pin's names in `directory` to `program`. A link that already points there is left alone;
/// anything else under that name is an error, and nothing is overwritten.
pub fn install(directory: &Path, program: &Path) -> Result<Vec<PathBuf>, Failure> {
    LINKS
        .iter()
        .map(|(name, _)| {
            let link = directory.join(name);
            let operation = format!("link {} to {}", link.display(), program.display());
            ensure(&link, program).map_err(Failure::io(operation))?;
            Ok(link)
        })
        .collect()
}

fn ensure(link: &Path, program: &Path) -> io::Result<()> {
    match symlink(program, link) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match fs::read_link(link) {
            Ok(target) if target == program => Ok(()),
            _ => Err(error),
        },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_made_once_and_never_over_something_else() {
        let dir = tempfile::tempdir().unwrap();
        let program = Path::new("/usr/bin/node-agent");
        let made = install(dir.path(), program).unwrap();
        assert_eq!(made.len(), 2);
        assert_eq!(fs::read_link(&made[0]).unwrap(), program);
        install(dir.path(), program).unwrap();
        assert!(matches!(install(dir.path(), Path::new("/other")), Err(Failure::Io { .. })));
        assert_eq!(fs::read_link(&made[1]).unwrap(), program);
    }
}
