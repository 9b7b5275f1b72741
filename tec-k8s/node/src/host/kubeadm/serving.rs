//! The first serving certificate of a kubelet, which its node got when it was admitted.
//!
//! A kubelet with `serverTLSBootstrap` serves the target of the link `kubelet-server-current.pem`, and moves
//! that link to each certificate that the cluster issues to it later. Without a first certificate, it could
//! serve nobody until the cluster approved a request.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use tec_core::port::PortError;
use zeroize::Zeroizing;

use super::{PRIVATE, unavailable, write};

const FIRST: &str = "kubelet-server-first.pem";
const CURRENT: &str = "kubelet-server-current.pem";

/// Writes certificate and key where the kubelet looks for them, but does not touch a link that the kubelet
/// has moved.
pub(super) fn place(directory: &Path, certificate: &str, key: &[u8]) -> Result<(), PortError> {
    let pair = Zeroizing::new([certificate.as_bytes(), b"\n", key].concat());
    write(&directory.join(FIRST), &pair, PRIVATE)?;
    match symlink(FIRST, directory.join(CURRENT)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(unavailable("link the kubelet's serving certificate", error))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_certificate_that_the_cluster_renewed_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let current = dir.path().join(CURRENT);
        for certificate in ["one", "two"] {
            place(dir.path(), certificate, b"key").unwrap();
            assert_eq!(fs::read_to_string(&current).unwrap(), format!("{certificate}\nkey"));
        }
        let mode = fs::metadata(dir.path().join(FIRST)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, PRIVATE);
        fs::write(dir.path().join("renewed.pem"), "renewed").unwrap();
        fs::remove_file(&current).unwrap();
        symlink("renewed.pem", &current).unwrap();
        place(dir.path(), "three", b"key").unwrap();
        assert_eq!(fs::read_to_string(&current).unwrap(), "renewed");
    }
}
