//! The root of an OSTree installation, which holds several systems.

use std::io;

/// Something whose folders can be listed.
pub(in crate::compute) trait Folders {
    /// Names of the folders in `path`, in order; links to folders do not count.
    fn folders(&self, path: &str) -> io::Result<Vec<String>>;
}

/// Paths of the deployments: `ostree/deploy/<name>/deploy/<checksum>.<serial>` (OSTree manual,
/// "Deployments"). There are none if the image is itself a system, such as a deployment.
///
/// Which one boots next is not guessed: the boot loader's entries say so, and its environment may
/// override them.
pub(super) fn deployments(image: &dyn Folders) -> io::Result<Vec<String>> {
    if image.folders("")?.iter().any(|name| name == "usr") {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for name in folders(image, "ostree/deploy")? {
        let folder = format!("ostree/deploy/{name}/deploy");
        let names = folders(image, &folder)?.into_iter();
        let deployments = names.filter(|name| is_deployment(name));
        found.extend(deployments.map(|name| format!("{folder}/{name}")));
    }
    Ok(found)
}

/// The folders in a folder, which need not exist.
fn folders(image: &dyn Folders, path: &str) -> io::Result<Vec<String>> {
    match image.folders(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        folders => folders,
    }
}

/// SHA-256 of the commit, a dot, and a number.
fn is_deployment(name: &str) -> bool {
    name.split_once('.').is_some_and(|(checksum, serial)| {
        let is_number = !serial.is_empty() && serial.bytes().all(|b| b.is_ascii_digit());
        checksum.len() == 64 && checksum.bytes().all(|b| b.is_ascii_hexdigit()) && is_number
    })
}
