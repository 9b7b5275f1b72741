//! What firmware, shim and GRUB do before Linux runs, played on a software TPM: each boot file is
//! measured into PCR 4, and the event log says so.
//!
//! The real thing, OVMF in a virtual machine, is another test. The digests here are those of the
//! real files; that real firmware measures the same is shown by the tests of `tec-tpm` against
//! recorded boots.

use std::fs::File;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Context as _;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_tpm::compute::PeFile;
use tec_tpm::event_log::EventKind;
use tec_tpm::event_log::EventLogBuilder;
use tec_tpm::tss::Tpm;

/// What EDK II measures before it starts a boot option (TCG PC Client Platform Firmware Profile,
/// section "Event Logging", action strings).
const CALLING_APPLICATION: &[u8] = b"Calling EFI Application from Boot Option";

/// The files that a machine boots, in order, each with how often it is measured.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BootChain {
    /// Root of the file tree.
    pub root: PathBuf,
    /// Paths relative to the root.
    pub files: Vec<String>,
}

impl BootChain {
    /// The chain that an approval measured: its files in order, with their repetitions.
    ///
    /// # Errors
    /// `approved`, as `tec image approve --output json` prints it, has no PCR 4.
    pub fn of_approval(root: &Path, approved: &serde_json::Value) -> anyhow::Result<Self> {
        let pcrs = approved["pcrs"]
            .as_array()
            .context("the approval has no PCRs")?;
        let pcr4 = pcrs
            .iter()
            .find(|pcr| pcr["id"] == 4)
            .context("no PCR 4 in the approval")?;
        let events = pcr4["events"].as_array().context("PCR 4 has no events")?;
        let files = events.iter().filter_map(|event| event["source"].as_str());
        Ok(Self {
            root: root.to_owned(),
            files: files.map(str::to_owned).collect(),
        })
    }

    /// The same files in another tree, copied there.
    ///
    /// # Errors
    /// A file cannot be copied.
    pub fn copied_to(&self, root: &Path) -> anyhow::Result<Self> {
        for file in &self.files {
            let target = root.join(file);
            let parent = target.parent().context("a boot file needs a directory")?;
            std::fs::create_dir_all(parent)?;
            std::fs::copy(self.root.join(file), &target).with_context(|| format!("copy {file}"))?;
        }
        Ok(Self {
            root: root.to_owned(),
            files: self.files.clone(),
        })
    }

    /// The last file: the kernel.
    ///
    /// # Errors
    /// There are no files.
    pub fn kernel(&self) -> anyhow::Result<PathBuf> {
        Ok(self
            .root
            .join(self.files.last().context("the chain is empty")?))
    }
}

/// Measures a boot and returns the event log that Linux would find.
///
/// # Errors
/// A file is no PE image, or the TPM refuses.
pub fn boot(tpm: &Tpm, chain: &BootChain) -> anyhow::Result<Vec<u8>> {
    let mut log = EventLogBuilder::new();
    let pcr = PcrIndex::BOOT_MANAGER;
    tpm.pcr_extend(pcr, &Sha256Digest::of(CALLING_APPLICATION))?;
    log.measure(pcr, EventKind::EFI_ACTION, CALLING_APPLICATION);
    tpm.pcr_extend(pcr, &Sha256Digest::of([0; 4]))?;
    log.separator(pcr);
    for name in &chain.files {
        let path = chain.root.join(name);
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let image =
            PeFile::read(file, &[]).with_context(|| format!("measure {}", path.display()))?;
        tpm.pcr_extend(pcr, &image.authenticode())?;
        log.image(
            image.authenticode(),
            &format!("\\{}", name.replace('/', "\\")),
        );
    }
    Ok(log.build())
}
