//! The whole predictor over a tiny boot, changed in places by the input.

mod boot;
mod edit;
mod hostile;

use std::collections::BTreeSet;
use std::io;

use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_core::reference::{BootImage, ImageFile};
use tec_tpm::compute::{
    AuthorityError, Banks, BootPredictor, Component, MemoryImage, PeFile, PlatformState,
    PredictError, Prediction, Register, SecureBoot,
};
use tec_tpm::event_log::Bank;

use self::boot::Boot;
use self::edit::edits;
use crate::slow::Slow;
use crate::{Seed, outcome};

/// However the files are read, the prediction is the same, in two banks as in one; requesting fewer registers
/// changes none of them; every file reported as started exists with that digest; an error names a file; and
/// with Secure Boot on, nothing unsigned starts.
///
/// The first byte of an input chooses the boot and, with its highest bit, which of the second and third
/// property is checked; the rest are changes of its files and variables.
pub(crate) fn predict(data: &[u8]) {
    let Some(boot) = changed(data) else {
        return;
    };
    let (image, machine) = (boot.image(), boot.machine());
    let banks = Banks::SHA256.with(Bank::Sha1);
    let predicted = BootPredictor::new().with_banks(banks).predict(&image, &machine);
    let looks_at_fewer = data.first().is_some_and(|choice| choice & 0x80 != 0);
    if looks_at_fewer {
        if let Ok(prediction) = &predicted {
            check_fewer(prediction, &image, &machine);
        }
    } else {
        check_slowly(&predicted, &image, &machine);
    }
    match predicted {
        Ok(prediction) => {
            check_expected(&prediction);
            check_files(&prediction, &image);
            if boot.state == SecureBoot::On && !boot.other_keys {
                check_signed(&prediction, &boot.signed);
            }
        }
        Err(error) => check_error(&error, &image),
    }
}

fn changed(data: &[u8]) -> Option<Boot> {
    let (choice, rest) = data.split_first()?;
    let mut boot = Boot::choose(*choice);
    for edit in edits(rest) {
        boot.apply(&edit);
    }
    Some(boot)
}

/// An image whose files are read in small pieces.
#[derive(Debug)]
struct SlowImage<'i>(&'i MemoryImage);

impl BootImage for SlowImage<'_> {
    fn files(&self, prefix: &str) -> io::Result<Vec<String>> {
        self.0.files(prefix)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn ImageFile>> {
        Ok(Box::new(Slow::new(self.0.open(path)?, 811)))
    }
}

impl ImageFile for Slow<Box<dyn ImageFile>> {
    fn size(&self) -> Option<u64> {
        self.inner().size()
    }
}

fn check_slowly(
    predicted: &Result<Prediction, PredictError>,
    image: &MemoryImage,
    machine: &PlatformState,
) {
    match (BootPredictor::new().predict(&SlowImage(image), machine), predicted) {
        (Ok(one), Ok(two)) => {
            assert!(one.unpredictable().eq(two.unpredictable()));
            assert_eq!(one.measurements().len(), two.measurements().len());
            for (one, two) in one.measurements().iter().zip(two.measurements()) {
                assert_eq!(
                    (one.component, one.pcr, one.digest),
                    (two.component, two.pcr, two.digest)
                );
            }
        }
        // SHA-1 digests in a database are compared if that bank is computed.
        (Err(PredictError::Authority { source: AuthorityError::Sha1Entries(_), .. }), _) => {}
        (Err(one), Err(two)) => assert_eq!(format!("{one:?}"), format!("{two:?}")),
        (one, two) => panic!("{one:?} but {two:?}"),
    }
}

fn check_expected(prediction: &Prediction) {
    for expected in prediction.expected().pcrs {
        assert!(expected.is_consistent());
        match prediction.register(expected.id) {
            Register::Predicted(value) => assert_eq!(value.sha256(), expected.value),
            other => panic!("{other:?} of a register that is expected"),
        }
    }
}

fn check_fewer(full: &Prediction, image: &MemoryImage, machine: &PlatformState) {
    let pinned: PcrSet =
        [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK].into_iter().collect();
    let banks = Banks::SHA256.with(Bank::Sha1);
    let predictor = BootPredictor::new().with_banks(banks).with_registers(pinned);
    let fewer = predictor.predict(image, machine).expect("fewer registers need no more");
    for pcr in pinned.iter() {
        assert_eq!(fewer.register(pcr), full.register(pcr));
    }
}

/// Checks that what firmware, shim or GRUB start is a file in the image.
fn check_files(prediction: &Prediction, image: &MemoryImage) {
    for started in prediction.of_register(PcrIndex::BOOT_MANAGER) {
        let Some(path) = &started.file else { continue };
        let content = image.content(path).expect("a file of the image");
        if started.component != Component::Pcr4UkiLinux {
            let file = PeFile::read(content, &[]).expect("it was read before");
            assert_eq!(file.authenticode(), started.digest);
        }
    }
}

fn check_signed(prediction: &Prediction, signed: &BTreeSet<Sha256Digest>) {
    for started in prediction.of_register(PcrIndex::BOOT_MANAGER) {
        let is_file = started.file.is_some();
        assert!(!is_file || signed.contains(&started.digest), "nobody signed this: {started:?}");
    }
}

fn check_error(error: &PredictError, image: &MemoryImage) {
    if let Some(file) = error.file() {
        let path = file.split(", section ").next().unwrap_or(file);
        let is_there = image.content(path).is_some();
        assert!(is_there || matches!(error, PredictError::Open { .. }), "{file}");
    }
    assert!(!error.to_string().is_empty());
}

fn read(data: &[u8]) -> Result<(), String> {
    let boot = changed(data).ok_or("no boot is chosen")?;
    outcome(BootPredictor::new().predict(&boot.image(), &boot.machine()))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let seeds: Vec<Seed> = (0..Boot::CHOICES)
        .map(|choice| {
            Seed::new(Boot::NAMES.get(usize::from(choice)).copied().unwrap_or("boot"), [choice])
        })
        .collect();
    [seeds, hostile::seeds(read)].concat()
}
