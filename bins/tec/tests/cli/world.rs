//! The program as a process, and its input files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tec_core::reference::BootImage;
use tec_tpm::compute::testing::unsigned;
use tec_tpm::compute::{MemoryImage, PeFile};
use tempfile::TempDir;

/// Paths of the files in [`debian_chain`](tec_tpm::compute::testing::debian_chain).
pub(crate) const SHIM: &str = "usr/lib/shim/shimx64.efi.signed";
pub(crate) const GRUB: &str = "usr/lib/grub/x86_64-efi-signed/grubx64.efi.signed";
pub(crate) const KERNEL: &str = "boot/vmlinuz-6.12.0-amd64";

/// Runs `tec` in a clean environment.
pub(crate) fn tec(arguments: &[&str]) -> Output {
    tec_reading(arguments, Stdio::null())
}

/// Like `tec`, with standard input.
pub(crate) fn tec_reading(arguments: &[&str], input: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tec"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TEC_")) {
        command.env_remove(name);
    }
    command.args(arguments).stdin(input).output().unwrap()
}

/// The output of `tec`; it must succeed.
pub(crate) fn text(arguments: &[&str]) -> String {
    let output = tec(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The output of `tec` as JSON; it must succeed.
pub(crate) fn json(arguments: &[&str]) -> Value {
    let with_form = [arguments, &["--output", "json"]].concat();
    serde_json::from_str(&text(&with_form)).unwrap()
}

/// The output of `tec` on stderr.
pub(crate) fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// The program fails with this exit code, prints nothing on stdout, and this on stderr.
pub(crate) fn refused(arguments: &[&str], code: i32, says: &str) {
    let output = tec(arguments);
    let said = said(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(said.contains(says), "{arguments:?}: {said}");
}

pub(crate) fn str(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A directory with the files of `image`.
pub(crate) fn unpacked(image: &MemoryImage) -> TempDir {
    let directory = TempDir::new().unwrap();
    for path in image.files("").unwrap() {
        write(directory.path(), &path, image.content(&path).unwrap());
    }
    directory
}

pub(crate) fn write(directory: &Path, path: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let file = directory.join(path);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, content).unwrap();
    file
}

/// The files of an unsigned chain, and the efivarfs of a machine that allows them by digest.
pub(crate) fn allowed(image: &MemoryImage) -> (TempDir, TempDir) {
    let programs = [SHIM, GRUB, KERNEL].map(|path| {
        let program = unsigned(image.content(path).unwrap().to_vec());
        (path, program)
    });
    let image = programs
        .iter()
        .fold(image.clone(), |image, (path, program)| image.with(*path, program.clone()));
    let variables = efivars(&programs.each_ref().map(|(_, program)| program.as_slice()));
    (unpacked(&image), variables)
}

/// The efivarfs of a machine with Secure Boot whose `db` lists the digests of these programs.
pub(crate) fn efivars(allowed: &[&[u8]]) -> TempDir {
    const GLOBAL: &str = "8be4df61-93ca-11d2-aa0d-00e098032b8c";
    const DATABASE: &str = "d719b2cb-3d3a-4596-a3bc-dad00e67656f";
    let directory = TempDir::new().unwrap();
    let variable = |name: &str, vendor: &str, data: &[u8]| {
        let content = [&[0x27, 0, 0, 0], data].concat();
        write(directory.path(), &format!("{name}-{vendor}"), content);
    };
    variable("SecureBoot", GLOBAL, &[1]);
    variable("PK", GLOBAL, b"key");
    let lists: Vec<u8> = allowed.iter().flat_map(|file| digest_list(file)).collect();
    variable("db", DATABASE, &lists);
    directory
}

/// `EFI_SIGNATURE_LIST` of one `EFI_CERT_SHA256_GUID` (UEFI 2.10, 32.4.1): type 16, size of the list 4, of
/// the header 4, of an entry 4; the entry is its owner and the digest.
pub(crate) fn digest_list(program: &[u8]) -> Vec<u8> {
    const SHA256: [u8; 16] = [
        0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43,
        0x28,
    ];
    let digest = PeFile::read(program, &[]).unwrap().authenticode();
    let mut list = SHA256.to_vec();
    for size in [28 + 48, 0, 48_u32] {
        list.extend(size.to_le_bytes());
    }
    list.extend([0x5a; 16]);
    list.extend(digest.as_bytes());
    list
}

/// Indices of the registers in a label.
pub(crate) fn registers(label: &Value) -> Vec<u64> {
    let pcrs = label["pcrs"].as_array().unwrap();
    pcrs.iter().map(|pcr| pcr["id"].as_u64().unwrap()).collect()
}

/// IDs of the events of one register.
pub(crate) fn events(label: &Value, register: u64) -> Vec<&str> {
    let pcrs = label["pcrs"].as_array().unwrap();
    let pcr = pcrs.iter().find(|pcr| pcr["id"] == register).unwrap();
    let events = pcr["events"].as_array().unwrap();
    events.iter().map(|e| e["id"].as_str().unwrap()).collect()
}

/// A recorded boot of this repository: its log, registers and variables, without its boot files.
pub(crate) fn recorded(boot: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tec-tpm/tests/boots").join(boot)
}

/// A recorded boot with its boot files.
pub(crate) fn with_files(boot: &str) -> PathBuf {
    let fixtures = std::env::var_os("TEC_FIXTURES").unwrap();
    Path::new(&fixtures).join("qemu").join(boot)
}
