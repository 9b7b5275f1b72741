//! Headers of real files; `cryptsetup` must be installed.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::process::Command;

use tec_core::system::SystemEntropy;

use crate::testing::MemoryNode;

use crate::derive::ClusterId;
use crate::lock::{LockOutcome, NodeLock};

use super::super::program::HostPrograms;
use super::*;

const INITIAL: &[u8] = b"initial";
/// Room for a LUKS2 header and some sectors.
const SIZE: u64 = 18 * 1024 * 1024;

struct Fixture {
    directory: TempDir,
    disk: LuksDisk,
}

fn format(more: &[&str]) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let (image, key) = (directory.path().join("disk"), directory.path().join("key"));
    fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    fs::write(&key, INITIAL).unwrap();
    let quick = ["--pbkdf-force-iterations", "4", "--pbkdf-memory", "64"];
    let made = Command::new("cryptsetup")
        .args(["luksFormat", "--batch-mode", "--type", "luks2"])
        .args(more.iter().copied().chain(quick))
        .arg("--key-file")
        .args([&key, &image])
        .status();
    assert!(made.unwrap().success());
    let scratch = directory.path().join("scratch");
    let programs = Arc::new(HostPrograms::new());
    let disk = LuksDisk::new(image, key, scratch, programs).dangerous_without_integrity();
    Fixture { directory, disk }
}

fn good() -> Fixture {
    format(&["--pbkdf", "argon2id", "--sector-size", "4096"])
}

async fn locked() -> LockedNode {
    let id = "00000000-0000-0000-0000-000000000000".parse().unwrap();
    let lock = NodeLock::new(Arc::new(MemoryNode::new(id)));
    match lock.lock(ClusterId::new([1; 32])).await.unwrap() {
        LockOutcome::Locked(node) => node,
        LockOutcome::Taken => unreachable!("nobody else has the lock"),
    }
}

#[tokio::test]
async fn the_header_that_was_checked_opens_the_disk_whatever_the_disk_says_then() {
    let Fixture { directory, disk } = &good();
    let (kept, image) = (directory.path().join("kept"), directory.path().join("disk"));
    let initial = SecretBytes::new(INITIAL.to_vec());
    let wrong = SecretBytes::new(b"wrong".to_vec());
    let refused = disk.pin_header(&wrong, &kept).await.unwrap_err();
    assert_eq!(refused.kind(), PortErrorKind::Conflict);
    assert!(!kept.exists());
    disk.pin_header(&initial, &kept).await.unwrap();

    // Someone puts their own header there.
    let key = directory.path().join("key");
    fs::write(&key, b"theirs").unwrap();
    let weak = ["--cipher", "aes-cbc-plain64", "--key-size", "128"];
    let made = Command::new("cryptsetup")
        .args(["luksFormat", "--batch-mode", "--type", "luks2"])
        .args(weak)
        .args(["--pbkdf-force-iterations", "4", "--pbkdf-memory", "64"])
        .arg("--key-file")
        .args([&key, &image])
        .status();
    assert!(made.unwrap().success());
    assert!(disk.pin_header(&initial, &kept).await.is_err());
    fs::write(&key, INITIAL).unwrap();
    let opened = Command::new("cryptsetup")
        .args(["open", "--test-passphrase", "--batch-mode", "--key-file"])
        .arg(&key)
        .arg("--header")
        .args([&kept, &image])
        .status();
    assert!(opened.unwrap().success());
    let dump = Command::new("cryptsetup").arg("luksDump").arg(&kept).output();
    let dump = String::from_utf8(dump.unwrap().stdout).unwrap();
    assert!(dump.contains("aes-xts-plain64"), "{dump}");
}

#[tokio::test]
async fn a_rekeyed_disk_opens_with_the_new_key_only_and_again_changes_nothing() {
    let Fixture { disk, .. } = &good();
    assert!(disk.is_new().await.unwrap());
    let id = disk.id().await.unwrap();
    // A key of arbitrary bytes; some programs end a passphrase at a line break or at zero.
    let key = SecretBytes::new(vec![b'\n', 0, 255, b'\n', 0]);
    let node = locked().await;
    for _ in 0..2 {
        disk.rekey(&node, &key).await.unwrap();
        assert!(disk.opens_with(&key).await.unwrap());
        assert!(!disk.is_new().await.unwrap());
        assert_eq!(disk.id().await.unwrap(), id);
    }
    let other = SecretBytes::new(b"other".to_vec());
    assert!(!disk.opens_with(&other).await.unwrap());
}

#[tokio::test]
async fn a_disk_with_both_keys_as_a_power_cut_leaves_it_loses_the_first() {
    let Fixture { disk, .. } = &good();
    let key = SecretBytes::new(vec![7; 32]);
    let initial = SecretBytes::new(INITIAL.to_vec());
    disk.add(&initial, &key).await.unwrap();
    assert!(disk.is_new().await.unwrap());
    disk.rekey(&locked().await, &key).await.unwrap();
    assert!(!disk.is_new().await.unwrap());
    assert!(disk.opens_with(&key).await.unwrap());
}

#[tokio::test]
async fn a_header_that_is_weak_is_refused_before_a_key_is_tried() {
    let weak = format(&["--pbkdf", "argon2id", "--cipher", "aes-cbc-essiv:sha256"]);
    let key = SecretBytes::new(INITIAL.to_vec());
    let error = weak.disk.opens_with(&key).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid);
    let mut strict = good();
    strict.disk.integrity = Integrity::Required;
    let error = strict.disk.opens_with(&key).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid);
}

#[tokio::test]
async fn no_copy_of_a_header_stays_and_no_key_is_in_a_file_or_an_error() {
    let Fixture { directory, disk } = &good();
    let key = SecretBytes::new(b"canary-key".to_vec());
    disk.rekey(&locked().await, &key).await.unwrap();
    let scratch = directory.path().join("scratch");
    assert_eq!(fs::read_dir(scratch).unwrap().count(), 0);
    fs::remove_file(directory.path().join("disk")).unwrap();
    let error = disk.opens_with(&key).await.unwrap_err();
    assert!(!tec_core::port::chain(&error).contains("canary"));
}

#[tokio::test]
async fn a_disk_is_made_of_a_blank_one_and_is_nobodys_until_a_cluster_has_a_key() {
    let directory = &tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::File::create(at("disk")).unwrap().set_len(SIZE).unwrap();
    let disk = || {
        let programs = Arc::new(HostPrograms::new());
        LuksDisk::new(at("disk"), at("key"), at("scratch"), programs).dangerous_without_integrity()
    };
    let disk = disk();
    assert_eq!(disk.content().await.unwrap(), Content::Blank);
    let made = disk.dangerous_format(&SystemEntropy, &at("header"), None).await.unwrap();
    let id = disk.id().await.unwrap();
    let unclaimed = Content::Unclaimed(Some(id));
    assert_eq!(disk.content().await.unwrap(), unclaimed);
    let passphrase = disk.dangerous_format(&SystemEntropy, &at("header"), Some(id)).await.unwrap();
    assert!(!passphrase.ct_eq(&made));
    disk.hand_over(&passphrase).unwrap();
    assert!(disk.is_new().await.unwrap());
    let mode = fs::metadata(at("key")).unwrap().permissions().mode();
    assert_eq!((mode & 0o777, fs::read(at("key")).unwrap().len()), (0o400, 32));
    assert!(at("header").exists());

    // The memory of that boot is gone.
    fs::rename(at("key"), at("lost")).unwrap();
    assert_eq!(disk.content().await.unwrap(), unclaimed);
    fs::rename(at("lost"), at("key")).unwrap();

    // The power fails between adding the cluster's key and writing the label.
    let key = SecretBytes::new(vec![7; 32]);
    let initial = SecretBytes::new(fs::read(at("key")).unwrap());
    disk.add(&initial, &key).await.unwrap();
    assert_eq!(disk.content().await.unwrap(), Content::Encrypted);
    disk.rekey(&locked().await, &key).await.unwrap();
    assert_eq!(disk.content().await.unwrap(), Content::Encrypted);
    assert!(!disk.is_new().await.unwrap());
    disk.dangerous_format(&SystemEntropy, &at("header"), None).await.unwrap();
    assert!(!disk.opens_with(&key).await.unwrap());
}

#[tokio::test]
async fn a_disk_whose_first_header_was_half_written_is_nobodys_and_one_with_keys_is_not() {
    let Fixture { directory, disk } = &format(&["--label", "tec-unclaimed"]);
    let at = |name: &str| directory.path().join(name);
    // The power fails after the first block: no list of key slots, no second header.
    let file = fs::File::options().write(true).open(at("disk")).unwrap();
    file.write_all_at(&vec![0; 7 * 4096], 4096).unwrap();
    assert!(disk.content().await.is_err(), "there were keys: its sequence number is 3");
    file.write_all_at(&2_u64.to_be_bytes(), 16).unwrap();
    assert!(matches!(disk.content().await.unwrap(), Content::Unclaimed(Some(_))));
    disk.dangerous_format(&SystemEntropy, &at("header"), None).await.unwrap();
    assert_eq!(disk.content().await.unwrap(), Content::Unclaimed(Some(disk.id().await.unwrap())));
}

#[tokio::test]
async fn what_others_put_on_a_disk_is_named_and_a_disk_that_is_not_there_is_an_error() {
    let Fixture { directory, disk } = &good();
    assert_eq!(disk.content().await.unwrap(), Content::Encrypted);
    let image = directory.path().join("disk");
    let made = Command::new("mke2fs").args(["-q", "-F"]).arg(&image).status();
    assert!(made.unwrap().success());
    assert_eq!(disk.content().await.unwrap(), Content::Foreign("ext2".to_owned()));
    fs::remove_file(image).unwrap();
    let missing = disk.content().await.unwrap_err();
    assert_eq!(missing.kind(), PortErrorKind::NotFound);
}

#[tokio::test]
async fn a_probe_that_fails_does_not_make_a_disk_with_a_header_blank() {
    let Fixture { directory, .. } = &good();
    let at = |name: &str| directory.path().join(name);
    let nothing = ["/bin/sh", "-c", "exit 2"].map(Into::into).to_vec();
    let programs = Arc::new(HostPrograms::new().with("blkid", nothing));
    let disk = LuksDisk::new(at("disk"), at("key"), at("scratch"), programs);
    assert_eq!(disk.content().await.unwrap(), Content::Encrypted);
    // The second header replaces the first one.
    let file = fs::File::options().write(true).open(at("disk")).unwrap();
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert_eq!(disk.content().await.unwrap(), Content::Encrypted);
    // A directory cannot be read.
    fs::remove_file(at("disk")).unwrap();
    fs::create_dir(at("disk")).unwrap();
    assert!(disk.content().await.is_err());
}

/// Emulates mappings with copies of `mapping`, since not every kernel has a device mapper.
const CRYPTSETUP_OF_FILES: &str = r#"
set -eu
mapper=$1; shift
case " $* " in
*" close temporary-"*) rm -r "$mapper/../block";;
*" close "*) rm -r "$mapper/$2";;
*" --test-passphrase "*) exec cryptsetup "$@";;
*" open "*) mkdir -p "$mapper"; cp -r "$mapper/../mapping" "$mapper/tec-new-state";;
*) exec cryptsetup "$@";;
esac
"#;

/// A blank disk of the minimum size, and the file that will stand for its mapping.
fn blank() -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::File::create(at("disk")).unwrap().set_len(64 << 20).unwrap();
    fs::File::create(at("mapping")).unwrap().set_len(16 << 20).unwrap();
    let cryptsetup = ["/bin/sh", "-c", CRYPTSETUP_OF_FILES, "sh"].map(PathBuf::from);
    let cryptsetup = cryptsetup.into_iter().chain([at("mapper")]).collect();
    let programs = Arc::new(HostPrograms::new().with("cryptsetup", cryptsetup));
    let disk = LuksDisk::new(at("disk"), at("key"), at("scratch"), programs);
    let mut disk = disk.dangerous_without_integrity();
    (disk.mapper, disk.devices) = (at("mapper"), at("block"));
    Fixture { directory, disk }
}

#[tokio::test]
async fn a_disk_that_this_boot_made_is_told_from_one_that_others_formatted() {
    let Fixture { directory, disk } = &blank();
    let at = |name: &str| directory.path().join(name);
    assert!(!disk.is_made_here().unwrap());
    disk.dangerous_make(&SystemEntropy, &at("header"), None).await.unwrap();
    assert!(disk.is_made_here().unwrap());
    assert!(disk.is_new().await.unwrap());
    let made = fs::read(at("key")).unwrap();
    for others in [INITIAL, b""] {
        fs::rename(at("key"), at("moved")).unwrap();
        fs::write(at("key"), others).unwrap();
        assert!(!disk.is_made_here().unwrap());
        fs::rename(at("moved"), at("key")).unwrap();
    }
    assert_eq!(fs::read(at("key")).unwrap(), made);
    // Another boot: what is in memory is gone, wherever the key comes from then.
    fs::remove_dir_all(at("scratch")).unwrap();
    assert!(!disk.is_made_here().unwrap());
    let Fixture { disk, .. } = &good();
    assert!(disk.is_new().await.unwrap() && !disk.is_made_here().unwrap());
}

#[tokio::test]
async fn what_a_killed_cryptsetup_left_mapped_is_closed_before_the_disk_is_made_again() {
    let Fixture { directory, disk } = &blank();
    let [mapper, device] = ["mapper", "block/dm-1/dm"].map(|name| directory.path().join(name));
    fs::create_dir(&mapper).unwrap();
    fs::create_dir_all(&device).unwrap();
    // Its node in /dev/mapper was never created: udev creates it.
    let left = format!("temporary-cryptsetup-{}\n", std::process::id());
    fs::write(device.join("name"), left).unwrap();
    fs::write(mapper.join("tec-new-state"), "").unwrap();
    disk.dangerous_make(&SystemEntropy, &directory.path().join("header"), None).await.unwrap();
    assert_eq!(fs::read_dir(mapper).unwrap().count(), 0);
    assert!(!device.exists());
}

#[tokio::test]
async fn a_disk_whose_wipe_was_interrupted_gets_no_key() {
    let Fixture { directory, disk } = &blank();
    let at = |name: &str| directory.path().join(name);
    // A sector without a valid tag: the read fails.
    fs::remove_file(at("mapping")).unwrap();
    fs::create_dir(at("mapping")).unwrap();
    let made = disk.dangerous_make(&SystemEntropy, &at("header"), None).await;
    assert_eq!(made.unwrap_err().kind(), PortErrorKind::Unavailable);
    assert!(!at("key").exists() && !at("mapper/tec-new-state").exists());
    assert!(!disk.is_made_here().unwrap());
    // The next try starts anew.
    fs::remove_dir(at("mapping")).unwrap();
    fs::File::create(at("mapping")).unwrap().set_len(16 << 20).unwrap();
    assert!(matches!(disk.content().await.unwrap(), Content::Unclaimed(Some(_))));
    disk.dangerous_make(&SystemEntropy, &at("header"), None).await.unwrap();
    assert!(disk.is_made_here().unwrap());
}
