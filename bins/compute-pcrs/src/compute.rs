//! One function per register.

use std::io;
use std::path::Path;
use std::path::PathBuf;

use tec_core::image::ExpectedPcr;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::reference::ComputeError;
use tec_core::reference::PcrComputer as _;
use tec_tpm::compute::BootPredictor;
use tec_tpm::compute::ChainComputer;
use tec_tpm::compute::DirectoryImage;
use tec_tpm::compute::Guid;
use tec_tpm::compute::PlatformError;
use tec_tpm::compute::PlatformState;
use tec_tpm::compute::PredictError;
use tec_tpm::compute::Prediction;
use tec_tpm::compute::Register;
use tec_tpm::compute::SecureBoot;
use tec_tpm::compute::Unpredictable;
use tec_tpm::output;
use tec_tpm::output::OutputError;

use crate::cli::Command;
use crate::cli::Image;
use crate::cli::Kind;
use crate::mok;
use crate::mok::MokError;

/// Attributes of the variable SecureBoot: boot service and runtime access (UEFI 2.10, 3.3 and
/// 8.2.1).
const ATTRIBUTES: u32 = 0x6;

/// Nothing was computed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ComputePcrsError {
    /// The root is no directory that can be read.
    #[error("cannot open {} as the root of an image", .rootfs.display())]
    Rootfs {
        rootfs: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The boot files do not tell.
    #[error("PCR {pcr} of {}", .rootfs.display())]
    Chain {
        pcr: PcrIndex,
        rootfs: PathBuf,
        #[source]
        source: ComputeError,
    },
    /// The machine owner keys do not tell.
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
    #[error("the boot of {}", .rootfs.display())]
    Predict {
        rootfs: PathBuf,
        #[source]
        source: Box<PredictError>,
    },
    /// The register does not follow from image and machine.
    #[error("PCR {pcr} cannot be told")]
    Unpredictable {
        pcr: PcrIndex,
        #[source]
        source: Unpredictable,
    },
    /// Nothing is measured into the register.
    #[error("nothing is measured into PCR {pcr}")]
    NotMeasured { pcr: PcrIndex },
    /// What is asked for does not follow from what was given.
    #[error("PCR {pcr} of {what} does not follow from the arguments; {hint}")]
    NotComputable {
        pcr: PcrIndex,
        what: &'static str,
        hint: &'static str,
    },
    /// The result cannot be printed.
    #[error("cannot print the result")]
    Print(#[source] OutputError),
}

/// Computes what was asked for, and renders it.
pub(crate) fn run(command: &Command) -> Result<String, ComputePcrsError> {
    match command {
        // A prediction sees by itself whether the image boots a unified kernel image.
        Command::All {
            image,
            kind: _,
            variables,
            mok,
        } => {
            let registers = [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT];
            let mut pcrs = predicted(image, &variables.efivars, &registers)?;
            pcrs.push(pcr14(&mok.mok_variables)?);
            output::label(&ExpectedPcrs::new(pcrs)).map_err(ComputePcrsError::Print)
        }
        Command::Pcr4 { image, kind } => one(&pcr4(image, *kind)?),
        Command::Pcr7 { image, variables } => {
            let pcrs = predicted(image, &variables.efivars, &[PcrIndex::SECURE_BOOT])?;
            pcrs.iter().map(one).collect()
        }
        Command::Pcr11 { uki } => one(&pcr11(uki)?),
        Command::Pcr14 { mok } => one(&pcr14(&mok.mok_variables)?),
    }
}

fn one(pcr: &ExpectedPcr) -> Result<String, ComputePcrsError> {
    output::register(pcr).map_err(ComputePcrsError::Print)
}

fn pcr4(image: &Image, kind: Kind) -> Result<ExpectedPcr, ComputePcrsError> {
    let pcr = PcrIndex::BOOT_MANAGER;
    if kind.uki {
        return Err(ComputePcrsError::NotComputable {
            pcr,
            what: "a unified kernel image",
            hint: "use `all`, which knows the machine's variables",
        });
    }
    let rootfs = &image.rootfs;
    let files = open(rootfs)?;
    let mut computer = ChainComputer::new(secure_boot(image));
    if let Some(kernel) = &image.kernel {
        computer = computer.with_kernel(kernel);
    }
    let failed = |source| ComputePcrsError::Chain {
        pcr,
        rootfs: rootfs.clone(),
        source,
    };
    let expected = computer.compute(&files).map_err(failed)?;
    let found = expected
        .pcrs
        .into_iter()
        .find(|expected| expected.id == pcr);
    found.ok_or(ComputePcrsError::NotMeasured { pcr })
}

fn secure_boot(image: &Image) -> SecureBoot {
    if image.secureboot_disabled {
        SecureBoot::Off
    } else {
        SecureBoot::On
    }
}

fn open(rootfs: &Path) -> Result<DirectoryImage, ComputePcrsError> {
    DirectoryImage::open(rootfs).map_err(|source| ComputePcrsError::Rootfs {
        rootfs: rootfs.to_owned(),
        source,
    })
}

/// Registers of the next boot on the machine with these variables. The files are read once for all
/// of them, and no more of them than the registers need.
fn predicted(
    image: &Image,
    efivars: &Path,
    registers: &[PcrIndex],
) -> Result<Vec<ExpectedPcr>, ComputePcrsError> {
    let files = open(&image.rootfs)?;
    let platform = PlatformState::from_efivars(&open(efivars)?, "").map_err(|source| {
        ComputePcrsError::Variables {
            efivars: efivars.to_owned(),
            source,
        }
    })?;
    // The flag decides, whatever state the variables were captured in.
    let state = match secure_boot(image) {
        SecureBoot::On => [1],
        SecureBoot::Off => [0],
    };
    let platform = platform.with_variable("SecureBoot", Guid::GLOBAL, ATTRIBUTES, state);
    let mut predictor = BootPredictor::new().with_registers(registers.iter().copied().collect());
    if let Some(kernel) = &image.kernel {
        predictor = predictor.with_kernel(kernel);
    }
    let prediction = predictor
        .predict(&files, &platform)
        .map_err(|source| refused(&image.rootfs, source))?;
    let register = |pcr: &PcrIndex| register(&prediction, *pcr);
    registers.iter().map(register).collect()
}

/// PCR 11 depends on no variable; without any, the image's signature need only fit.
fn pcr11(uki: &Path) -> Result<ExpectedPcr, ComputePcrsError> {
    let name = uki
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let folder = uki.parent().filter(|folder| !folder.as_os_str().is_empty());
    let files = open(folder.unwrap_or_else(|| Path::new(".")))?;
    let predictor = BootPredictor::new().with_stages(name, None);
    let prediction = predictor
        .predict(&files, &PlatformState::new())
        .map_err(|source| refused(uki, source))?;
    register(&prediction, PcrIndex::KERNEL_BOOT)
}

fn refused(rootfs: &Path, source: PredictError) -> ComputePcrsError {
    ComputePcrsError::Predict {
        rootfs: rootfs.to_owned(),
        source: Box::new(source),
    }
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
