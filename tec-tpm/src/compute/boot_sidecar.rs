//! Credentials and extensions next to a unified kernel image, which its stub packs into archives.

use tec_core::pcr::PcrIndex;

use super::boot::{Boot, Started};
use super::boot_addon::{MAX_FILES, base_name, ends_with, own_folder};
use super::cpio;
use super::cpio::Target;
use super::hash::BankDigests;
use super::measurement::{Component, Measurement};
use super::predict_error::PredictError;
use super::stub::StubProfile;
use super::unpredictable::Unpredictable;
use crate::event_log::EventKind;

/// Maximum size of a file that is packed into an archive, and of their sum.
const MAX_PACKED: u64 = 4 << 20;

/// A type of file next to the image that the stub packs into an archive (systemd, stub.c,
/// `generate_sidecar_initrds`).
struct Sidecar {
    /// Folder for all images; `None` for the image's own.
    folder: Option<&'static str>,
    ending: &'static str,
    not_ending: Option<&'static str>,
    target: Target,
    /// The measured component; PCR 13 is not predicted here.
    component: Option<Component>,
}

/// Number of files that stub 252 was observed to pack.
const OBSERVED_OF_252: usize = 3;
const CREDENTIALS: &str = "loader/credentials";
const EXTENSIONS: &str = "loader/extensions";

const fn target(folder: &'static str, folder_mode: u32, file_mode: u32) -> Target {
    Target { folder, folder_mode, file_mode }
}

/// The types, in archive order.
const SIDECARS: [Sidecar; 6] = [
    Sidecar {
        folder: None,
        ending: ".cred",
        not_ending: None,
        target: target(".extra/credentials", 0o500, 0o400),
        component: Some(Component::Pcr12Credentials),
    },
    Sidecar {
        folder: Some(CREDENTIALS),
        ending: ".cred",
        not_ending: None,
        target: target(".extra/global_credentials", 0o500, 0o400),
        component: Some(Component::Pcr12Credentials),
    },
    Sidecar {
        folder: None,
        ending: ".raw",
        not_ending: Some(".confext.raw"),
        target: target(".extra/sysext", 0o555, 0o444),
        component: None,
    },
    Sidecar {
        folder: Some(EXTENSIONS),
        ending: ".raw",
        not_ending: Some(".confext.raw"),
        target: target(".extra/global_sysext", 0o555, 0o444),
        component: None,
    },
    Sidecar {
        folder: None,
        ending: ".confext.raw",
        not_ending: None,
        target: target(".extra/confext", 0o555, 0o444),
        component: Some(Component::Pcr12Confext),
    },
    Sidecar {
        folder: Some(EXTENSIONS),
        ending: ".confext.raw",
        not_ending: None,
        target: target(".extra/global_confext", 0o555, 0o444),
        component: Some(Component::Pcr12Confext),
    },
];

impl Boot<'_> {
    /// Packs and measures credentials and extensions; returns the archives.
    pub(super) fn pack_sidecars(
        &mut self,
        profile: StubProfile,
        uki: &Started,
    ) -> Result<Vec<Vec<u8>>, PredictError> {
        let own = own_folder(profile, &uki.path);
        let mut archives = Vec::new();
        for (number, sidecar) in SIDECARS.iter().enumerate() {
            let folder = sidecar.folder.unwrap_or(&own);
            let mut files = self.files_beside(uki, folder, sidecar.ending)?;
            if let Some(other) = sidecar.not_ending {
                files.retain(|file| !ends_with(file, other));
            }
            let Some(first) = files.first() else {
                continue;
            };
            let observed = profile > StubProfile::V252 || number < OBSERVED_OF_252;
            match self.pack(sidecar.target, &files)? {
                Some(archive) if observed => {
                    self.push_archive(sidecar, &archive);
                    archives.push(archive);
                }
                _ => {
                    let reason = Unpredictable::Sidecar(first.clone());
                    let depending = [PcrIndex::KERNEL_CONFIG, PcrIndex::BOOT_FILES];
                    self.give_up_all(depending, &reason);
                }
            }
        }
        Ok(archives)
    }

    fn push_archive(&mut self, sidecar: &Sidecar, archive: &[u8]) {
        if let Some(component) = sidecar.component {
            let digests = BankDigests::of(self.options.banks, archive);
            let pcr = PcrIndex::KERNEL_CONFIG;
            let measured = Measurement::new(component, pcr, EventKind::IPL, digests);
            self.push(measured.about(sidecar.target.folder));
        }
    }

    /// An archive of these files; `None` if there are too many or they are too large.
    fn pack(&self, target: Target, files: &[String]) -> Result<Option<Vec<u8>>, PredictError> {
        let mut left = MAX_PACKED;
        let mut packed = Vec::new();
        for path in files {
            let size = self.image.open(path).ok().and_then(|file| file.size());
            if packed.len() >= MAX_FILES || size.is_some_and(|size| size > left) {
                return Ok(None);
            }
            let content = self.read_small(path, left)?;
            left = left.saturating_sub(content.len() as u64);
            packed.push((base_name(path).to_owned(), content));
        }
        Ok(Some(cpio::pack(target, &packed)))
    }
}
