//! The TPM's side of a credential.

use aes::Aes128;
use cfb_mode::cipher::KeyIvInit as _;
use tec_core::ak::Credential;
use tec_core::secret::SecretBytes;
use zeroize::Zeroizing;

use crate::ek::credential::{COORDINATE, IDENTITY, coordinates, integrity, kdfe, storage_key};
use crate::public::ObjectName;
use crate::wire::WireReader;

/// What TPM2_ActivateCredential does with a P-256 endorsement key, for the software TPM: `None`
/// when the credential is not for this key and object.
pub(super) fn open_with_p256(
    ek: &p256::SecretKey,
    object: &ObjectName,
    credential: &Credential,
) -> Option<SecretBytes> {
    let point = WireReader::new(&credential.encrypted_secret).sized(256).ok()?;
    let mut reader = WireReader::new(point);
    let x: [u8; COORDINATE] = reader.sized(COORDINATE).ok()?.try_into().ok()?;
    let y: [u8; COORDINATE] = reader.sized(COORDINATE).ok()?.try_into().ok()?;
    let theirs = p256::PublicKey::from_sec1_bytes(&[&[4], &x[..], &y[..]].concat()).ok()?;
    let (ek_x, _) = coordinates(&ek.public_key())?;
    let seed = kdfe(ek.diffie_hellman(&theirs).raw_secret_bytes(), IDENTITY, &x, &ek_x);

    let body = WireReader::new(&credential.id_object).sized(256).ok()?;
    let (head, identity) = body.split_at_checked(2 + 32)?;
    let mac = WireReader::new(head).sized(32).ok()?;
    if mac != integrity(&seed, identity, object).ok()? {
        return None;
    }
    let mut identity = Zeroizing::new(identity.to_vec());
    let key = storage_key(&seed, object).ok()?;
    cfb_mode::Decryptor::<Aes128>::new(&(*key).into(), &[0; 16].into()).decrypt(&mut identity);
    let secret = WireReader::new(&identity).sized(32).ok()?;
    Some(SecretBytes::new(secret.to_vec()))
}
