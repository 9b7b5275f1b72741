//! What the images of a fleet measure.

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::{PcrIndex, PcrSet};
use tec_tpm::compute::Guid;

/// Revocation levels published by the shim project, so that the combiner knows newer ones.
const LEVELS: [&str; 3] = [
    "sbat,1,2024010900\nshim,4\ngrub,3\ngrub.debian,4\n",
    "sbat,1,2024040900\nshim,4\ngrub,4\ngrub.peimage,2\n",
    "sbat,1,2025021800\nshim,4\ngrub,5\n",
];
/// Events in PCRs 4, 7 and 14; the firmware's own make up the rest.
const BOOT_EVENTS: usize = 18;

/// Successive images on the machines of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fleet {
    images: Vec<(String, ExpectedPcrs)>,
}

impl Fleet {
    /// This many images of at least 18 events each. Each has its own kernel; every `images_per_loader`th
    /// brings new boot loaders.
    pub fn new(seed: u64, images: usize, events: usize, images_per_loader: usize) -> Self {
        let image = |number: usize| {
            let loader = number / images_per_loader.max(1);
            let loaders = images.div_ceil(images_per_loader.max(1));
            let level = loader * LEVELS.len() / loaders.max(1);
            let name = format!("44.{number}");
            (name, expected(seed, number, loader, level, events))
        };
        Self { images: (0..images).map(image).collect() }
    }

    /// The images with their names.
    pub fn images(&self) -> Vec<(&str, &ExpectedPcrs)> {
        let images = self.images.iter();
        images.map(|(name, image)| (name.as_str(), image)).collect()
    }
}

fn expected(seed: u64, number: usize, loader: usize, level: usize, events: usize) -> ExpectedPcrs {
    let text = LEVELS.get(level).copied().unwrap_or_default();
    let one = |register: PcrIndex, id: &str, what: String| {
        let digest = Sha256Digest::of(format!("{seed} {what}"));
        ImageEvent::new("EV_IPL", register, digest, id)
    };
    let common = |register, id: &str| one(register, id, id.to_owned());
    let of_loader = |register, id: &str| one(register, id, format!("{id} {loader}"));
    let (boot, keys, moks) = (PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK);
    let mut all = vec![
        common(boot, "Pcr4EfiCall"),
        common(boot, "Pcr4Separator"),
        of_loader(boot, "Pcr4Shim"),
        of_loader(boot, "Pcr4Grub"),
        one(boot, "Pcr4Vmlinuz", format!("kernel {number}")),
        common(keys, "Pcr7SecureBoot"),
        common(keys, "Pcr7Pk"),
        common(keys, "Pcr7Kek"),
        common(keys, "Pcr7Db"),
        common(keys, "Pcr7Dbx"),
        common(keys, "Pcr7Separator"),
        common(keys, "Pcr7ShimCert"),
        ImageEvent::new("EV", keys, sbat_level(text), "Pcr7SbatLevel"),
        common(keys, "Pcr7GrubMokListCert"),
        of_loader(moks, "Pcr14MokList"),
        of_loader(moks, "Pcr14MokListX"),
        common(moks, "Pcr14MokListTrusted"),
        common(moks, "Pcr14MokPolicy"),
    ];
    let firmware: Vec<PcrIndex> = PcrIndex::all().take(4).collect();
    let firmware = firmware.into_iter().cycle();
    let rest = events.saturating_sub(BOOT_EVENTS);
    all.extend(firmware.take(rest).enumerate().map(|(place, register)| {
        let id = format!("Pcr{register}Firmware");
        one(register, &id, format!("{id} {place}"))
    }));
    let registers: PcrSet = all.iter().map(|event| event.pcr).collect();
    let pcrs = registers.iter();
    ExpectedPcrs::new(pcrs.map(|pcr| ExpectedPcr::from_events(pcr, all.iter().cloned())).collect())
}

/// What shim measures for its level: a `UEFI_VARIABLE_DATA` (PC Client Platform Firmware Profile 1.06,
/// 10.2.6).
fn sbat_level(text: &str) -> Sha256Digest {
    let name: Vec<u8> = "SbatLevel".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let mut data = Guid::SHIM.as_bytes().to_vec();
    data.extend((name.len() as u64 / 2).to_le_bytes());
    data.extend((text.len() as u64).to_le_bytes());
    data.extend(name);
    data.extend(text.as_bytes());
    Sha256Digest::of(data)
}

#[cfg(test)]
mod tests {
    use tec_tpm::combine::Combiner;

    use super::*;

    #[test]
    fn every_loader_meets_every_kernel_and_levels_only_rise() {
        let fleet = Fleet::new(1, 12, 30, 4);
        let images = fleet.images();
        let events = |(_, image): &(&str, &ExpectedPcrs)| {
            image.pcrs.iter().map(|pcr| pcr.events.len()).sum::<usize>()
        };
        assert!(images.iter().all(|image| events(image) == 30));
        let combined = Combiner::new().combine(&images).unwrap();
        assert_eq!(combined.values(PcrIndex::BOOT_MANAGER).len(), 3 * 12);
        assert_eq!(combined.values(PcrIndex::SECURE_BOOT).len(), 3);
        assert_eq!(combined.values(PcrIndex::MOK).len(), 3);
        assert_eq!(combined.undetermined(), []);
        let registers = [PcrIndex::BOOT_MANAGER, PcrIndex::SECURE_BOOT, PcrIndex::MOK];
        // The oldest shim may find any of three levels, the next one two, the last its own.
        let joint = combined.joint(registers.into_iter().collect());
        assert_eq!(joint.unwrap().len(), (3 + 2 + 1) * 12);
    }
}
