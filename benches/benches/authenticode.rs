//! Authenticode digest of a PE file against hashing the same bytes once.

use sha2::{Digest as _, Sha256};
use tec_benches::Suite;
use tec_core::digest::Sha256Digest;
use tec_tpm::compute::testing::PeBuilder;
use tec_tpm::compute::{PeFile, SignatureError, SignaturePresence};

/// About the size of a kernel image.
const SIZE: usize = 8 << 20;

fn main() -> anyhow::Result<()> {
    let code: Vec<u8> = (0..SIZE).map(|i| (i % 251).to_le_bytes()[0]).collect();
    let file = PeBuilder::new()
        .section(".text", code)
        .section(".sbat", "sbat,1,SBAT Version,sbat,1,https://example.org/sbat\n")
        .signed()
        .build();
    check(&file)?;
    let mut suite = Suite::new(env!("CARGO_TARGET_TMPDIR"));
    suite.compare(
        "pcr/authenticode",
        "digest of an 8 MiB PE file / SHA-256 of its bytes",
        || PeFile::read(file.as_slice(), &[".sbat"]).map(|pe| pe.authenticode()),
        || Sha256::digest(&file),
    )?;
    suite.finish();
    Ok(())
}

/// The builder signs a digest that it computes by itself, so both digests must agree.
fn check(file: &[u8]) -> anyhow::Result<()> {
    let pe = PeFile::read(file, &[".sbat"])?;
    pe.check_signatures(SignaturePresence::Required)?;
    anyhow::ensure!(pe.size() == file.len() as u64, "the file was not read completely");
    let mut changed = file.to_vec();
    if let Some(byte) = changed.get_mut(SIZE / 2) {
        *byte ^= 1;
    }
    let changed = PeFile::read(changed.as_slice(), &[])?;
    let refused = changed.check_signatures(SignaturePresence::Required);
    anyhow::ensure!(
        matches!(refused, Err(SignatureError::Mismatch { .. }))
            && changed.authenticode() != Sha256Digest::ZERO,
        "a changed byte did not change the digest"
    );
    Ok(())
}
