//! Images, generated from scratch.

use std::fs;
use std::io::{Cursor, Read as _, Write as _};
use std::path::Path;

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions};
use flate2::write::GzEncoder;
use flate2::{Compression, Crc};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use sha2::Digest as _;
use tar::{EntryType, Header};
use tec_core::reference::BootImage;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::testing::{application, grub, shim};

/// An EFI system partition with shim, GRUB and kernel.
pub(crate) fn esp() -> MemoryImage {
    MemoryImage::new()
        .with("EFI/BOOT/BOOTX64.EFI", shim("16.1"))
        .with("EFI/BOOT/grubx64.efi", grub("2.12"))
        .with("vmlinuz", application("Linux"))
}

/// A FAT file system with these files.
pub(crate) fn fat(files: &MemoryImage, size: usize) -> Vec<u8> {
    let mut disk = Cursor::new(vec![0; size]);
    fatfs::format_volume(&mut disk, FormatVolumeOptions::new()).unwrap();
    let system = FileSystem::new(&mut disk, FsOptions::new()).unwrap();
    for path in files.files("").unwrap() {
        let mut folder = system.root_dir();
        let (parents, name) = path.rsplit_once('/').unwrap_or(("", &path));
        for parent in parents.split('/').filter(|parent| !parent.is_empty()) {
            folder = folder.create_dir(parent).unwrap();
        }
        let mut file = folder.create_file(name).unwrap();
        file.write_all(files.content(&path).unwrap()).unwrap();
    }
    system.unmount().unwrap();
    disk.into_inner()
}

/// Two files whose clusters alternate.
pub(crate) fn fragmented(size: usize, pieces: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut disk = Cursor::new(vec![0; size]);
    fatfs::format_volume(&mut disk, FormatVolumeOptions::new()).unwrap();
    let system = FileSystem::new(&mut disk, FsOptions::new()).unwrap();
    let mut one = system.root_dir().create_file("one").unwrap();
    let mut two = system.root_dir().create_file("two").unwrap();
    for (first, second) in pieces {
        one.write_all(first).unwrap();
        two.write_all(second).unwrap();
    }
    drop((one, two));
    system.unmount().unwrap();
    disk.into_inner()
}

pub(crate) const SYSTEM: [u8; 16] =
    [0x28, 0x73, 0x2a, 0xc1, 0x1f, 0xf8, 0xd2, 0x11, 0xba, 0x4b, 0, 0xa0, 0xc9, 0x3e, 0xc9, 0x3b];
pub(crate) const OTHER: [u8; 16] = [7; 16];

/// A disk with a GPT of 128 entries and these partitions, the first one at sector 64.
pub(crate) fn gpt(sector: usize, partitions: &[([u8; 16], &[u8])]) -> Vec<u8> {
    let mut disk = vec![0; 64 * sector];
    let mut entries = vec![0; 128 * 128];
    for (number, (kind, content)) in partitions.iter().enumerate() {
        let first = disk.len() / sector;
        disk.extend_from_slice(content);
        disk.resize(disk.len().next_multiple_of(sector), 0);
        let entry = &mut entries[number * 128..];
        put(entry, 0, kind);
        put(entry, 16, &[9; 16]);
        put(entry, 32, &(first as u64).to_le_bytes());
        put(entry, 40, &(disk.len() as u64 / sector as u64 - 1).to_le_bytes());
    }
    put(&mut disk, 510, &[0x55, 0xaa]);
    disk[450] = 0xee;
    put(&mut disk, 458, &u32::MAX.to_le_bytes());
    put(&mut disk, 2 * sector, &entries);
    let mut header = b"EFI PART\0\0\x01\0".to_vec();
    header.resize(92, 0);
    put(&mut header, 12, &92_u32.to_le_bytes());
    put(&mut header, 24, &1_u64.to_le_bytes());
    put(&mut header, 72, &2_u64.to_le_bytes());
    put(&mut header, 80, &128_u32.to_le_bytes());
    put(&mut header, 84, &128_u32.to_le_bytes());
    put(&mut header, 88, &crc32(&entries));
    put(&mut disk, sector, &header);
    sign_gpt(&mut disk, sector);
    disk
}

/// Makes the checksum of the header of a GPT right.
pub(crate) fn sign_gpt(disk: &mut [u8], sector: usize) {
    put(disk, sector + 16, &[0; 4]);
    let sum = crc32(&disk[sector..sector + 92]);
    put(disk, sector + 16, &sum);
}

/// A disk with an MBR and these partitions, the first one at sector 64.
pub(crate) fn mbr(partitions: &[(u8, &[u8])]) -> Vec<u8> {
    let mut disk = vec![0; 64 * 512];
    for (number, (kind, content)) in partitions.iter().enumerate() {
        let first = u32::try_from(disk.len() / 512).unwrap();
        disk.extend_from_slice(content);
        disk.resize(disk.len().next_multiple_of(512), 0);
        let count = u32::try_from(content.len().div_ceil(512)).unwrap();
        let record = 446 + number * 16;
        disk[record + 4] = *kind;
        put(&mut disk, record + 8, &first.to_le_bytes());
        put(&mut disk, record + 12, &count.to_le_bytes());
    }
    put(&mut disk, 510, &[0x55, 0xaa]);
    disk
}

pub(crate) fn put(at: &mut [u8], offset: usize, bytes: &[u8]) {
    at[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum().to_le_bytes()
}

/// An entry of a tar stream.
pub(crate) enum Item<'a> {
    File(&'a str, &'a [u8]),
    Folder(&'a str),
    Link(&'a str, &'a str),
    HardLink(&'a str, &'a str),
}

/// A tar stream, written by the crate `tar`.
pub(crate) fn tar(items: &[Item<'_>]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for item in items {
        let mut header = Header::new_gnu();
        header.set_size(0);
        header.set_mode(0o755);
        match item {
            Item::File(path, content) => {
                header.set_size(content.len() as u64);
                builder.append_data(&mut header, path, *content).unwrap();
            }
            Item::Folder(path) => {
                header.set_entry_type(EntryType::Directory);
                builder.append_data(&mut header, path, &[][..]).unwrap();
            }
            Item::Link(path, target) => {
                header.set_entry_type(EntryType::Symlink);
                builder.append_link(&mut header, path, target).unwrap();
            }
            Item::HardLink(path, target) => {
                header.set_entry_type(EntryType::Link);
                builder.append_link(&mut header, path, target).unwrap();
            }
        }
    }
    builder.into_inner().unwrap()
}

/// A tar stream with the files of an image.
pub(crate) fn tar_of(image: &MemoryImage) -> Vec<u8> {
    let files = image.files("").unwrap();
    let items = files.iter().map(|path| Item::File(path, image.content(path).unwrap()));
    tar(&items.collect::<Vec<_>>())
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub(crate) fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

/// An OCI image layout.
#[derive(Default)]
pub(crate) struct Layout {
    pub(crate) files: MemoryImage,
    manifests: Vec<serde_json::Value>,
}

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

impl Layout {
    /// Adds a part; returns its descriptor.
    pub(crate) fn blob(&mut self, media_type: &str, bytes: &[u8]) -> serde_json::Value {
        let digest = hex::encode(sha2::Sha256::digest(bytes));
        self.files.insert(format!("blobs/sha256/{digest}"), bytes);
        serde_json::json!({
            "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len(),
        })
    }

    /// Adds a JSON document.
    pub(crate) fn json(&mut self, media_type: &str, json: &serde_json::Value) -> serde_json::Value {
        self.blob(media_type, json.to_string().as_bytes())
    }

    /// Adds an image of these layers; returns its descriptor.
    pub(crate) fn image(&mut self, layers: &[(&str, Vec<u8>)]) -> serde_json::Value {
        let layers = layers.iter().map(|(kind, bytes)| self.blob(kind, bytes));
        let layers: Vec<_> = layers.collect();
        let manifest = serde_json::json!({ "schemaVersion": 2, "layers": layers });
        self.json(MANIFEST, &manifest)
    }

    /// Puts what a descriptor describes into the index.
    pub(crate) fn publish(mut self, name: &str, mut descriptor: serde_json::Value) -> Self {
        if !name.is_empty() {
            descriptor["annotations"] =
                serde_json::json!({ "org.opencontainers.image.ref.name": name });
        }
        self.manifests.push(descriptor);
        self
    }

    pub(crate) fn finish(mut self) -> MemoryImage {
        let marker = r#"{"imageLayoutVersion":"1.0.0"}"#;
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": self.manifests });
        self.files.insert("oci-layout", marker.as_bytes());
        self.files.insert("index.json", index.to_string().into_bytes());
        self.files
    }
}

/// Writes the files of an image into a directory.
pub(crate) fn unpack(image: &MemoryImage, root: &Path) {
    for path in image.files("").unwrap() {
        let target = root.join(&path);
        fs::create_dir_all(target.parent().unwrap()).unwrap();
        fs::write(target, image.content(&path).unwrap()).unwrap();
    }
}

/// All of a file.
pub(crate) fn content(image: &dyn BootImage, path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = image.open(path).unwrap();
    let size = file.size();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(size, Some(bytes.len() as u64));
    bytes
}
