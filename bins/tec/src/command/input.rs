//! Inputs of commands: files of computed values, logs, keys, and the store.

use std::path::Path;

use anyhow::Context as _;
use clap::Args;
use tec_core::code::Code;
use tec_core::image::ExpectedPcrs;
use tec_core::port::{Clock as _, ImageRegistry};
use tec_support::SystemClock;
pub(super) use tec_support::input::{log_bytes, named_file, read, text};
use tec_tpm::output;

use super::coded;
use crate::state::open_existing;

/// The images to work on.
#[derive(Debug, Args)]
#[group(id = "images", required = true, multiple = true)]
pub(crate) struct Images {
    /// File with computed values, as in the label `org.coreos.pcrs`, optionally with a name.
    #[arg(long = "image", value_name = "[NAME=]FILE", group = "images")]
    pub(crate) files: Vec<String>,
    /// Use the approved images of the store.
    #[arg(long, group = "images")]
    pub(crate) approved: bool,
}

/// Computed values of an image.
pub(super) fn label(path: &Path) -> anyhow::Result<ExpectedPcrs> {
    let text = text(path, output::MAX_INPUT as u64)?;
    output::read_label(&text).with_context(|| format!("{}", path.display()))
}

/// The images of the command line, with their names.
pub(super) async fn images(
    state_dir: &Path,
    images: &Images,
) -> anyhow::Result<Vec<(String, ExpectedPcrs)>> {
    let mut found = Vec::new();
    for given in &images.files {
        let (name, path) = named_file(given);
        found.push((name, label(path)?));
    }
    if images.approved {
        let store = open_existing(state_dir)?;
        let now = SystemClock.now();
        let approved = ImageRegistry::list(&*store)
            .await
            .map_err(coded(Code::StoreUnavailable, "list the images"))?;
        let live = approved.into_iter().filter(|image| image.is_live(now));
        found.extend(live.map(|image| (image.name.to_string(), image.expected)));
    }
    Ok(found)
}

/// Named values, borrowed.
pub(super) fn named(images: &[(String, ExpectedPcrs)]) -> Vec<(&str, &ExpectedPcrs)> {
    images.iter().map(|(name, expected)| (name.as_str(), expected)).collect()
}
