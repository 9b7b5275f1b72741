//! Real boot files: the form of the image does not matter to the whole prediction.
//!
//! The fixtures are beside the repository; if they are absent, the test fails, unless
//! `TEC_WITHOUT_FIXTURES` is set.

use std::fs;
use std::path::PathBuf;

use tec_core::reference::BootImage;
use tec_tpm::compute::input::BootSource;
use tec_tpm::compute::{BootPredictor, DirectoryImage, MemoryImage, PlatformState};

use crate::build;

#[test]
fn real_boot_files_give_the_same_prediction_in_every_form() {
    for name in ["trixie-sb-on", "trixie-uki"] {
        let Some(boot) = boot(name) else { continue };
        let directory = DirectoryImage::open(boot.join("esp")).unwrap();
        let mut esp = MemoryImage::new();
        for path in directory.files("").unwrap() {
            let content = build::content(&directory, &path);
            esp.insert(path, content);
        }
        let variables = DirectoryImage::open(boot.join("efivars")).unwrap();
        let machine = PlatformState::from_efivars(&variables, "").unwrap();
        let predict = |image: &dyn BootImage| {
            let prediction = BootPredictor::new().predict(image, &machine).unwrap();
            prediction.measurements().to_vec()
        };
        let expected = predict(&directory);
        let fat = build::fat(&esp, 96 << 20);
        let tar = build::tar_of(&esp);
        for image in [build::gpt(512, &[(build::SYSTEM, &fat)]), build::zstd(&tar), tar] {
            let opened = BootSource::new().read(image.as_slice()).unwrap();
            assert_eq!(predict(&opened), expected, "{name}");
        }
    }
}

/// The recorded boot of this name.
fn boot(name: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TEC_PCR_FIXTURES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/fixtures/qemu"),
        PathBuf::from,
    );
    let boot = folder.join(name);
    if fs::metadata(&boot).is_err() {
        assert!(
            std::env::var_os("TEC_WITHOUT_FIXTURES").is_some(),
            "{} is missing; TEC_WITHOUT_FIXTURES=1 leaves out what needs it",
            boot.display()
        );
        return None;
    }
    Some(boot)
}
