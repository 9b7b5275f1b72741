//! Approved images, for people.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tec_core::boot::{Coverage, Pins, Unpinned};
use tec_core::flow::UnpinnedInputs;
use tec_core::id::{ImageName, MachineId};
use tec_core::image::ApprovedImage;
use tec_core::port::Clock as _;
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::boot::{ChainArgs, MachineArgs};
use tec_support::table;
use tec_tpm::output::ImageReference;

use crate::args::{Consent, Watch};

#[derive(Debug, Args)]
#[group(id = "origin", required = true, multiple = false)]
pub(crate) struct Origin {
    /// Image: directory, raw disk, FAT or ext4 file system, tar stream, OCI layout, unified kernel image, or -
    /// for standard input; on Kubernetes a reference with its digest, `registry/name@sha256:…`.
    #[arg(group = "origin")]
    pub(crate) image: Option<PathBuf>,
    /// File with computed values, as in the label `org.coreos.pcrs`.
    #[arg(
        long,
        value_name = "FILE",
        group = "origin",
        conflicts_with_all = ["ChainArgs", "ImageChoice", "MachineArgs"]
    )]
    pub(crate) pcrs: Option<PathBuf>,
    /// Signed bundle of values, as written by `tec pcr bundle sign`.
    #[arg(
        long,
        value_name = "FILE",
        group = "origin",
        requires_all = ["signature", "keys"],
        conflicts_with_all = ["ChainArgs", "ImageChoice", "MachineArgs"]
    )]
    pub(crate) bundle: Option<PathBuf>,
    /// A refused attempt, or the machine whose last attempt was refused: its boot is approved as the event log
    /// proves it, for machines that no prediction covers. Shows each event, and asks.
    #[arg(
        long,
        value_name = "ATTEMPT",
        group = "origin",
        conflicts_with_all = ["ChainArgs", "ImageChoice", "MachineArgs"]
    )]
    pub(crate) from_attempt: Option<String>,
}

/// Whether this is an image of a registry, which a cluster reads itself.
pub(crate) fn is_reference(image: &Path) -> bool {
    image.to_string_lossy().contains("@sha256:")
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Approve an image: predict its PCR values, and release keys to machines that boot it.
    Approve(Box<ApproveArgs>),
    /// List images.
    List(Watch),
    /// Show an image with its measurements.
    Show {
        /// Name of the image.
        name: ImageName,
    },
    /// Revoke the approval of an image; with --dry-run, list the machines that last booted it.
    Revoke {
        /// Name of the image.
        name: ImageName,
        #[command(flatten)]
        consent: Consent,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ApproveArgs {
    /// Name of the approval.
    pub(crate) name: ImageName,
    #[command(flatten)]
    pub(crate) origin: Origin,
    #[command(flatten)]
    pub(crate) proof: ProofArgs,
    /// Lifetime of the approval, such as 72h (default: until it is revoked).
    #[arg(long = "for", value_name = "DURATION", value_parser = humantime::parse_duration)]
    lifetime: Option<Duration>,
    /// Secret with the credentials of the registry, on Kubernetes.
    #[arg(long, value_name = "NAME")]
    pub(crate) pull_secret: Option<String>,
    #[command(flatten)]
    pub(crate) unpinned: UnpinnedArgs,
    /// Hold each machine to its first boot of the image, for those of PCRs 8, 9, 12, 13 and 14 that the image
    /// does not state. Not for a boot that changes them itself, as a GRUB that saves the last entry does.
    #[arg(long)]
    pub(crate) first_boot: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    // Last, because their headings apply to all flags after them.
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

impl ApproveArgs {
    /// What is done about parts of the boot that nothing covers.
    pub(crate) fn inputs(&self) -> UnpinnedInputs {
        if self.first_boot { UnpinnedInputs::Accept } else { self.unpinned.inputs() }
    }

    /// When the approval expires.
    pub(crate) fn expires_at(&self) -> Option<Timestamp> {
        let after = |lifetime: Duration| {
            let seconds = i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX);
            SystemClock.now().plus_seconds(seconds)
        };
        self.lifetime.map(after)
    }
}

/// The answer to a refusal with TEC-I428.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct UnpinnedArgs {
    /// Approve although no PCR covers the initramfs, the command line or the kernel: these are NOT checked.
    #[arg(long)]
    accept_unpinned: bool,
}

impl UnpinnedArgs {
    pub(crate) fn inputs(self) -> UnpinnedInputs {
        if self.accept_unpinned { UnpinnedInputs::Accept } else { UnpinnedInputs::Refuse }
    }
}

/// What authenticates a bundle.
#[derive(Debug, Args)]
pub(crate) struct ProofArgs {
    /// The signature of the bundle.
    #[arg(long, value_name = "FILE", requires = "bundle")]
    pub(crate) signature: Option<PathBuf>,
    /// Public key that may have signed it, PEM; repeatable.
    #[arg(long = "key", value_name = "FILE", requires = "bundle")]
    pub(crate) keys: Vec<PathBuf>,
    /// Digest of the image that the bundle must be for: sha256:…
    #[arg(long, value_name = "DIGEST", requires = "bundle")]
    pub(crate) image_digest: Option<ImageReference>,
}

/// An image as an anchor holds it, with what covers each part of its boot.
#[derive(Debug, Serialize)]
pub(crate) struct Approval {
    #[serde(flatten)]
    pub(crate) image: ApprovedImage,
    pub(crate) unpinned: Unpinned,
    #[serde(skip_serializing_if = "Coverage::is_empty")]
    pub(crate) coverage: Coverage,
    /// Why no machine gets its key for it although it is approved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held_back: Option<String>,
}

impl Approval {
    /// While nothing is known of an image's boots, none of them gets a key.
    pub(crate) fn new(image: ApprovedImage, pins: Pins) -> Self {
        let known = Some(&image.expected).filter(|expected| !expected.is_empty());
        let unpinned = known.map(|expected| pins.unpinned(expected)).unwrap_or_default();
        let coverage = known.map(|expected| pins.coverage(expected)).unwrap_or_default();
        Self { image, unpinned, coverage, held_back: None }
    }

    pub(crate) fn is_live(&self) -> bool {
        self.held_back.is_none() && self.image.is_live(SystemClock.now())
    }

    /// Whether the image is approved, and until when.
    pub(crate) fn state(&self) -> String {
        match (self.image.revoked_at, self.image.expires_at, &self.held_back) {
            (Some(at), ..) => format!("revoked {at}"),
            (None, Some(end), _) if !self.image.is_live(SystemClock.now()) => {
                format!("expired {end}")
            }
            (None, _, Some(why)) => format!("held back: {why}"),
            (None, Some(end), None) => format!("until {end}"),
            (None, None, None) => "approved".to_owned(),
        }
    }

    /// All measurements, and first of all what they cover, and what they do not.
    pub(crate) fn text(&self, state: &str) -> String {
        let mut text = format!("image {}  {state}\n", self.image.name);
        if !self.unpinned.is_empty() {
            let _ = writeln!(text, "  WARNING: {}", self.unpinned);
        }
        let _ = writeln!(text, "  from {}", self.image.reference);
        let rows = self.coverage.rows().iter();
        let rows: Vec<_> = rows
            .map(|row| [row.part.to_string(), row.registers(), row.sentence().to_owned()])
            .collect();
        for line in table::lines(rows.iter().map(|row| row.iter().map(String::as_str).collect())) {
            let _ = writeln!(text, "  {line}");
        }
        for pcr in &self.image.expected.pcrs {
            let _ = writeln!(text, "  PCR {:2} = {}", pcr.id, pcr.value);
            for event in &pcr.events {
                let file = event.source.as_deref().unwrap_or("");
                let _ = writeln!(text, "    {}  {:15} {file}", event.hash, event.id);
            }
        }
        text
    }
}

/// A valid approval of which parts are not checked. Displayed as a line that nobody overlooks.
#[derive(Debug, Serialize)]
pub(crate) struct UnpinnedImage {
    pub(crate) image: ImageName,
    pub(crate) unpinned: Unpinned,
}

impl UnpinnedImage {
    /// Those of these images whose approval is valid.
    pub(crate) fn among(images: &[Approval]) -> Vec<Self> {
        // Also if it is held back: a key broker counts an image once its values are known.
        let is_open =
            |one: &&Approval| one.image.is_live(SystemClock.now()) && !one.unpinned.is_empty();
        let live = images.iter().filter(is_open);
        let of =
            |one: &Approval| Self { image: one.image.name.clone(), unpinned: one.unpinned.clone() };
        live.map(of).collect()
    }
}

impl fmt::Display for UnpinnedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WARNING: image {}: {}", self.image, self.unpinned)
    }
}

/// What a valid approval covers.
#[derive(Debug, Serialize)]
pub(crate) struct CoveredImage {
    pub(crate) image: ImageName,
    pub(crate) coverage: Coverage,
}

impl CoveredImage {
    /// Those of these images whose approval is valid, and whose measurements are known.
    pub(crate) fn among(images: &[Approval]) -> Vec<Self> {
        let is_live =
            |one: &&Approval| one.image.is_live(SystemClock.now()) && !one.coverage.is_empty();
        let of =
            |one: &Approval| Self { image: one.image.name.clone(), coverage: one.coverage.clone() };
        images.iter().filter(is_live).map(of).collect()
    }

    /// One line for all images that cover the same.
    pub(crate) fn lines(all: &[Self]) -> Vec<String> {
        let mut same: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for one in all {
            same.entry(one.coverage.to_string()).or_default().push(one.image.as_str());
        }
        let line = |(coverage, images): (String, Vec<&str>)| match images.as_slice() {
            [image] => format!("coverage      {image}: {coverage}"),
            [image, others @ ..] => {
                format!("coverage      {image} and {} more: {coverage}", others.len())
            }
            [] => coverage,
        };
        same.into_iter().map(line).collect()
    }
}

/// A machine, and what it booted last.
#[derive(Debug, Serialize)]
pub(crate) struct OnImage {
    pub(crate) machine: MachineId,
    pub(crate) booted: String,
}

impl OnImage {
    pub(crate) fn lines(all: &[Self]) -> String {
        let line = |one: &Self| format!("  machine {}: last {}\n", one.machine, one.booted);
        all.iter().map(line).collect()
    }
}

/// The consequence of revoking the last image.
pub(crate) fn last_image(name: &ImageName) -> String {
    format!(
        "Image {name} is the last approved image: without it no machine gets its disk key at its next boot."
    )
}
