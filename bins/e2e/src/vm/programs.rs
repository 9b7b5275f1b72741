//! Programs of this host with the libraries that they need, for an initial file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::qemu::Initramfs;

/// Directories of programs; not all of them are in every user's PATH.
const PLACES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The file of a program of this host.
pub(super) fn find(name: &str) -> anyhow::Result<PathBuf> {
    let mut places = PLACES.iter().map(|place| Path::new(place).join(name));
    let found = places.find(|path| path.is_file());
    found.with_context(|| format!("{name} is not installed; run `cargo xtask tools`"))
}

/// Adds a file, possibly a program, at `place`, with the libraries that it names.
pub(super) fn add(system: Initramfs, file: &Path, place: &str) -> anyhow::Result<Initramfs> {
    let content = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    let is_elf = content.starts_with(b"\x7fELF");
    let mut system = system.with(place, content);
    if is_elf {
        for library in libraries(file)? {
            let place = below_usr(&library);
            if !system.has(&place) {
                let content = fs::read(&library)
                    .with_context(|| format!("cannot read {}", library.display()))?;
                system = system.with(&place, content);
            }
        }
    }
    Ok(system)
}

/// The libraries that the dynamic linker would load: absolute paths in the output of ldd(1). ldd fails for
/// statically linked programs, which have none.
fn libraries(program: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output();
    let output = output.context("cannot run ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(!text.contains("not found"), "{} lacks libraries: {}", program.display(), text.trim());
    let words = text.split_whitespace();
    Ok(words.filter(|word| word.starts_with('/')).map(PathBuf::from).collect())
}

/// In the archive everything is below /usr; `/lib` and the like are links.
pub(super) fn below_usr(path: &Path) -> String {
    let path = path.to_string_lossy();
    let path = path.trim_start_matches('/');
    if path.starts_with("usr/") { path.to_owned() } else { format!("usr/{path}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_comes_with_its_libraries() {
        let program = find("ls").unwrap();
        let system = add(Initramfs::new(), &program, "usr/bin/ls").unwrap();
        assert!(system.has("usr/bin/ls"));
        let libraries = libraries(&program).unwrap();
        assert!(!libraries.is_empty());
        for library in libraries {
            assert!(system.has(&below_usr(&library)), "{}", library.display());
        }
        assert!(find("no-such-program-here").is_err());
    }

    #[test]
    fn scripts_need_no_libraries() {
        let work = tempfile::tempdir().unwrap();
        let script = work.path().join("script");
        fs::write(&script, "#!/bin/sh\n").unwrap();
        let system = add(Initramfs::new(), &script, "usr/bin/script").unwrap();
        assert!(system.has("usr/bin/script"));
        assert_eq!(below_usr(Path::new("/lib/x.so")), "usr/lib/x.so");
    }
}
