//! Keys and IDs derived from one master secret: HKDF-SHA256 (RFC 5869).
//!
//! ```text
//!  master key, salt ──"key-measurementSecret"──► measurement secret
//!                   └─"key-<disk uuid>"────────► state disk key
//!  measurement secret, measurement salt ──"key-clusterID"──► cluster id ──event──► PCR 15
//! ```

use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use derive_more::Display;
use hkdf::Hkdf;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use tec_core::digest::Sha256Digest;
use tec_core::secret::{SecretArray, SecretBytes};
use uuid::Uuid;
use zeroize::ZeroizeOnDrop;

/// Prefix of every data key ID; it separates these keys from all others.
const PREFIX: &str = "key-";
/// The ID of the measurement secret.
const MEASUREMENT_SECRET: &str = "measurementSecret";
/// Label of the cluster ID.
const CLUSTER_ID: &str = "key-clusterID";
/// Maximum output of HKDF-SHA256: 255 blocks (RFC 5869, section 2.3).
pub const MAX_DATA_KEY: usize = 255 * 32;

/// A key of this length cannot be derived.
#[derive(Debug, thiserror::Error)]
#[error("a key of {length} bytes cannot be derived; 1 to {MAX_DATA_KEY} bytes are allowed")]
#[non_exhaustive]
pub struct DeriveError {
    /// The requested length.
    pub length: usize,
}

/// HKDF-SHA256.
fn hkdf(ikm: &[u8], salt: &[u8], label: &str, out: &mut [u8]) -> Result<(), DeriveError> {
    let length = out.len();
    if length == 0 {
        return Err(DeriveError { length });
    }
    Hkdf::<Sha256>::new(Some(salt), ikm)
        .expand(label.as_bytes(), out)
        .map_err(|_| DeriveError { length })
}

/// HKDF-SHA256 for 32 bytes, which never fails.
fn hkdf32(ikm: &[u8], salt: &[u8], label: &str) -> SecretArray<32> {
    let mut out = zeroize::Zeroizing::new([0; 32]);
    let derived = hkdf(ikm, salt, label, out.as_mut_slice());
    debug_assert!(derived.is_ok(), "32 is below the limit");
    SecretArray::new(*out)
}

/// The UUID of a LUKS header. Always written in lower case, because keys are derived from its text.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Display,
)]
#[serde(try_from = "String", into = "String")]
pub struct DiskId(Uuid);

/// The string is not a UUID.
#[derive(Debug, thiserror::Error)]
#[error("the disk's ID is not a UUID")]
#[non_exhaustive]
pub struct ParseDiskIdError;

impl FromStr for DiskId {
    type Err = ParseDiskIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Only the hyphenated form, in either case: disks do not use braces and the like.
        if text.len() != uuid::fmt::Hyphenated::LENGTH {
            return Err(ParseDiskIdError);
        }
        Uuid::try_parse(text).map(Self).map_err(|_| ParseDiskIdError)
    }
}

impl TryFrom<String> for DiskId {
    type Error = ParseDiskIdError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DiskId> for String {
    fn from(disk: DiskId) -> Self {
        disk.to_string()
    }
}

/// ID of a data key, with its prefix.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Display)]
pub struct DataKeyId(String);

impl DataKeyId {
    /// The measurement secret.
    pub fn measurement_secret() -> Self {
        Self(format!("{PREFIX}{MEASUREMENT_SECRET}"))
    }

    /// The key of a state disk.
    pub fn state_disk(disk: DiskId) -> Self {
        Self(format!("{PREFIX}{disk}"))
    }

    /// The string that the key is derived from and stored under.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Minimum length of a master secret's key in a file (Constellation).
const LEAST_KEY: usize = 16;
/// Minimum length of a master secret's salt in a file.
const LEAST_SALT: usize = 32;

/// The content is not a master secret file.
#[derive(Debug, thiserror::Error)]
#[error(
    "not a master secret: JSON with key (at least {LEAST_KEY} bytes) and salt (at least {LEAST_SALT}) in base64"
)]
#[non_exhaustive]
pub struct ParseMasterSecretError;

#[derive(Deserialize, ZeroizeOnDrop)]
struct MasterSecretFile {
    key: String,
    salt: String,
}

/// The secret from which all keys of a cluster are derived.
#[derive(Debug)]
pub struct MasterSecret {
    key: SecretBytes,
    salt: SecretBytes,
}

impl MasterSecret {
    /// Creates a master secret from these parts, whose lengths the caller must check.
    pub fn new(key: SecretBytes, salt: SecretBytes) -> Self {
        Self { key, salt }
    }

    /// Parses a master secret file: JSON with the members `key` and `salt`, both base64
    /// (Constellation).
    ///
    /// # Errors
    /// [`ParseMasterSecretError`], also if one is too short. The error contains no part of the
    /// file.
    pub fn from_json(json: &[u8]) -> Result<Self, ParseMasterSecretError> {
        let file: MasterSecretFile =
            serde_json::from_slice(json).map_err(|_| ParseMasterSecretError)?;
        let decoded = |text: &str| {
            let bytes = STANDARD.decode(text).map(SecretBytes::new);
            bytes.map_err(|_| ParseMasterSecretError)
        };
        let (key, salt) = (decoded(&file.key)?, decoded(&file.salt)?);
        if key.len() < LEAST_KEY || salt.len() < LEAST_SALT {
            return Err(ParseMasterSecretError);
        }
        Ok(Self { key, salt })
    }

    /// Derives a data key.
    pub fn data_key(&self, id: &DataKeyId, length: usize) -> Result<SecretBytes, DeriveError> {
        if length > MAX_DATA_KEY {
            return Err(DeriveError { length });
        }
        let mut out = vec![0; length];
        let (key, salt) = (self.key.expose("derive"), self.salt.expose("derive"));
        let derived = hkdf(key, salt, id.as_str(), &mut out);
        let out = SecretBytes::new(out);
        derived.map(|()| out)
    }

    pub(super) fn parts(&self) -> (&SecretBytes, &SecretBytes) {
        (&self.key, &self.salt)
    }
}

/// The secret from which the ID of a cluster is derived.
#[derive(Debug)]
pub struct MeasurementSecret(SecretArray<32>);

impl MeasurementSecret {
    /// Wraps the bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(SecretArray::new(bytes))
    }

    /// Creates the secret from a data key.
    ///
    /// # Errors
    /// [`DeriveError`] if it is not 32 bytes long.
    pub fn from_data_key(key: &SecretBytes) -> Result<Self, DeriveError> {
        <[u8; 32]>::try_from(key.expose("take it for the measurement secret"))
            .map(Self::new)
            .map_err(|_| DeriveError { length: key.len() })
    }

    /// The cluster ID for this secret and salt.
    pub fn cluster_id(&self, salt: &MeasurementSalt) -> ClusterId {
        let secret = self.0.expose("derive the cluster id");
        ClusterId::new(*hkdf32(secret, salt.as_bytes(), CLUSTER_ID).expose("it is no secret"))
    }

    /// The bytes, for passing on.
    pub fn expose(&self, why: &'static str) -> &[u8; 32] {
        self.0.expose(why)
    }
}

/// The salt of a cluster ID; not secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasurementSalt([u8; 32]);

impl MeasurementSalt {
    /// Wraps the bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// ID of a cluster, in hexadecimal; not secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash, derive_more::Debug, Display, Serialize, Deserialize)]
#[serde(transparent)]
#[debug("ClusterId({self})")]
pub struct ClusterId(Sha256Digest);

impl ClusterId {
    /// Wraps the bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(Sha256Digest::new(bytes))
    }

    /// The bytes, which are the data of the event that a TPM measures.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        self.0.as_bytes()
    }

    /// Value of the marker's register after the event (TPM 2.0 Library Part 3, "TPM2_PCR_Event":
    /// the data are hashed, the register is extended by the digest).
    pub fn marker(&self) -> Sha256Digest {
        Sha256Digest::ZERO.extended(&Sha256Digest::of(self.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Consecutive bytes.
    pub(crate) fn from(first: u8) -> [u8; 32] {
        std::array::from_fn(|at| first + u8::try_from(at).unwrap())
    }

    fn master(key: [u8; 32], salt: [u8; 32]) -> MasterSecret {
        MasterSecret::new(SecretBytes::new(key.to_vec()), SecretBytes::new(salt.to_vec()))
    }

    fn hex(secret: &SecretBytes) -> String {
        hex::encode(secret.expose("compare with the vector"))
    }

    // Fixed values: a release that derived others could not open disks of an earlier one.
    #[test]
    fn ids_and_keys_are_the_recorded_ones() {
        let secret = MeasurementSecret::new(from(0x00));
        assert_eq!(
            secret.cluster_id(&MeasurementSalt::new(from(0x20))).to_string(),
            "128c164378fe8767f998fbdfe4b4d6463ec5ae1b664ea5999bc27417607ae9b6"
        );
        let key = master(from(0x40), from(0x60)).data_key(&DataKeyId::measurement_secret(), 32);
        assert_eq!(
            hex(&key.unwrap()),
            "4790578891f3fe6cc22cb661ecdc1b7e33121b1287546a52ba33a9136719c213"
        );
        for (byte, uuid, expected) in [
            (
                0x00,
                "00000000-0000-0000-0000-000000000000",
                "2b5c829f691bfd4232f8aac464bccc07e605c7c8e82cbca09837e86d0b6d0665",
            ),
            (
                0xff,
                "FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF",
                "1484aa39d3415e906e07940ff215d8b1eee705d3027dba93306af4abff4f70be",
            ),
        ] {
            let id = DataKeyId::state_disk(uuid.parse().unwrap());
            let key = master([byte; 32], [byte; 32]).data_key(&id, 32).unwrap();
            assert_eq!(hex(&key), expected);
        }
    }

    #[test]
    fn the_chain_from_master_secret_to_register_is_the_recorded_one() {
        let master = master(from(0x40), from(0x60));
        let key = master.data_key(&DataKeyId::measurement_secret(), 32).unwrap();
        let secret = MeasurementSecret::from_data_key(&key).unwrap();
        let cluster = secret.cluster_id(&MeasurementSalt::new(from(0x20)));
        assert_eq!(
            cluster.to_string(),
            "1f3d87784b0ce2d13d608d8455627a238acf5c96a62164cf02b236877e0bb0d9"
        );
        assert_eq!(
            cluster.marker().to_string(),
            "8cbed04bc5c36a7612da8f7659e78d17113175a922cc9925f266a2fc96eaa0ba"
        );
    }

    #[test]
    fn a_file_with_a_master_secret_gives_the_recorded_keys_and_short_ones_none() {
        let json = |key: &[u8], salt: &[u8]| {
            let (key, salt) = (STANDARD.encode(key), STANDARD.encode(salt));
            format!(r#"{{"key": "{key}", "salt": "{salt}"}}"#)
        };
        let file = MasterSecret::from_json(json(&from(0x40), &from(0x60)).as_bytes()).unwrap();
        let key = file.data_key(&DataKeyId::measurement_secret(), 32).unwrap();
        let expected = master(from(0x40), from(0x60));
        let expected = expected.data_key(&DataKeyId::measurement_secret(), 32);
        assert!(key.ct_eq(&expected.unwrap()));
        for short in [
            json(&[1; 15], &[2; 32]),
            json(&[1; 16], &[2; 31]),
            "{}".to_owned(),
            r#"{"key": "canary", "salt": "canary"}"#.to_owned(),
        ] {
            let error = MasterSecret::from_json(short.as_bytes()).unwrap_err();
            assert!(!error.to_string().contains("canary"));
        }
    }

    #[test]
    fn lengths_that_cannot_be_derived_are_refused() {
        let master = master([1; 32], [2; 32]);
        for length in [0, MAX_DATA_KEY + 1] {
            let key = master.data_key(&DataKeyId::measurement_secret(), length);
            assert_eq!(key.unwrap_err().length, length);
        }
    }

    #[test]
    fn the_case_of_a_disk_id_makes_no_other_key() {
        let upper: DiskId = "ABCDEF00-0000-0000-0000-000000000000".parse().unwrap();
        assert_eq!(upper.to_string(), "abcdef00-0000-0000-0000-000000000000");
        assert!("{abcdef00-0000-0000-0000-00000000000}".parse::<DiskId>().is_err());
    }
}
