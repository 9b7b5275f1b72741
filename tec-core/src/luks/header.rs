//! The metadata of a LUKS2 header, and whether a passphrase may be given to it.
//!
//! A header is not authenticated. Whoever can write to the disk can make it declare that a part of the disk is not
//! encrypted, or that a re-encryption to plain text is under way: the passphrase then gives the volume key to a root
//! file system that an attacker wrote, or writes plain text (the family of CVE-2025-59054 and CVE-2025-58356).
//!
//! [`LuksHeader::check`] needs no record of what the header was. Without the volume key, nobody can write data
//! that a cipher with this key decrypts to something of their choice, and without the passphrase, nobody can make a key
//! slot that it opens, unless the slot is not encrypted. So what matters is that there is one segment, that it and
//! the key slots are encrypted, and that nothing else is under way.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Block ciphers of the Linux kernel, as dm-crypt names them.
const CIPHERS: [&str; 8] =
    ["aes", "serpent", "twofish", "camellia", "aria", "sm4", "xchacha12,aes", "xchacha20,aes"];
/// Modes in which the same plain text is not the same cipher text everywhere.
const MODES: [&str; 5] = ["xts", "cbc", "lrw", "adiantum", "hctr2"];
/// Ciphers that also authenticate sectors, for segments with integrity (cryptsetup(8), `--integrity aead`).
const AUTHENTICATED: [&str; 4] =
    ["aes-gcm-random", "aes-ccm-random", "aegis128-random", "chacha20-random"];
/// Segments that are encrypted: by dm-crypt, with or without that of the drive (Opal).
const ENCRYPTED_SEGMENTS: [&str; 2] = ["crypt", "hw-opal-crypt"];
/// Requirements that do not mean a re-encryption (cryptsetup 2.8).
const HARMLESS: [&str; 2] = ["opal", "inline-hw-tags"];
/// How both are named where they are refused.
const ENCRYPTED: &str =
    "a block cipher in the mode XTS, CBC, Adiantum or HCTR2, such as aes-xts-plain64";

/// A header that is dangerous, or that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderError {
    /// The metadata are not LUKS2 JSON.
    #[error("the header's metadata cannot be read")]
    Malformed(#[source] serde_json::Error),
    /// A member has an unacceptable value.
    #[error("the header's {member} is {found:?}, expected {expected}")]
    Refused {
        /// The member.
        member: &'static str,
        /// Its value.
        found: String,
        /// The required value.
        expected: &'static str,
    },
}

/// The metadata, as far as they decide what a passphrase does (LUKS2 On-Disk Format Specification, "LUKS2 JSON
/// Metadata Format").
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct LuksHeader {
    /// Key slots, by number.
    pub keyslots: BTreeMap<u32, Keyslot>,
    /// Parts of the disk, by number.
    pub segments: BTreeMap<u32, Segment>,
    /// Digests of volume keys, by number.
    pub digests: BTreeMap<u32, Digest>,
    config: Config,
}

/// A key slot.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Keyslot {
    /// `luks2`, or `reencrypt`.
    pub r#type: String,
    area: Area,
    kdf: Option<Kdf>,
}

#[derive(Clone, Debug, Deserialize)]
struct Area {
    #[serde(default)]
    encryption: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Kdf {
    r#type: String,
}

impl Keyslot {
    /// Cipher of the slot; empty if it states none.
    pub fn encryption(&self) -> &str {
        &self.area.encryption
    }

    /// Key derivation; empty if it states none.
    pub fn kdf(&self) -> &str {
        self.kdf.as_ref().map_or("", |kdf| &kdf.r#type)
    }
}

/// A part of the disk.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Segment {
    /// `crypt` or `linear`.
    pub r#type: String,
    /// Cipher; empty if it states none.
    #[serde(default)]
    pub encryption: String,
    /// Bytes per sector; 0 if it states none.
    #[serde(default)]
    pub sector_size: u32,
    /// Authentication of sectors.
    #[serde(default)]
    pub integrity: Option<Integrity>,
}

/// Authentication of sectors.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Integrity {
    /// Algorithm.
    pub r#type: String,
    /// Cipher of its journal.
    pub journal_encryption: String,
    /// Authentication of its journal.
    pub journal_integrity: String,
}

/// Digest of a volume key.
#[derive(Clone, Debug, Deserialize)]
#[non_exhaustive]
pub struct Digest {
    /// Algorithm.
    pub r#type: String,
    /// Hash of the algorithm.
    #[serde(default)]
    pub hash: String,
    /// Segments that this volume key is for.
    #[serde(default)]
    pub segments: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Config {
    #[serde(default)]
    requirements: Option<Requirements>,
}

#[derive(Clone, Debug, Deserialize)]
struct Requirements {
    #[serde(default)]
    mandatory: Vec<String>,
}

impl LuksHeader {
    /// Parses what `cryptsetup luksDump --dump-json-metadata` prints.
    pub fn parse(json: &[u8]) -> Result<Self, HeaderError> {
        serde_json::from_slice(json).map_err(HeaderError::Malformed)
    }

    /// Whether a passphrase may be given to it: the whole disk is encrypted with one volume key, every key slot is
    /// encrypted, and no re-encryption is under way.
    ///
    /// # Errors
    /// [`HeaderError::Refused`], for the first finding.
    pub fn check(&self) -> Result<(), HeaderError> {
        let required = self.config.requirements.iter().flat_map(|one| &one.mandatory);
        if let Some(found) = required.into_iter().find(|name| !HARMLESS.contains(&name.as_str())) {
            let expected = "no re-encryption under way, and nothing that is not known here";
            return Err(refused("requirement", found, expected));
        }
        must("number of segments", &self.segments.len().to_string(), "1")?;
        for (number, segment) in &self.segments {
            if !ENCRYPTED_SEGMENTS.contains(&segment.r#type.as_str()) {
                return Err(refused("segment type", &segment.r#type, "crypt"));
            }
            let is_authenticated = AUTHENTICATED.contains(&segment.encryption.as_str());
            if segment.integrity.is_none() || !is_authenticated {
                must_encrypt("segment encryption", &segment.encryption)?;
            }
            let number = number.to_string();
            let digests = self.digests.values().filter(|one| one.segments.contains(&number));
            must("number of digests of the segment", &digests.count().to_string(), "1")?;
        }
        for slot in self.keyslots.values() {
            must("key slot type", &slot.r#type, "luks2")?;
            must_encrypt("key slot encryption", slot.encryption())?;
        }
        Ok(())
    }
}

fn refused(member: &'static str, found: &str, expected: &'static str) -> HeaderError {
    HeaderError::Refused { member, found: found.to_owned(), expected }
}

/// Requires a member to have exactly this value.
pub fn must(member: &'static str, found: &str, expected: &'static str) -> Result<(), HeaderError> {
    if found == expected { Ok(()) } else { Err(refused(member, found, expected)) }
}

fn must_encrypt(member: &'static str, encryption: &str) -> Result<(), HeaderError> {
    let (cipher, rest) = encryption.split_once('-').unwrap_or_default();
    let mode = rest.split('-').next().unwrap_or_default();
    if CIPHERS.contains(&cipher) && MODES.contains(&mode) {
        return Ok(());
    }
    Err(refused(member, encryption, ENCRYPTED))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// What cryptsetup 2.6 writes, as far as it counts.
    fn good() -> Value {
        let slot = json!({
            "type": "luks2", "key_size": 64, "kdf": {"type": "argon2id"},
            "area": {"type": "raw", "encryption": "aes-xts-plain64", "key_size": 64},
        });
        json!({
            "keyslots": {"0": slot, "1": slot},
            "tokens": {"0": {"type": "clevis", "keyslots": ["1"], "jwe": {}}},
            "segments": {"0": {
                "type": "crypt", "offset": "16777216", "size": "dynamic", "iv_tweak": "0",
                "encryption": "aes-xts-plain64", "sector_size": 512,
            }},
            "digests": {"0": {
                "type": "pbkdf2", "hash": "sha256", "keyslots": ["0", "1"], "segments": ["0"],
            }},
            "config": {"json_size": "12288", "keyslots_size": "16744448"},
        })
    }

    fn verdict(header: &Value) -> Result<(), HeaderError> {
        LuksHeader::parse(header.to_string().as_bytes())?.check()
    }

    #[test]
    fn headers_of_cryptsetup_are_taken() {
        verdict(&good()).unwrap();
        for encryption in [
            "aes-cbc-essiv:sha256",
            "serpent-xts-plain64",
            "xchacha12,aes-adiantum-plain64",
            "aes-xts-random",
        ] {
            let mut header = good();
            header["segments"]["0"]["encryption"] = json!(encryption);
            verdict(&header).unwrap();
        }
        let mut header = good();
        header["segments"]["0"]["encryption"] = json!("aegis128-random");
        assert!(verdict(&header).is_err(), "without integrity");
        header["segments"]["0"]["integrity"] = json!({
            "type": "aead", "journal_encryption": "none", "journal_integrity": "none",
        });
        header["config"]["requirements"] = json!({"mandatory": ["inline-hw-tags"]});
        verdict(&header).unwrap();
        let mut header = good();
        header["digests"]["1"] = json!({"type": "pbkdf2", "keyslots": ["2"], "segments": []});
        verdict(&header).unwrap();
    }

    #[test]
    fn whatever_gives_the_volume_key_away_is_refused() {
        for (path, value) in [
            ("/segments/0/encryption", json!("cipher_null-ecb")),
            ("/segments/0/encryption", json!("capi:ecb(cipher_null)-plain")),
            ("/segments/0/encryption", json!("aes-ecb")),
            ("/segments/0/encryption", json!("")),
            ("/segments/0/type", json!("linear")),
            ("/keyslots/1/area/encryption", json!("cipher_null-ecb")),
            ("/keyslots/1/area", json!({"type": "raw"})),
            ("/keyslots/1/type", json!("reencrypt")),
            ("/digests/0/segments", json!([])),
            ("/digests/0/segments", json!(["1"])),
            ("/config/requirements", json!({"mandatory": ["online-reencrypt-v2"]})),
        ] {
            let mut header = good();
            header["config"]["requirements"] = Value::Null;
            verdict(&header).unwrap();
            *header.pointer_mut(path).unwrap() = value.clone();
            let refused = verdict(&header);
            assert!(matches!(refused, Err(HeaderError::Refused { .. })), "{path} {value}");
        }
        for (kind, number) in [("segments", "1"), ("digests", "1")] {
            let mut header = good();
            header[kind][number] = header[kind]["0"].clone();
            assert!(verdict(&header).is_err(), "two {kind}");
        }
        let mut header = good();
        header["segments"] = json!({});
        assert!(verdict(&header).is_err(), "no segment");
        assert!(matches!(LuksHeader::parse(b"LUKS"), Err(HeaderError::Malformed(_))));
    }
}
