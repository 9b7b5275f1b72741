//! Derives an image, a machine, and a prediction from the flags of `tec image approve`, `tec pcr compute` and
//! `tec node nextboot`.

mod args;
mod progress;

use std::path::Path;

use anyhow::Context as _;
use tec_core::code::Code;
use tec_tpm::compute::input::OpenImage;
use tec_tpm::compute::{
    Banks, BootPredictor, DirectoryImage, Guid, PlatformState, Prediction, SecureBoot,
    Unpredictable,
};

pub use self::args::{ChainArgs, GrubName, MachineArgs, SecureBootState, ShimName, StubName};
use self::progress::Shown;
use crate::exit::CodedError;
use crate::image::predictor_of;
use crate::input;

/// Largest variable store to read; flash images of OVMF are at most 4 MiB.
const MAX_STORE: u64 = 16 << 20;
/// Largest SbatLevel to read; real ones are less than 100 bytes.
pub const MAX_LEVEL: u64 = 64 << 10;
/// Attributes of a stored `SbatLevel`: non-volatile, boot services (shim, sbat.c; UEFI 2.10,
/// 8.2.1).
const STORED: u32 = 0x3;

/// Predicts the boot of the image at `path`.
pub fn predict(
    path: &Path,
    chain: &ChainArgs,
    machine: &PlatformState,
    banks: Banks,
) -> anyhow::Result<Prediction> {
    let image = chain.choice.open(path).map_err(|error| {
        let path = path.display();
        if is_reference(&path.to_string()) {
            let tried = format!(
                "{path} is an image in a registry, and a path is needed (copy it first: skopeo copy \
                 docker://{path} oci:image; on Kubernetes: kubectl tec image approve)"
            );
            return anyhow::Error::msg(tried);
        }
        CodedError::caused(error.code(), format!("cannot open {path}"), error).into()
    })?;
    let predictor = predictor(&image, chain).with_banks(banks);
    let predicted = predictor.predict(&Shown::new(&image), machine);
    Ok(predicted.map_err(|error| {
        let tried = format!("predict the boot of {}", path.display());
        CodedError::caused(Code::ImageUnreadable, tried, error)
    })?)
}

/// Whether a path that cannot be opened looks like `registry.example/name:tag` or `…@sha256:…`.
fn is_reference(path: &str) -> bool {
    let Some((registry, rest)) = path.split_once('/') else {
        return false;
    };
    (registry.contains('.') || registry.contains(':'))
        && !registry.starts_with('.')
        && rest.contains(':')
}

/// The predictor for an image that the flags select.
pub fn predictor(image: &OpenImage, chain: &ChainArgs) -> BootPredictor {
    let mut predictor = predictor_of(image);
    if let Some(kernel) = &chain.kernel {
        predictor = predictor.with_kernel(kernel);
    }
    if let Some(first) = &chain.firmware_starts {
        predictor = predictor.with_stages(first, chain.shim_starts.clone());
    }
    if let Some(profile) = chain.shim_profile {
        predictor = predictor.with_shim_profile(profile.into());
    }
    if let Some(profile) = chain.grub_profile {
        predictor = predictor.with_grub_profile(profile.into());
    }
    if let Some(profile) = chain.stub_profile {
        predictor = predictor.with_stub_profile(profile.into());
    }
    if !chain.registers.is_empty() {
        predictor = predictor.with_registers(chain.registers.iter().copied().collect());
    }
    predictor
}

/// The machine that the flags describe; without variables, little is known about the machine.
pub fn machine(args: &MachineArgs) -> anyhow::Result<PlatformState> {
    let given = args.secure_boot.map(SecureBoot::from);
    let mut machine = match (&args.efivars, &args.variable_store) {
        (Some(folder), _) => efivars(folder)?,
        (None, Some(file)) => variable_store(file)?,
        (None, None) => PlatformState::with_unknown_variables(given.unwrap_or(SecureBoot::On)),
    };
    if let Some(state) = given {
        machine = machine.with_secure_boot(state);
    }
    if let Some(folder) = &args.mok_variables {
        let shown = folder.display();
        let lists = DirectoryImage::open(folder).with_context(|| format!("cannot open {shown}"))?;
        let taken = machine.with_mok_variables(&lists, "");
        machine = taken.with_context(|| format!("cannot read shim's lists in {shown}"))?;
    }
    if args.no_mok {
        machine = machine.with_known_mok_lists();
    }
    if let Some(file) = &args.sbat_level {
        let level = input::read(file, MAX_LEVEL)?;
        machine = machine.with_variable("SbatLevel", Guid::SHIM, STORED, level);
    }
    if let Some(device) = &args.grub_device {
        machine = machine.with_grub_device(device);
    }
    if let Some(device) = &args.grub_root {
        machine = machine.with_grub_root(device);
    }
    Ok(machine)
}

fn efivars(folder: &Path) -> anyhow::Result<PlatformState> {
    let shown = folder.display();
    let files = DirectoryImage::open(folder).with_context(|| format!("cannot open {shown}"))?;
    PlatformState::from_efivars(&files, "")
        .with_context(|| format!("cannot read the variables in {shown}"))
}

fn variable_store(file: &Path) -> anyhow::Result<PlatformState> {
    let store = input::read(file, MAX_STORE)?;
    PlatformState::from_variable_store(&store).with_context(|| file.display().to_string())
}

/// The flag that supplies what is missing.
pub fn remedy(reason: &Unpredictable) -> Option<&'static str> {
    match reason {
        Unpredictable::Keys => Some("--efivars or --variable-store"),
        Unpredictable::MokLists => Some("--mok-variables, --no-mok or --efivars"),
        Unpredictable::GrubRoot(_) => Some("--grub-root"),
        Unpredictable::NoScript(_) => Some("an image with the boot partition in it"),
        _ => None,
    }
}
