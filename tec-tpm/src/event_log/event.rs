//! One event, borrowed from the log.

use tec_core::attest::LoggedEvent;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use super::bank::Bank;
use super::content::Content;
use super::detail;
use super::kind::EventKind;

/// The digests of an event, one per bank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Digests<'a> {
    /// SHA-1.
    pub sha1: Option<&'a [u8; 20]>,
    /// SHA-256.
    pub sha256: Option<&'a [u8; 32]>,
    /// SHA-384.
    pub sha384: Option<&'a [u8; 48]>,
    /// SHA-512.
    pub sha512: Option<&'a [u8; 64]>,
}

impl<'a> Digests<'a> {
    /// The digest of one bank.
    pub fn get(&self, bank: Bank) -> Option<&'a [u8]> {
        match bank {
            Bank::Sha1 => self.sha1.map(<[u8; 20]>::as_slice),
            Bank::Sha256 => self.sha256.map(<[u8; 32]>::as_slice),
            Bank::Sha384 => self.sha384.map(<[u8; 48]>::as_slice),
            Bank::Sha512 => self.sha512.map(<[u8; 64]>::as_slice),
        }
    }
}

/// One event as logged. Nothing in it is proven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// Number in the log, from 0 (the header of a crypto-agile log is event 0).
    pub number: u32,
    /// Where the event begins in the log.
    pub offset: usize,
    /// Register; `None` if the TPM has no such register.
    pub pcr: Option<PcrIndex>,
    /// Type.
    pub kind: EventKind,
    /// Digests.
    pub digests: Digests<'a>,
    /// Event data.
    pub data: &'a [u8],
}

impl<'a> Event<'a> {
    /// The register that it extends: none for `EV_NO_ACTION` (PC Client Platform Firmware
    /// Profile, 10.4.1).
    pub fn extends(&self) -> Option<PcrIndex> {
        self.pcr.filter(|_| self.kind != EventKind::NO_ACTION)
    }

    /// The event data, parsed as the structure that the type prescribes. Proves nothing.
    pub fn content(&self) -> Content<'a> {
        Content::read(self.kind, self.data)
    }

    /// The event data in readable form: a path, a variable's name, or text. At most 1024 printable
    /// characters, and an ellipsis for more. Proves nothing.
    pub fn detail(&self) -> Option<String> {
        detail::describe(&self.content())
    }

    /// The event as evidence: none for one that extends nothing or has no SHA-256 digest.
    pub fn logged(&self) -> Option<LoggedEvent> {
        let digest = Sha256Digest::new(*self.digests.sha256?);
        let (pcr, kind) = (self.extends()?, self.kind.name());
        let detail = self.detail();
        Some(LoggedEvent::new(self.number, pcr, digest, kind, detail))
    }
}
