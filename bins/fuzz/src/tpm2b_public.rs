//! Public areas: names, keys, and their permitted uses.

use tec_core::ak::{EkOffer, KeyKind, PublicKey, TpmObjects as _};
use tec_core::digest::Sha256Digest;
use tec_core::secret::SecretArray;
use tec_tpm::ak::AttestationKey;
use tec_tpm::ek::CredentialIssuer;
use tec_tpm::public::{ObjectAttributes, PublicArea, Scheme};

use crate::Seed;
use crate::sample::{p256_tpm, rng, rsa_tpm};

/// TPM_ALG_SHA256 (TCG Algorithm Registry, "TPM_ALG_ID").
const ALG_SHA256: [u8; 2] = [0x00, 0x0b];
/// Largest TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET here: RSA-4096 and its size.
const MAX_CREDENTIAL: usize = 2 + 512;

/// The name is computed from exactly these bytes, and the key is canonical and comes from the area.
pub(crate) fn tpm2b_public(data: &[u8]) {
    let area = PublicArea::from_tpm2b(data);
    let ak = AttestationKey::from_tpm2b(data);
    let Ok(area) = area else {
        assert!(ak.is_err());
        return;
    };
    check_area(data, &area);
    check_challenge(area.key());
    if let Ok(ak) = ak {
        check_ak(data, &area, &ak);
    }
}

fn check_area(data: &[u8], area: &PublicArea) {
    let tpmt = data.get(2..).expect("a size goes before the area");
    assert!(PublicArea::from_tpmt(tpmt).is_ok());
    let digest = Sha256Digest::of(tpmt);
    assert_eq!(area.name().as_bytes(), [&ALG_SHA256[..], digest.as_bytes()].concat());
    let attributes = area.attributes();
    assert_eq!(ObjectAttributes::from_bits(attributes.bits()), attributes);
    let again = PublicKey::from_der(area.key().as_der()).expect("the key is canonical");
    assert_eq!(&again, area.key());
    let KeyKind::Rsa { bits } = area.key().kind() else {
        return;
    };
    // The modulus is the last member of the area and, except for the exponent, of the DER form.
    let size = usize::try_from(bits / 8).expect("bits fit");
    let modulus = data.get(data.len() - size..).expect("the modulus is in the area");
    let der = area.key().as_der();
    assert!(der.windows(size).any(|window| window == modulus));
}

fn check_ak(data: &[u8], area: &PublicArea, ak: &AttestationKey) {
    assert_eq!((ak.public(), ak.name()), (area.key(), area.name()));
    let needed = ObjectAttributes::FIXED_TPM
        .union(ObjectAttributes::FIXED_PARENT)
        .union(ObjectAttributes::SENSITIVE_DATA_ORIGIN)
        .union(ObjectAttributes::RESTRICTED)
        .union(ObjectAttributes::SIGN);
    assert!(area.attributes().contains(needed));
    assert!(!area.attributes().contains(ObjectAttributes::DECRYPT));
    assert!(matches!(area.scheme(), Scheme::RsassaSha256 | Scheme::EcdsaSha256));
    let read = CredentialIssuer::new().attestation_key(data);
    assert_eq!(read.ok().as_ref(), Some(ak.public()));
}

/// Either a challenge is created, within bounds, or the key is unusable, such as a point that is not on its
/// curve.
fn check_challenge(key: &PublicKey) {
    let offer = EkOffer::new(key.clone(), None);
    let ak = p256_tpm().ak_public_area();
    let secret = SecretArray::new([3; 32]);
    let made = CredentialIssuer::new().challenge(&offer, &ak, &secret, &mut rng(4));
    if let Ok(credential) = made {
        assert!(credential.id_object.len() <= MAX_CREDENTIAL);
        assert!(credential.encrypted_secret.len() <= MAX_CREDENTIAL);
    }
}

pub(crate) fn seeds() -> Vec<Seed> {
    let (ecc, rsa) = (p256_tpm(), rsa_tpm());
    vec![
        Seed::new("ak_ecc", ecc.ak_public_area()),
        Seed::new("ak_rsa", rsa.ak_public_area()),
        Seed::new("ek_ecc", ecc.ek_public_area()),
        Seed::new("ek_rsa", rsa_ek(&rsa.ak_public_area(), &ecc.ek_public_area())),
    ]
}

/// The modulus of one area with the header of another: type 2, nameAlg 2, attributes 4, policy 34.
fn rsa_ek(rsa_ak: &[u8], ecc_ek: &[u8]) -> Vec<u8> {
    let mut area = vec![0x00, 0x01];
    area.extend(ecc_ek.get(4..44).expect("a head with a policy"));
    // AES-128 CFB, no scheme, 2048 bits, default exponent.
    area.extend([0x00, 0x06, 0x00, 0x80, 0x00, 0x43, 0x00, 0x10, 0x08, 0x00, 0, 0, 0, 0]);
    area.extend(rsa_ak.get(rsa_ak.len() - 258..).expect("a modulus with its size"));
    let size = u16::try_from(area.len()).unwrap_or(0).to_be_bytes();
    [&size[..], &area].concat()
}
