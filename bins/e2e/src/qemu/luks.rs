//! Changes the metadata of a LUKS2 header, as anyone can who has the disk in hand.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Size of the binary header, which comes before the metadata (LUKS2 On-Disk Format Specification, "Binary Header").
const BINARY: usize = 4096;
/// Offset and size of the checksum in it.
const CHECKSUM: (usize, usize) = (448, 64);
/// Of the first and of the second copy.
const MAGIC: [&[u8]; 2] = [b"LUKS\xba\xbe", b"SKUL\xba\xbe"];

/// Changes both copies of the header at this offset of a disk.
pub fn change(disk: &Path, offset: u64, change: impl Fn(&mut Value)) -> anyhow::Result<()> {
    let failed = || format!("cannot change the header on {}", disk.display());
    let file = File::options().read(true).write(true).open(disk).with_context(failed)?;
    let mut size = [0; 8];
    file.read_exact_at(&mut size, offset + 8).with_context(failed)?;
    let size = u64::from_be_bytes(size);
    ensure!(
        (BINARY as u64..1 << 23).contains(&size),
        "there is no LUKS2 header on {}",
        disk.display()
    );
    for (magic, at) in MAGIC.into_iter().zip([offset, offset + size]) {
        let mut copy = vec![0; usize::try_from(size)?];
        file.read_exact_at(&mut copy, at).with_context(failed)?;
        ensure!(copy.starts_with(magic), "a copy of the header on {} is missing", disk.display());
        rewrite(&mut copy, &change)?;
        file.write_all_at(&copy, at).with_context(failed)?;
    }
    file.sync_all().with_context(failed)
}

fn rewrite(copy: &mut [u8], change: &impl Fn(&mut Value)) -> anyhow::Result<()> {
    let (binary, area) = copy.split_at_mut(BINARY);
    let end = area.iter().position(|byte| *byte == 0).unwrap_or(area.len());
    let (text, _) = area.split_at(end);
    let mut metadata: Value = serde_json::from_slice(text).context("the metadata are not JSON")?;
    change(&mut metadata);
    let text = metadata.to_string();
    ensure!(text.len() < area.len(), "the metadata do not fit any longer");
    area.fill(0);
    area.split_at_mut(text.len()).0.copy_from_slice(text.as_bytes());
    let (offset, size) = CHECKSUM;
    binary.get_mut(offset..offset + size).context("a short header")?.fill(0);
    let digest = Sha256::new().chain_update(&*binary).chain_update(&*area).finalize();
    binary
        .get_mut(offset..offset + digest.len())
        .context("a short header")?
        .copy_from_slice(&digest);
    Ok(())
}
