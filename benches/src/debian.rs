//! Real boots of Debian, if available, with every file and variable that they started from.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use anyhow::{Context as _, Result};
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_core::reference::{BootImage, ImageFile};
use tec_tpm::compute::{
    Banks, BootPredictor, DirectoryImage, MemoryImage, PlatformState, Prediction,
};

/// Folder of the boots, next to the repository.
const BOOTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../shared/fixtures/qemu");
/// Where GRUB found its files in these boots.
const GRUB_DEVICE: &str = "hd0,gpt1";

/// A recorded boot.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Boot {
    /// Name, such as `trixie-sb-on`.
    pub name: String,
    /// Its folder, with the files of the EFI system partition in `esp` and the variables in
    /// `efivars`.
    pub folder: PathBuf,
    /// The variables.
    pub machine: PlatformState,
}

/// The recorded boots, sorted by name; empty if there are none.
///
/// # Errors
/// The boots cannot be read.
pub fn boots() -> Result<Vec<Boot>> {
    let Ok(entries) = fs::read_dir(BOOTS) else {
        return Ok(Vec::new());
    };
    let mut boots = Vec::new();
    for entry in entries {
        let folder = entry.context("cannot list the boots")?.path();
        let variables = folder.join("efivars");
        if !variables.is_dir() || !folder.join("esp").is_dir() {
            continue;
        }
        let variables = DirectoryImage::open(&variables)
            .with_context(|| format!("cannot open {}", variables.display()))?;
        let machine = PlatformState::from_efivars(&variables, "")
            .with_context(|| format!("cannot read the variables of {}", folder.display()))?
            .with_grub_device(GRUB_DEVICE);
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        boots.push(Boot { name: name.into_owned(), machine, folder });
    }
    boots.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(boots)
}

/// The first boot that has this in its name.
///
/// # Errors
/// The boots cannot be read.
pub fn boot(name: &str) -> Result<Option<Boot>> {
    let found = boots()?.into_iter().find(|boot| boot.name.contains(name));
    Ok(found)
}

impl Boot {
    /// The files of its EFI system partition.
    ///
    /// # Errors
    /// The folder cannot be opened.
    pub fn image(&self) -> io::Result<DirectoryImage> {
        DirectoryImage::open(self.folder.join("esp"))
    }

    /// The event log, if it was recorded.
    pub fn log(&self) -> Option<Vec<u8>> {
        fs::read(self.folder.join("eventlog.bin")).ok()
    }

    /// Predicts PCRs 4, 7 and 14: those by which images are approved.
    ///
    /// # Errors
    /// The prediction fails.
    pub fn predict(&self, image: &dyn BootImage) -> Result<Prediction> {
        let registers = [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK];
        let registers: PcrSet = registers.into_iter().collect();
        BootPredictor::new()
            .with_registers(registers)
            .predict(image, &self.machine)
            .with_context(|| format!("cannot predict {}", self.name))
    }

    /// Predicts all registers in these banks.
    ///
    /// # Errors
    /// The prediction fails.
    pub fn predict_all(&self, image: &dyn BootImage, banks: Banks) -> Result<Prediction> {
        BootPredictor::new()
            .with_banks(banks)
            .predict(image, &self.machine)
            .with_context(|| format!("cannot predict {}", self.name))
    }

    /// The files that [`predict`](Self::predict) reads, each once.
    ///
    /// # Errors
    /// The boot cannot be predicted.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        self.files_read_by(|image| self.predict(image))
    }

    /// The files that [`predict_all`](Self::predict_all) reads, each once.
    ///
    /// # Errors
    /// The boot cannot be predicted.
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
    ///
    /// # Errors
    /// A file cannot be read.
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
///
/// # Errors
/// A file does not exist.
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
