//! The JSON of the runtime data.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use tec_core::ak::PublicKey;

use super::HclError;
use crate::public::rsa_key;

/// Name of the attestation key.
pub(crate) const AK_NAME: &str = "HCLAkPub";
/// Bytes of user data: the size of NV index 0x01400002.
const MAX_USER_DATA: usize = 64;
/// An RSA-4096 modulus in base64url takes 683 characters.
const MAX_NUMBER: usize = 1024;

/// The parts of the runtime data that matter here. Unknown members are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeData {
    /// Attestation key of the vTPM.
    pub ak: PublicKey,
    /// What the guest wrote to NV index 0x01400002 earlier; older paravisors have none.
    pub user_data: Option<Vec<u8>>,
}

#[derive(Deserialize)]
struct Wire {
    keys: Vec<Key>,
    #[serde(rename = "user-data")]
    user_data: Option<String>,
}

/// A JSON Web Key (RFC 7517), of any kind.
#[derive(Deserialize)]
struct Key {
    kid: Option<String>,
    kty: Option<String>,
    n: Option<String>,
    e: Option<String>,
}

impl RuntimeData {
    /// Parses the runtime data of an HCL report or of another carrier of the same JSON.
    pub fn parse(json: &[u8]) -> Result<Self, HclError> {
        let wire: Wire = serde_json::from_slice(json).map_err(HclError::Json)?;
        let is_ak = |key: &&Key| key.kid.as_deref() == Some(AK_NAME);
        let named: Vec<&Key> = wire.keys.iter().filter(is_ak).collect();
        let [key] = named.as_slice() else {
            return Err(HclError::KeyCount(named.len()));
        };
        Ok(Self {
            ak: key.to_public()?,
            user_data: wire.user_data.as_deref().map(user_data).transpose()?,
        })
    }
}

impl Key {
    fn to_public(&self) -> Result<PublicKey, HclError> {
        if self.kty.as_deref() != Some("RSA") {
            return Err(HclError::KeyMember { member: "kty" });
        }
        let modulus = number(self.n.as_deref()).ok_or(HclError::KeyMember { member: "n" })?;
        let exponent = number(self.e.as_deref())
            .and_then(|bytes| be_u32(&bytes))
            .ok_or(HclError::KeyMember { member: "e" })?;
        rsa_key(&modulus, exponent).map_err(HclError::Key)
    }
}

/// Base64urlUInt (RFC 7518, section 2): most significant byte first, and not zero.
fn number(text: Option<&str>) -> Option<Vec<u8>> {
    let text = text.filter(|text| text.len() <= MAX_NUMBER)?;
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    bytes.first().is_some_and(|first| *first != 0).then_some(bytes)
}

fn be_u32(bytes: &[u8]) -> Option<u32> {
    let mut padded = [0; 4];
    if bytes.len() > padded.len() {
        return None;
    }
    for (to, from) in padded.iter_mut().rev().zip(bytes.iter().rev()) {
        *to = *from;
    }
    Some(u32::from_be_bytes(padded))
}

fn user_data(text: &str) -> Result<Vec<u8>, HclError> {
    if text.len() > 2 * MAX_USER_DATA {
        return Err(HclError::UserData);
    }
    hex::decode(text).map_err(|_| HclError::UserData)
}
