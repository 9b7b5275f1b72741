//! Simulates on a software TPM what firmware, shim and GRUB do before Linux runs: each boot file is measured
//! into PCR 4 and recorded in the event log.
//!
//! The real thing, OVMF in a virtual machine, is a different test. The digests here are those of the real
//! files; the tests of `tec-tpm` against recorded boots show that real firmware measures the same.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::compute::PeFile;
use tec_tpm::event_log::{EventKind, EventLogBuilder};
use tec_tpm::tpm::AnyTpm as _;
use tec_tpm::tss::Tpm;

/// What EDK II measures before it starts a boot option (TCG PC Client Platform Firmware Profile, section
/// "Event Logging", action strings).
const CALLING_APPLICATION: &[u8] = b"Calling EFI Application from Boot Option";

/// Version of the firmware.
const VERSION: &str = "1.0";

/// Index of the kernel in a [`BootChain`]: shim and GRUB come first, its repetitions last.
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

    /// The kernel.
    pub fn kernel(&self) -> anyhow::Result<PathBuf> {
        let file = self.files.get(KERNEL);
        Ok(self.root.join(file.context("the chain is too short")?))
    }

    fn authenticode(&self, name: &str) -> anyhow::Result<Sha256Digest> {
        let path = self.root.join(name);
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let image =
            PeFile::read(file, &[]).with_context(|| format!("measure {}", path.display()))?;
        Ok(image.authenticode())
    }
}

/// Measures a boot and returns the event log that Linux would find.
pub fn boot(tpm: &Tpm, chain: &BootChain) -> anyhow::Result<Vec<u8>> {
    let mut log = EventLogBuilder::new();
    // UCS-2, with a zero at the end (PC Client Platform Firmware Profile, EV_S_CRTM_VERSION).
    let version: Vec<u8> = VERSION.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
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
