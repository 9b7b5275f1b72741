//! Boots with a firmware and a Secure Boot policy, as a verifier would have found them.

use std::collections::BTreeSet;

use crate::attest::{LogEvidence, LoggedEvent, PinnedPcrs, Tee, VerifiedEvidence};
use crate::boot::BootState;
use crate::digest::Sha256Digest;
use crate::pcr::{PCR_COUNT, PcrIndex, PcrValues};
use crate::platform::{
    ImageBoot, KeyDatabase, LoggedVariable, Platform, PolicyVariable, SecureBootState,
};
use crate::testing::sample;

/// A boot of one platform. Every method changes one thing.
#[derive(Clone, Debug)]
pub struct PlatformBoot {
    firmware: String,
    option_rom: String,
    boot_order: String,
    program: Option<String>,
    kernel: String,
    initramfs: Option<String>,
    state: SecureBootState,
    keys: [BTreeSet<u64>; 6],
    authorities: Vec<String>,
    other: Option<String>,
    word: Option<String>,
    has_log: bool,
}

impl Default for PlatformBoot {
    fn default() -> Self {
        Self::new()
    }
}

impl PlatformBoot {
    /// The program of a boot: the last event of its PCR 4 is the digest of this text.
    pub const KERNEL: &str = "kernel";

    /// Secure Boot is on, and there is a log.
    pub fn new() -> Self {
        Self {
            firmware: "1.0".to_owned(),
            option_rom: "network card".to_owned(),
            boot_order: "disk".to_owned(),
            program: None,
            kernel: Self::KERNEL.to_owned(),
            initramfs: None,
            state: SecureBootState::On,
            keys: [&[1][..], &[2], &[3], &[4], &[], &[]].map(|keys| keys.iter().copied().collect()),
            authorities: vec!["shim".to_owned()],
            other: None,
            word: None,
            has_log: true,
        }
    }

    /// Changes the version of the firmware.
    pub fn firmware(mut self, version: &str) -> Self {
        version.clone_into(&mut self.firmware);
        self
    }

    /// Changes the option ROM.
    pub fn option_rom(mut self, name: &str) -> Self {
        name.clone_into(&mut self.option_rom);
        self
    }

    /// Changes the boot order, in PCR 1.
    pub fn boot_order(mut self, order: &str) -> Self {
        order.clone_into(&mut self.boot_order);
        self
    }

    /// A program that the firmware starts first.
    pub fn program(mut self, name: &str) -> Self {
        self.program = Some(name.to_owned());
        self
    }

    /// Changes the program of the boot.
    pub fn kernel(mut self, name: &str) -> Self {
        name.clone_into(&mut self.kernel);
        self
    }

    /// An initramfs that the boot loader measures, and that no image states.
    pub fn initramfs(mut self, text: &str) -> Self {
        self.initramfs = Some(text.to_owned());
        self
    }

    /// Turns Secure Boot on or off.
    pub fn secure_boot(mut self, state: SecureBootState) -> Self {
        self.state = state;
        self
    }

    /// Changes the entries of a key database.
    pub fn keys(mut self, name: KeyDatabase, entries: &[u64]) -> Self {
        for (known, keys) in DATABASES.iter().zip(&mut self.keys) {
            if *known == name {
                *keys = entries.iter().copied().collect();
            }
        }
        self
    }

    /// Changes the authorities, as a different boot loader would.
    pub fn authorities(mut self, authorities: &[&str]) -> Self {
        self.authorities = authorities.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    /// An event of the policy that is not a variable.
    pub fn other(mut self, text: &str) -> Self {
        self.other = Some(text.to_owned());
        self
    }

    /// A word that is measured into the registers that get the separator of systemd, at the end.
    pub fn word(mut self, word: &str) -> Self {
        self.word = Some(word.to_owned());
        self
    }

    /// Removes the log of the boot.
    pub fn without_log(mut self) -> Self {
        self.has_log = false;
        self
    }

    /// The platform that it shows.
    pub fn platform(&self) -> Platform {
        let evidence = self.evidence(1);
        let pinned = PinnedPcrs::boot_manager();
        let image = self.initramfs.as_ref().and_then(|_| {
            let booted = BootState::whole([self.kernel.parse().ok()?], pinned.iter());
            // As an image states it.
            let judged = Self { word: None, ..self.clone() }.evidence(1).pcrs;
            ImageBoot::of(&evidence, &judged, pinned, &booted)
        });
        Platform::of(&evidence).with_boot(image)
    }

    /// Evidence of it, signed by [this key](sample::public_key).
    pub fn evidence(&self, key: u64) -> VerifiedEvidence {
        let events = self.events();
        let mut values = [Sha256Digest::ZERO; PCR_COUNT];
        for (event, _) in &events {
            if let Some(value) = values.get_mut(event.pcr.as_usize()) {
                *value = value.extended(&event.digest);
            }
        }
        let pcrs = PcrValues::new(values);
        let mut evidence = VerifiedEvidence::new(Tee::Tpm, sample::public_key(key), pcrs);
        if self.has_log {
            let variable = |(event, variable): &(LoggedEvent, Option<PolicyVariable>)| {
                Some(LoggedVariable::new(event.number, variable.clone()?))
            };
            evidence.variables = events.iter().filter_map(variable).collect();
            let events = events.into_iter().map(|(event, _)| event).collect();
            let replayed = PcrIndex::all().collect();
            evidence.log = LogEvidence::Parsed { events, replayed, cut: None };
        }
        evidence
    }

    fn events(&self) -> Vec<(LoggedEvent, Option<PolicyVariable>)> {
        let mut log = Log(Vec::new());
        log.push(0, "EV_S_CRTM_VERSION", &self.firmware, None);
        log.push(1, "EV_EFI_VARIABLE_BOOT", &self.boot_order, None);
        log.push(2, "EV_EFI_BOOT_SERVICES_DRIVER", &self.option_rom, None);
        for program in self.program.iter().map(String::as_str).chain([&*self.kernel]) {
            log.push(4, "EV_EFI_BOOT_SERVICES_APPLICATION", program, None);
        }
        if let Some(initramfs) = &self.initramfs {
            log.push(8, "EV_IPL", "linux /vmlinuz", None);
            log.push(9, "EV_IPL", initramfs, None);
        }
        let state = self.state;
        let variable = Some(PolicyVariable::SecureBoot { state });
        log.push(7, CONFIG, &format!("SecureBoot={}", state.as_str()), variable);
        for (name, keys) in DATABASES.into_iter().zip(&self.keys) {
            if keys.is_empty() && name.may_appear() {
                continue;
            }
            let entries = keys.iter().map(|key| Sha256Digest::of(key.to_be_bytes())).collect();
            let variable = Some(PolicyVariable::Keys { name, entries });
            log.push(7, CONFIG, &format!("{}={keys:?}", name.as_str()), variable);
        }
        if let Some(text) = &self.other {
            log.push(7, "EV_EFI_ACTION", text, None);
        }
        log.push(7, "EV_SEPARATOR", "\0\0\0\0", None);
        for authority in &self.authorities {
            let variable = Some(PolicyVariable::Authority);
            log.push(7, "EV_EFI_VARIABLE_AUTHORITY", authority, variable);
        }
        for pcr in SEPARATED {
            if let Some(word) = &self.word {
                log.push(pcr, "systemd", word, None);
            }
        }
        log.0
    }
}

const DATABASES: [KeyDatabase; 6] = [
    KeyDatabase::Pk,
    KeyDatabase::Kek,
    KeyDatabase::Db,
    KeyDatabase::Dbx,
    KeyDatabase::Dbt,
    KeyDatabase::Dbr,
];
/// The registers that get the separator of systemd.
const SEPARATED: [u8; 12] = [0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14];
const CONFIG: &str = "EV_EFI_VARIABLE_DRIVER_CONFIG";

struct Log(Vec<(LoggedEvent, Option<PolicyVariable>)>);

impl Log {
    fn push(&mut self, pcr: u8, kind: &str, text: &str, variable: Option<PolicyVariable>) {
        let Ok(pcr) = PcrIndex::new(pcr) else {
            return;
        };
        let number = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let detail = Some(text.to_owned());
        let event = LoggedEvent::new(number, pcr, Sha256Digest::of(text), kind, detail);
        self.0.push((event, variable));
    }
}
