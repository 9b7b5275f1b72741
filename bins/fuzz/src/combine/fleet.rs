//! A small fleet: what is installed, and every machine that can result from it.

use std::collections::BTreeSet;

use tec_core::digest::Sha256Digest;
use tec_core::image::{ExpectedPcr, ExpectedPcrs, ImageEvent};
use tec_core::pcr::PcrIndex;
use tec_tpm::combine::{Combiner, Grouping, Loaders, MokLists, SbatLevels};
use tec_tpm::compute::{Guid, SecureBoot};

use super::{NAMES, REGISTERS};

/// Revocation levels, oldest first.
const LEVELS: [&str; 4] =
    ["sbat,1,2101010100\n", "sbat,1,2102010100\n", "sbat,1,2103010100\n", "sbat,1,2104010100\n"];

#[derive(Clone, Copy, Debug)]
struct Shim {
    build: u8,
    level: usize,
    vendor: u8,
}

#[derive(Clone, Copy, Debug)]
struct Grub {
    build: u8,
    asks_twice: bool,
}

/// Installed components.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    shim: Shim,
    grub: Grub,
    kernel: u8,
    /// Lists of owner keys; those of shim if they depend on it.
    keys: u8,
    secure_boot: SecureBoot,
}

impl Image {
    /// What a boot measures before any other image was installed.
    pub(super) fn expected(&self) -> ExpectedPcrs {
        self.measured(self.shim.level)
    }

    /// What a boot measures with this level in force.
    fn measured(&self, level: usize) -> ExpectedPcrs {
        let on = self.secure_boot == SecureBoot::On;
        let mut events = vec![
            event(4, "Pcr4EfiCall", "call"),
            event(4, "Pcr4Separator", "separator"),
            event(4, "Pcr4Shim", &format!("shim {}", self.shim.build)),
            event(4, "Pcr4Grub", &format!("GRUB {}", self.grub.build)),
        ];
        for _ in 0..=u8::from(self.grub.asks_twice) {
            events.push(event(4, "Pcr4Vmlinuz", &format!("kernel {}", self.kernel)));
        }
        let state = variable(Guid::GLOBAL, "SecureBoot", &[u8::from(on)]);
        events.push(measured(7, "Pcr7SecureBoot", state));
        events.push(event(7, "Pcr7Db", "db"));
        events.push(event(7, "Pcr7Separator", "separator"));
        if on {
            events.push(event(7, "Pcr7ShimCert", &format!("vendor {}", self.shim.vendor)));
        }
        let level = if on { LEVELS.get(level) } else { LEVELS.first() };
        let level = level.copied().unwrap_or_default();
        let level = variable(Guid::SHIM, "SbatLevel", level.as_bytes());
        events.push(measured(7, "Pcr7SbatLevel", level));
        if on {
            events.push(event(7, "Pcr7GrubMokListCert", "vendor"));
        }
        for list in ["MokList", "MokListX"] {
            events.push(event(14, &format!("Pcr14{list}"), &format!("{list} {}", self.keys)));
        }
        let fold = |pcr| ExpectedPcr::from_events(pcr, events.iter().cloned());
        ExpectedPcrs::new(REGISTERS.map(fold).to_vec())
    }
}

fn event(pcr: u8, id: &str, content: &str) -> ImageEvent {
    measured(pcr, id, Sha256Digest::of(content))
}

fn measured(pcr: u8, id: &str, digest: Sha256Digest) -> ImageEvent {
    ImageEvent::new("EV", PcrIndex::new(pcr).expect("a register"), digest, id)
}

/// `UEFI_VARIABLE_DATA` (PC Client Platform Firmware Profile 1.06, 10.2.6).
fn variable(vendor: Guid, name: &str, data: &[u8]) -> Sha256Digest {
    let mut event = vendor.as_bytes().to_vec();
    event.extend((name.len() as u64).to_le_bytes());
    event.extend((data.len() as u64).to_le_bytes());
    event.extend(name.bytes().flat_map(|byte| [byte, 0]));
    event.extend(data);
    Sha256Digest::of(event)
}

/// How its components are updated.
#[derive(Debug)]
pub(super) struct Fleet {
    loaders: Loaders,
    mok_lists: MokLists,
    /// A level stored on machines, whichever image it came from.
    stored: Option<usize>,
}

impl Fleet {
    /// A fleet with its images.
    pub(super) fn read(data: &[u8]) -> Option<(Self, Vec<Image>)> {
        let (&[options, s0, s1, s2, grubs], picks) = data.split_first_chunk()?;
        let stored = usize::from(options >> 2 & 7);
        let fleet = Self {
            loaders: if options & 1 == 0 { Loaders::OneUnit } else { Loaders::Separate },
            mok_lists: if options & 2 == 0 { MokLists::FollowShim } else { MokLists::Independent },
            stored: Some(stored).filter(|level| *level < LEVELS.len()),
        };
        let shims = [s0, s1, s2];
        let image = |[one, two]: [u8; 2]| {
            let build = one & 3;
            let table = shims.get(usize::from(build)).copied().unwrap_or(build);
            let shim = Shim { build, level: usize::from(table & 3), vendor: table >> 2 & 1 };
            let grub = one >> 2 & 3;
            let keys = match fleet.mok_lists {
                MokLists::Independent => two & 3,
                _ => build,
            };
            let secure_boot = if two & 4 == 0 { SecureBoot::On } else { SecureBoot::Off };
            Image {
                shim,
                grub: Grub { build: grub, asks_twice: grubs >> grub & 1 == 1 },
                kernel: one >> 4 & 3,
                keys,
                secure_boot,
            }
        };
        let (picks, _) = picks.as_chunks::<2>();
        let images = picks.iter().take(NAMES.len()).copied().map(image).collect();
        Some((fleet, images))
    }

    /// A combiner that knows all levels used here.
    pub(super) fn combiner(&self) -> Combiner {
        let levels = LEVELS.iter().try_fold(SbatLevels::default(), |l, text| l.with_known(text));
        let mut levels = levels.expect("four levels");
        if let Some(stored) = self.stored.and_then(|level| LEVELS.get(level)) {
            levels = levels.with_stored(stored).expect("a level");
        }
        Combiner::new()
            .with_grouping(Grouping::new(self.loaders, self.mok_lists))
            .with_sbat_levels(levels)
    }

    /// Every machine with a shim, a GRUB, a kernel and keys of any images, on which the shim of any image ran
    /// before.
    pub(super) fn machines(&self, images: &[Image]) -> BTreeSet<Vec<Sha256Digest>> {
        let mut machines = BTreeSet::new();
        for state in [SecureBoot::On, SecureBoot::Off] {
            let images = images.iter().filter(|image| image.secure_boot == state);
            let images: Vec<Image> = images.copied().collect();
            let kernels: BTreeSet<u8> = images.iter().map(|image| image.kernel).collect();
            let stored = images.iter().map(|image| image.shim.level);
            let stored: BTreeSet<usize> = stored.chain(self.stored).collect();
            for loader in self.loaders(&images) {
                let levels = stored.iter().map(|level| loader.shim.level.max(*level));
                for level in levels.collect::<BTreeSet<_>>() {
                    for kernel in &kernels {
                        for keys in self.keys(&loader, &images) {
                            let machine = Image { kernel: *kernel, keys, ..loader };
                            let measured = machine.measured(level);
                            machines.insert(measured.pcrs.iter().map(|pcr| pcr.value).collect());
                        }
                    }
                }
            }
        }
        machines
    }

    /// Each shim with each GRUB it may be installed with.
    fn loaders(&self, images: &[Image]) -> Vec<Image> {
        let with = |shim: &Image| {
            let shim = *shim;
            let grubs = images.iter().map(|image| image.grub);
            grubs.map(move |grub| Image { grub, ..shim }).collect::<Vec<_>>()
        };
        let mut loaders = match self.loaders {
            Loaders::Separate => images.iter().flat_map(with).collect(),
            _ => images.to_vec(),
        };
        loaders.sort_by_key(|image| (image.shim.build, image.grub.build));
        loaders.dedup_by_key(|image| (image.shim.build, image.grub.build));
        loaders
    }

    fn keys(&self, loader: &Image, images: &[Image]) -> BTreeSet<u8> {
        match self.mok_lists {
            MokLists::Independent => images.iter().map(|image| image.keys).collect(),
            _ => [loader.keys].into(),
        }
    }
}
