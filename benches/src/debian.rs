//! Boots of Debian, with every file and variable that they start from.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{fs, io};

use anyhow::{Context as _, Result};
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_core::reference::{BootImage, ImageFile};
use tec_tpm::compute::{
    Banks, BootPredictor, DirectoryImage, MemoryImage, PlatformState, Prediction,
};
use tempfile::TempDir;

/// Recorded boots, without their boot files.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tec-tpm/tests/boots");
/// Suites whose boot files `cargo xtask tools` may have fetched.
const SUITES: [&str; 2] = ["bookworm", "trixie"];
/// The boot files of a suite, and their places in the EFI system partition.
const FILES: [(&str, &str); 3] = [
    ("shimx64.efi", "EFI/BOOT/BOOTX64.EFI"),
    ("grubx64.efi", "EFI/BOOT/grubx64.efi"),
    ("vmlinuz", "vmlinuz"),
];
const GRUB_SCRIPT: &str = "set timeout=0\nlinux /vmlinuz console=ttyS0\ninitrd /initrd.img\nboot\n";
/// Size of an initramfs with a few modules.
const INITRAMFS: usize = 2 << 20;
/// Where GRUB finds its files.
const GRUB_DEVICE: &str = "hd0,gpt1";
/// Attributes before the content of a variable in efivarfs, in bytes.
const ATTRIBUTES: usize = 4;

/// A boot with Secure Boot on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Boot {
    /// Name, such as `trixie`.
    pub name: String,
    /// Its folder, with the files of the EFI system partition in `esp` and the variables in
    /// `efivars`.
    pub folder: PathBuf,
    /// The variables.
    pub machine: PlatformState,
    /// Removes the folder in the end.
    _folder: Option<Arc<TempDir>>,
}

/// Debian's boot files of the day, which `cargo xtask bench` fetches, on a recorded machine; and the recorded
/// boots below `TEC_FIXTURES`.
pub fn boots() -> Result<Vec<Boot>> {
    let mut boots = Vec::new();
    let cache = std::env::var_os("TEC_CACHE").map(PathBuf::from);
    for (suite, cache) in SUITES.into_iter().zip(cache.iter().cycle()) {
        let files = cache.join("boot").join(suite);
        if files.is_dir() {
            boots.push(of_the_day(suite, &files)?);
        }
    }
    if let Some(fixtures) = std::env::var_os("TEC_FIXTURES") {
        let mut folders = entries(&Path::new(&fixtures).join("qemu"))?;
        folders.retain(|folder| folder.join("esp").is_dir());
        for folder in folders {
            boots.push(Boot::open(folder, None)?);
        }
    }
    Ok(boots)
}

fn of_the_day(suite: &str, files: &Path) -> Result<Boot> {
    let temporary = tempfile::tempdir().context("cannot create a folder")?;
    let folder = temporary.path().join(suite);
    for (name, place) in FILES {
        let content = fs::read(files.join(name))
            .with_context(|| format!("cannot read {name} in {}", files.display()))?;
        write(&folder.join("esp").join(place), &content)?;
    }
    write(&folder.join("esp/EFI/debian/grub.cfg"), GRUB_SCRIPT.as_bytes())?;
    write(&folder.join("esp/initrd.img"), &vec![0x5a; INITRAMFS])?;
    let recorded = Path::new(RECORDED).join(format!("{suite}-sb-on")).join("efivars");
    for variable in entries(&recorded)? {
        let name = name(&variable);
        let content = fs::read(&variable).with_context(|| format!("cannot read {name}"))?;
        write(&folder.join("efivars").join(&name), &content)?;
        // The kernel shows shim's lists without their attributes, too.
        if let Some((list, _)) = name.split_once("RT-") {
            let content = content.get(ATTRIBUTES..).unwrap_or_default();
            write(&folder.join(format!("mok-variables/{list}RT")), content)?;
        }
    }
    Boot::open(folder, Some(Arc::new(temporary)))
}

/// The event logs of recorded boots, by name.
pub fn logs() -> Result<Vec<(String, Vec<u8>)>> {
    let mut logs = Vec::new();
    for folder in entries(Path::new(RECORDED))? {
        let log = folder.join("eventlog.bin");
        if log.is_file() {
            logs.push((name(&folder), fs::read(log).context("cannot read a log")?));
        }
    }
    Ok(logs)
}

/// The entries of a folder, sorted.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = || format!("cannot list {}", folder.display());
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).with_context(listed)? {
        paths.push(entry.with_context(listed)?.path());
    }
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, content))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// The first boot that has this in its name.
pub fn boot(name: &str) -> Result<Option<Boot>> {
    let found = boots()?.into_iter().find(|boot| boot.name.contains(name));
    Ok(found)
}

impl Boot {
    fn open(folder: PathBuf, temporary: Option<Arc<TempDir>>) -> Result<Self> {
        let variables = DirectoryImage::open(folder.join("efivars"))
            .with_context(|| format!("cannot open the variables of {}", folder.display()))?;
        let machine = PlatformState::from_efivars(&variables, "")
            .with_context(|| format!("cannot read the variables of {}", folder.display()))?
            .with_grub_device(GRUB_DEVICE);
        Ok(Self { name: name(&folder), machine, folder, _folder: temporary })
    }

    /// The files of its EFI system partition.
    pub fn image(&self) -> io::Result<DirectoryImage> {
        DirectoryImage::open(self.folder.join("esp"))
    }

    /// Predicts PCRs 4, 7 and 14: those by which images are approved.
    pub fn predict(&self, image: &dyn BootImage) -> Result<Prediction> {
        let registers = [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK];
        let registers: PcrSet = registers.into_iter().collect();
        BootPredictor::new()
            .with_registers(registers)
            .predict(image, &self.machine)
            .with_context(|| format!("cannot predict {}", self.name))
    }

    /// Predicts all registers in these banks.
    pub fn predict_all(&self, image: &dyn BootImage, banks: Banks) -> Result<Prediction> {
        BootPredictor::new()
            .with_banks(banks)
            .predict(image, &self.machine)
            .with_context(|| format!("cannot predict {}", self.name))
    }

    /// The files that [`predict`](Self::predict) reads, each once.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        self.files_read_by(|image| self.predict(image))
    }

    /// The files that [`predict_all`](Self::predict_all) reads, each once.
    pub fn all_files(&self) -> Result<Vec<PathBuf>> {
        self.files_read_by(|image| self.predict_all(image, Banks::SHA256))
    }

    fn files_read_by(
        &self,
        predict: impl Fn(&dyn BootImage) -> Result<Prediction>,
    ) -> Result<Vec<PathBuf>> {
        let recorder = Recorder { image: self.image()?, opened: Mutex::default() };
        predict(&recorder)?;
        let mut opened = recorder.opened.into_inner().unwrap_or_else(PoisonError::into_inner);
        opened.sort();
        opened.dedup();
        let esp = self.folder.join("esp");
        Ok(opened.iter().map(|path| esp.join(path)).collect())
    }

    /// The same image in memory.
    pub fn in_memory(&self) -> Result<MemoryImage> {
        let esp = self.image()?;
        let mut image = MemoryImage::new();
        for path in esp.files("").context("cannot list the files")? {
            let mut content = Vec::new();
            let mut file = esp.open(&path).with_context(|| format!("cannot open {path}"))?;
            file.read_to_end(&mut content).with_context(|| format!("cannot read {path}"))?;
            image.insert(path, content);
        }
        Ok(image)
    }
}

/// Total size of files.
pub fn size(files: &[impl AsRef<Path>]) -> Result<u64> {
    let size = |file: &Path| {
        let metadata =
            fs::metadata(file).with_context(|| format!("cannot find {}", file.display()));
        metadata.map(|metadata| metadata.len())
    };
    files.iter().map(|file| size(file.as_ref())).sum()
}

/// Records what is opened.
#[derive(Debug)]
struct Recorder {
    image: DirectoryImage,
    opened: Mutex<Vec<String>>,
}

impl BootImage for Recorder {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        self.image.files(prefix)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.push(path.to_owned());
        self.image.open(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs recorded-boots: set TEC_FIXTURES"]
    fn boot_files_of_the_day_boot_on_a_recorded_machine() {
        let fixtures = std::env::var_os("TEC_FIXTURES").unwrap();
        let esp = Path::new(&fixtures).join("qemu/trixie-sb-on/esp");
        let files = tempfile::tempdir().unwrap();
        for (name, place) in FILES {
            fs::copy(esp.join(place), files.path().join(name)).unwrap();
        }
        let boot = of_the_day("trixie", files.path()).unwrap();
        assert_eq!(boot.files().unwrap().len(), FILES.len());
        assert!(boot.all_files().unwrap().len() > FILES.len());
        assert!(boot.folder.join("mok-variables/MokListRT").is_file());
    }

    #[test]
    fn logs_of_recorded_boots_are_there_without_boot_files() {
        assert!(logs().unwrap().iter().any(|(name, _)| name == "trixie-sb-on"));
    }
}
