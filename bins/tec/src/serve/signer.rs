//! The key that signs attestation tokens: created on first start and never changed, so that its public part
//! needs to be distributed only once.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;
use tec_core::secret::SecretBytes;
use tec_support::files::write_private;
use tec_support::tls::new_private_key;
use tec_trustee::token::TokenSigner;

/// File of the key in the state directory: PKCS #8 in PEM, mode 0600.
const FILE: &str = "token-signer.pem";

/// Reads the key, or creates it if there is none. An unusable key is never replaced.
pub(super) fn open(state_dir: &Path) -> anyhow::Result<TokenSigner> {
    let path = state_dir.join(FILE);
    let pem = match fs::read(&path) {
        Ok(pem) => SecretBytes::new(pem),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let pem = new_private_key()?;
            write_private(&path, pem.expose("keep the token signer's key"))
                .with_context(|| format!("cannot write {}", path.display()))?;
            pem
        }
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
    };
    TokenSigner::from_pem(&pem).with_context(|| format!("cannot use {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;
    use tec_core::time::Timestamp;

    use super::*;

    #[test]
    fn the_key_is_made_once_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let token = open(dir.path()).unwrap().sign(&json!({"exp": 9})).unwrap();
        let again = open(dir.path()).unwrap();
        assert!(again.verify(&token, Timestamp::from_unix_seconds(0)).is_ok());
        let mode = fs::metadata(dir.path().join(FILE)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_key_is_an_error_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "garbage").unwrap();
        let error = format!("{:#}", open(dir.path()).unwrap_err());
        assert!(error.contains(FILE), "{error}");
        assert_eq!(fs::read(dir.path().join(FILE)).unwrap(), b"garbage");
    }
}
