//! Event data, read as the event's type prescribes it (PC Client Platform Firmware Profile 1.06,
//! 10.2 for the structures, 10.4.1 for the structure of each type).

mod structures;

use serde::{Serialize, Serializer};

pub(crate) use self::structures::variable_data;
use self::structures::{
    ascii, blob, description, image, partitions, signature, tables, tagged, text, variable,
};
use super::kind::EventKind;
use crate::guid::Guid;

/// Event data, parsed as the structure that the event's type prescribes.
///
/// # Security
/// Reading proves nothing: an event's digest need not be that of its data, and its type is never
/// measured. [`Event::measured`](super::Event::measured) returns the bytes that are proven.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Content<'a> {
    /// `UEFI_VARIABLE_DATA`: a firmware variable.
    Variable {
        /// Vendor GUID of the variable.
        vendor: Guid,
        /// Name of the variable.
        name: String,
        /// Value of the variable.
        #[serde(serialize_with = "hexadecimal")]
        data: &'a [u8],
    },
    /// `UEFI_IMAGE_LOAD_EVENT`: a program that the firmware loaded. The digest is the Authenticode
    /// digest.
    Image {
        /// File path within its volume; empty for a program that was loaded from memory.
        path: String,
        /// Bytes in memory.
        length: u64,
    },
    /// `UEFI_PLATFORM_FIRMWARE_BLOB` and `…BLOB2`: a part of the firmware. The digest is that of
    /// the part.
    Firmware {
        /// Description; only the newer form has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// Physical address.
        base: u64,
        /// Bytes.
        length: u64,
    },
    /// `UEFI_HANDOFF_TABLE_POINTERS` and `…POINTERS2`: tables such as SMBIOS. The digest is that
    /// of the tables.
    Tables {
        /// Description; only the newer form has one.
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// GUIDs of the tables.
        tables: Vec<Guid>,
    },
    /// `UEFI_GPT_DATA`: the partition table of the disk that was booted from.
    Partitions {
        /// The disk.
        disk: Guid,
        /// The partitions that are in use.
        partitions: Vec<Partition>,
    },
    /// The end of the firmware's measurements: 0 or 0xffffffff, or 1 after an error.
    Separator {
        /// The value.
        value: u32,
    },
    /// `TCG_PCClientTaggedEvent`.
    Tagged {
        /// Number of the event, defined by the program that measured it.
        id: u32,
        /// Data of the event.
        #[serde(serialize_with = "hexadecimal")]
        data: &'a [u8],
    },
    /// `TCG_EfiStartupLocalityEvent`: the locality that started the TPM.
    StartupLocality {
        /// The locality.
        locality: u8,
    },
    /// Another structure that begins with a signature of 16 bytes: `Spec ID Event03`,
    /// `SP800-155 Event`, `SPDM Device Sec`.
    Signature {
        /// The signature.
        name: String,
    },
    /// Text.
    Text {
        /// The part of it that can be shown.
        text: String,
    },
    /// Data that has no prescribed form or could not be read.
    Opaque,
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Partition {
    /// Type of the partition.
    pub kind: Guid,
    /// GUID of the partition.
    pub id: Guid,
    /// Name of the partition.
    pub name: String,
    /// First block.
    pub first: u64,
    /// Last block.
    pub last: u64,
}

impl<'a> Content<'a> {
    /// Reads the data of an event of this type. Data without the prescribed form is
    /// [`Content::Opaque`].
    pub fn read(kind: EventKind, data: &'a [u8]) -> Self {
        Self::structure(kind, data).unwrap_or(Self::Opaque)
    }

    fn structure(kind: EventKind, data: &'a [u8]) -> Option<Self> {
        match kind {
            EventKind::EFI_VARIABLE_DRIVER_CONFIG
            | EventKind::EFI_VARIABLE_BOOT
            | EventKind::EFI_VARIABLE_BOOT2
            | EventKind::EFI_VARIABLE_AUTHORITY => variable(data),
            EventKind::EFI_BOOT_SERVICES_APPLICATION
            | EventKind::EFI_BOOT_SERVICES_DRIVER
            | EventKind::EFI_RUNTIME_SERVICES_DRIVER => image(data),
            EventKind::EFI_PLATFORM_FIRMWARE_BLOB => blob(None, data),
            EventKind::EFI_PLATFORM_FIRMWARE_BLOB2 => {
                let (name, rest) = description(data)?;
                blob(Some(name), rest)
            }
            EventKind::EFI_HANDOFF_TABLES => tables(None, data),
            EventKind::EFI_HANDOFF_TABLES2 => {
                let (name, rest) = description(data)?;
                tables(Some(name), rest)
            }
            EventKind::EFI_GPT_EVENT | EventKind::EFI_GPT_EVENT2 => partitions(data),
            EventKind::SEPARATOR => {
                Some(Self::Separator { value: u32::from_le_bytes(data.try_into().ok()?) })
            }
            EventKind::EVENT_TAG => tagged(data),
            EventKind::NO_ACTION
            | EventKind::EFI_SPDM_FIRMWARE_BLOB
            | EventKind::EFI_SPDM_FIRMWARE_CONFIG
            | EventKind::EFI_SPDM_DEVICE_POLICY
            | EventKind::EFI_SPDM_DEVICE_AUTHORITY => signature(data),
            // A text, or a blob in one of two forms: whoever measures may choose.
            EventKind::POST_CODE | EventKind::POST_CODE2 | EventKind::S_CRTM_CONTENTS => {
                ascii(data)
                    .or_else(|| blob(None, data))
                    .or_else(|| Self::structure(EventKind::EFI_PLATFORM_FIRMWARE_BLOB2, data))
            }
            kind => kind.known_name().and_then(|_| text(data)),
        }
    }
}

fn hexadecimal<S: Serializer>(data: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&hex::encode(data))
}

#[cfg(test)]
mod tests;
