//! Makes the disk, as an installer does.

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::qemu::{disk, must};
use crate::vm::node;
use crate::vm::settings::Settings;
use crate::volume;

/// What starts the kernel of a distribution, and what made its initramfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Chain {
    /// shim and GRUB with the configuration that `update-grub` writes; initramfs-tools.
    Grub,
    /// A unified kernel image that the firmware starts, without Secure Boot; dracut with systemd.
    Unified,
    /// The same, started by systemd-boot as `bootctl install` sets it up.
    Manager,
}

impl Chain {
    /// What it consists of.
    pub(in crate::vm) const fn title(self) -> &'static str {
        match self {
            Self::Grub => "shim, GRUB and initramfs-tools",
            Self::Unified => "a unified kernel image made by dracut",
            Self::Manager => "systemd-boot and a unified kernel image made by dracut",
        }
    }

    /// The firmware's variables.
    pub(super) const fn variables(self) -> &'static str {
        match self {
            Self::Grub => node::VARIABLES,
            Self::Unified | Self::Manager => "OVMF_VARS.fd",
        }
    }

    /// What the initramfs prints when it asks for a passphrase.
    pub(super) const fn prompt(self) -> &'static str {
        match self {
            Self::Grub => "Please unlock disk",
            Self::Unified | Self::Manager => "enter passphrase for disk",
        }
    }
}

/// The passphrase that an admin chose at the installation.
pub(in crate::vm) const PASSPHRASE: &str = "hunter2";
/// UUID of the encrypted partition.
const ENCRYPTED: &str = "11111111-2222-4333-8444-555555555555";
/// UUID of the file system in it, which `grub.cfg` names.
const ROOT: &str = "22222222-2222-4333-8444-555555555555";
/// Bytes of a LUKS2 header with its key slots, as `cryptsetup` makes it.
pub(in crate::vm) const HEADER: u64 = 16 << 20;
/// Time limit of the machine that installs.
const LIMIT: &str = "30m";
/// What is on every machine; written into the system before its initramfs is made.
const TEXTS: [(&str, &str); 8] = [
    ("etc/hostname", "debian\n"),
    ("etc/hosts", "127.0.0.1 localhost\n127.0.1.1 debian\n"),
    (
        "etc/fstab",
        "/dev/mapper/root_crypt / ext4 errors=remount-ro 0 1\n\
         UUID=33333333-2222-4333-8444-555555555555 /boot ext4 x-systemd.device-timeout=10min 0 2\n\
         UUID=ABCD-1234 /boot/efi vfat umask=0077,x-systemd.device-timeout=10min 0 1\n",
    ),
    (
        "etc/crypttab",
        "root_crypt UUID=11111111-2222-4333-8444-555555555555 none luks,discard,initramfs\n",
    ),
    (
        "etc/default/grub",
        "GRUB_DEFAULT=0\nGRUB_TIMEOUT=1\nGRUB_DISTRIBUTOR=Debian\nGRUB_CMDLINE_LINUX_DEFAULT=\"\"\n\
         GRUB_CMDLINE_LINUX=\"console=tty0 console=ttyS0,115200\"\n",
    ),
    ("etc/systemd/network/lan.network", "[Match]\nName=en*\n[Network]\nDHCP=yes\n"),
    (
        "etc/systemd/system/serve.service",
        "[Unit]\nAfter=basic.target\n[Service]\nExecStart=/usr/local/sbin/serve\n",
    ),
    ("etc/initramfs-tools/conf.d/modules", "MODULES=most\n"),
];
const SERVE: &str = "usr/local/sbin/serve";
const LINKS: [(&str, &str); 2] = [
    ("../serve.service", "etc/systemd/system/multi-user.target.wants/serve.service"),
    (
        "/usr/lib/systemd/system/systemd-networkd.service",
        "etc/systemd/system/multi-user.target.wants/systemd-networkd.service",
    ),
];
/// Where the scripts look for packages.
const PACKAGES: &str = "var/tmp/packages";

/// The parts that installing takes.
#[derive(Debug)]
pub(super) struct Installer {
    directory: PathBuf,
}

impl Installer {
    /// Unpacks the distribution, installs the packages, and makes the initramfs.
    pub(super) fn prepare(settings: &Settings, name: &str) -> anyhow::Result<Self> {
        ensure!(!settings.packages.is_empty(), "no --package to install");
        let installer = Self { directory: settings.artefacts.join(name) };
        let system = installer.directory.join("system");
        fs::create_dir_all(&system)?;
        let tar = settings.cache.join(format!("{name}.tar"));
        must(Command::new("tar").arg("-xf").arg(&tar).arg("-C").arg(&system))?;
        add_files(&system, &settings.packages)?;
        let header = installer.header();
        format(&header)?;
        let (initramfs, line) = (installer.directory.join("initrd.img"), command_line());
        let paths: [&Path; 5] =
            [&system, &header, &initramfs, &installer.update(), Path::new(&line)];
        run("prepare.sh", include_str!("prepare.sh"), &paths)?;
        fs::copy(find(&system.join("boot"), "vmlinuz")?, installer.directory.join("vmlinuz"))?;
        let install = system.join("install");
        fs::write(&install, include_str!("install.sh"))?;
        fs::set_permissions(&install, fs::Permissions::from_mode(0o755))?;
        Ok(installer)
    }

    fn header(&self) -> PathBuf {
        self.directory.join("header.img")
    }

    /// What an upgrade makes: the initramfs or the unified kernel image with one more module.
    pub(super) fn update(&self) -> PathBuf {
        self.directory.join("update.img")
    }

    pub(super) fn has_newer_kernel(&self) -> bool {
        self.directory.join("system/later").exists()
    }

    /// Begins a re-encryption of the root of a disk.
    pub(super) fn begin_reencryption(&self, disk: &Path) -> anyhow::Result<()> {
        let (mut begin, header) = (vec![0; usize::try_from(HEADER)?], self.header());
        File::open(disk)?.read_exact_at(&mut begin, disk::offset_of_installed_root())?;
        fs::write(&header, begin)?;
        File::options().write(true).open(&header)?.set_len(disk::INSTALLED_ROOT)?;
        cryptsetup("reencrypt --init-only --key-slot 0", &[], &header)?;
        put_header(&header, disk)
    }

    /// Replaces the encrypted root of a disk by a plain one, which waits for no other disk. From then on, this installs
    /// nothing else.
    pub(super) fn plant_plain(&self, disk: &Path) -> anyhow::Result<()> {
        let settings = self.directory.join("system/etc");
        fs::write(settings.join("fstab"), format!("UUID={ROOT} / ext4 defaults 0 1\n"))?;
        fs::write(settings.join("crypttab"), "")?;
        let image = self.image()?;
        let mut copy = Command::new("dd");
        let place = format!("seek={}", disk::offset_of_installed_root() >> 20);
        copy.args(["bs=1M", "conv=notrunc", &place]);
        copy.arg(format!("if={}", image.display())).arg(format!("of={}", disk.display()));
        must(&mut copy)?;
        fs::remove_file(&image).context("cannot remove an image")
    }

    /// The system as a file system, with the UUID of the installed root.
    fn image(&self) -> anyhow::Result<PathBuf> {
        let image = self.directory.join("system.img");
        let _ = fs::remove_file(&image);
        let mut make = volume::command("mke2fs");
        make.args(["-q", "-t", "ext4", "-O", "^has_journal", "-U", ROOT, "-d"]);
        must(make.arg(self.directory.join("system")).arg(&image).arg("2500M"))?;
        Ok(image)
    }

    /// A disk with the distribution on it: boots the machine that installs onto it.
    pub(super) fn install(&self, disk: &Path) -> anyhow::Result<()> {
        disk::write_as_installer(disk)?;
        put_header(&self.header(), disk)?;
        let passphrase = self.directory.join("system/passphrase");
        fs::write(&passphrase, PASSPHRASE)?;
        let made = self.image();
        fs::remove_file(passphrase)?;
        let image = made?;
        let console = self.directory.join("install.log");
        let mut qemu = Command::new("timeout");
        qemu.args([LIMIT, "qemu-system-x86_64", "-machine", "q35,accel=tcg", "-cpu", "max"])
            .args([
                "-m",
                "1024",
                "-nodefaults",
                "-no-user-config",
                "-no-reboot",
                "-display",
                "none",
            ])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .arg("-kernel")
            .arg(self.directory.join("vmlinuz"))
            .arg("-initrd")
            .arg(self.directory.join("initrd.img"))
            .arg("-append")
            .arg("root=/dev/vda rw console=ttyS0 init=/install panic=5");
        for (file, more) in [(&image, ""), (&disk.to_owned(), ",cache=unsafe")] {
            qemu.arg("-drive").arg(format!("if=virtio,format=raw,file={}{more}", file.display()));
        }
        must(&mut qemu)?;
        fs::remove_file(&image)?;
        let said = String::from_utf8_lossy(&fs::read(&console)?).into_owned();
        let tail = said.get(said.len().saturating_sub(3000)..).unwrap_or(&said);
        ensure!(said.contains("INSTALL: done"), "it is not installed:\n{tail}");
        Ok(())
    }
}

/// Command line of a unified kernel image.
pub(in crate::vm) fn command_line() -> String {
    format!(
        "root=UUID={ROOT} rd.luks.name={ENCRYPTED}=root_crypt rw console=tty0 console=ttyS0,115200"
    )
}

fn put_header(header: &Path, disk: &Path) -> anyhow::Result<()> {
    let mut begin = vec![0; usize::try_from(HEADER)?];
    File::open(header)?.read_exact_at(&mut begin, 0)?;
    let disk = File::options().write(true).open(disk)?;
    disk.write_all_at(&begin, disk::offset_of_installed_root()).context("cannot write the disk")
}

fn add_files(system: &Path, packages: &[PathBuf]) -> anyhow::Result<()> {
    let serve = (SERVE, 0o755, include_str!("serve.sh"));
    for (place, mode, text) in
        TEXTS.map(|(place, text)| (place, 0o644, text)).into_iter().chain([serve])
    {
        let path = system.join(place);
        fs::create_dir_all(path.parent().unwrap_or(system))?;
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
    }
    for (to, place) in LINKS {
        let path = system.join(place);
        fs::create_dir_all(path.parent().unwrap_or(system))?;
        symlink(to, &path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let place = system.join(PACKAGES);
    fs::create_dir_all(&place)?;
    for package in packages {
        let name = package.file_name().context("a package has a name")?;
        fs::copy(package, place.join(name))
            .with_context(|| format!("cannot copy {}", package.display()))?;
    }
    Ok(())
}

/// Writes the header of an encrypted partition of the installed size.
fn format(path: &Path) -> anyhow::Result<()> {
    File::create(path)?.set_len(disk::INSTALLED_ROOT)?;
    cryptsetup(
        "luksFormat --type luks2 --sector-size 4096 --pbkdf pbkdf2 --pbkdf-force-iterations 1000",
        &["--uuid", ENCRYPTED],
        path,
    )
}

/// Runs it with the passphrase of the installation.
fn cryptsetup(command: &str, more: &[&str], path: &Path) -> anyhow::Result<()> {
    let mut words = volume::command("cryptsetup");
    words.args(command.split(' ')).args(["--batch-mode", "--key-file", "-"]).args(more).arg(path);
    let mut child = words.stdin(Stdio::piped()).spawn().context("cannot run cryptsetup")?;
    let mut pipe = child.stdin.take().context("no pipe to cryptsetup")?;
    pipe.write_all(PASSPHRASE.as_bytes())?;
    drop(pipe);
    ensure!(child.wait()?.success(), "cryptsetup {command} failed");
    Ok(())
}

/// Runs a script of this module in a mount namespace of its own.
fn run(name: &str, script: &str, arguments: &[&Path]) -> anyhow::Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join(name);
    fs::write(&path, script)?;
    must(volume::command("unshare").args(["--mount", "bash"]).arg(&path).args(arguments))
}

/// The file whose name begins so.
fn find(directory: &Path, begin: &str) -> anyhow::Result<PathBuf> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(begin) && entry.file_type()?.is_file() {
            return Ok(entry.path());
        }
    }
    anyhow::bail!("no {begin} in {}", directory.display())
}
