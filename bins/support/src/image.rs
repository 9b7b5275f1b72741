//! Boot images as named on a command line.

use std::path::Path;

use clap::Args;
use tec_tpm::compute::BootPredictor;
use tec_tpm::compute::input::{BootSource, InputError, OpenImage};

/// Selects one of several images in a file.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Which of several in the image")]
#[non_exhaustive]
pub struct ImageChoice {
    /// Image of an OCI layout, by name or digest
    #[arg(long, value_name = "NAME")]
    pub reference: Option<String>,
    /// Partition of a disk, counted from 1
    #[arg(long, value_name = "NUMBER")]
    pub partition: Option<u32>,
    /// Deployment of an OSTree installation: ostree/deploy/NAME/deploy/CHECKSUM.SERIAL
    #[arg(long, value_name = "PATH")]
    pub deployment: Option<String>,
}

impl ImageChoice {
    /// Opens the image at `path`, whatever its form; `-` is standard input.
    pub fn open(&self, path: &Path) -> Result<OpenImage, InputError> {
        let mut source = BootSource::new();
        if let Some(reference) = &self.reference {
            source = source.with_reference(reference);
        }
        if let Some(number) = self.partition {
            source = source.with_partition(number);
        }
        if let Some(deployment) = &self.deployment {
            source = source.with_deployment(deployment);
        }
        if path == Path::new("-") {
            source.read(std::io::stdin().lock())
        } else {
            source.open(path)
        }
    }
}

/// A predictor for the image; if the image is a single program, the firmware starts that program.
pub fn predictor_of(image: &OpenImage) -> BootPredictor {
    match image.starts() {
        Some(program) => BootPredictor::new().with_stages(program, None),
        None => BootPredictor::new(),
    }
}
