//! The Secure Boot policy that a log proves: the variables that the firmware measures into PCR 7,
//! and what it and shim verified programs with.

use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::platform::{KeyDatabase, LoggedVariable, PolicyVariable, SecureBootState};

use super::bank::Bank;
use super::content::Content;
use super::event::Event;
use super::kind::EventKind;
use super::measured::DataProof;
use super::parse::EventLog;
use crate::compute::entry_digests;
use crate::guid::Guid;

/// What shim measures as authorities: its own certificate, the lists that it looks a signer up in,
/// and the revocation level. `MokSBState`, which turns its checks off, is none.
const SHIM_AUTHORITIES: [&str; 4] = ["Shim", "MokList", "vendor_db", "SbatLevel"];

impl EventLog<'_> {
    /// The variables of PCR 7 whose measured bytes the log holds.
    ///
    /// # Security
    /// They are proven only if PCR 7 replays to its quoted value. The type of an event is not
    /// measured, so the bytes are read as a variable whatever the type is.
    pub fn policy_variables(&self) -> Vec<LoggedVariable> {
        let events = self.events().iter();
        let of_policy = events.filter(|event| event.extends() == Some(PcrIndex::SECURE_BOOT));
        of_policy.filter_map(variable).collect()
    }
}

fn variable(event: &Event<'_>) -> Option<LoggedVariable> {
    if event.proof(Bank::Sha256) != DataProof::Hashed {
        return None;
    }
    let content = Content::read(EventKind::EFI_VARIABLE_DRIVER_CONFIG, event.data);
    let Content::Variable { vendor, name, data } = content else {
        return None;
    };
    // Lossy decoding and trailing characters must not make one name look like another.
    let variable = read(vendor, &name, data)?;
    is_plain(&name, event.data).then(|| LoggedVariable::new(event.number, variable))
}

/// Whether the measured name has exactly these characters.
fn is_plain(name: &str, data: &[u8]) -> bool {
    // Vendor 16, characters 8, size 8 (`UEFI_VARIABLE_DATA`).
    let wide: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let characters = u64::try_from(wide.len() / 2).unwrap_or(u64::MAX).to_le_bytes();
    data.get(16..24) == Some(&characters) && data.get(32..32 + wide.len()) == Some(&wide)
}

fn read(vendor: Guid, name: &str, data: &[u8]) -> Option<PolicyVariable> {
    match (vendor, name) {
        (Guid::GLOBAL, "SecureBoot") => match data {
            [1] => Some(PolicyVariable::SecureBoot { state: SecureBootState::On }),
            [0] => Some(PolicyVariable::SecureBoot { state: SecureBootState::Off }),
            _ => None,
        },
        (Guid::GLOBAL, "PK") => keys(KeyDatabase::Pk, data),
        (Guid::GLOBAL, "KEK") => keys(KeyDatabase::Kek, data),
        // As an authority, db is one entry instead of lists.
        (Guid::SECURITY_DATABASE, "db") => {
            keys(KeyDatabase::Db, data).or(Some(PolicyVariable::Authority))
        }
        (Guid::SECURITY_DATABASE, "dbx") => keys(KeyDatabase::Dbx, data),
        (Guid::SHIM | Guid::SECURITY_DATABASE, name) if SHIM_AUTHORITIES.contains(&name) => {
            Some(PolicyVariable::Authority)
        }
        _ => None,
    }
}

fn keys(name: KeyDatabase, data: &[u8]) -> Option<PolicyVariable> {
    let entries = entry_digests(data).ok()?;
    let entries = entries.into_iter().map(Sha256Digest::new).collect();
    Some(PolicyVariable::Keys { name, entries })
}
