//! Boot files for images.

use tec_core::reference::BootImage as _;
use tec_tpm::compute::testing::debian_chain;

/// The boot files of Debian's layout, with a path each.
pub(crate) fn boot_files() -> Vec<(String, Vec<u8>)> {
    let image = debian_chain("2.12");
    let paths = image.files("").unwrap().into_iter();
    paths
        .map(|path| {
            let content = image.content(&path).unwrap().to_vec();
            (path, content)
        })
        .collect()
}

pub(crate) fn borrowed(files: &[(String, Vec<u8>)]) -> Vec<(&str, &[u8])> {
    let pairs = files.iter();
    pairs.map(|(path, content)| (path.as_str(), content.as_slice())).collect()
}
