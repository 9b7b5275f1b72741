//! OCI image layouts, whole and hostile.

use std::error::Error;

use serde_json::json;
use tec_core::port::causes;
use tec_core::reference::BootImage;
use tec_tpm::compute::MemoryImage;
use tec_tpm::compute::input::{BlobError, BootSource, InputError, OciError, OpenImage, SourceKind};

use crate::build;
use crate::build::Item::{File, Folder, HardLink, Link};
use crate::build::{INDEX, LAYER, Layout, MANIFEST};

/// A directory is as good as an archive. The directory is removed; the archive is in a temporary
/// file.
fn open_as(source: &BootSource, layout: &MemoryImage) -> Result<OpenImage, InputError> {
    let folder = tempfile::tempdir().map(|folder| {
        build::unpack(layout, folder.path());
        source.open(folder.path()).is_ok()
    });
    let archived = source.read(build::tar_of(layout).as_slice());
    assert_eq!(folder.ok(), Some(archived.is_ok()));
    archived
}

fn open(layout: &MemoryImage) -> Result<OpenImage, InputError> {
    open_as(&BootSource::new(), layout)
}

fn oci_error(result: Result<OpenImage, InputError>) -> OciError {
    match result {
        Err(InputError::Oci { source, .. }) => source,
        other => panic!("{other:?}"),
    }
}

fn image_of(layers: &[(&str, Vec<u8>)]) -> MemoryImage {
    let mut layout = Layout::default();
    let image = layout.image(layers);
    layout.publish("", image).finish()
}

#[test]
fn layers_lie_over_each_other_with_whiteouts() {
    let lower = build::tar(&[
        File("boot/vmlinuz-1", b"one"),
        File("boot/vmlinuz-2", b"two"),
        File("usr/lib/old/a", b"a"),
        File("usr/lib/old/b/c", b"c"),
        File("usr/share/x", b"x"),
        Link("lib", "usr/lib"),
    ]);
    let middle = build::tar(&[
        File("boot/.wh.vmlinuz-1", b""),
        File("boot/vmlinuz-2", b"new"),
        File("usr/lib/old/fresh", b"fresh"),
        File("usr/lib/old/.wh..wh..opq", b""),
        File("usr/.wh.share", b""),
    ]);
    let upper = build::tar(&[File("usr/lib/old/.wh.fresh", b""), File("usr/lib/last", b"l")]);
    let layers = [
        (LAYER.to_owned(), lower),
        (format!("{LAYER}+gzip"), build::gzip(&middle)),
        (format!("{LAYER}+zstd"), build::zstd(&upper)),
    ];
    let layers = layers.each_ref().map(|(kind, bytes)| (kind.as_str(), bytes.clone()));
    let image = open(&image_of(&layers)).unwrap();
    assert_eq!(image.kind(), SourceKind::Oci);
    assert_eq!(image.files("").unwrap(), ["boot/vmlinuz-2", "usr/lib/last"]);
    assert_eq!(build::content(&image, "boot/vmlinuz-2"), b"new");
    let below = open(&image_of(&layers[..2])).unwrap();
    assert_eq!(below.files("").unwrap(), ["boot/vmlinuz-2", "usr/lib/old/fresh"]);
    assert_eq!(build::content(&below, "usr/lib/old/fresh"), b"fresh");
}

#[test]
fn files_of_an_ostree_repository_are_read_by_their_other_names() {
    let object = "sysroot/ostree/repo/objects/ab/cdef.file";
    let kernel = "usr/lib/modules/6.12/vmlinuz";
    let first = build::tar(&[
        Folder("sysroot/ostree"),
        File(object, b"kernel"),
        HardLink(kernel, object),
        Link("ostree", "sysroot/ostree"),
    ]);
    let second = build::tar(&[HardLink("boot/vmlinuz", kernel)]);
    let layers = [(LAYER, build::gzip(&first)), (LAYER, second)];
    let image = open(&image_of(&layers)).unwrap();
    for _ in 0..2 {
        assert_eq!(build::content(&image, kernel), b"kernel");
        assert_eq!(build::content(&image, "boot/vmlinuz"), b"kernel");
        assert_eq!(build::content(&image, "ostree/repo/objects/ab/cdef.file"), b"kernel");
    }
}

#[test]
fn an_image_is_taken_by_name_digest_and_platform() {
    let mut layout = Layout::default();
    let mut of = |name: &str| {
        let tar = build::tar(&[File(name, b"")]);
        layout.image(&[(LAYER, tar)])
    };
    let (old, mut new, mut arm) = (of("old"), of("new"), of("arm"));
    let digest = old["digest"].as_str().unwrap().to_owned();
    new["platform"] = json!({ "os": "linux", "architecture": "amd64" });
    arm["platform"] = json!({ "os": "linux", "architecture": "arm64" });
    let mut nothing = arm.clone();
    nothing["platform"] = json!({ "os": "unknown", "architecture": "unknown" });
    let index = layout.json(INDEX, &json!({ "manifests": [arm, new, nothing] }));
    let layout = layout.publish("43", old).publish("44", index).finish();
    let named = |name: &str| open_as(&BootSource::new().with_reference(name), &layout);
    assert_eq!(named("44").unwrap().files("").unwrap(), ["new"]);
    assert_eq!(named("43").unwrap().files("").unwrap(), ["old"]);
    assert_eq!(named(&digest).unwrap().files("").unwrap(), ["old"]);
    assert!(matches!(
        oci_error(named("45")),
        OciError::NoSuchReference { candidates, .. } if candidates.len() == 2
    ));
    assert!(matches!(
        oci_error(open(&layout)),
        OciError::SeveralImages { candidates } if candidates[0].starts_with("43 sha256:")
    ));

    let mut foreign = Layout::default();
    let mut arm = foreign.image(&[]);
    arm["platform"] = json!({ "os": "linux", "architecture": "arm64" });
    let foreign = foreign.publish("", arm).finish();
    assert!(matches!(oci_error(open(&foreign)), OciError::NoPlatform { .. }));
}

/// The cause of this type.
pub(crate) fn cause<'e, T: Error + 'static>(error: &'e (dyn Error + 'static)) -> Option<&'e T> {
    causes(error).find_map(<dyn Error>::downcast_ref)
}

#[test]
fn what_does_not_fit_its_digest_is_refused() {
    let tar = build::tar(&[File("boot/vmlinuz", &[5; 2000])]);
    for layer in [tar.clone(), build::gzip(&tar), build::zstd(&tar)] {
        let mut layout = Layout::default();
        let manifest = layout.image(&[(LAYER, layer.clone())]);
        let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&layer));
        let path = format!("blobs/sha256/{digest}");
        let good = layout.publish("", manifest).finish();
        assert!(open(&good).is_ok());

        let mut longer = layer.clone();
        longer.push(0);
        let error = oci_error(open(&good.clone().with(path.clone(), longer)));
        assert!(cause::<BlobError>(&error).is_some(), "{error:?}");
        let error = oci_error(open(&good.clone().with(path.clone(), &layer[..layer.len() - 1])));
        assert!(matches!(&error, OciError::Layer { file, .. } if *file == path));

        // Another file of the same size, packed the same way, is whole in itself.
        let mut other = layer.clone();
        let last = other.len() - 1;
        other[last] ^= 1;
        let error = oci_error(open(&good.with(path, other)));
        assert!(matches!(error, OciError::Layer { .. }));
    }
    let other = build::tar(&[File("boot/vmlinuz", &[6; 2000])]);
    let mut layout = Layout::default();
    let manifest = layout.image(&[(LAYER, tar.clone())]);
    let digest = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(&tar));
    let swapped = layout.publish("", manifest).finish();
    let error = oci_error(open(&swapped.with(format!("blobs/sha256/{digest}"), other)));
    assert!(matches!(cause(&error), Some(BlobError::Digest(_))));
}

#[test]
fn a_manifest_that_does_not_fit_its_digest_is_refused() {
    let mut layout = Layout::default();
    let manifest = layout.image(&[]);
    let digest = manifest["digest"].as_str().unwrap().replace(':', "/");
    let layout = layout.publish("", manifest).finish();
    let path = format!("blobs/{digest}");
    let mut text = layout.content(&path).unwrap().to_vec();
    let blank = text.iter().position(|byte| *byte == b'2').unwrap();
    text[blank] = b'3';
    let error = oci_error(open(&layout.with(path, text)));
    assert!(matches!(cause(&error), Some(BlobError::Digest(_))));
}

#[test]
fn layouts_that_lie_are_refused() {
    let publish = |descriptor: serde_json::Value| {
        let layout = Layout::default().publish("", descriptor).finish();
        oci_error(open(&layout))
    };
    let digest = format!("sha256:{}", "ab".repeat(32));
    let with = |media_type: &str, digest: &str| {
        publish(json!({ "mediaType": media_type, "digest": digest, "size": 2 }))
    };
    assert!(matches!(with(MANIFEST, &digest), OciError::Read { .. }));
    assert!(matches!(with("text/plain", &digest), OciError::MediaType { .. }));
    assert!(matches!(with(LAYER, &digest), OciError::MediaType { .. }));
    for digest in ["sha256:ab", "md5:00", "", "sha256:../../etc/passwd", &digest.to_uppercase()] {
        assert!(matches!(with(MANIFEST, digest), OciError::Digest { .. }), "{digest}");
    }
    assert!(matches!(publish(json!({ "digest": digest })), OciError::Json { .. }));

    let empty = Layout::default().finish();
    assert!(matches!(oci_error(open(&empty)), OciError::NoPlatform { .. }));
    let version = empty.clone().with("oci-layout", &br#"{"imageLayoutVersion":"2.0"}"#[..]);
    assert!(matches!(oci_error(open(&version)), OciError::Version(_)));
    let huge = empty.with("index.json", vec![b' '; 5 << 20]);
    assert!(matches!(oci_error(open(&huge)), OciError::Read { .. }));

    let mut deep = Layout::default();
    let mut descriptor = deep.image(&[]);
    for _ in 0..5 {
        descriptor = deep.json(INDEX, &json!({ "manifests": [descriptor] }));
    }
    let deep = deep.publish("", descriptor).finish();
    assert!(matches!(oci_error(open(&deep)), OciError::TooMany { .. }));

    let mut many = Layout::default();
    let layer = many.blob(LAYER, &build::tar(&[]));
    let manifest = many.json(MANIFEST, &json!({ "layers": vec![layer; 600] }));
    let many = many.publish("", manifest).finish();
    assert!(matches!(oci_error(open(&many)), OciError::TooMany { limit: 512, .. }));
}

/// As `podman save` makes it by default.
fn saved(images: &serde_json::Value, layers: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut archive = MemoryImage::new().with("manifest.json", images.to_string().into_bytes());
    for (path, layer) in layers {
        archive.insert(*path, layer.clone());
    }
    build::tar_of(&archive)
}

#[test]
fn an_archive_of_docker_save_is_an_image_of_its_layers() {
    let lower = build::tar(&[File("boot/vmlinuz-1", b"one"), File("boot/vmlinuz-2", b"two")]);
    let upper = build::tar(&[File("boot/.wh.vmlinuz-1", b""), File("boot/vmlinuz-3", b"three")]);
    let image = |tag: &str| json!({"RepoTags": [tag], "Layers": ["a/layer.tar", "b.tar"]});
    let layers = [("a/layer.tar", lower), ("b.tar", build::gzip(&upper))];
    let one = saved(&json!([image("x:1")]), &layers);
    for archive in [&one, &build::gzip(&one)] {
        let opened = BootSource::new().read(archive.as_slice()).unwrap();
        assert_eq!(opened.kind(), SourceKind::Oci);
        assert_eq!(opened.files("").unwrap(), ["boot/vmlinuz-2", "boot/vmlinuz-3"]);
        assert_eq!(build::content(&opened, "boot/vmlinuz-3"), b"three");
    }

    let two = saved(&json!([image("x:1"), image("x:2")]), &layers);
    let several = oci_error(BootSource::new().read(two.as_slice()));
    assert!(
        matches!(several, OciError::SeveralImages { candidates } if candidates == ["x:1", "x:2"])
    );
    let named = |name: &str| BootSource::new().with_reference(name).read(two.as_slice());
    assert_eq!(named("x:2").unwrap().files("boot").unwrap().len(), 2);
    assert!(matches!(oci_error(named("y")), OciError::NoSuchReference { .. }));
    for (images, is_expected) in [
        (json!([]), (|error| matches!(error, OciError::NoSuchReference { .. })) as fn(&_) -> bool),
        (json!({}), |error| matches!(error, OciError::Json { .. })),
        (json!([{"Layers": ["none"]}]), |error| matches!(error, OciError::Layer { .. })),
        (json!([{"Layers": ["../x"]}]), |error| matches!(error, OciError::Layer { .. })),
        (json!([{"Layers": vec!["b.tar"; 513]}]), |error| {
            matches!(error, OciError::TooMany { .. })
        }),
    ] {
        let archive = saved(&images, &layers);
        let error = oci_error(BootSource::new().read(archive.as_slice()));
        assert!(is_expected(&error), "{images}: {error:?}");
    }
}
