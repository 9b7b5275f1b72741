//! Images whose parts are kept elsewhere: what is fetched of them, and what is refused.

use std::collections::BTreeMap;
use std::io;
use std::io::{Cursor, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use sha2::Digest as _;
use tec_core::reference::BootImage as _;
use tec_tpm::compute::find_boot_files;
use tec_tpm::compute::input::{
    BootSource, Extent, ImageParts, InputError, OciError, OpenImage, TableError,
};
use tec_tpm::compute::testing::layer;
use tec_tpm::compute::testing::layer::TableLayer;

use crate::build;
use crate::build::Item::{File, HardLink};
use crate::build::LAYER;

/// Parts in memory that remember what was read of them.
#[derive(Debug, Default)]
struct Store {
    parts: BTreeMap<String, Vec<u8>>,
    read: Mutex<Vec<(String, Range<u64>)>>,
}

impl ImageParts for Store {
    fn open(&self, digest: &str, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let part = self.parts.get(digest).ok_or(io::ErrorKind::NotFound)?;
        let asked = (digest.to_owned(), range.clone());
        let mut read = self.read.lock().map_err(|_poisoned| io::ErrorKind::Other)?;
        read.push(asked);
        let mut reader = Cursor::new(part.clone());
        reader.set_position(range.start);
        Ok(Box::new(reader))
    }
}

/// An image under construction.
#[derive(Default)]
struct Image {
    store: Store,
    layers: Vec<Value>,
}

impl Image {
    fn layer(mut self, layer: &TableLayer, media_type: &str) -> Self {
        let digest = format!("sha256:{}", hex::encode(sha2::Sha256::digest(&layer.bytes)));
        self.layers.push(json!({
            "mediaType": format!("{LAYER}{media_type}"), "digest": digest,
            "size": layer.bytes.len(), "annotations": layer.annotations,
        }));
        self.store.parts.insert(digest, layer.bytes.clone());
        self
    }

    fn plain(self, bytes: Vec<u8>) -> Self {
        let mut layer = TableLayer::default();
        layer.bytes = bytes;
        self.layer(&layer, "")
    }

    fn open(self, extent: Extent) -> (Result<OpenImage, InputError>, Arc<Store>) {
        let manifest = json!({ "schemaVersion": 2, "layers": self.layers }).to_string();
        let store = Arc::new(self.store);
        let parts: Arc<dyn ImageParts> = Arc::clone(&store) as _;
        let image = BootSource::new().open_parts("os", manifest.as_bytes(), &parts, extent);
        (image, store)
    }
}

fn bytes_read(store: &Store) -> u64 {
    let read = store.read.lock().unwrap();
    read.iter().map(|(_, range)| range.end - range.start).sum()
}

/// A layer of the format, and its media type.
type Format = (fn(&[(&str, &[u8])], usize) -> io::Result<TableLayer>, &'static str);
const FORMATS: [Format; 2] = [(layer::estargz, "+gzip"), (layer::zstd_chunked, "+zstd")];

/// Bytes that cannot be packed.
fn noise(size: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        u8::try_from(state >> 56).unwrap()
    };
    std::iter::repeat_with(&mut next).take(size).collect()
}

#[test]
fn of_a_layer_with_a_table_only_what_is_opened_is_fetched() {
    let (kernel, library) = (noise(70_000), noise(400_000));
    for (format, media_type) in FORMATS {
        let files: [(&str, &[u8]); 3] = [
            ("usr/lib/libhuge.so", &library),
            ("usr/lib/modules/6.12/vmlinuz", &kernel),
            ("usr/lib/empty", b""),
        ];
        let layer = format(&files, 16_384).unwrap();
        let (image, store) = Image::default().layer(&layer, media_type).open(Extent::Whole);
        let image = image.unwrap();
        assert_eq!(image.files("usr/lib/modules").unwrap().len(), 1);
        for _ in 0..2 {
            assert_eq!(build::content(&image, "usr/lib/modules/6.12/vmlinuz"), kernel);
        }
        assert_eq!(build::content(&image, "usr/lib/empty"), b"");
        let fetched = bytes_read(&store);
        assert!(fetched < 90_000, "{fetched} of {}", layer.bytes.len());
        assert_eq!(build::content(&image, "usr/lib/libhuge.so"), library);

        // Whoever does not know the table reads the same.
        let (image, _) = Image::default().plain(layer.bytes).open(Extent::Whole);
        let image = image.unwrap();
        assert_eq!(build::content(&image, "usr/lib/modules/6.12/vmlinuz"), kernel);
    }
}

#[test]
fn later_layers_hide_files_of_a_table() {
    for (format, media_type) in FORMATS {
        let lower = [("boot/vmlinuz-1", &b"one"[..]), ("boot/vmlinuz-2", b"two")];
        let upper = [("boot/.wh.vmlinuz-1", &b""[..]), ("boot/vmlinuz-2", b"new")];
        let image = Image::default().layer(&format(&lower, 9).unwrap(), media_type);
        let image = image.layer(&format(&upper, 9).unwrap(), media_type);
        let image = image.open(Extent::Whole).0.unwrap();
        assert_eq!(image.files("").unwrap(), ["boot/vmlinuz-2"]);
        assert_eq!(build::content(&image, "boot/vmlinuz-2"), b"new");
    }
}

#[test]
fn a_file_that_does_not_fit_the_table_is_refused() {
    let kernel = noise(50_000);
    for (format, media_type) in FORMATS {
        let good = format(&[("vmlinuz", &kernel)], 8192).unwrap();
        // Somewhere in the packed kernel; noise is stored as it is.
        let mut bad = good.clone();
        bad.bytes[30_000] ^= 1;
        let image = Image::default().layer(&bad, media_type).open(Extent::Whole).0;
        let mut content = Vec::new();
        let opened = image.unwrap().open("vmlinuz");
        assert!(opened.and_then(|mut file| file.read_to_end(&mut content)).is_err());
    }
}

fn table_error(result: Result<OpenImage, InputError>) -> TableError {
    match result {
        Err(InputError::Oci { source: OciError::Table { source, .. }, .. }) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_table_that_is_not_the_one_of_the_manifest_is_refused() {
    for (format, media_type) in FORMATS {
        let other = format(&[("vmlinuz", b"other")], 9).unwrap();
        let mut layer = format(&[("vmlinuz", b"kernel")], 9).unwrap();
        let digest = |name: &&&str| name.ends_with("digest") || name.ends_with("checksum");
        let name = *layer.annotations.keys().find(digest).unwrap();
        layer.annotations.insert(name, other.annotations[name].clone());
        let result = Image::default().layer(&layer, media_type).open(Extent::Whole).0;
        assert!(matches!(table_error(result), TableError::Read { .. }));

        layer.annotations.insert(name, "sha256:zz".to_owned());
        let result = Image::default().layer(&layer, media_type).open(Extent::Whole).0;
        assert!(matches!(table_error(result), TableError::Annotation { .. }));
    }
    let mut cut = layer::estargz(&[("vmlinuz", b"kernel")], 9).unwrap();
    cut.bytes.truncate(cut.bytes.len() - 1);
    let result = Image::default().layer(&cut, "+gzip").open(Extent::Whole).0;
    assert!(matches!(table_error(result), TableError::Footer(_)));
    let mut beyond = layer::zstd_chunked(&[("vmlinuz", b"kernel")], 9).unwrap();
    for position in ["18446744073709551615:2:2:1", "0:99999999:2:1", "0:1:1:2", "0:1"] {
        let name = "io.github.containers.zstd-chunked.manifest-position";
        beyond.annotations.insert(name, position.to_owned());
        let result = Image::default().layer(&beyond, "+zstd").open(Extent::Whole).0;
        assert!(matches!(table_error(result), TableError::Annotation { .. }));
    }
}

const LOADERS: [(&str, &[u8]); 2] = [
    ("usr/lib/bootupd/updates/EFI/fedora/shimx64.efi", b"shim"),
    ("usr/lib/bootupd/updates/EFI/fedora/grubx64.efi", b"grub"),
];
const KERNEL: &str = "usr/lib/modules/6.12/vmlinuz";

#[test]
fn layers_below_a_whole_boot_chain_are_not_read() {
    let base = build::tar(&[File("usr/lib/libhuge.so", &noise(9000))]);
    let loaders = build::tar(&LOADERS.map(|(path, content)| File(path, content)));
    let object = "sysroot/ostree/repo/objects/ab/cd.file";
    let kernel = build::tar(&[File(object, b"kernel"), HardLink(KERNEL, object)]);
    let top = build::tar(&[File("etc/motd", b"hello")]);
    let image = || {
        let image = Image::default().plain(base.clone()).plain(loaders.clone());
        image.plain(kernel.clone()).plain(top.clone())
    };
    let (whole, all) = image().open(Extent::Whole);
    let (found, some) = image().open(Extent::UntilBootable);
    let (whole, found) = (whole.unwrap(), found.unwrap());
    assert_eq!(find_boot_files(&found).unwrap(), find_boot_files(&whole).unwrap());
    assert_eq!(build::content(&found, KERNEL), b"kernel");
    assert!(found.open("usr/lib/libhuge.so").is_err());
    assert_eq!((all.read.lock().unwrap().len(), some.read.lock().unwrap().len()), (4, 4));
    let digests = |store: &Store| {
        let read = store.read.lock().unwrap();
        read.iter().map(|(digest, _)| digest.clone()).collect::<std::collections::BTreeSet<_>>()
    };
    // The fourth read of the second is the kernel, by its other name.
    assert_eq!((digests(&all).len(), digests(&some).len()), (4, 3));
}

#[test]
fn a_chain_that_is_not_whole_is_looked_for_in_all_layers() {
    let replaced =
        build::tar(&[File("usr/lib/modules/6.11/.wh.vmlinuz", b""), File(KERNEL, b"new")]);
    let old = build::tar(&[File("usr/lib/modules/6.11/vmlinuz", b"old")]);
    let loaders = build::tar(&LOADERS.map(|(path, content)| File(path, content)));
    let image = Image::default().plain(loaders).plain(old).plain(replaced);
    let image = image.open(Extent::UntilBootable).0.unwrap();
    assert_eq!(find_boot_files(&image).unwrap().kernels, [KERNEL]);

    let bare = Image::default().plain(build::tar(&[File("boot/vmlinuz", b"k")]));
    let bare = bare.open(Extent::UntilBootable).0.unwrap();
    assert_eq!(bare.files("").unwrap(), ["boot/vmlinuz"]);
}
