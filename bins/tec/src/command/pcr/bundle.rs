//! `tec pcr bundle`: signs the reference values of an image, and verifies who signed them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::Subcommand;
use serde::Serialize;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::code::Code;
use tec_core::image::ExpectedPcrs;
use tec_core::port::Clock as _;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::exit::CodedError;
use tec_tpm::output::{
    BundleError, BundleSigner, ImageReference, MAX_BUNDLE, ReferenceBundle, UntrustedBundle,
    VerifiedBundle,
};

use super::end;
use crate::command::input;
use crate::image::ProofArgs;
use crate::output::Output;

/// Largest file with a key or a signature to read.
const MAX_KEY: u64 = 64 << 10;

#[derive(Debug, Subcommand)]
pub(crate) enum BundleCommand {
    /// Sign the values of an image.
    Sign {
        /// File with the values, as printed by `tec pcr compute --form label`.
        #[arg(long, value_name = "FILE")]
        pcrs: PathBuf,
        /// Reference of the image, with its digest: registry.example/os@sha256:…
        #[arg(long, value_name = "REFERENCE")]
        image: ImageReference,
        /// Private key on P-256, PEM (PKCS #8).
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// Expiry of the values, such as 2027-01-01T00:00:00Z (default: in one year).
        #[arg(long, value_name = "TIME")]
        expires: Option<Timestamp>,
        /// Output file for the bundle.
        #[arg(long, value_name = "FILE")]
        bundle: PathBuf,
        /// Output file for the signature.
        #[arg(long, value_name = "FILE")]
        signature: PathBuf,
    },
    /// Verify a bundle, and print what was signed.
    Verify {
        /// Bundle to verify.
        #[arg(long, value_name = "FILE", requires_all = ["signature", "keys"])]
        bundle: PathBuf,
        #[command(flatten)]
        proof: ProofArgs,
    },
}

/// The signed values, and the signer.
#[derive(Serialize)]
struct Signed<'b> {
    image: &'b ImageReference,
    expires_at: Timestamp,
    key: Fingerprint,
    #[serde(flatten)]
    expected: &'b ExpectedPcrs,
}

pub(super) fn bundle(command: BundleCommand, output: &Output) -> anyhow::Result<()> {
    match command {
        BundleCommand::Sign { pcrs, image, key, expires, bundle, signature } => {
            let signed = ReferenceBundle::new(image, end(expires), input::label(&pcrs)?);
            let signer = signer(&key)?;
            let text = signed.to_json()?;
            write(&bundle, &text)?;
            write(&signature, &signer.sign(&text).map_err(coded)?)?;
            let key = signer.public_key().map_err(coded)?.fingerprint();
            print(&signed, key, output)
        }
        BundleCommand::Verify { bundle, proof } => {
            let verified = verify(&bundle, &proof)?;
            print(verified.bundle(), verified.key(), output)
        }
    }
}

/// Verifies a bundle with the keys of the command line, at the current time.
pub(in crate::command) fn verify(
    bundle: &Path,
    proof: &ProofArgs,
) -> anyhow::Result<VerifiedBundle> {
    let bytes = input::read(bundle, MAX_BUNDLE as u64)?;
    let signature = proof.signature.as_deref();
    let signature = input::text(signature.context("no signature was given")?, MAX_KEY)?;
    let keys = proof.keys.iter().map(|file| public_key(file));
    let keys = keys.collect::<anyhow::Result<Vec<_>>>()?;
    let untrusted = UntrustedBundle::new(&bytes, &signature);
    let verified = untrusted.verify(&keys, SystemClock.now()).map_err(coded)?;
    if let Some(expected) = &proof.image_digest {
        verified.check_image(expected).map_err(coded)?;
    }
    Ok(verified)
}

fn signer(file: &Path) -> anyhow::Result<BundleSigner> {
    let pem = SecretBytes::new(input::read(file, MAX_KEY)?);
    let pem = str::from_utf8(pem.expose("parse the key that signs bundles"));
    let signer = pem.map_err(|_| BundleError::PrivateKey).and_then(BundleSigner::from_pem);
    signer.map_err(coded).with_context(|| file.display().to_string())
}

fn public_key(file: &Path) -> anyhow::Result<PublicKey> {
    let pem = input::text(file, MAX_KEY)?;
    Ok(PublicKey::from_pem(&pem).map_err(|error| {
        CodedError::caused(Code::BundleMalformed, file.display().to_string(), error)
    })?)
}

fn coded(error: BundleError) -> CodedError {
    CodedError::caused(error.code(), "the bundle of reference values", error)
}

fn write(file: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

fn print(bundle: &ReferenceBundle, key: Fingerprint, output: &Output) -> anyhow::Result<()> {
    let signed = Signed {
        image: &bundle.image,
        expires_at: bundle.expires_at,
        key,
        expected: &bundle.expected,
    };
    output.print(&signed, |signed| {
        let mut text = format!("image  {}\n", signed.image);
        text.extend(["until  ", &signed.expires_at.to_string(), "\n"]);
        text.extend(["key    ", &signed.key.to_string(), "\n"]);
        for pcr in &signed.expected.pcrs {
            text.extend([format!("PCR {:2} = {}\n", u8::from(pcr.id), pcr.value)]);
        }
        text
    })
}
