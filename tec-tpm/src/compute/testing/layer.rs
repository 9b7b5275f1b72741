//! Layers with a table of contents, as in estargz and zstd:chunked.

use std::collections::BTreeMap;
use std::io;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::{Value, json};
use tec_core::digest::Sha256Digest;

/// A layer, and its description in the manifest.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TableLayer {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Annotations of its descriptor.
    pub annotations: BTreeMap<&'static str, String>,
}

/// Size of a tar block.
const BLOCK: usize = 512;

/// The header of a file in a tar stream (POSIX pax, "ustar Interchange Format").
fn header(path: &str, size: usize) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let mut put = |at: usize, text: &[u8]| {
        for (place, byte) in block.iter_mut().skip(at).zip(text) {
            *place = *byte;
        }
    };
    put(0, path.as_bytes());
    put(100, b"0000644\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().copied().map(u32::from).sum();
    let sum = format!("{sum:06o}\0 ");
    block.splice(148..156, sum.bytes());
    block
}

fn padding(size: usize) -> Vec<u8> {
    vec![0; size.next_multiple_of(BLOCK) - size]
}

fn gzip(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// Packs files piece by piece: the outputs of `pack` for headers and for contents of at most
/// `chunk` bytes follow each other. Returns the layer so far, and the entries of its table.
fn pack(
    files: &[(&str, &[u8])],
    chunk: usize,
    mut pack: impl FnMut(&[u8]) -> io::Result<Vec<u8>>,
) -> io::Result<(Vec<u8>, Vec<Value>)> {
    let (mut bytes, mut entries) = (Vec::new(), Vec::new());
    let mut pending = Vec::new();
    for (path, content) in files {
        pending.extend(header(path, content.len()));
        bytes.extend(pack(&pending)?);
        pending = padding(content.len());
        let digest = format!("sha256:{}", Sha256Digest::of(content));
        let mut entry = json!({
            "type": "reg", "name": path, "size": content.len(), "digest": digest,
        });
        for (number, part) in content.chunks(chunk).enumerate() {
            let begin = bytes.len();
            bytes.extend(pack(part)?);
            if number > 0 {
                entries.push(entry);
                entry = json!({ "type": "chunk", "name": path });
            }
            let place = json!({
                "offset": begin, "endOffset": bytes.len(),
                "chunkOffset": number * chunk, "chunkSize": part.len(),
            });
            if let (Value::Object(entry), Value::Object(place)) = (&mut entry, place) {
                entry.extend(place);
            }
        }
        entries.push(entry);
    }
    pending.resize(pending.len() + 2 * BLOCK, 0);
    bytes.extend(pack(&pending)?);
    Ok((bytes, entries))
}

/// A layer of these files as estargz; contents are cut into pieces of `chunk` bytes.
///
/// # Errors
/// In practice never.
pub fn estargz(files: &[(&str, &[u8])], chunk: usize) -> io::Result<TableLayer> {
    let (mut bytes, mut entries) = pack(files, chunk, gzip)?;
    for entry in &mut entries {
        if let Value::Object(entry) = entry {
            entry.remove("endOffset");
        }
    }
    let table = json!({ "version": 1, "entries": entries }).to_string();
    let begin = bytes.len();
    let mut tar = header("stargz.index.json", table.len());
    tar.extend(table.as_bytes());
    tar.extend(padding(table.len()));
    tar.resize(tar.len() + 2 * BLOCK, 0);
    bytes.extend(gzip(&tar)?);
    // An empty member of gzip whose extra field tells where the table begins.
    bytes.extend([0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 26, 0, b'S', b'G', 22, 0]);
    bytes.extend(format!("{begin:016x}STARGZ").bytes());
    bytes.extend([1, 0, 0, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]);
    let digest = format!("sha256:{}", Sha256Digest::of(table.as_bytes()));
    Ok(TableLayer {
        bytes,
        annotations: BTreeMap::from([("containerd.io/snapshot/stargz/toc.digest", digest)]),
    })
}

/// A layer of these files as zstd:chunked; contents are cut into pieces of `chunk` bytes.
///
/// # Errors
/// In practice never.
pub fn zstd_chunked(files: &[(&str, &[u8])], chunk: usize) -> io::Result<TableLayer> {
    let (mut bytes, entries) = pack(files, chunk, |part| Ok(zstd(part)))?;
    let table = json!({ "version": 1, "entries": entries }).to_string();
    let packed = zstd(table.as_bytes());
    // RFC 8878, 3.1.2: a frame that decoders skip.
    bytes.extend([0x50, 0x2a, 0x4d, 0x18]);
    bytes.extend(u32::try_from(packed.len()).unwrap_or(u32::MAX).to_le_bytes());
    let position = format!("{}:{}:{}:1", bytes.len(), packed.len(), table.len());
    let digest = format!("sha256:{}", Sha256Digest::of(&packed));
    bytes.extend(packed);
    Ok(TableLayer {
        bytes,
        annotations: BTreeMap::from([
            ("io.github.containers.zstd-chunked.manifest-position", position),
            ("io.github.containers.zstd-chunked.manifest-checksum", digest),
        ]),
    })
}
