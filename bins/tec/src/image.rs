//! Approved images, for people.

use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tec_core::boot::{BootInput, Pins, Unpinned};
use tec_core::flow::UnpinnedInputs;
use tec_core::id::ImageName;
use tec_core::image::{ApprovedImage, ExpectedPcrs};
use tec_core::pcr::PcrIndex;
use tec_core::port::Clock as _;
use tec_core::time::Timestamp;
use tec_support::SystemClock;
use tec_support::boot::{ChainArgs, MachineArgs};
use tec_tpm::output::ImageReference;

use crate::args::{Consent, Watch};

#[derive(Debug, Args)]
#[group(id = "origin", required = true, multiple = false)]
pub(crate) struct Origin {
    /// Image: directory, raw disk, FAT file system, tar stream, OCI layout, unified kernel image, or -
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
    #[command(flatten)]
    pub(crate) consent: Consent,
    // Last, because their headings apply to all flags after them.
    #[command(flatten)]
    pub(crate) chain: ChainArgs,
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
}

impl ApproveArgs {
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

/// Whether the image is approved, and until when.
pub(crate) fn image_state(image: &ApprovedImage) -> String {
    match (image.revoked_at, image.expires_at) {
        (Some(at), _) => format!("revoked {at}"),
        (None, Some(end)) if !image.is_live(SystemClock.now()) => format!("expired {end}"),
        (None, Some(end)) => format!("until {end}"),
        (None, None) => "approved".to_owned(),
    }
}

/// An object as printed, with the parts of its boot that are not checked.
#[derive(Serialize)]
pub(crate) struct WithUnpinned<T> {
    #[serde(flatten)]
    pub(crate) object: T,
    pub(crate) unpinned: Unpinned,
    /// The register that checks each input of its boot, if any does.
    pub(crate) checked_by: CheckedBy,
}

type CheckedBy = BTreeMap<BootInput, Option<PcrIndex>>;

impl<T> WithUnpinned<T> {
    pub(crate) fn new(checked_by: CheckedBy, object: T) -> Self {
        let open = checked_by.iter().filter(|(_, pcr)| pcr.is_none());
        let unpinned = open.map(|(input, _)| *input).collect();
        Self { object, unpinned, checked_by }
    }
}

/// What checks each input of a boot with these values.
pub(crate) fn checked_by(pins: Pins, expected: &ExpectedPcrs) -> CheckedBy {
    BootInput::ALL.into_iter().map(|input| (input, pins.covering(expected, input))).collect()
}

/// A valid approval of which parts are not checked. Displayed as a line that nobody overlooks.
#[derive(Debug, Serialize)]
pub(crate) struct UnpinnedImage {
    pub(crate) image: String,
    pub(crate) unpinned: Unpinned,
}

impl UnpinnedImage {
    /// `None` if everything is checked.
    pub(crate) fn of(image: &str, unpinned: Unpinned) -> Option<Self> {
        (!unpinned.is_empty()).then(|| Self { image: image.to_owned(), unpinned })
    }

    /// Those of these images whose approval is valid.
    pub(crate) fn among(images: &[ApprovedImage], pins: Pins) -> Vec<Self> {
        let live = images.iter().filter(|image| image.is_live(SystemClock.now()));
        live.filter_map(|image| Self::of(image.name.as_str(), pins.unpinned(&image.expected)))
            .collect()
    }
}

impl fmt::Display for UnpinnedImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WARNING: image {}: {}", self.image, self.unpinned)
    }
}

/// An image with all measurements, and first of all what they cover, and what they do not.
pub(crate) fn render<T>(image: &ApprovedImage, state: &str, shown: &WithUnpinned<T>) -> String {
    let mut text = format!("image {}  {state}\n", image.name);
    if !shown.unpinned.is_empty() {
        let _ = writeln!(text, "  WARNING: {}", shown.unpinned);
    }
    let _ = writeln!(text, "  from {}", image.reference);
    for (input, pcr) in &shown.checked_by {
        let checked = pcr.map_or("NOT checked".to_owned(), |pcr| format!("checked by PCR {pcr}"));
        let _ = writeln!(text, "  {:12}  {checked}", input.to_string());
    }
    for pcr in &image.expected.pcrs {
        let _ = writeln!(text, "  PCR {:2} = {}", pcr.id, pcr.value);
        for event in &pcr.events {
            let file = event.source.as_deref().unwrap_or("");
            let _ = writeln!(text, "    {}  {:15} {file}", event.hash, event.id);
        }
    }
    text
}

/// The consequence of revoking the last image.
pub(crate) fn last_image(name: &ImageName) -> String {
    format!(
        "Image {name} is the last approved image: without it no machine gets its disk key at its next boot."
    )
}
