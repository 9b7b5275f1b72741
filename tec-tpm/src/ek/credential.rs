//! TPM2_MakeCredential in software (TPM 2.0 Library Part 1, "Credential Protection" and annexes B
//! and C).

use aes::Aes128;
use cfb_mode::cipher::KeyIvInit as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use p256::elliptic_curve::Generate as _;
use p256::pkcs8::DecodePublicKey as _;
use rand_core::CryptoRng;
use sha2::{Digest as _, Sha256};
use tec_core::ak::{Credential, KeyKind, PublicKey};
use tec_core::secret::SecretArray;
use zeroize::Zeroizing;

use crate::public::ObjectName;
use crate::wire::push_sized;

/// Label of the seed, for OAEP and KDFe, with its terminating zero (Part 1, "Credential
/// Protection").
pub(crate) const IDENTITY: &[u8] = b"IDENTITY\0";
/// Label of the encryption key (same section).
const STORAGE: &[u8] = b"STORAGE\0";
/// Label of the integrity key (same section).
const INTEGRITY: &[u8] = b"INTEGRITY\0";
/// Coordinate of P-256.
pub(crate) const COORDINATE: usize = 32;

type HmacSha256 = Hmac<Sha256>;
type Seed = Zeroizing<[u8; 32]>;

/// A credential could not be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialError {
    /// The endorsement key has a type that cannot carry a seed.
    #[error("the endorsement key is neither RSA nor P-256")]
    KeyKind,
    /// The endorsement key is not usable, for example a point that is not on the curve.
    #[error("the endorsement key is not usable")]
    Key,
    /// The seed could not be encrypted.
    #[error("the seed cannot be encrypted to the endorsement key")]
    Encrypt,
    /// A key derivation failed.
    #[error("the keys of the credential cannot be derived")]
    Derive,
}

/// Creates a challenge that only the TPM that holds both the endorsement key and an object of this
/// name can answer.
///
/// The endorsement key must have SHA-256 as name algorithm and AES-128-CFB as symmetric algorithm,
/// as those of the default templates L-1 and L-2 do.
///
/// # Errors
/// [`CredentialError`] when the endorsement key cannot be used.
///
/// # Security
/// Returning the secret proves possession of `ek`, not that `ek` belongs to a TPM: see
/// [`verify_ek_certificate`](super::verify_ek_certificate). Use a secret once.
pub fn make_credential(
    ek: &PublicKey,
    object: &ObjectName,
    secret: &SecretArray<32>,
    rng: &mut dyn CryptoRng,
) -> Result<Credential, CredentialError> {
    let (seed, encrypted_secret) = match ek.kind() {
        KeyKind::Rsa { .. } => rsa_seed(ek, rng)?,
        KeyKind::EcP256 => p256_seed(ek, rng)?,
        _ => return Err(CredentialError::KeyKind),
    };
    let mut identity = Zeroizing::new(Vec::new());
    push_sized(&mut identity, secret.expose("encrypted to the TPM"));
    storage_encryptor(&seed, object)?.encrypt(&mut identity);

    let mut body = Vec::new();
    push_sized(&mut body, &integrity(&seed, &identity, object)?);
    body.extend_from_slice(&identity);
    Ok(Credential::new(sized(&body), sized(&encrypted_secret)))
}

fn sized(body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_sized(&mut out, body);
    out
}

/// A random seed, encrypted with OAEP (Part 1, annex B.10.4, "RSA-Based Secret Sharing").
fn rsa_seed(ek: &PublicKey, rng: &mut dyn CryptoRng) -> Result<(Seed, Vec<u8>), CredentialError> {
    let key =
        rsa::RsaPublicKey::from_public_key_der(ek.as_der()).map_err(|_| CredentialError::Key)?;
    let mut seed = Seed::default();
    rng.fill_bytes(seed.as_mut());
    let padding = rsa::Oaep::<Sha256>::new_with_label(IDENTITY);
    let encrypted =
        key.encrypt(rng, padding, seed.as_ref()).map_err(|_| CredentialError::Encrypt)?;
    Ok((seed, encrypted))
}

/// A seed from an ephemeral key and KDFe; what travels is the ephemeral point (Part 1, annex
/// C.6.4, "ECC Secret Sharing").
fn p256_seed(ek: &PublicKey, rng: &mut dyn CryptoRng) -> Result<(Seed, Vec<u8>), CredentialError> {
    let theirs =
        p256::PublicKey::from_public_key_der(ek.as_der()).map_err(|_| CredentialError::Key)?;
    let ephemeral = p256::ecdh::EphemeralSecret::generate_from_rng(rng);
    let (x, y) = coordinates(&ephemeral.public_key()).ok_or(CredentialError::Key)?;
    let (ek_x, _) = coordinates(&theirs).ok_or(CredentialError::Key)?;
    let shared = ephemeral.diffie_hellman(&theirs);
    let seed = kdfe(shared.raw_secret_bytes(), IDENTITY, &x, &ek_x);
    let mut point = Vec::new();
    push_sized(&mut point, &x);
    push_sized(&mut point, &y);
    Ok((seed, point))
}

/// X and Y of a point.
pub(crate) fn coordinates(key: &p256::PublicKey) -> Option<([u8; COORDINATE], [u8; COORDINATE])> {
    // 04 ‖ X ‖ Y (SEC 1, section 2.3.3)
    let point = key.to_sec1_bytes();
    let (x, y) = match point.as_ref() {
        [4, rest @ ..] => rest.split_at_checked(COORDINATE)?,
        _ => return None,
    };
    Some((x.try_into().ok()?, y.try_into().ok()?))
}

/// KDFe for 256 bits, which is one round of SHA-256 (Part 1, "KDFe for ECDH").
pub(crate) fn kdfe(z: &[u8], label: &[u8], party_u: &[u8], party_v: &[u8]) -> Seed {
    let digest = Sha256::new()
        .chain_update(1_u32.to_be_bytes())
        .chain_update(z)
        .chain_update(label)
        .chain_update(party_u)
        .chain_update(party_v)
        .finalize();
    Zeroizing::new(digest.into())
}

/// KDFa for at most 256 bits, which is one round of HMAC-SHA256 (Part 1, "KDFa").
fn kdfa(key: &[u8], label: &[u8], context: &[u8], bits: u32) -> Result<Seed, CredentialError> {
    let mut mac = HmacSha256::new_from_slice(key).map_err(|_| CredentialError::Derive)?;
    mac.update(&1_u32.to_be_bytes());
    mac.update(label);
    mac.update(context);
    mac.update(&bits.to_be_bytes());
    Ok(Zeroizing::new(mac.finalize().into_bytes().into()))
}

/// AES-128 key and zero IV of the identity.
pub(crate) fn storage_key(
    seed: &Seed,
    object: &ObjectName,
) -> Result<Zeroizing<[u8; 16]>, CredentialError> {
    let derived = kdfa(seed.as_ref(), STORAGE, object.as_bytes(), 128)?;
    let mut key = Zeroizing::new([0; 16]);
    for (to, from) in key.iter_mut().zip(derived.iter()) {
        *to = *from;
    }
    Ok(key)
}

fn storage_encryptor(
    seed: &Seed,
    object: &ObjectName,
) -> Result<cfb_mode::Encryptor<Aes128>, CredentialError> {
    let key = storage_key(seed, object)?;
    Ok(cfb_mode::Encryptor::new(&(*key).into(), &[0; 16].into()))
}

/// HMAC over the encrypted identity and the object's name.
pub(crate) fn integrity(
    seed: &Seed,
    identity: &[u8],
    object: &ObjectName,
) -> Result<[u8; 32], CredentialError> {
    let key = kdfa(seed.as_ref(), INTEGRITY, &[], 256)?;
    let mut mac = HmacSha256::new_from_slice(key.as_ref()).map_err(|_| CredentialError::Derive)?;
    mac.update(identity);
    mac.update(object.as_bytes());
    Ok(mac.finalize().into_bytes().into())
}
