//! Authenticode digests.

use std::fs;
use std::fs::File;
use std::path::Path;

use rcgen::{CertificateParams, KeyPair};
use tec_tpm::compute::testing::PeBuilder;
use tec_tpm::compute::{BankDigests, Banks, PeFile, PeRequest, SignaturePresence};
use tec_tpm::event_log::Bank;

use crate::{input, tool};

fn digests(file: &Path) -> BankDigests {
    let request = PeRequest::new(Banks::ALL);
    let file = PeFile::read_as(File::open(file).unwrap(), &request).unwrap();
    file.authenticode_digests()
}

/// What pesign computes. It prints the digest among other text, which differs by version.
fn pesign(file: &Path, bank: Bank) -> String {
    let arguments = ["-h", "-d", bank.as_str(), "-i", file.to_str().unwrap()];
    let printed = tool::output("pesign", arguments);
    let is_digest = |word: &&str| {
        word.len() == 2 * bank.digest_size() && word.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let digest = printed.split_whitespace().find(is_digest);
    let digest = digest.unwrap_or_else(|| panic!("{}: {printed}", file.display()));
    digest.to_ascii_lowercase()
}

fn assert_same_as_pesign(file: &Path) {
    let digests = digests(file);
    // pesign knows no larger ones.
    for bank in [Bank::Sha1, Bank::Sha256] {
        let ours = hex::encode(digests.get(bank).unwrap());
        assert_eq!(ours, pesign(file, bank), "{} {bank}", file.display());
    }
}

#[test]
fn real_boot_files_have_the_digests_that_pesign_computes() {
    for file in input::boot_files() {
        assert_same_as_pesign(&file);
    }
}

#[test]
fn files_of_many_shapes_have_the_digests_that_pesign_computes() {
    let folder = tempfile::tempdir().unwrap();
    for (number, file) in shapes().into_iter().enumerate() {
        let path = folder.path().join(number.to_string());
        fs::write(&path, executable(file.build())).unwrap();
        assert_same_as_pesign(&path);
    }
}

/// Says in the file header that it is an executable image (PE format, "Characteristics"); pesign
/// reads nothing else.
fn executable(mut file: Vec<u8>) -> Vec<u8> {
    let header = usize::from(file[0x3c]);
    file[header + 22] |= 2;
    file
}

/// Sections of sizes around the alignments of file and hash, trailers, signatures.
fn shapes() -> Vec<PeBuilder> {
    let mut shapes = Vec::new();
    for size in [1, 7, 8, 9, 511, 512, 513, 4095, 70_000] {
        let plain = PeBuilder::new().section(".text", vec![0x90; size]);
        let more = plain.clone().section(".data", vec![1; size / 2 + 1]);
        let long = more.clone().section(".a_long_name", vec![2; 33]);
        let trailing = more.clone().trailer(vec![3; 8 * (size % 5)]);
        let signed = more.clone().signed().signed_for([7; 32]);
        shapes.extend([plain, more, long, trailing, signed]);
    }
    shapes
}

#[test]
fn signed_boot_files_have_the_digest_that_osslsigncode_computes() {
    let mut compared = 0;
    for file in input::boot_files() {
        let output = tool::run("osslsigncode", ["verify", "-in", file.to_str().unwrap()]);
        let printed = String::from_utf8_lossy(&output.stdout);
        let line = printed.lines().find(|line| line.starts_with("Calculated message digest"));
        // It does not read files without a signature, nor those with several.
        let Some((_, digest)) = line.and_then(|line| line.split_once(": ")) else {
            println!("osslsigncode does not read {}", file.display());
            continue;
        };
        let ours = hex::encode(digests(&file).get(Bank::Sha256).unwrap());
        assert_eq!(ours, digest.trim().to_ascii_lowercase(), "{}", file.display());
        compared += 1;
    }
    println!("{compared} files compared");
}

#[test]
fn what_sbsign_signs_is_the_digest_that_is_computed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    fs::write(path("key"), key.serialize_pem()).unwrap();
    fs::write(path("certificate"), certificate.pem()).unwrap();
    for (number, shape) in shapes().into_iter().enumerate() {
        // sbsign removes what follows the last section, and reads signatures that are there.
        if shape.build().len() % 512 != 0 {
            continue;
        }
        fs::write(path("file"), shape.build()).unwrap();
        let (key, certificate) = (path("key"), path("certificate"));
        let keys = ["--key", &key, "--cert", &certificate];
        let files = ["--output", &path("signed"), &path("file")];
        tool::output("sbsign", keys.iter().chain(&files));
        tool::output("sbverify", ["--cert", &certificate, &path("signed")]);
        let signed = PeFile::read(File::open(path("signed")).unwrap(), &[]).unwrap();
        let signs = signed.signed_digests().unwrap();
        assert_eq!(signs.len(), 1, "file {number}");
        signed.check_signatures(SignaturePresence::Required).unwrap();
    }
}
