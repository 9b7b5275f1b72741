//! Signed bundles of reference values: `tec pcr bundle` and `tec image approve --bundle`.

use std::fs;
use std::path::PathBuf;

use tec_tpm::compute::testing::debian_chain;
use tempfile::TempDir;

use crate::world::{json, refused, registers, str, tec, text, unpacked, write};

/// openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg03wMo+ls+KcsqOmv
hSevnRPrbhRHkcktP+qvIm4xnk+hRANCAASfKlQe+3OhKzUAPRr9U3zWObzxFJ0z
Nw9rK+qqvWDAHXxTIo3mnQvq+8AU+OWBUaIe4i7DctluAYTInBtFQrdG
-----END PRIVATE KEY-----
";
/// openssl pkey -pubout
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEnypUHvtzoSs1AD0a/VN81jm88RSd
MzcPayvqqr1gwB18UyKN5p0L6vvAFPjlgVGiHuIuw3LZbgGEyJwbRUK3Rg==
-----END PUBLIC KEY-----
";
const OTHER_PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAETvVIbJQ7/t0IEvbfFsGlpNx5oqBe
GBp9CIZIVDT7CjyA/2+6PN/2v870AI3bL7EZyo8Est6RIP/5C5Il45JnvA==
-----END PUBLIC KEY-----
";

/// Files of one signed image.
struct Signed {
    _directory: TempDir,
    state: PathBuf,
    pcrs: PathBuf,
    key: PathBuf,
    public: PathBuf,
    other: PathBuf,
    bundle: PathBuf,
    signature: PathBuf,
}

fn digest(digit: &str) -> String {
    format!("sha256:{}", digit.repeat(64))
}

impl Signed {
    fn until(expires: &str) -> Self {
        let directory = TempDir::new().unwrap();
        let image = unpacked(&debian_chain("2.12"));
        let label = text(&["pcr", "compute", str(image.path()), "--form", "label"]);
        let file = |name: &str, content: &str| write(directory.path(), name, content);
        let signed = Self {
            pcrs: file("pcrs.json", &label),
            key: file("key.pem", KEY),
            public: file("public.pem", PUBLIC),
            other: file("other.pem", OTHER_PUBLIC),
            bundle: directory.path().join("bundle.json"),
            signature: directory.path().join("bundle.sig"),
            state: directory.path().join("state"),
            _directory: directory,
        };
        text(&[
            "pcr",
            "bundle",
            "sign",
            "--pcrs",
            str(&signed.pcrs),
            "--image",
            &format!("registry.example/os@{}", digest("a")),
            "--key",
            str(&signed.key),
            "--expires",
            expires,
            "--bundle",
            str(&signed.bundle),
            "--signature",
            str(&signed.signature),
        ]);
        signed
    }

    /// The flags for bundle and signature.
    fn files(&self) -> [&str; 4] {
        let (bundle, signature) = (str(&self.bundle), str(&self.signature));
        ["--bundle", bundle, "--signature", signature]
    }

    fn verify<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        [&["pcr", "bundle", "verify"], &self.files()[..], more].concat()
    }

    fn approve<'a>(&'a self, more: &[&'a str]) -> Vec<&'a str> {
        let state = str(&self.state);
        let approve = ["--state-dir", state, "image", "approve", "os", "--accept-unpinned"];
        [&approve, &self.files()[..], more].concat()
    }
}

const FAR: &str = "2099-01-01T00:00:00Z";

#[test]
fn a_bundle_of_the_right_key_is_approved_with_its_end() {
    let signed = Signed::until(FAR);
    let (key, digest) = (str(&signed.public), digest("a"));
    let flags = ["--key", str(&signed.other), "--key", key, "--image-digest", &digest];
    let verified = json(&signed.verify(&flags));
    assert_eq!(registers(&verified), [4]);
    let approved = json(&signed.approve(&flags));
    assert_eq!(approved["reference"], format!("registry.example/os@{digest}"));
    assert_eq!(approved["expires_at"], FAR);
    let state = str(&signed.state);
    let shown = json(&["--state-dir", state, "image", "show", "os"]);
    assert_eq!(shown["pcrs"], verified["pcrs"]);
    let sooner = json(&signed.approve(&[&flags[..], &["--for", "1h"]].concat()));
    assert_ne!(sooner["expires_at"], FAR, "what ends first ends the approval");
}

#[test]
fn a_bundle_that_is_not_proven_is_refused_and_nothing_is_stored() {
    let signed = Signed::until(FAR);
    let (key, other) = (str(&signed.public), str(&signed.other));
    refused(&signed.approve(&["--key", other]), 1, "error TEC-I401");
    refused(&signed.verify(&["--key", other]), 1, "error TEC-I401");
    let wrong = digest("b");
    let flags = ["--key", key, "--image-digest", &wrong];
    refused(&signed.approve(&flags), 1, "error TEC-I409");

    let whole = fs::read_to_string(&signed.bundle).unwrap();
    fs::write(&signed.bundle, whole.replacen("Pcr4Shim", "Pcr4Grub", 1)).unwrap();
    refused(&signed.approve(&["--key", key]), 1, "error TEC-I401");
    fs::write(&signed.bundle, &whole).unwrap();
    fs::write(&signed.signature, "{}").unwrap();
    refused(&signed.approve(&["--key", key]), 1, "error TEC-I422");
    let private = str(&signed.key);
    refused(&signed.approve(&["--key", private]), 1, "error TEC-I422");

    assert!(!signed.state.exists(), "no store was made for what was refused");
}

#[test]
fn a_bundle_that_has_ended_is_refused() {
    let signed = Signed::until("2001-01-01T00:00:00Z");
    let key = str(&signed.public);
    refused(&signed.approve(&["--key", key]), 1, "error TEC-I410");
}

#[test]
fn a_bundle_without_signature_or_key_is_a_wrong_command_line() {
    let signed = Signed::until(FAR);
    let bundle = ["image", "approve", "os", "--bundle", str(&signed.bundle)];
    assert_eq!(tec(&bundle).status.code(), Some(2));
    assert_eq!(tec(&signed.approve(&[])).status.code(), Some(2));
    let both = [&["--key", str(&signed.public)], &["--pcrs", "x"][..]].concat();
    assert_eq!(tec(&signed.approve(&both)).status.code(), Some(2));
}
