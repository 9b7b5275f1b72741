//! Simulates on a software TPM what firmware, shim and GRUB do before Linux runs: each boot file is measured
//! into PCR 4 and recorded in the event log.
//!
//! The real thing, OVMF in a virtual machine, is a different test. The digests here are those of the real
//! files; the tests of `tec-tpm` against recorded boots show that real firmware measures the same.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_tpm::compute::PeFile;
use tec_tpm::event_log::{EventKind, EventLogBuilder};
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::tss::Tpm;

/// What EDK II measures before it starts a boot option (TCG PC Client Platform Firmware Profile, section
/// "Event Logging", action strings).
const CALLING_APPLICATION: &[u8] = b"Calling EFI Application from Boot Option";

/// Index of shim in a [`BootChain`].
pub const SHIM: usize = 0;
/// Index of GRUB.
pub const GRUB: usize = 1;
/// Index of the kernel, and of its repetitions.
const KERNEL: usize = 2;

/// The files that a machine boots, in order, repeated as often as each is measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BootChain {
    /// Root of the file tree.
    pub root: PathBuf,
    /// Paths relative to the root.
    pub files: Vec<String>,
}

impl BootChain {
    /// The chain that an approval measured: its files in order, including repetitions.
    ///
    /// # Errors
    /// `approved`, as `tec image approve --output json` prints it, has no PCR 4.
    pub fn of_approval(root: &Path, approved: &serde_json::Value) -> anyhow::Result<Self> {
        let pcrs = approved["pcrs"].as_array().context("the approval has no PCRs")?;
        let pcr4 = pcrs.iter().find(|pcr| pcr["id"] == 4).context("no PCR 4 in the approval")?;
        let events = pcr4["events"].as_array().context("PCR 4 has no events")?;
        let files = events.iter().filter_map(|event| event["source"].as_str());
        Ok(Self { root: root.to_owned(), files: files.map(str::to_owned).collect() })
    }

    /// Copies the same files to a different tree.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn copied_to(&self, root: &Path) -> anyhow::Result<Self> {
        for file in &self.files {
            let target = root.join(file);
            let parent = target.parent().context("a boot file needs a directory")?;
            std::fs::create_dir_all(parent)?;
            std::fs::copy(self.root.join(file), &target)
                .with_context(|| format!("cannot copy {file}"))?;
        }
        Ok(Self { root: root.to_owned(), files: self.files.clone() })
    }

    /// The file at this index.
    ///
    /// # Errors
    /// There is none at this index.
    pub fn file(&self, place: usize) -> anyhow::Result<PathBuf> {
        let file = self.files.get(place);
        Ok(self.root.join(file.context("the chain is too short")?))
    }

    /// The kernel.
    ///
    /// # Errors
    /// There is none.
    pub fn kernel(&self) -> anyhow::Result<PathBuf> {
        self.file(KERNEL)
    }

    /// Replaces the file at this index with a copy of the one in another chain.
    ///
    /// # Errors
    /// One of the chains has none at this index, or it cannot be copied.
    pub fn with_file_of(mut self, place: usize, other: &Self) -> anyhow::Result<Self> {
        let name = other.files.get(place).context("the chain is too short")?;
        let from = other.file(place)?;
        std::fs::copy(&from, self.root.join(name))
            .with_context(|| format!("cannot copy {}", from.display()))?;
        let slot = self.files.get_mut(place);
        name.clone_into(slot.context("the chain is too short")?);
        Ok(self)
    }

    /// Replaces the kernel with that of another chain, repeated as often as its own was measured.
    ///
    /// # Errors
    /// The other chain has none, or it cannot be copied.
    pub fn with_kernel_of(mut self, other: &Self) -> anyhow::Result<Self> {
        for place in KERNEL..self.files.len() {
            self = self.with_file_of(place, other)?;
        }
        Ok(self)
    }

    /// The value that booting the chain leaves in PCR 4, as the builder of an image could state it.
    ///
    /// # Errors
    /// A file is not a PE image.
    pub fn expected(&self) -> anyhow::Result<ExpectedPcrs> {
        let pcr = PcrIndex::BOOT_MANAGER;
        let calling = Sha256Digest::of(CALLING_APPLICATION);
        let mut events = vec![
            ImageEvent::new("EV_EFI_ACTION", pcr, calling, "Pcr4EfiCall"),
            ImageEvent::new("EV_SEPARATOR", pcr, Sha256Digest::of([0; 4]), "Pcr4Separator"),
        ];
        for (place, name) in self.files.iter().enumerate() {
            let id = match place {
                SHIM => "Pcr4Shim",
                GRUB => "Pcr4Grub",
                _ => "Pcr4Vmlinuz",
            };
            let kind = "EV_EFI_BOOT_SERVICES_APPLICATION";
            let digest = self.authenticode(name)?;
            events.push(ImageEvent::new(kind, pcr, digest, id).from_file(name));
        }
        Ok(ExpectedPcrs::new(vec![ExpectedPcr::from_events(pcr, events)]))
    }

    fn authenticode(&self, name: &str) -> anyhow::Result<Sha256Digest> {
        let path = self.root.join(name);
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let image =
            PeFile::read(file, &[]).with_context(|| format!("measure {}", path.display()))?;
        Ok(image.authenticode())
    }
}

/// Measures a boot with this version of firmware and returns the event log that Linux would find.
///
/// # Errors
/// A file is not a PE image, or the TPM refuses.
pub fn boot(tpm: &Tpm, version: &str, chain: &BootChain) -> anyhow::Result<Vec<u8>> {
    let mut log = EventLogBuilder::new();
    // UCS-2, with a zero at the end (PC Client Platform Firmware Profile, EV_S_CRTM_VERSION).
    let version: Vec<u8> = version.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
    let firmware = PcrIndex::new(0)?;
    tpm.pcr_extend(firmware, &Sha256Digest::of(&version))?;
    log.measure(firmware, EventKind::S_CRTM_VERSION, &version);
    let pcr = PcrIndex::BOOT_MANAGER;
    tpm.pcr_extend(pcr, &Sha256Digest::of(CALLING_APPLICATION))?;
    log.measure(pcr, EventKind::EFI_ACTION, CALLING_APPLICATION);
    tpm.pcr_extend(pcr, &Sha256Digest::of([0; 4]))?;
    log.separator(pcr);
    for name in &chain.files {
        let digest = chain.authenticode(name)?;
        tpm.pcr_extend(pcr, &digest)?;
        log.image(digest, &format!("\\{}", name.replace('/', "\\")));
    }
    Ok(log.build())
}
