//! The header of a state disk: beyond what every header must be, exactly what Constellation makes.

use tec_core::luks::header::{LuksHeader, Segment, must};

pub use tec_core::luks::header::HeaderError;

/// The only cipher for segments and key slots (Constellation).
const CIPHER: &str = "aes-xts-plain64";
/// Key derivation of slots.
const KDF: &str = "argon2id";
/// Derivation and hash of the volume key's digest.
const DIGEST: (&str, &str) = ("pbkdf2", "sha256");
/// Size of a sector (Constellation).
const SECTOR: &str = "4096";
/// Integrity algorithm of the state disk, with its own key.
const INTEGRITY: &str = "hmac(sha256)";

/// Whether sectors must be authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// Each sector has an HMAC.
    Required,
    /// Sectors need no HMAC: changes to the disk's content then go unnoticed.
    Optional,
}

/// Checks the metadata printed by `cryptsetup luksDump --dump-json-metadata`.
///
/// # Errors
/// [`HeaderError`], for the first finding.
pub(super) fn check(json: &[u8], integrity: Integrity) -> Result<(), HeaderError> {
    let header = LuksHeader::parse(json)?;
    header.check()?;
    must("number of digests", &header.digests.len().to_string(), "1")?;
    for segment in header.segments.values() {
        check_segment(segment, integrity)?;
    }
    for digest in header.digests.values() {
        must("digest type", &digest.r#type, DIGEST.0)?;
        must("digest hash", &digest.hash, DIGEST.1)?;
    }
    for slot in header.keyslots.values() {
        must("key slot encryption", slot.encryption(), CIPHER)?;
        must("key slot derivation", slot.kdf(), KDF)?;
    }
    Ok(())
}

fn check_segment(segment: &Segment, integrity: Integrity) -> Result<(), HeaderError> {
    must("segment encryption", &segment.encryption, CIPHER)?;
    must("sector size", &segment.sector_size.to_string(), SECTOR)?;
    match (&segment.integrity, integrity) {
        (Some(found), _) => {
            must("integrity", &found.r#type, INTEGRITY)?;
            must("journal encryption", &found.journal_encryption, "none")?;
            must("journal integrity", &found.journal_integrity, "none")
        }
        (None, Integrity::Optional) => Ok(()),
        (None, Integrity::Required) => must("integrity", "none", INTEGRITY),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn good() -> Value {
        json!({
            "keyslots": {"0": {
                "type": "luks2", "key_size": 96,
                "area": {"type": "raw", "encryption": "aes-xts-plain64", "key_size": 64},
                "kdf": {"type": "argon2id", "time": 3, "memory": 65536, "cpus": 4},
            }},
            "tokens": {},
            "segments": {"0": {
                "type": "crypt", "encryption": "aes-xts-plain64", "sector_size": 4096,
                "integrity": {
                    "type": "hmac(sha256)",
                    "journal_encryption": "none", "journal_integrity": "none",
                },
            }},
            "digests": {"0": {"type": "pbkdf2", "hash": "sha256", "segments": ["0"]}},
            "config": {"json_size": "12288", "keyslots_size": "16744448"},
        })
    }

    fn verdict(header: &Value, integrity: Integrity) -> Result<(), HeaderError> {
        check(header.to_string().as_bytes(), integrity)
    }

    #[test]
    fn a_header_that_weakens_the_disk_is_refused_whatever_it_changes() {
        verdict(&good(), Integrity::Required).unwrap();
        let changes: [(&str, Value); 10] = [
            ("/segments/0/encryption", json!("cipher_null-ecb")),
            ("/segments/0/type", json!("linear")),
            ("/segments/0/sector_size", json!(512)),
            ("/segments/0/integrity/type", json!("none")),
            ("/segments/0/integrity", Value::Null),
            ("/keyslots/0/area/encryption", json!("cipher_null-ecb")),
            ("/keyslots/0/kdf/type", json!("pbkdf2")),
            ("/keyslots/0/type", json!("reencrypt")),
            ("/digests/0/hash", json!("sha1")),
            ("/config", json!({"requirements": {"mandatory": ["online-reencrypt"]}})),
        ];
        for (path, value) in changes {
            let mut header = good();
            *header.pointer_mut(path).unwrap() = value;
            let refused = verdict(&header, Integrity::Required);
            assert!(matches!(refused, Err(HeaderError::Refused { .. })), "{path}: {refused:?}");
        }
    }

    #[test]
    fn a_second_segment_is_refused_and_integrity_can_be_left_out_on_demand() {
        let mut header = good();
        let segment = header["segments"]["0"].clone();
        header["segments"]["1"] = segment;
        assert!(verdict(&header, Integrity::Optional).is_err());
        let mut header = good();
        header["segments"]["0"].as_object_mut().unwrap().remove("integrity");
        verdict(&header, Integrity::Optional).unwrap();
        assert!(verdict(&header, Integrity::Required).is_err());
    }
}
