//! Small images in each form, including hostile ones.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::json;
use tec_core::digest::Sha256Digest;

use super::read;
use super::repair::{sign_gpt, sign_tar};
use crate::Seed;
use crate::bytes::{cut, le16, le32, put};

const SECTOR: usize = 512;
/// Sectors of [`fat`]: boot sector, table, root folder, and four clusters of one sector each.
const FAT_SECTORS: usize = 7;
/// Offset of the root folder in [`fat`].
const ROOT: usize = 2 * SECTOR;

/// A header of a tar stream (POSIX pax, "ustar Interchange Format"): name, size at 124, checksum at
/// 148, type at 156, link at 157, magic at 257.
fn header(kind: u8, path: &str, link: &str, size: usize) -> Vec<u8> {
    let mut header = put(vec![0; SECTOR], 0, path.as_bytes());
    header = put(header, 124, format!("{size:011o}").as_bytes());
    header = put(header, 156, &[kind]);
    header = put(header, 157, link.as_bytes());
    header = put(header, 257, b"ustar\x0000");
    sign_tar(&mut header);
    header
}

fn file(path: &str, content: &[u8]) -> Vec<u8> {
    let mut entry = header(b'0', path, "", content.len());
    entry.extend(content);
    entry.resize(entry.len().next_multiple_of(SECTOR), 0);
    entry
}

/// Entries, and the two empty blocks that end a stream.
fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    [entries.concat(), vec![0; 2 * SECTOR]].concat()
}

fn system() -> Vec<u8> {
    tar(&[
        header(b'5', "usr/lib/modules/6.12", "", 0),
        file("usr/lib/modules/6.12/vmlinuz", b"MZ kernel"),
        header(b'2', "lib", "usr/lib", 0),
        header(b'1', "boot/vmlinuz", "usr/lib/modules/6.12/vmlinuz", 0),
    ])
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::none());
    encoder.write_all(bytes).expect("written to memory");
    encoder.finish().expect("written to memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Uncompressed)
}

/// A FAT file system with entries of 12 bits (Microsoft, "FAT File System Specification", 3.1 and
/// 6): the folder `EFI` in cluster 2, in it the file `BOOT` of two clusters.
fn fat() -> Vec<u8> {
    let mut disk = put(vec![0; FAT_SECTORS * SECTOR], 0, &[0xeb, 0, 0x90]);
    for (at, value) in [(11, SECTOR), (14, 1), (17, 16), (19, FAT_SECTORS), (22, 1)] {
        disk = put(disk, at, &le16(value));
    }
    // Sectors per cluster, tables, medium; chains 2 and 3 → 4 in pairs of three bytes.
    disk = put(disk, 13, &[1]);
    disk = put(disk, 16, &[1]);
    disk = put(disk, 21, &[0xf8]);
    disk = put(disk, 510, &[0x55, 0xaa]);
    disk = put(disk, SECTOR, &[0xf8, 0xff, 0xff, 0xff, 0x4f, 0x00, 0xff, 0x0f]);
    disk = put(disk, ROOT, &record(b"EFI        ", 0x10, 2, 0));
    let content = [b'k'; SECTOR + 10];
    disk = put(disk, 3 * SECTOR, &record(b"BOOT       ", 0, 3, content.len()));
    put(disk, 4 * SECTOR, &content)
}

/// Name, attributes at 11, first cluster at 26, size at 28.
fn record(name: &[u8; 11], attributes: u8, cluster: usize, size: usize) -> Vec<u8> {
    let mut record = put(vec![0; 32], 0, name);
    record = put(record, 11, &[attributes]);
    record = put(record, 26, &le16(cluster));
    put(record, 28, &le32(size))
}

/// A disk with one EFI system partition after a GPT of four entries (UEFI 2.10, 5.3).
fn gpt() -> Vec<u8> {
    const SYSTEM: [u8; 16] = [
        0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b,
    ];
    let mut disk = put(vec![0; 3 * SECTOR], 450, &[0xee]);
    disk = put(disk, 510, &[0x55, 0xaa]);
    disk = put(disk, SECTOR, b"EFI PART\0\0\x01\0");
    for (at, value) in [(12, 92), (24, 1), (72, 2), (80, 4), (84, 128)] {
        disk = put(disk, SECTOR + at, &le32(value));
    }
    disk = put(disk, 2 * SECTOR, &SYSTEM);
    disk = put(disk, 2 * SECTOR + 32, &le32(3));
    disk = put(disk, 2 * SECTOR + 40, &le32(3 + FAT_SECTORS - 1));
    disk.extend(fat());
    sign_gpt(&mut disk);
    disk
}

/// A disk with an MBR of one EFI system partition (UEFI 2.10, 5.2).
fn mbr() -> Vec<u8> {
    let mut disk = put(vec![0; SECTOR], 450, &[0xef]);
    disk = put(disk, 454, &le32(1));
    disk = put(disk, 458, &le32(FAT_SECTORS));
    disk = put(disk, 510, &[0x55, 0xaa]);
    disk.extend(fat());
    disk
}

/// An archive of an OCI layout with an image of these layers.
fn oci(layers: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut entries = vec![file("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)];
    let mut blob = |kind: &str, content: &[u8]| {
        let digest = Sha256Digest::of(content);
        entries.push(file(&format!("blobs/sha256/{digest}"), content));
        let kind = format!("application/vnd.oci.image.{kind}");
        json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": content.len() })
    };
    let layers = layers.iter().map(|(kind, content)| blob(&format!("layer.v1.{kind}"), content));
    let layers: Vec<_> = layers.collect();
    let manifest = json!({ "schemaVersion": 2, "layers": layers }).to_string();
    let listed = blob("manifest.v1+json", manifest.as_bytes());
    let index = json!({ "schemaVersion": 2, "manifests": [listed] }).to_string();
    entries.push(file("index.json", index.as_bytes()));
    tar(&entries)
}

fn layers() -> Vec<u8> {
    let above = tar(&[file("boot/.wh.vmlinuz", b""), file("boot/vmlinuz-2", b"newer")]);
    oci(&[("tar", system()), ("tar+gzip", gzip(&above))])
}

pub(crate) fn seeds() -> Vec<Seed> {
    let seeds = vec![
        Seed::new("tar", system()),
        Seed::new("tar_gzip", gzip(&system())),
        Seed::new("tar_zstd", zstd(&system())),
        Seed::new("fat", fat()),
        Seed::new("gpt", gpt()),
        Seed::new("mbr", mbr()),
        Seed::new("oci", layers()),
        Seed::new("program", b"MZ program"),
    ];
    [seeds, hostile_archives(), hostile_disks()].concat()
}

fn lying(name: &str, content: Vec<u8>) -> Seed {
    Seed::new(name, content).refused(read)
}

fn hostile_archives() -> Vec<Seed> {
    let mut long = put(system(), SECTOR + 124, b"77777777777");
    sign_tar(long.get_mut(SECTOR..2 * SECTOR).unwrap_or_default());
    let below = tar(&[file("a", b""), file("a/b", b"")]);
    let outside = tar(&[file("../a", b"a")]);
    vec![
        lying("nothing", Vec::new()),
        lying("tar_cut_off_in_a_file", cut(system(), 2 * SECTOR + 4)),
        lying("tar_file_of_eight_gigabytes", long),
        lying("tar_path_out_of_the_image", outside),
        lying("tar_file_below_a_file", below),
        lying("gzip_cut_off", cut(gzip(&system()), 700)),
        lying("zstd_cut_off", cut(zstd(&system()), 700)),
        lying("oci_layer_with_another_digest", oci_of_another_layer()),
    ]
}

fn hostile_disks() -> Vec<Seed> {
    let again = record(b"AGAIN      ", 0x10, 2, 0);
    vec![
        lying("fat_without_sectors", put(fat(), 19, &[0, 0])),
        lying("fat_beyond_the_end", put(fat(), 19, &[0xff, 0xff])),
        lying("fat_folder_in_itself", put(fat(), 3 * SECTOR, &again)),
        lying("fat_cluster_beyond_the_end", put(fat(), ROOT + 26, &[0xff, 0x0e])),
        lying("gpt_with_a_wrong_checksum", put(gpt(), SECTOR + 16, &[0; 4])),
        lying("mbr_partition_beyond_the_end", put(mbr(), 458, &[0xff; 4])),
    ]
}

/// One byte of the kernel in the layer differs.
fn oci_of_another_layer() -> Vec<u8> {
    let archive = oci(&[("tar", system())]);
    let kernel = archive.windows(9).position(|bytes| bytes == b"MZ kernel");
    put(archive, kernel.expect("the kernel"), b"N")
}
