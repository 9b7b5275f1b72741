//! Finds and reads the files that a boot starts.

use std::io::Read as _;

use tec_core::pcr::PcrIndex;

use super::boot::{Boot, Started};
use super::layout::PeError;
use super::pe::{PeFile, PeRequest};
use super::platform::SecureBoot;
use super::predict_error::PredictError;
use super::signature::SignaturePresence;
use super::uki_table::SectionTable;
use super::{find, load_options, resolve, stub};

/// Maximum size of a GRUB script.
pub(super) const MAX_SCRIPT: u64 = 1 << 20;
/// Maximum size of a part that is read on its own: the modules in Debian's GRUB have some 3 MiB.
const MAX_PART: u64 = 16 << 20;
/// Sections that are read in full.
const KEPT: [&str; 11] = [
    ".vendor_cert",
    ".sbatlevel",
    ".data.ident",
    ".sdmagic",
    ".sbat",
    ".cmdline",
    ".osrel",
    ".uname",
    ".pcrpkey",
    ".pcrsig",
    ".profile",
];

impl Boot<'_> {
    /// The programs that firmware, and after it shim, would start: those that the caller specifies; otherwise
    /// those of the first boot entry whose file exists; otherwise those in the usual places.
    pub(super) fn stages(&self) -> Result<(String, Option<String>), PredictError> {
        if let Some(stages) = &self.options.stages {
            return Ok(stages.clone());
        }
        let usual = find::stages(self.image);
        let Some(first) = self.first_of_entries()? else {
            return usual.map_err(PredictError::Find);
        };
        match usual {
            Ok((usual, second)) if usual == first => Ok((first, second)),
            _ => {
                let folder = first.rsplit_once('/').map_or("", |(folder, _)| folder);
                let beside = format!("{folder}/{}", find::GRUB);
                let second = find::spelled(self.image, beside.trim_start_matches('/'));
                Ok((first, second.map_err(PredictError::Find)?))
            }
        }
    }

    fn first_of_entries(&self) -> Result<Option<String>, PredictError> {
        for file in load_options::files(self.platform) {
            for partition in find::PARTITIONS {
                let path = format!("{partition}{file}");
                let found = find::spelled(self.image, &path).map_err(PredictError::Find)?;
                if found.is_some() {
                    return Ok(found);
                }
            }
        }
        Ok(None)
    }

    pub(super) fn list(&self, folder: &str) -> Result<Vec<String>, PredictError> {
        self.image.files(folder).map_err(|source| {
            PredictError::Find(find::FindError::List { prefix: folder.to_owned(), source })
        })
    }

    /// Reads a file that may be shim, GRUB, a unified kernel image or an add-on; for an image with several
    /// profiles, the sections of this one.
    pub(super) fn read_loader(&self, path: String, profile: u32) -> Result<Started, PredictError> {
        let mut request = PeRequest::new(self.options.banks).keep(KEPT);
        let sections = [PcrIndex::KERNEL_BOOT, PcrIndex::BOOT_FILES];
        if sections.into_iter().any(|pcr| self.options.wants(pcr)) {
            request = request.hash(stub::hashed_sections());
        }
        let request = match self.secure_boot() {
            SecureBoot::On => request,
            SecureBoot::Off => request.nested(".linux"),
        };
        if profile == 0 {
            match self.read(path.clone(), &request) {
                Err(PredictError::Pe { source: PeError::RepeatedSection { .. }, .. }) => {}
                other => return other,
            }
        }
        let table = SectionTable::read(self.image, &path)?;
        let request = request.leaving_out(table.left_out(&path, profile)?);
        let started = self.read(path, &request)?;
        Ok(Started { profile: Some(profile), ..started })
    }

    pub(super) fn read(&self, path: String, request: &PeRequest) -> Result<Started, PredictError> {
        let reader = match self.image.open(&path) {
            Ok(reader) => reader,
            Err(source) => return Err(PredictError::Open { file: path, source }),
        };
        let file = match PeFile::read_as(reader, request) {
            Ok(file) => file,
            Err(source) => return Err(PredictError::Pe { file: path, source }),
        };
        let banks = file.with_signed(request.banks);
        if banks != request.banks {
            return self.read(path, &PeRequest { banks, ..request.clone() });
        }
        let started = Started { path, file, profile: None };
        let digests = started.file.authenticode_digests();
        started.check_signatures(&digests, SignaturePresence::Optional)?;
        Ok(started)
    }

    /// Reads a small file in full.
    pub(super) fn read_small(&self, path: &str, limit: u64) -> Result<Vec<u8>, PredictError> {
        let refuse = |source| PredictError::Open { file: path.to_owned(), source };
        let reader = self.image.open(path);
        reader.and_then(|reader| resolve::all(reader, limit)).map_err(refuse)
    }

    /// Reads a part of a file that was read as a PE file before.
    pub(super) fn read_part(
        &self,
        path: &str,
        start: u64,
        size: u64,
    ) -> Result<Vec<u8>, PredictError> {
        let refuse = |source| PredictError::Open { file: path.to_owned(), source };
        let mut reader = self.image.open(path).map_err(refuse)?;
        std::io::copy(&mut reader.by_ref().take(start), &mut std::io::sink()).map_err(refuse)?;
        let mut content = Vec::new();
        reader.take(size.min(MAX_PART)).read_to_end(&mut content).map_err(refuse)?;
        Ok(content)
    }
}
