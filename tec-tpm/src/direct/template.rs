//! Public areas of the keys that are created.

use crate::ak::{AkAlgorithm, REQUIRED};
use crate::ek::{EkAlgorithm, POLICY_A, TEMPLATE};
use crate::public::{
    ALG_AES, ALG_CFB, ALG_ECC, ALG_NULL, ALG_RSA, ECC_NIST_P256, ObjectAttributes,
};
use crate::quote::{ALG_ECDSA, ALG_RSASSA, ALG_SHA256};
use crate::wire::push_sized;

/// TPM_RH_OWNER, _NULL and _ENDORSEMENT (TPM 2.0 Library Part 2, "TPM_RH").
pub(super) const RH_OWNER: u32 = 0x4000_0001;
pub(super) const RH_NULL: u32 = 0x4000_0007;
pub(super) const RH_ENDORSEMENT: u32 = 0x4000_000b;

/// Bits of the symmetric key that protects children (TCG EK Credential Profile, templates L-1 and
/// L-2).
const AES_BITS: u16 = 128;
const RSA_BITS: u16 = 2048;
/// Bytes of a modulus, all zero in template L-1.
const MODULUS: usize = 256;
/// Bytes of a coordinate, all zero in template L-2.
const COORDINATE: usize = 32;
/// The exponent that zero stands for is 65537 (Part 2, "TPMS_RSA_PARMS").
const DEFAULT_EXPONENT: [u8; 4] = [0; 4];

/// Without `noDA`, guessed passwords of other keys would keep a node from unlocking its disk, and
/// an attestation key has no password to be guessed.
const ATTESTATION: ObjectAttributes =
    REQUIRED.union(ObjectAttributes::USER_WITH_AUTH).union(ObjectAttributes::NO_DA);

/// TPMT_PUBLIC of the templates L-1 and L-2 (TCG EK Credential Profile for TPM Family 2.0, "Default
/// EK Templates"). Byte for byte: a different template yields a different key.
pub(super) fn endorsement_key(algorithm: EkAlgorithm) -> Vec<u8> {
    let kind = match algorithm {
        EkAlgorithm::Rsa2048 => ALG_RSA,
        EkAlgorithm::EccP256 => ALG_ECC,
    };
    let mut area = head(kind, TEMPLATE, &POLICY_A);
    push_all(&mut area, &[ALG_AES, AES_BITS, ALG_CFB, ALG_NULL]);
    match algorithm {
        EkAlgorithm::Rsa2048 => {
            rsa(&mut area, &[0; MODULUS]);
        }
        EkAlgorithm::EccP256 => {
            p256(&mut area, &[0; COORDINATE]);
        }
    }
    area
}

/// TPMT_PUBLIC of a restricted signing key.
pub(super) fn attestation_key(algorithm: AkAlgorithm) -> Vec<u8> {
    let (kind, scheme) = match algorithm {
        AkAlgorithm::Rsa2048 => (ALG_RSA, ALG_RSASSA),
        AkAlgorithm::EccP256 => (ALG_ECC, ALG_ECDSA),
    };
    let mut area = head(kind, ATTESTATION, &[]);
    push_all(&mut area, &[ALG_NULL, scheme, ALG_SHA256]);
    match algorithm {
        AkAlgorithm::Rsa2048 => rsa(&mut area, &[]),
        AkAlgorithm::EccP256 => p256(&mut area, &[]),
    }
    area
}

fn head(kind: u16, attributes: ObjectAttributes, policy: &[u8]) -> Vec<u8> {
    let mut area = Vec::new();
    push_all(&mut area, &[kind, ALG_SHA256]);
    area.extend(attributes.bits().to_be_bytes());
    push_sized(&mut area, policy);
    area
}

fn rsa(area: &mut Vec<u8>, modulus: &[u8]) {
    push_all(area, &[RSA_BITS]);
    area.extend(DEFAULT_EXPONENT);
    push_sized(area, modulus);
}

fn p256(area: &mut Vec<u8>, coordinate: &[u8]) {
    push_all(area, &[ECC_NIST_P256, ALG_NULL]); // no key derivation
    push_sized(area, coordinate);
    push_sized(area, coordinate);
}

fn push_all(area: &mut Vec<u8>, values: &[u16]) {
    area.extend(values.iter().flat_map(|value| value.to_be_bytes()));
}
