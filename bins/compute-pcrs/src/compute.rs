//! One function per register.

use std::io;
use std::path::{Path, PathBuf};

use tec_core::image::{ExpectedPcr, ExpectedPcrs};
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_support::image::{ImageChoice, predictor_of};
use tec_tpm::compute::input::{InputError, OpenImage};
use tec_tpm::compute::{
    Component, DirectoryImage, PlatformError, PlatformState, PredictError, Prediction, Register,
    SecureBoot, Unpredictable,
};
use tec_tpm::output;
use tec_tpm::output::OutputError;

use crate::cli::{Compute, Image, Kind, MokVariables};
use crate::mok;
use crate::mok::MokError;

/// The computation failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ComputePcrsError {
    /// The image cannot be opened.
    #[error("cannot open the image {}", .image.display())]
    Image {
        image: PathBuf,
        #[source]
        source: Box<InputError>,
    },
    /// A captured directory of the machine cannot be opened.
    #[error("cannot open the directory {}", .directory.display())]
    Directory {
        directory: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The machine owner keys cannot be determined.
    #[error("PCR 14")]
    Mok(#[source] MokError),
    /// The variables cannot be read.
    #[error("cannot read the variables in {}", .efivars.display())]
    Variables {
        efivars: PathBuf,
        #[source]
        source: PlatformError,
    },
    /// The next boot cannot be predicted.
    #[error("cannot predict the boot of {}", .rootfs.display())]
    Predict {
        rootfs: PathBuf,
        #[source]
        source: Box<PredictError>,
    },
    /// The register cannot be derived from the image and the machine.
    #[error("PCR {pcr} cannot be predicted")]
    Unpredictable {
        pcr: PcrIndex,
        #[source]
        source: Unpredictable,
    },
    /// Nothing is measured into the register.
    #[error("nothing is measured into PCR {pcr}")]
    NotMeasured { pcr: PcrIndex },
    /// The image does not boot what the flag names.
    #[error("{} does not boot a unified kernel image (omit --uki)", .rootfs.display())]
    NoUki { rootfs: PathBuf },
    /// shim's lists cannot be read.
    #[error("cannot read shim's lists in {}", .directory.display())]
    MokVariables {
        directory: PathBuf,
        #[source]
        source: PlatformError,
    },
    /// The result cannot be printed.
    #[error("cannot print the result")]
    Print(#[source] OutputError),
}

/// Runs the requested computation and renders its result.
pub(crate) fn run(command: &Compute) -> Result<String, ComputePcrsError> {
    match command {
        Compute::All { image, kind, variables, mok } => {
            let (pcr4, pcr7) = (PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT);
            let platform = with_mok(with_variables(image, &variables.efivars)?, mok)?;
            let prediction = predict(image, *kind, &platform, &[pcr4, pcr7])?;
            let pcrs = vec![
                register(&prediction, pcr4)?,
                register(&prediction, pcr7)?,
                pcr14(&mok.mok_variables)?,
            ];
            output::label(&ExpectedPcrs::new(pcrs)).map_err(ComputePcrsError::Print)
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
        Compute::Pcr14 { mok } => one(&pcr14(&mok.mok_variables)?),
    }
}

fn one(pcr: &ExpectedPcr) -> Result<String, ComputePcrsError> {
    output::register(pcr).map_err(ComputePcrsError::Print)
}

fn secure_boot(image: &Image) -> SecureBoot {
    if image.secureboot_disabled { SecureBoot::Off } else { SecureBoot::On }
}

fn open(image: &Path, choice: &ImageChoice) -> Result<OpenImage, ComputePcrsError> {
    choice.open(image).map_err(|source| ComputePcrsError::Image {
        image: image.to_owned(),
        source: Box::new(source),
    })
}

fn captured(directory: &Path) -> Result<DirectoryImage, ComputePcrsError> {
    DirectoryImage::open(directory)
        .map_err(|source| ComputePcrsError::Directory { directory: directory.to_owned(), source })
}

/// The machine with these variables. The flag decides whether Secure Boot is on, regardless of the state in
/// which the variables were captured.
fn with_variables(image: &Image, efivars: &Path) -> Result<PlatformState, ComputePcrsError> {
    let platform = PlatformState::from_efivars(&captured(efivars)?, "");
    let platform = platform
        .map_err(|source| ComputePcrsError::Variables { efivars: efivars.to_owned(), source })?;
    Ok(platform.with_secure_boot(secure_boot(image)))
}

/// The same machine with shim's lists, whose keys can authorize what shim starts.
fn with_mok(
    platform: PlatformState,
    mok: &MokVariables,
) -> Result<PlatformState, ComputePcrsError> {
    let directory = &mok.mok_variables;
    let taken = platform.with_mok_variables(&captured(directory)?, "");
    taken.map_err(|source| ComputePcrsError::MokVariables { directory: directory.clone(), source })
}

fn predict(
    image: &Image,
    kind: Kind,
    platform: &PlatformState,
    registers: &[PcrIndex],
) -> Result<Prediction, ComputePcrsError> {
    let registers: PcrSet = registers.iter().copied().collect();
    let rootfs = &image.rootfs;
    let opened = open(rootfs, &image.choice)?;
    let mut predictor = predictor_of(&opened).with_registers(registers);
    if let Some(kernel) = &image.kernel {
        predictor = predictor.with_kernel(kernel);
    }
    let predicted = predictor.predict(&opened, platform);
    let prediction = predicted.map_err(|source| failed(rootfs, source))?;
    let mut events = prediction.measurements().iter();
    if kind.uki && !events.any(|event| event.component == Component::Pcr4Uki) {
        let rootfs = rootfs.clone();
        return Err(ComputePcrsError::NoUki { rootfs });
    }
    Ok(prediction)
}

fn failed(rootfs: &Path, source: PredictError) -> ComputePcrsError {
    ComputePcrsError::Predict { rootfs: rootfs.to_owned(), source: Box::new(source) }
}

/// PCR 11 depends on no variable, so without any it is enough that the image's signature is valid.
fn pcr11(uki: &Path) -> Result<ExpectedPcr, ComputePcrsError> {
    let image = open(uki, &ImageChoice::default())?;
    let prediction = predictor_of(&image).predict(&image, &PlatformState::new());
    let prediction = prediction.map_err(|source| failed(uki, source))?;
    register(&prediction, PcrIndex::KERNEL_BOOT)
}

fn register(prediction: &Prediction, pcr: PcrIndex) -> Result<ExpectedPcr, ComputePcrsError> {
    if let Register::Unpredictable(reason) = prediction.register(pcr) {
        let source = reason.clone();
        return Err(ComputePcrsError::Unpredictable { pcr, source });
    }
    let expected = prediction.expected().pcrs;
    let found = expected.into_iter().find(|expected| expected.id == pcr);
    found.ok_or(ComputePcrsError::NotMeasured { pcr })
}

fn pcr14(directory: &Path) -> Result<ExpectedPcr, ComputePcrsError> {
    mok::pcr14(directory).map_err(ComputePcrsError::Mok)
}
