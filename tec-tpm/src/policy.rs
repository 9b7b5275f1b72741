//! The Secure Boot policy that a log proves: the variables that the firmware measures into PCR 7,
//! and what the firmware and shim verified programs with.

use tec_core::attest::LogEvidence;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PcrIndex, PcrValues};
use tec_core::platform::{KeyDatabase, LoggedVariable, PolicyVariable, SecureBootState};

use crate::compute::entry_digests;
use crate::event_log::{Bank, Content, DataProof, Event, EventKind, EventLog, variable_data};
use crate::guid::Guid;

/// What shim measures as authorities: its own certificate, the lists in which it looks up signers,
/// and the revocation level. `MokSBState`, which turns its checks off, is not one of them.
const SHIM_AUTHORITIES: [&str; 5] = ["Shim", "MokList", "MokListRT", "vendor_db", "SbatLevel"];

/// Reads a log that was sent with evidence, and the [variables](EventLog::policy_variables) of its
/// Secure Boot policy, as far as it can be read.
pub fn evidence_with_policy(log: &[u8], quoted: &PcrValues) -> (LogEvidence, Vec<LoggedVariable>) {
    match EventLog::read(log) {
        Ok((log, cut)) => (log.evidence_cut(quoted, cut.as_ref()), log.policy_variables()),
        Err(error) => (LogEvidence::Broken { reason: error.to_string() }, Vec::new()),
    }
}

impl EventLog<'_> {
    /// The variables of PCR 7 whose measured bytes the log holds.
    ///
    /// # Security
    /// They are proven only if PCR 7 replays to its quoted value. The type of an event is not
    /// measured, so the bytes are read as a variable regardless of the type.
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
    let is_plain = variable_data(vendor, &name, data) == event.data;
    is_plain.then(|| LoggedVariable::new(event.number, variable))
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
        (Guid::SECURITY_DATABASE, "dbt") => keys(KeyDatabase::Dbt, data),
        (Guid::SECURITY_DATABASE, "dbr") => keys(KeyDatabase::Dbr, data),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::{X509, list_of_one};
    use crate::event_log::EventLogBuilder;

    const PCR7: PcrIndex = PcrIndex::SECURE_BOOT;

    fn variables(build: impl FnOnce(&mut EventLogBuilder)) -> Vec<PolicyVariable> {
        let mut log = EventLogBuilder::new();
        build(&mut log);
        let bytes = log.build();
        let log = EventLog::parse(&bytes).unwrap();
        log.policy_variables().into_iter().map(|found| found.variable).collect()
    }

    /// What a variable of this name and value is read as, under any type of event.
    fn read_as(vendor: Guid, name: &str, data: &[u8]) -> Vec<PolicyVariable> {
        let read = |kind| {
            variables(|log| {
                log.variable(PCR7, kind, *vendor.as_bytes(), name, data);
            })
        };
        let found = read(EventKind::EFI_VARIABLE_DRIVER_CONFIG);
        assert_eq!(read(EventKind::EFI_VARIABLE_AUTHORITY), found, "types are not measured");
        found
    }

    #[test]
    fn variables_are_known_by_vendor_and_name() {
        let on = PolicyVariable::SecureBoot { state: SecureBootState::On };
        assert_eq!(read_as(Guid::GLOBAL, "SecureBoot", &[1]), [on]);
        assert_eq!(read_as(Guid::SHIM, "SecureBoot", &[1]), []);
        assert_eq!(read_as(Guid::GLOBAL, "SecureBoot", &[2]), []);
        for name in SHIM_AUTHORITIES {
            assert_eq!(read_as(Guid::SHIM, name, b"a certificate"), [PolicyVariable::Authority]);
        }
        assert_eq!(read_as(Guid::SHIM, "MokSBState", &[1]), []);
        assert_eq!(read_as(Guid::GLOBAL, "MokList", b"a certificate"), []);
    }

    #[test]
    fn db_is_a_list_of_entries_or_the_entry_that_was_used() {
        let list = list_of_one(X509, Guid::GLOBAL, b"certificate");
        let Some(PolicyVariable::Keys { name: KeyDatabase::Db, entries }) =
            read_as(Guid::SECURITY_DATABASE, "db", &list).pop()
        else {
            panic!("no list");
        };
        let entry = [X509.as_bytes(), Guid::GLOBAL.as_bytes(), &b"certificate"[..]].concat();
        assert_eq!(entries.into_iter().collect::<Vec<_>>(), [Sha256Digest::of(entry)]);
        let used = [Guid::GLOBAL.as_bytes(), &b"certificate"[..]].concat();
        let found = read_as(Guid::SECURITY_DATABASE, "db", &used);
        assert_eq!(found, [PolicyVariable::Authority]);
        assert_eq!(read_as(Guid::SECURITY_DATABASE, "dbx", &used), []);
    }

    #[test]
    fn data_that_was_not_measured_proves_no_variable() {
        let mut data = Guid::GLOBAL.as_bytes().to_vec();
        data.extend([10_u64, 1].map(u64::to_le_bytes).concat());
        data.extend("SecureBoot".encode_utf16().flat_map(u16::to_le_bytes));
        data.push(1);
        let kind = EventKind::EFI_VARIABLE_DRIVER_CONFIG;
        let measured = variables(|log| {
            log.measure(PCR7, kind, &data);
        });
        assert_eq!(measured.len(), 1);
        let claimed = variables(|log| {
            log.measure_other(PCR7, kind, b"SecureBoot is off", &data);
        });
        assert_eq!(claimed, []);
        let elsewhere = variables(|log| {
            log.measure(PcrIndex::BOOT_MANAGER, kind, &data);
        });
        assert_eq!(elsewhere, []);
    }
}
