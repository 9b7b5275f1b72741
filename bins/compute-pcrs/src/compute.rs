//! One function per register.

use std::path::Path;

use anyhow::Context as _;
use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_support::image::{ImageChoice, predictor_of};
use tec_tpm::compute::input::OpenImage;
use tec_tpm::compute::{
    Component, DirectoryImage, Guid, PlatformState, Prediction, Register, SecureBoot,
};
use tec_tpm::output;

use crate::cli::{Compute, Image, Kind, MokVariables};

/// The lists in the order in which shim measures them (shim, `mok.c`, table of mirrored variables), each with
/// the ID of its event.
const LISTS: [(&str, &str); 3] = [
    ("MokListRT", "Pcr14MokList"),
    ("MokListXRT", "Pcr14MokListX"),
    ("MokListTrustedRT", "Pcr14MokListTrusted"),
];

const PRINT: &str = "cannot print the result";

/// Runs the requested computation and renders its result.
pub(crate) fn run(command: &Compute) -> anyhow::Result<String> {
    match command {
        Compute::All { image, kind, variables, mok } => {
            let (pcr4, pcr7) = (PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT);
            let platform = with_mok(with_variables(image, &variables.efivars)?, mok)?;
            let prediction = predict(image, *kind, &platform, &[pcr4, pcr7])?;
            let pcrs =
                vec![register(&prediction, pcr4)?, register(&prediction, pcr7)?, pcr14(mok)?];
            output::label(&ExpectedPcrs::new(pcrs)).context(PRINT)
        }
        Compute::Pcr4 { image, kind } => {
            let platform = PlatformState::with_unknown_variables(secure_boot(image));
            let pcr = PcrIndex::BOOT_MANAGER;
            one(&register(&predict(image, *kind, &platform, &[pcr])?, pcr)?)
        }
        Compute::Pcr7 { image, variables } => {
            let platform = with_variables(image, &variables.efivars)?;
            let pcr = PcrIndex::SECURE_BOOT;
            let prediction = predict(image, Kind { uki: false }, &platform, &[pcr])?;
            one(&register(&prediction, pcr)?)
        }
        Compute::Pcr11 { uki } => one(&pcr11(uki)?),
        Compute::Pcr14 { mok } => one(&pcr14(mok)?),
    }
}

fn one(pcr: &ExpectedPcr) -> anyhow::Result<String> {
    output::register(pcr).context(PRINT)
}

fn secure_boot(image: &Image) -> SecureBoot {
    if image.secureboot_disabled { SecureBoot::Off } else { SecureBoot::On }
}

fn open(image: &Path, choice: &ImageChoice) -> anyhow::Result<OpenImage> {
    choice.open(image).with_context(|| format!("cannot open the image {}", image.display()))
}

fn captured(directory: &Path) -> anyhow::Result<DirectoryImage> {
    DirectoryImage::open(directory)
        .with_context(|| format!("cannot open the directory {}", directory.display()))
}

/// The machine with these variables. The flag decides whether Secure Boot is on, regardless of the state in
/// which the variables were captured.
fn with_variables(image: &Image, efivars: &Path) -> anyhow::Result<PlatformState> {
    let platform = PlatformState::from_efivars(&captured(efivars)?, "")
        .with_context(|| format!("cannot read the variables in {}", efivars.display()))?;
    Ok(platform.with_secure_boot(secure_boot(image)))
}

/// The same machine with shim's lists, whose keys can authorize what shim starts.
fn with_mok(platform: PlatformState, mok: &MokVariables) -> anyhow::Result<PlatformState> {
    let directory = &mok.mok_variables;
    platform
        .with_mok_variables(&captured(directory)?, "")
        .with_context(|| format!("cannot read shim's lists in {}", directory.display()))
}

fn predict(
    image: &Image,
    kind: Kind,
    platform: &PlatformState,
    registers: &[PcrIndex],
) -> anyhow::Result<Prediction> {
    let registers: PcrSet = registers.iter().copied().collect();
    let rootfs = &image.rootfs;
    let opened = open(rootfs, &image.choice)?;
    let mut predictor = predictor_of(&opened).with_registers(registers);
    if let Some(kernel) = &image.kernel {
        predictor = predictor.with_kernel(kernel);
    }
    let prediction = predictor.predict(&opened, platform).with_context(|| unpredicted(rootfs))?;
    let mut events = prediction.measurements().iter();
    if kind.uki && !events.any(|event| event.component == Component::Pcr4Uki) {
        anyhow::bail!("{} does not boot a unified kernel image (omit --uki)", rootfs.display());
    }
    Ok(prediction)
}

fn unpredicted(rootfs: &Path) -> String {
    format!("cannot predict the boot of {}", rootfs.display())
}

/// PCR 11 depends on no variable, so without any it is enough that the image's signature is valid.
fn pcr11(uki: &Path) -> anyhow::Result<ExpectedPcr> {
    let image = open(uki, &ImageChoice::default())?;
    let prediction = predictor_of(&image).predict(&image, &PlatformState::new());
    register(&prediction.with_context(|| unpredicted(uki))?, PcrIndex::KERNEL_BOOT)
}

fn register(prediction: &Prediction, pcr: PcrIndex) -> anyhow::Result<ExpectedPcr> {
    if let Register::Unpredictable(reason) = prediction.register(pcr) {
        let reason = anyhow::Error::new(reason.clone());
        return Err(reason.context(format!("PCR {pcr} cannot be predicted")));
    }
    let expected = prediction.expected().pcrs;
    let found = expected.into_iter().find(|expected| expected.id == pcr);
    found.with_context(|| format!("nothing is measured into PCR {pcr}"))
}

/// PCR 14 from the lists that a running machine exposes. A missing list was not created by that machine's
/// shim, so it was not measured either; every shim creates MokListRT.
fn pcr14(mok: &MokVariables) -> anyhow::Result<ExpectedPcr> {
    let platform = with_mok(PlatformState::new(), mok)?;
    let events = LISTS.into_iter().filter_map(|(name, id)| {
        let Some(content) = platform.variable(name, Guid::SHIM) else {
            tracing::warn!(list = name, "the list is not there, so it is not measured");
            return None;
        };
        let digest = Sha256Digest::of(content);
        Some(ImageEvent::new("EV_IPL", PcrIndex::MOK, digest, id))
    });
    Ok(ExpectedPcr::from_events(PcrIndex::MOK, events))
}
