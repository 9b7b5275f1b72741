//! The bytes that an event measured, if the log holds them.
//!
//! A digest proves the bytes that hash to it, wherever they are. So each part of an event's data that
//! firmware and boot loaders are known to hash is tried; one that matches is proof.
//!
//! | type | what is hashed | of the data |
//! |---|---|---|
//! | most of the firmware's | the data | whole |
//! | `EV_EFI_VARIABLE_BOOT` | the value of the variable | part |
//! | `EV_EVENT_TAG` | the data after the tag and length, or all of it | part or whole |
//! | `EV_IPL` of GRUB, PCR 8 | the command after `grub_cmd: ` and before the NUL | part |
//! | `EV_IPL` of systemd-stub, PCR 11 | the section's name in ASCII with a NUL; the data is UTF-16 | part |
//! | strings | with or without a NUL at their end | whole or part |
//! | images, files, blobs, tables | what the data names | nothing |

use std::borrow::Cow;

use serde::Serialize;

use super::bank::Bank;
use super::content::Content;
use super::event::Event;
use super::kind::EventKind;

/// How much of an event's data its digest proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum DataProof {
    /// All of it: the digest is that of the data.
    Hashed,
    /// The digest is that of a part of the data.
    Part,
    /// Nothing: the digest is that of something else (a file, a table); the data is only a description.
    Unverified,
    /// Nothing: the event extends no register.
    NotMeasured,
}

impl<'a> Event<'a> {
    /// The bytes whose digest, in this bank, is the event's: its data or the part of it that was
    /// hashed. `None` when the log does not hold them, or the event has no digest of the bank.
    ///
    /// # Security
    /// The bytes are proven only if the digest is; see [`VerifiedLog`](super::VerifiedLog). The type of the
    /// event is not.
    pub fn measured(&self, bank: Bank) -> Option<Cow<'a, [u8]>> {
        self.extends()?;
        let digest = self.digests.get(bank)?;
        let fits = |bytes: &Cow<'a, [u8]>| bank.hash(bytes) == digest;
        std::iter::once(Cow::Borrowed(self.data)).chain(self.parts()).find(fits)
    }

    /// How much of the data the digest of the bank proves.
    pub fn proof(&self, bank: Bank) -> DataProof {
        if self.extends().is_none() {
            return DataProof::NotMeasured;
        }
        match self.measured(bank) {
            Some(bytes) if bytes == self.data => DataProof::Hashed,
            Some(_) => DataProof::Part,
            None => DataProof::Unverified,
        }
    }

    /// Parts of the data that are known to be hashed instead of the whole.
    fn parts(&self) -> impl Iterator<Item = Cow<'a, [u8]>> {
        let text = self.data.strip_suffix(&[0]).unwrap_or(self.data);
        let (part, name) = match (self.kind, self.content()) {
            (EventKind::EFI_VARIABLE_BOOT, Content::Variable { data, .. })
            | (_, Content::Tagged { data, .. }) => ([Some(data), None], None),
            (EventKind::IPL, _) => {
                let colon = behind(text, b": ");
                ([colon, behind(text, b" ")], section_name(self.data))
            }
            _ => ([None, None], None),
        };
        let parts = std::iter::once(text).chain(part.into_iter().flatten());
        parts.map(Cow::Borrowed).chain(name.map(Cow::Owned))
    }
}

/// What follows the first `mark`.
fn behind<'a>(text: &'a [u8], mark: &[u8]) -> Option<&'a [u8]> {
    let at = text.windows(mark.len()).position(|part| part == mark)?;
    text.get(at + mark.len()..)
}

/// Longest name of a section: that of a PE section header.
const SECTION_NAME: usize = 8;

/// A section's name from UTF-16 to ASCII with a NUL.
fn section_name(data: &[u8]) -> Option<Vec<u8>> {
    let data = data.strip_suffix(&[0, 0]).unwrap_or(data);
    if !data.starts_with(b".") || data.len() > 2 * SECTION_NAME {
        return None;
    }
    let ascii = |pair: &[u8]| match pair {
        [low, 0] if low.is_ascii_graphic() => Some(*low),
        _ => None,
    };
    data.chunks(2).map(ascii).chain([Some(0)]).collect()
}

#[cfg(test)]
mod tests {
    use tec_core::pcr::PcrIndex;

    use super::super::{EventLog, EventLogBuilder};
    use super::*;

    const PCR: PcrIndex = PcrIndex::BOOT_MANAGER;

    /// The proof of an event with this data that measured these bytes, in the SHA-256 bank.
    fn proof(kind: EventKind, measured: &[u8], data: &[u8]) -> (DataProof, Option<Vec<u8>>) {
        let bytes =
            EventLogBuilder::new().measure_other(PCR, kind, measured, data).raw(&[0xff]).build();
        let log = EventLog::parse(&bytes).unwrap();
        let event = log.events().last().unwrap();
        let found = event.measured(Bank::Sha256).map(Cow::into_owned);
        (event.proof(Bank::Sha256), found)
    }

    #[test]
    fn the_whole_data_is_proven_by_its_digest() {
        let found = proof(EventKind::EFI_ACTION, b"Calling", b"Calling");
        assert_eq!(found, (DataProof::Hashed, Some(b"Calling".to_vec())));
    }

    #[test]
    fn what_was_not_hashed_is_not_proven() {
        for kind in [EventKind::IPL, EventKind::EFI_VARIABLE_BOOT, EventKind::EVENT_TAG] {
            let found = proof(kind, b"a file", b"/boot/vmlinuz");
            assert_eq!(found, (DataProof::Unverified, None));
        }
    }

    #[test]
    fn commands_of_grub_are_proven_without_their_label() {
        for (data, command) in [
            (&b"grub_cmd: linux /vmlinuz\0"[..], &b"linux /vmlinuz"[..]),
            (b"kernel_cmdline: /vmlinuz a: b", b"/vmlinuz a: b"),
            (b"grub_kernel_cmdline /vmlinuz\0", b"/vmlinuz"),
        ] {
            let found = proof(EventKind::IPL, command, data);
            assert_eq!(found, (DataProof::Part, Some(command.to_vec())));
        }
        // The same data beside the digest of another command proves nothing.
        let other = proof(EventKind::IPL, b"linux /evil", b"grub_cmd: linux /vmlinuz\0");
        assert_eq!(other.0, DataProof::Unverified);
    }

    #[test]
    fn names_of_sections_are_proven_though_logged_in_utf16() {
        let wide: Vec<u8> = ".linux\0".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let found = proof(EventKind::IPL, b".linux\0", &wide);
        assert_eq!(found, (DataProof::Part, Some(b".linux\0".to_vec())));
        // The second event of a section has the same data, and the digest of the content.
        assert_eq!(proof(EventKind::IPL, b"a kernel", &wide).0, DataProof::Unverified);
    }

    #[test]
    fn of_a_boot_variable_only_the_value_is_proven() {
        let mut data = [7; 16].to_vec();
        data.extend([1_u64, 2].map(u64::to_le_bytes).concat());
        data.extend(b"B\0\x01\x02");
        let found = proof(EventKind::EFI_VARIABLE_BOOT, &[1, 2], &data);
        assert_eq!(found, (DataProof::Part, Some(vec![1, 2])));
        // Every other type of variable is hashed with its name.
        let kind = EventKind::EFI_VARIABLE_DRIVER_CONFIG;
        assert_eq!(proof(kind, &[1, 2], &data).0, DataProof::Unverified);
    }

    #[test]
    fn tagged_data_is_proven_with_or_without_its_tag() {
        let data = b"\x01\0\0\0\x04\0\0\0init";
        let (behind, whole) =
            (proof(EventKind::EVENT_TAG, b"init", data), proof(EventKind::EVENT_TAG, data, data));
        assert_eq!((behind.0, whole.0), (DataProof::Part, DataProof::Hashed));
    }

    #[test]
    fn what_extends_nothing_proves_nothing() {
        let bytes = EventLogBuilder::new().startup_locality(3).build();
        let log = EventLog::parse(&bytes).unwrap();
        for event in log.events() {
            assert_eq!(event.measured(Bank::Sha256), None);
            assert_eq!(event.proof(Bank::Sha256), DataProof::NotMeasured);
        }
    }
}
