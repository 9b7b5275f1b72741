//! The Job's first step: measures an image, and writes the result to a file.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::reference::{BootImage, PcrComputer};
use tec_registry::{ImageReference, Registry, RegistryError, SignerKey};
use tec_support::SystemEntropy;
use tec_support::boot;
use tec_support::exit::{CodedError, OK};
use tec_tpm::compute::input::OpenImage;

use crate::cli::JobArgs;

/// Where the kubelet reads a container's termination message (Kubernetes, "Determine the Reason for Pod
/// Failure").
const LAST_WORDS: &str = "/dev/termination-log";

/// Leaves the reason for a failure to the condition of the image.
pub(crate) fn told(done: anyhow::Result<u8>) -> anyhow::Result<u8> {
    if let Err(error) = &done {
        let code = error.chain().find_map(|cause| cause.downcast_ref::<CodedError>());
        let code = code.map(|coded| format!("{}: ", coded.code)).unwrap_or_default();
        last_words(&format!("{code}{error:#}"));
    }
    done
}

/// Writes the reason for a failure where the kubelet finds it. Outside a pod the file does not exist.
pub(crate) fn last_words(text: &str) {
    let _ = write_if_there(Path::new(LAST_WORDS), text);
}

/// Writes the image's measurements to the file.
pub(crate) fn run(args: &JobArgs) -> anyhow::Result<u8> {
    let expected = match &args.image_dir {
        Some(directory) => {
            if args.signed_by.is_some() {
                Remote::accepted(args)?;
            }
            of_directory(directory, args)?
        }
        None => of_registry(&Remote::accepted(args)?, args)?,
    };
    if expected.pcrs.is_empty() {
        bail!("cannot predict any PCR from {} alone", args.image);
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

/// The image in its registry.
struct Remote {
    runtime: tokio::runtime::Runtime,
    registry: Arc<Registry>,
    reference: ImageReference,
}

impl Remote {
    fn new(args: &JobArgs) -> anyhow::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        let text = &args.image;
        let reference = text.parse().map_err(|error| {
            CodedError::caused(Code::ImageReference, format!("read {text}"), error)
        })?;
        let options = args.registry.options().map_err(|error| {
            CodedError::caused(Code::ImageSecret, "use the files of the flags", error)
        })?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let registry = Registry::new(options, &provider, Arc::new(SystemEntropy)).map_err(coded)?;
        Ok(Self { runtime, registry: Arc::new(registry), reference })
    }

    /// The image, if one of the accepted keys signed it or no signature is required.
    fn accepted(args: &JobArgs) -> anyhow::Result<Self> {
        let remote = Self::new(args)?;
        if let Some(directory) = &args.signed_by {
            let signers = signers(directory)?;
            let signer = remote.registry.signer(&remote.reference, &signers);
            remote.runtime.block_on(signer).map_err(coded)?;
        }
        Ok(remote)
    }
}

/// The public keys in a directory: every file there is one. Kubernetes puts names that start with two dots
/// beside the entries of a ConfigMap (AtomicWriter).
fn signers(directory: &Path) -> anyhow::Result<Vec<SignerKey>> {
    let unreadable = || format!("read the public keys in {}", directory.display());
    let mut keys = Vec::new();
    for entry in fs::read_dir(directory).with_context(unreadable)? {
        let path = entry.with_context(unreadable)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with('.') {
            continue;
        }
        let pem = fs::read_to_string(&path).with_context(unreadable)?;
        let key = pem
            .parse()
            .with_context(|| format!("cannot use the public key in {}", path.display()))?;
        keys.push(key);
    }
    if keys.is_empty() {
        bail!("{} contains no public key, so no image would be accepted", directory.display());
    }
    Ok(keys)
}

fn of_directory(directory: &Path, args: &JobArgs) -> anyhow::Result<ExpectedPcrs> {
    let opened = args.chain.choice.open(directory).map_err(|error| {
        let what = format!("read the image in {}", directory.display());
        CodedError::caused(error.code(), what, error)
    })?;
    predict(&opened, args)
}

/// The values of the label, compared with those predicted from the boot files. An image whose files reveal
/// nothing has only its label.
fn of_registry(remote: &Remote, args: &JobArgs) -> anyhow::Result<ExpectedPcrs> {
    let Remote { runtime, registry, reference } = remote;
    let image = runtime.block_on(registry.find(reference)).map_err(coded)?;
    let labeled = image.labeled_pcrs().map_err(coded)?;
    let opened = image.open(registry, runtime.handle()).map_err(coded);
    let predicted = opened.map_err(Into::into).and_then(|opened| predict(&opened, args));
    match (labeled.filter(|_| !args.ignore_label), predicted) {
        (None, predicted) => predicted,
        (Some(labeled), Ok(predicted)) => agreed(labeled, &predicted, &args.image),
        (Some(labeled), Err(error)) => {
            tracing::warn!(
                error = format!("{error:#}"),
                "the label cannot be compared with the boot files"
            );
            Ok(labeled)
        }
    }
}

/// The label, unless the boot files contradict it about a register that follows from them alone.
fn agreed(
    labeled: ExpectedPcrs,
    predicted: &ExpectedPcrs,
    image: &str,
) -> anyhow::Result<ExpectedPcrs> {
    let follows = |pcr: PcrIndex| Pins::of_images().any(|one| one == pcr) && pcr != PcrIndex::MOK;
    for said in labeled.pcrs.iter().filter(|said| follows(said.id)) {
        let Some(found) = predicted.pcr(said.id).filter(|found| found.value != said.value) else {
            continue;
        };
        let what = format!(
            "compare the label of {image} with its boot files: PCR {} is {} by the label and {} by the files",
            said.id, said.value, found.value
        );
        return Err(CodedError::new(Code::ImageLabelLies, what).into());
    }
    Ok(labeled)
}

fn coded(error: RegistryError) -> CodedError {
    CodedError::caused(error.code(), "read the image", error)
}

/// Predicts what booting the image measures. Without flags, Secure Boot is on, as with the existing program
/// (upstream compute-pcrs as a Job).
fn predict(image: &OpenImage, args: &JobArgs) -> anyhow::Result<ExpectedPcrs> {
    let platform = boot::machine(&args.machine)?;
    reference_values(&boot::predictor(image, &args.chain).on(platform), image, &args.image)
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
