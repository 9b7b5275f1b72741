//! Unified kernel images: their sections, the kernel in them, and what booting them measures.

use tec_core::pcr::PcrIndex;
use tec_tpm::compute::testing::{PeBuilder, application};
use tec_tpm::compute::{
    BankDigests, Banks, BootPredictor, MemoryImage, PeFile, PeRequest, PlatformState, PredictError,
    Prediction, Register,
};
use tec_tpm::event_log::Bank;

use crate::bytes::put;
use crate::slow::Slow;
use crate::{Seed, outcome};

/// Two banks that are quick to compute.
const BANKS: Banks = Banks::SHA256.with(Bank::Sha1);
/// Path of the program that firmware starts.
const PATH: &str = "EFI/BOOT/BOOTX64.EFI";
const SECTIONS: [&str; 4] = [".linux", ".osrel", ".cmdline", ".initrd"];
const KEPT: [&str; 3] = [".osrel", ".cmdline", ".sdmagic"];
/// Longest name in a section header (PE format, "Section Table"); the stub does not read longer ones.
const SHORT_NAME: usize = 8;

/// However the file is split into reads, its parts have the same digests; what is stored of a section is what
/// is hashed; a name that fits a section header is found nowhere else; and a boot measures the same in one
/// bank as in two.
pub(crate) fn uki(data: &[u8]) {
    let request = PeRequest::new(BANKS).keep(KEPT).hash(SECTIONS).nested(".linux").whole();
    let slowly = PeFile::read_as(Slow::new(data, 509), &request);
    match PeFile::read_as(data, &request) {
        Ok(file) => check_file(data, &file, &slowly.expect("the same file, read in pieces")),
        Err(error) => {
            let other = slowly.err().map(|other| other.to_string());
            assert_eq!(other, Some(error.to_string()));
        }
    }
    check_boot(data);
}

fn check_file(data: &[u8], file: &PeFile, slowly: &PeFile) {
    assert_eq!(file.authenticode_digests(), slowly.authenticode_digests());
    assert_eq!(file.whole_digests(), Some(BankDigests::of(BANKS, data)));
    assert_eq!(slowly.whole_digests(), file.whole_digests());
    for name in SECTIONS {
        let digests = file.section_digests(name);
        assert_eq!(digests, slowly.section_digests(name));
        if let (Some(digests), Some(content)) = (digests, file.section(name)) {
            assert_eq!(digests, BankDigests::of(BANKS, content));
        }
    }
    for name in KEPT {
        assert_eq!(file.section(name), slowly.section(name));
        let is_named = file.sections().any(|other| other == name);
        assert!(is_named || file.section(name).is_none() || name.len() > SHORT_NAME);
    }
    let inner = |file: &PeFile| match file.nested() {
        Some(Ok(inner)) => Some(Ok(inner.authenticode_digests())),
        Some(Err(error)) => Some(Err(error.to_string())),
        None => None,
    };
    assert_eq!(inner(file), inner(slowly));
}

fn check_boot(data: &[u8]) {
    let boot = |banks| predict(data, &BootPredictor::new().with_banks(banks));
    match (boot(Banks::SHA256), boot(BANKS)) {
        (Ok(one), Ok(all)) => {
            assert_eq!(one.expected(), all.expected());
            assert!(one.unpredictable().eq(all.unpredictable()));
            let pcr11 = |prediction: &Prediction| match prediction.register(PcrIndex::KERNEL_BOOT) {
                Register::Predicted(digests) => Some(digests.sha256()),
                _ => None,
            };
            assert_eq!(pcr11(&one), pcr11(&all));
        }
        (Err(one), Err(all)) => assert_eq!(one.to_string(), all.to_string()),
        (one, all) => panic!("{one:?} but {all:?}"),
    }
}

fn predict(data: &[u8], predictor: &BootPredictor) -> Result<Prediction, PredictError> {
    let image = MemoryImage::new().with(PATH, data);
    predictor.predict(&image, &PlatformState::new())
}

fn read(data: &[u8]) -> Result<(), String> {
    outcome(predict(data, &BootPredictor::new()))
}

/// A small image with this version of the stub.
pub(crate) fn image(version: &str) -> PeBuilder {
    PeBuilder::new()
        .section(".text", "stub")
        .section(".sdmagic", format!("#### LoaderInfo: systemd-stub {version} ####"))
        .section(".osrel", "ID=x\n")
        .section(".cmdline", "root=/dev/vda1 quiet")
        .section(".linux", kernel("6.12"))
        .section(".initrd", "initial file system")
}

/// A kernel with a bzImage header: here the first section starts at 0x200, and the header at 0x1f1 (Linux,
/// Documentation/arch/x86/boot.rst).
pub(crate) fn kernel(version: &str) -> Vec<u8> {
    let text = put(vec![0; 512], 2, b"HdrS\0\0\0\0\0\0\0\0\0\x01");
    let text = put(text, 0x100, version.as_bytes());
    PeBuilder::new().section(".text", text).build()
}

pub(crate) fn seeds() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = ["252.39-1", "257.3", "262~rc1"]
        .map(|version| Seed::new(version, image(version).build()))
        .into();
    let long = image("257.3").section(".a_long_name", "x").section(".another_name", "y");
    seeds.extend([
        Seed::new("unpredictable", image("257.3").section(".profile", "ID=a").build()),
        Seed::new("long_names", long.build()),
        Seed::new("signed", image("257.3").signed().trailer(*b"appended").build()),
        Seed::new("two_kernels", image("257.3").section(".linux", kernel("6.1")).build()),
        Seed::new("key", image("252").section(".pcrpkey", "PEM").section(".pcrsig", "{}").build()),
    ]);
    seeds.extend(hostile());
    seeds
}

fn hostile() -> Vec<Seed> {
    let stub = |name, magic: &str| {
        let file = PeBuilder::new().section(".sdmagic", magic).section(".linux", "x");
        Seed::new(name, file.build()).refused(read)
    };
    let lying = |name, file: Vec<u8>| Seed::new(name, file).refused(read);
    // Section headers start at 0x188, 40 bytes each; the sixth is that of `.initrd`.
    let initrd = 0x188 + 5 * 40;
    let good = || image("257.3").build();
    vec![
        stub("no_stub", "#### LoaderInfo: other 1 ####"),
        stub("unknown_stub", "#### LoaderInfo: systemd-stub 251 ####"),
        stub("kernel_that_is_none", "#### LoaderInfo: systemd-stub 257 ####"),
        lying("stub_named_in_the_string_table", renamed()),
        lying("no_loader", application("x")),
        lying("initrd_that_grows_in_memory", put(good(), initrd + 8, &[0xff; 4])),
        lying("initrd_of_nothing", put(good(), initrd + 16, &[0; 8])),
        lying("signed_for_another", image("257.3").signed_for([7; 32]).build()),
    ]
}

/// A stub whose version is in a section that has its name in the string table, where programs do not look for
/// short names.
fn renamed() -> Vec<u8> {
    let name = ".sdmagic_long";
    let file = PeBuilder::new()
        .section(name, "#### LoaderInfo: systemd-stub 257 ####")
        .section(".linux", kernel("6.12"))
        .build();
    let at = file.windows(name.len()).position(|part| part == name.as_bytes());
    put(file, at.expect("the string table") + SHORT_NAME, &[0; 5])
}
