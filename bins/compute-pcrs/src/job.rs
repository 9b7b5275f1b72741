//! The Job's first step: from an image to a file with its measurements.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tec_core::code::Code;
use tec_core::image::ExpectedPcrs;
use tec_core::reference::{BootImage, PcrComputer};
use tec_registry::{ImageReference, Registry, RegistryError};
use tec_support::SystemEntropy;
use tec_support::exit::{CodedError, OK};
use tec_support::image::predictor_of;
use tec_tpm::compute::input::{BootSource, OpenImage};
use tec_tpm::compute::{DirectoryImage, PlatformState, SecureBoot};

use crate::cli::JobArgs;

/// Where the kubelet reads a container's termination message (Kubernetes, "Determine the Reason for Pod
/// Failure").
const LAST_WORDS: &str = "/dev/termination-log";

/// Leaves the reason for a failure where the kubelet finds it.
pub(crate) fn told(done: anyhow::Result<u8>) -> anyhow::Result<u8> {
    if let Err(error) = &done {
        let code = error.chain().find_map(|cause| cause.downcast_ref::<CodedError>());
        let code = code.map(|coded| format!("{}: ", coded.code)).unwrap_or_default();
        // Outside a pod the file does not exist.
        let _ = write_if_there(Path::new(LAST_WORDS), &format!("{code}{error:#}"));
    }
    done
}

/// Writes the image's measurements to the file.
pub(crate) fn run(args: &JobArgs) -> anyhow::Result<u8> {
    // Fails only if a provider is already installed, which is just as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let expected = match &args.image_dir {
        Some(directory) => {
            let opened = BootSource::new().open(directory).map_err(|error| {
                let what = format!("read the image in {}", directory.display());
                CodedError::caused(error.code(), what, error)
            })?;
            predict(&opened, args)?
        }
        None => of_registry(args)?,
    };
    if expected.pcrs.is_empty() {
        bail!("no PCR can be predicted from {} alone", args.image);
    }
    let text = serde_json::to_vec(&expected)?;
    fs::write(&args.to, text).with_context(|| format!("cannot write {}", args.to.display()))?;
    Ok(OK)
}

fn write_if_there(file: &Path, text: &str) -> std::io::Result<()> {
    if file.exists() {
        fs::write(file, text)?;
    }
    Ok(())
}

/// The values of the label if the image has one, otherwise those predicted from its boot files.
fn of_registry(args: &JobArgs) -> anyhow::Result<ExpectedPcrs> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let text = &args.image;
    let reference: ImageReference = text
        .parse()
        .map_err(|error| CodedError::caused(Code::ImageReference, format!("read {text}"), error))?;
    let options = args.registry.options().map_err(|error| {
        CodedError::caused(Code::ImageSecret, "use the files of the flags", error)
    })?;
    let registry = Registry::new(options, Arc::new(SystemEntropy)).map_err(coded)?;
    let registry = Arc::new(registry);
    let image = runtime.block_on(registry.find(&reference)).map_err(coded)?;
    if let Some(labeled) = image.labeled_pcrs().map_err(coded)? {
        return Ok(labeled);
    }
    let opened = image.open(&registry, runtime.handle()).map_err(coded)?;
    predict(&opened, args)
}

fn coded(error: RegistryError) -> CodedError {
    CodedError::caused(error.code(), "read the image", error)
}

/// What booting the image measures, whatever the variables of the machine, except for shim's lists. Secure
/// Boot is on, as with the existing program (upstream compute-pcrs as a Job).
fn predict(image: &OpenImage, args: &JobArgs) -> anyhow::Result<ExpectedPcrs> {
    let mut platform = PlatformState::with_unknown_variables(SecureBoot::On);
    if let Some(folder) = &args.mok_variables {
        let what = || format!("read shim's lists in {}", folder.display());
        let lists = DirectoryImage::open(folder).with_context(what)?;
        platform = platform.with_mok_variables(&lists, "").with_context(what)?;
    } else if args.no_mok {
        platform = platform.with_known_mok_lists();
    }
    reference_values(&predictor_of(image).on(platform), image, &args.image)
}

fn reference_values(
    computer: &dyn PcrComputer,
    image: &dyn BootImage,
    name: &str,
) -> anyhow::Result<ExpectedPcrs> {
    let computed = computer.compute(image);
    Ok(computed.map_err(|error| {
        CodedError::caused(Code::ImageUnreadable, format!("predict the boot of {name}"), error)
    })?)
}

#[cfg(test)]
mod tests {
    use std::io;

    use tec_core::reference::{ComputeError, MockPcrComputer};
    use tec_tpm::compute::MemoryImage;

    use super::*;

    #[test]
    fn a_computer_that_cannot_tell_is_an_error_with_image_and_code() {
        let mut blind = MockPcrComputer::new();
        let why = || io::Error::other("it sees nothing");
        blind.expect_compute().returning(move |_| Err(ComputeError::new("boot/vmlinuz", why())));
        let refused = reference_values(&blind, &MemoryImage::new(), "example.com/os:1");
        let refused = refused.unwrap_err();
        let coded = refused.downcast_ref::<CodedError>().unwrap();
        assert_eq!(coded.code, Code::ImageUnreadable);
        assert!(coded.context.contains("example.com/os:1"));
    }
}
