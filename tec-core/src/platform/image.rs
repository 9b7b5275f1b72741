//! What an approved image leaves open, as the first accepted boot of it on a machine showed it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::{Platform, Register};
use crate::boot::{BootState, leave_out_words};
use crate::digest::Sha256Digest;
use crate::evidence::{PinnedPcrs, VerifiedEvidence};
use crate::pcr::{PcrIndex, PcrValues};

/// Registers that are held to the first boot of an image if the image does not state them. PCR 11 counts the
/// phases of a boot.
const HELD: [PcrIndex; 5] = [
    PcrIndex::BOOT_COMMANDS,
    PcrIndex::BOOT_FILES,
    PcrIndex::KERNEL_CONFIG,
    PcrIndex::SYSTEM_EXTENSIONS,
    PcrIndex::MOK,
];
/// Maximum number of images that a machine is held to; the one booted longest ago makes room.
const MAX_BOOTS: usize = 4;
/// Longest JSON form of one boot; of one that is longer, only the values are kept.
const MAX_BOOT: usize = 48 * 1024;
/// Longest JSON form of all of them.
pub(super) const MAX_ALL: usize = MAX_BOOTS * (MAX_BOOT + 1);
/// Maximum number of characters of their image's name.
const MAX_NAME: usize = 256;

/// The registers that an image does not state, in one boot of it, without systemd's words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ImageBoot {
    /// Digest of what the image states: an image of the same name with other content is another one, and images
    /// that state the same are one.
    pub id: Sha256Digest,
    /// What was booted, in words.
    pub image: String,
    /// The registers.
    pub registers: BTreeMap<PcrIndex, Register>,
}

impl ImageBoot {
    /// A boot of an image whose registers are `pinned`, and were `judged` to have its values. `None` if the image
    /// leaves nothing open.
    pub(crate) fn of(
        evidence: &VerifiedEvidence,
        judged: &PcrValues,
        pinned: PinnedPcrs,
        booted: &BootState,
    ) -> Option<Self> {
        let open = || HELD.into_iter().filter(|pcr| !pinned.contains(*pcr));
        open().next()?;
        let mut plain = evidence.clone();
        for pcr in open() {
            leave_out_words(&mut plain, pcr, Vec::new);
        }
        let mut stated = String::new();
        for pcr in pinned.iter() {
            let _ = write!(stated, "{pcr}={} ", judged.value(pcr));
        }
        let mut boot = Self {
            id: Sha256Digest::of(stated),
            image: booted.to_string().chars().take(MAX_NAME).collect(),
            registers: open().map(|pcr| (pcr, Register::of(&plain, pcr))).collect(),
        };
        if serde_json::to_string(&boot).map_or(usize::MAX, |text| text.len()) > MAX_BOOT {
            boot.registers.values_mut().for_each(|register| register.events = None);
        }
        Some(boot)
    }

    /// The registers that another boot does not have as this one has them.
    pub(super) fn differing<'a>(
        &'a self,
        other: &'a Self,
    ) -> impl Iterator<Item = (PcrIndex, &'a Register, Option<&'a Register>)> {
        let pairs = self.registers.iter().map(|(pcr, old)| (*pcr, old, other.registers.get(pcr)));
        pairs.filter(|(pcr, old, new)| new.is_none_or(|new| !old.is_same(*pcr, new)))
    }

    /// Whether the boot loader measured commands and files, so that initramfs and command line are among what the
    /// machine is held to.
    pub(crate) fn has_files(&self) -> bool {
        let is_measured = |pcr| {
            self.registers.get(&pcr).is_some_and(|register| register.value != Sha256Digest::ZERO)
        };
        is_measured(PcrIndex::BOOT_COMMANDS) && is_measured(PcrIndex::BOOT_FILES)
    }

    /// The registers in words: `PCR 8, 9, 12, 13, 14`.
    pub fn names(&self) -> String {
        let names: Vec<_> = self.registers.keys().map(ToString::to_string).collect();
        format!("PCR {}", names.join(", "))
    }
}

impl Platform {
    /// With what a boot showed of its image.
    pub(crate) fn with_boot(mut self, boot: Option<ImageBoot>) -> Self {
        self.boots = boot.into_iter().collect();
        self
    }

    /// The platform, with only the last of its boots.
    #[must_use]
    pub fn with_last_boot(&self) -> Self {
        let boot = self.boots.last().cloned();
        let (firmware, recorded) = (self.firmware.clone(), self.recorded.clone());
        Self { firmware, recorded, boots: Vec::new() }.with_boot(boot)
    }

    /// The first boot of the image of another one, if it was recorded.
    pub(crate) fn first_of(&self, boot: &ImageBoot) -> Option<&ImageBoot> {
        self.boots.iter().find(|first| first.id == boot.id)
    }

    /// Takes the boots of images that it does not know, and puts those that it knows last.
    pub(crate) fn learn(&mut self, boots: &[ImageBoot]) {
        for boot in boots {
            let first = self.first_of(boot).unwrap_or(boot).clone();
            self.replace(first);
        }
    }

    /// Takes a boot in place of the first one of its image.
    pub(crate) fn replace(&mut self, boot: ImageBoot) {
        self.boots.retain(|other| other.id != boot.id);
        self.boots.push(boot);
        let surplus = self.boots.len().saturating_sub(MAX_BOOTS);
        self.boots.drain(..surplus);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::{Judgement, judge};
    use crate::testing::PlatformBoot;

    fn boot() -> PlatformBoot {
        PlatformBoot::new().initramfs("first")
    }

    fn of(boot: &PlatformBoot, pinned: &[PcrIndex]) -> Option<ImageBoot> {
        let (evidence, set) = (boot.evidence(1), pinned.iter().copied().collect());
        let pinned = PinnedPcrs::new(set).unwrap();
        let booted = BootState::whole(["debian".parse().unwrap()], pinned.iter());
        ImageBoot::of(&evidence, &evidence.pcrs, pinned, &booted)
    }

    fn is_refused(first: &PlatformBoot, later: &PlatformBoot) -> bool {
        matches!(judge(&first.platform(), &later.platform()), Judgement::Refused(_))
    }

    #[test]
    fn what_an_image_states_is_left_to_it() {
        let files = PcrIndex::BOOT_FILES;
        let held = |pinned: &[PcrIndex]| {
            of(&boot(), pinned).map(|boot| boot.registers.keys().copied().collect::<Vec<_>>())
        };
        assert_eq!(held(&[PcrIndex::BOOT_MANAGER]), Some(HELD.to_vec()));
        let others: Vec<_> = HELD.into_iter().filter(|pcr| *pcr != files).collect();
        assert_eq!(held(&[PcrIndex::BOOT_MANAGER, files]), Some(others));
        assert_eq!(held(&HELD), None);
    }

    #[test]
    fn an_image_is_what_it_states_and_not_its_name() {
        let id = |boot: &PlatformBoot, pinned: &[PcrIndex]| of(boot, pinned).unwrap().id;
        let four = [PcrIndex::BOOT_MANAGER];
        assert_eq!(id(&boot(), &four), id(&boot().initramfs("other"), &four));
        assert_ne!(id(&boot(), &four), id(&boot().kernel("other"), &four));
        assert_ne!(id(&boot(), &four), id(&boot(), &[four[0], PcrIndex::MOK]));
    }

    #[test]
    fn words_of_systemd_are_no_change_with_a_log_and_without() {
        let worded = boot().word("os-separator");
        for (one, other) in [
            (boot(), worded.clone()),
            (boot(), worded.clone().without_log()),
            (boot().without_log(), worded.clone()),
            (boot(), boot().without_log()),
        ] {
            assert!(!is_refused(&one, &other) && !is_refused(&other, &one), "{one:?} {other:?}");
        }
        for edited in [boot().initramfs("other"), worded.initramfs("other"), boot().word("x")] {
            assert!(is_refused(&boot(), &edited), "{edited:?}");
            assert!(is_refused(&boot(), &edited.without_log()));
        }
    }

    #[test]
    fn a_change_names_the_register_and_its_events() {
        let (first, later) = (boot().platform(), boot().initramfs("other").platform());
        let Judgement::Refused(changes) = judge(&first, &later) else { panic!("it matches") };
        let named: Vec<_> = changes.iter().map(|change| (change.pcr, &change.detail)).collect();
        assert_eq!(named, [(PcrIndex::BOOT_FILES, &Some("first -> other".to_owned()))]);
    }

    #[test]
    fn odd_words_decide_like_others() {
        let line = "x".repeat(64 << 10);
        for words in ["\"a\" 'b'", "a\0b", "a\nb\u{1b}[2J", "ünï\u{202e}", "", &line] {
            let odd = boot().initramfs(words);
            assert!(!is_refused(&odd, &odd) && !is_refused(&odd, &odd.clone().without_log()));
            assert!(is_refused(&odd, &boot()) && is_refused(&boot(), &odd), "{words:?}");
        }
    }

    #[test]
    fn a_long_log_is_kept_as_values_and_decides_as_before() {
        let long = |end: &str| boot().initramfs(&format!("{}{end}", "x".repeat(MAX_BOOT)));
        let first = long("1").platform();
        assert!(first.boots[0].registers.values().all(|register| register.events.is_none()));
        assert!(!is_refused(&long("1"), &long("1")) && is_refused(&long("1"), &long("2")));
    }

    #[test]
    fn a_platform_of_earlier_versions_is_read_and_written_as_it_was() {
        let json = serde_json::to_string(&PlatformBoot::new().platform()).unwrap();
        assert!(!json.contains("boots"), "{json}");
        let old: Platform = serde_json::from_str(&json).unwrap();
        assert_eq!(judge(&old, &boot().platform()), judge(&old, &old));
    }
}
