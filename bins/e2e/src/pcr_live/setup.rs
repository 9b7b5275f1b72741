//! What a case boots: files on the EFI system partition, and variables.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tec_tpm::compute::Guid;

use super::Settings;
use super::case::{Case, Setup};
use crate::qemu::variables::{BOOT_ONLY, SIGNED};
use crate::qemu::{Initramfs, SigningKey, Uki, VariableStore};

/// The removable-media path (UEFI 2.10, 3.5.1.1), and the file next to it that shim starts.
const FIRST: &str = "EFI/BOOT/BOOTX64.EFI";
const SECOND: &str = "EFI/BOOT/grubx64.efi";
/// Offset of the kernel's version (kernel documentation, x86/boot: `kernel_version`, relative to the setup
/// code's first 512 bytes).
const KERNEL_VERSION: usize = 0x20e;
const SETUP_CODE: usize = 0x200;

/// Firmware and boot files of a suite.
#[derive(Clone, Debug)]
pub(super) struct BootFiles {
    directory: PathBuf,
    guest: PathBuf,
}

impl BootFiles {
    pub(super) fn new(settings: &Settings, case: Case) -> Self {
        Self {
            directory: settings.cache.join("boot").join(case.suite),
            guest: settings.guest.clone(),
        }
    }

    pub(super) fn firmware(&self) -> PathBuf {
        self.directory.join("OVMF_CODE.fd")
    }

    fn read(&self, name: &str) -> anyhow::Result<Vec<u8>> {
        let path = self.directory.join(name);
        fs::read(&path).with_context(|| {
            format!("cannot read {}; `cargo xtask pcr-live` fetches it", path.display())
        })
    }

    fn initial_file_system(&self) -> anyhow::Result<Vec<u8>> {
        let guest = fs::read(&self.guest)
            .with_context(|| format!("cannot read {}", self.guest.display()))?;
        Initramfs::new().with("init", guest).build()
    }
}

/// Fills `directory/esp`, and returns the variables before the boot.
pub(super) fn prepare(case: Case, files: &BootFiles, directory: &Path) -> anyhow::Result<Vec<u8>> {
    let esp = directory.join("esp");
    match case.setup {
        Setup::SecureBoot | Setup::NoKeys | Setup::KeysOff => grub(case, files, &esp)?,
        Setup::Uki | Setup::UkiNoKeys => {
            let key = SigningKey::generate(directory, "db")?;
            signed_uki(case, files, &key, &esp.join(FIRST))?;
        }
        Setup::ShimUki => {
            let key = SigningKey::generate(directory, "mok")?;
            place(&esp, FIRST, &files.read("shimx64.efi")?)?;
            signed_uki(case, files, &key, &esp.join(SECOND))?;
        }
    }
    variables(case, files, directory)
}

/// A panic shuts the machine down immediately. On a busy host, emulated ticks come too late for the kernel's
/// timer check, which would panic.
fn command_line(case: Case) -> String {
    format!("console=ttyS0,115200 panic=-1 no_timer_check loglevel=4 tec.case={case}")
}

fn grub(case: Case, files: &BootFiles, esp: &Path) -> anyhow::Result<()> {
    let script = format!(
        "set timeout=0\necho measured boot\nlinux /vmlinuz {}\ninitrd /initrd.img\nboot\n",
        command_line(case)
    );
    place(esp, FIRST, &files.read("shimx64.efi")?)?;
    place(esp, SECOND, &files.read("grubx64.efi")?)?;
    place(esp, "EFI/debian/grub.cfg", script.as_bytes())?;
    place(esp, "vmlinuz", &files.read("vmlinuz")?)?;
    place(esp, "initrd.img", &files.initial_file_system()?)
}

fn place(esp: &Path, name: &str, content: &[u8]) -> anyhow::Result<()> {
    let path = esp.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn signed_uki(
    case: Case,
    files: &BootFiles,
    key: &SigningKey,
    place_at: &Path,
) -> anyhow::Result<()> {
    let kernel = files.read("vmlinuz")?;
    let uki = Uki::new(&files.read("linuxx64.efi.stub")?)?
        .with(".osrel", b"ID=tec-e2e\nPRETTY_NAME=\"TEC e2e\"\n")?
        .with(".cmdline", command_line(case).as_bytes())?
        .with(".uname", &kernel_version(&kernel)?)?
        // The stub passes it to the system, and measures it as part of the initial file system.
        .with(".pcrpkey", b"-----BEGIN PUBLIC KEY-----\n")?
        .with(".linux", &kernel)?
        .with(".initrd", &files.initial_file_system()?)?;
    let unsigned = place_at.with_extension("unsigned");
    if let Some(parent) = place_at.parent() {
        fs::create_dir_all(parent)
            .with_context(|| format!("cannot create {}", parent.display()))?;
    }
    fs::write(&unsigned, uki.build())
        .with_context(|| format!("cannot write {}", unsigned.display()))?;
    key.sign(&unsigned, place_at)?;
    fs::remove_file(&unsigned).with_context(|| format!("cannot remove {}", unsigned.display()))
}

fn kernel_version(kernel: &[u8]) -> anyhow::Result<Vec<u8>> {
    let version = || {
        let offset: [u8; 2] = *kernel.get(KERNEL_VERSION..)?.first_chunk()?;
        let text = kernel.get(usize::from(u16::from_le_bytes(offset)) + SETUP_CODE..)?;
        let is_end = |byte: &u8| *byte == 0 || *byte == b' ';
        text.split(is_end).next().map(<[u8]>::to_vec)
    };
    version().context("the kernel does not state its version")
}

fn variables(case: Case, files: &BootFiles, directory: &Path) -> anyhow::Result<Vec<u8>> {
    let store = |name: &str| VariableStore::new(files.read(name)?);
    let microsoft = "OVMF_VARS.ms.fd";
    let none = "OVMF_VARS.fd";
    let enable = |store: VariableStore, on: u8| {
        store.with("SecureBootEnable", Guid::SECURE_BOOT_ENABLE, BOOT_ONLY, &[on])
    };
    let store = match case.setup {
        Setup::SecureBoot => store(microsoft)?,
        Setup::NoKeys | Setup::UkiNoKeys => store(none)?,
        Setup::KeysOff => enable(store(microsoft)?, 0)?,
        Setup::ShimUki => {
            let list = SigningKey::open(directory, "mok").signature_list()?;
            store(microsoft)?.with("MokList", Guid::SHIM, BOOT_ONLY, &list)?
        }
        Setup::Uki => {
            let db = SigningKey::open(directory, "db").signature_list()?;
            let kek = SigningKey::generate(directory, "KEK")?.signature_list()?;
            let pk = SigningKey::generate(directory, "PK")?.signature_list()?;
            let store = store(none)?
                .with("PK", Guid::GLOBAL, SIGNED, &pk)?
                .with("KEK", Guid::GLOBAL, SIGNED, &kek)?
                .with("db", Guid::SECURITY_DATABASE, SIGNED, &db)?;
            enable(store, 1)?
        }
    };
    Ok(store.build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_says_its_version_up_to_the_first_space() {
        let mut kernel = vec![0; 0x300];
        kernel[KERNEL_VERSION] = 0x20;
        kernel[0x220..0x22a].copy_from_slice(b"6.12.1 (x)");
        assert_eq!(kernel_version(&kernel).unwrap(), b"6.12.1");
        assert!(kernel_version(b"MZ").is_err());
    }
}
