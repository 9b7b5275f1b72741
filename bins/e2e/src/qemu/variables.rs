//! The variable store of OVMF's flash image, with variables set before the first boot.
//!
//! Layout (EDK II, MdeModulePkg, `Guid/VariableFormat.h`, and PI 1.8 volume 3, 3.2.1): a firmware
//! volume, a store header of 28 bytes, then records aligned to 4 bytes: header of 60 bytes, name
//! in UTF-16, data. Reading is `tec_tpm::compute::PlatformState`.

use anyhow::{Context as _, ensure};
use tec_tpm::compute::Guid;

use super::{field, put, u16_at, u32_at};

/// Length of the volume's header (PI 1.8 volume 3, EFI_FIRMWARE_VOLUME_HEADER).
const VOLUME_HEADER: usize = 48;
/// EFI_AUTHENTICATED_VARIABLE_GUID, aaf32c78-947b-439a-a180-2e144ec37792.
const AUTHENTICATED: [u8; 16] = [
    0x78, 0x2c, 0xf3, 0xaa, 0x7b, 0x94, 0x9a, 0x43, 0xa1, 0x80, 0x2e, 0x14, 0x4e, 0xc3, 0x77, 0x92,
];
const STORE_HEADER: usize = 28;
const RECORD_HEADER: usize = 60;
/// `VARIABLE_DATA`: every record starts with it.
const START: u16 = 0x55aa;
/// `VAR_ADDED`: the record is live; without the second bit (`VAR_DELETED`) it is not.
const ADDED: u8 = 0x3f;
const NOT_DELETED: u8 = 0x02;
/// EFI_VARIABLE_TIME_BASED_AUTHENTICATED_WRITE_ACCESS (UEFI 2.10, 8.2).
const TIME_BASED: u32 = 0x20;
/// EFI_TIME (UEFI 2.10, 8.3) of 1 January 2024: when keys were supposedly enrolled.
const ENROLLED: [u8; 16] = [0xe8, 0x07, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Non-volatile, accessible to boot services (UEFI 2.10, 8.2).
pub const BOOT_ONLY: u32 = 0x3;
/// Non-volatile, accessible to both, changed only by signed requests: keys of the firmware.
pub const SIGNED: u32 = 0x27;

/// A flash image to add variables to.
#[derive(Clone, Debug)]
pub struct VariableStore {
    image: Vec<u8>,
    end: usize,
}

impl VariableStore {
    /// Reads an image such as `OVMF_VARS.fd`.
    pub fn new(image: Vec<u8>) -> anyhow::Result<Self> {
        let start = u16_at(&image, VOLUME_HEADER)?;
        ensure!(
            field(&image, start)? == AUTHENTICATED,
            "offset {start}: no store of authenticated variables"
        );
        let end = start + u32_at(&image, start + AUTHENTICATED.len())?;
        ensure!(end <= image.len(), "the store ends after its image");
        Ok(Self { image, end })
    }

    /// Sets a variable, replacing one of the same name.
    pub fn with(
        mut self,
        name: &str,
        vendor: Guid,
        attributes: u32,
        data: &[u8],
    ) -> anyhow::Result<Self> {
        let name: Vec<u8> = name.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect();
        let free = self.delete(&name, vendor)?;
        let record = record(&name, vendor, attributes, data)?;
        ensure!(free + record.len() <= self.end, "the store is full");
        put(&mut self.image, free, &record)?;
        Ok(self)
    }

    /// Marks a variable as deleted, if it exists; returns where the records end.
    fn delete(&mut self, name: &[u8], vendor: Guid) -> anyhow::Result<usize> {
        let mut at = u16_at(&self.image, VOLUME_HEADER)? + STORE_HEADER;
        while at + RECORD_HEADER <= self.end && field(&self.image, at)? == START.to_le_bytes() {
            let name_size = u32_at(&self.image, at + 36)?;
            let data_size = u32_at(&self.image, at + 40)?;
            let own_vendor: [u8; 16] = field(&self.image, at + 44)?;
            let name_at = at + RECORD_HEADER;
            let own_name = self.image.get(name_at..name_at + name_size);
            let own_name = own_name.context("a variable ends after the store")?;
            if own_name == name && own_vendor == *vendor.as_bytes() {
                let [state] = field(&self.image, at + 2)?;
                put(&mut self.image, at + 2, &[state & !NOT_DELETED])?;
            }
            at = (name_at + name_size + data_size).next_multiple_of(4);
        }
        Ok(at)
    }

    /// The image.
    pub fn build(self) -> Vec<u8> {
        self.image
    }
}

/// AUTHENTICATED_VARIABLE_HEADER, name and data.
fn record(name: &[u8], vendor: Guid, attributes: u32, data: &[u8]) -> anyhow::Result<Vec<u8>> {
    let time = if attributes & TIME_BASED == 0 { [0; 16] } else { ENROLLED };
    let mut record = START.to_le_bytes().to_vec();
    record.extend([ADDED, 0]);
    record.extend(attributes.to_le_bytes());
    record.extend([0; 8]); // monotonic count
    record.extend(time);
    record.extend([0; 4]); // index of a public key, no longer in use
    record.extend(u32::try_from(name.len())?.to_le_bytes());
    record.extend(u32::try_from(data.len())?.to_le_bytes());
    record.extend(vendor.as_bytes());
    record.extend(name);
    record.extend(data);
    Ok(record)
}

/// An empty store, for tests.
#[cfg(test)]
pub(crate) fn empty_store() -> Vec<u8> {
    let mut image = vec![0xff; 72 + 1024];
    let parts: [(usize, &[u8]); 4] =
        [(40, b"_FVH"), (VOLUME_HEADER, &[72, 0]), (72, &AUTHENTICATED), (88, &[0, 4, 0, 0])];
    for (at, bytes) in parts {
        put(&mut image, at, bytes).unwrap();
    }
    image
}

#[cfg(test)]
mod tests {
    use tec_tpm::compute::PlatformState;

    use super::*;

    fn empty() -> VariableStore {
        VariableStore::new(empty_store()).unwrap()
    }

    #[test]
    fn what_is_set_is_read_by_the_predictor() {
        let store = empty()
            .with("PK", Guid::GLOBAL, SIGNED, b"old key")
            .and_then(|store| store.with("db", Guid::SECURITY_DATABASE, SIGNED, b"list"))
            .and_then(|store| store.with("PK", Guid::GLOBAL, SIGNED, b"key"))
            .unwrap();
        let read = PlatformState::from_variable_store(&store.build()).unwrap();
        assert_eq!(read.variable("PK", Guid::GLOBAL), Some(&b"key"[..]));
        let db = read.variable("db", Guid::SECURITY_DATABASE);
        assert_eq!(db, Some(&b"list"[..]));
    }

    #[test]
    fn a_full_store_and_other_files_are_refused() {
        assert!(empty().with("big", Guid::SHIM, BOOT_ONLY, &[0; 1024]).is_err());
        assert!(VariableStore::new(vec![0; 100]).is_err());
    }
}
