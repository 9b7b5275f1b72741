//! Real boot files: the form of the image does not matter to the whole prediction.

use std::path::Path;

use tec_core::reference::BootImage;
use tec_tpm::compute::input::BootSource;
use tec_tpm::compute::{BootPredictor, DirectoryImage, MemoryImage, PlatformState};

use crate::build;

#[test]
#[ignore = "needs recorded-boots: set TEC_FIXTURES"]
fn real_boot_files_give_the_same_prediction_in_every_form() {
    let fixtures = std::env::var_os("TEC_FIXTURES").unwrap();
    for name in ["trixie-sb-on", "trixie-uki"] {
        let boot = Path::new(&fixtures).join("qemu").join(name);
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
