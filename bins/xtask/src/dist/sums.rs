//! Files that describe a release: digests, a signature, and lists of what is linked into programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::Dist;
use crate::tools::targets::Arch;
use crate::{process, term};

const SUMS: &str = "SHA256SUMS";

/// For each program, the list that `cargo auditable` embedded in it, as CycloneDX.
pub(super) fn materials(dist: &Dist<'_>, arch: Arch, programs: &Path) -> Result<()> {
    term::step(&format!("bills of materials for {}", arch.name()));
    for entry in fs::read_dir(programs)? {
        let program = entry?.path();
        let bill = process::capture(dist.tool("auditable2cdx")?.arg(&program))?;
        let name = program.file_name().context("a program has a name")?.to_string_lossy();
        fs::write(dist.out.join(format!("{name}-{}.cdx.json", arch.name())), bill)?;
    }
    Ok(())
}

/// Digests of all files, with sizes on the screen; signed if there is a key.
pub(super) fn write(out: &Path, key: Option<&Path>) -> Result<()> {
    term::step("digests");
    let mut rows = Vec::new();
    let mut text = String::new();
    for (name, (digest, size)) in digests(out)? {
        let _ = writeln!(text, "{digest}  {name}");
        rows.push(vec![name, size.to_string(), digest[..16].to_owned()]);
    }
    term::table(&["file", "bytes", "SHA-256"], &rows);
    let sums = out.join(SUMS);
    fs::write(&sums, text).with_context(|| format!("cannot write {}", sums.display()))?;
    let Some(key) = key else {
        term::note("not signed: there is no --sign-key");
        return Ok(());
    };
    let mut sign = process::command("openssl");
    sign.args(["dgst", "-sha256", "-sign"]).arg(key).arg(&sums);
    let signature = process::output(&mut sign)?;
    if !signature.status.success() {
        bail!("openssl: {}", String::from_utf8_lossy(&signature.stderr).trim_end());
    }
    let signature = STANDARD.encode(signature.stdout);
    fs::write(out.join(format!("{SUMS}.sig")), signature)?;
    Ok(())
}

/// Fails with the names of the files that differ.
pub(super) fn same(one: &Path, other: &Path) -> Result<()> {
    let (one, other) = (digests(one)?, digests(other)?);
    let names = one.keys().chain(other.keys());
    let differ: Vec<&str> =
        names.filter(|name| one.get(*name) != other.get(*name)).map(|n| &**n).collect();
    if !differ.is_empty() {
        bail!("two runs made different files: {}", differ.join(", "));
    }
    Ok(())
}

/// Files of a folder: digest and size.
fn digests(out: &Path) -> Result<BTreeMap<String, (String, usize)>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(out)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() || name.starts_with(SUMS) {
            continue;
        }
        let mut file = fs::File::open(&path)?;
        let (mut hasher, mut part) = (Sha256::new(), vec![0; 1 << 20]);
        let mut size = 0;
        loop {
            let read =
                file.read(&mut part).with_context(|| format!("cannot read {}", path.display()))?;
            if read == 0 {
                break;
            }
            hasher.update(part.get(..read).unwrap_or_default());
            size += read;
        }
        found.insert(name, (hex::encode(hasher.finalize()), size));
    }
    Ok(found)
}
