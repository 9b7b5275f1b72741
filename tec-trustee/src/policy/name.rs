//! Names and values of references, as the policies derive and expect them.

use serde_json::Value;
use tec_core::ak::PublicKey;
use tec_core::attest::Tee;
use tec_core::id::MachineId;
use tec_core::pcr::PcrIndex;

/// Prefix of the reference value of an attestation key.
pub(super) const PREFIX: &str = "tec-ak-";
/// Characters skipped at the beginning of the base64 text: the 33 bytes before the modulus of an RSA key of
/// 2048 to 4096 bits (RFC 8017, A.1.1), which are nearly the same in all keys.
pub(super) const SKIP: usize = 44;
/// Number of characters that follow. With the prefix, that makes 199, since some storage back ends allow 200.
pub(super) const TAKE: usize = 192;

/// Name of the list of approved launch measurements of SNP guests, in standard base64.
pub const SNP_MEASUREMENT: &str = "snp_measurement";

/// The name under which the reference value of an attestation key is stored.
///
/// It is part of the key's base64 text, made legal for every storage back end: at most 199 characters of
/// `[A-Za-z0-9_-]`. RSA keys contribute 144 bytes of the modulus, P-256 keys the last 26 bytes of X and all
/// of Y.
///
/// A digest would be a better name, but the policy must derive it too, and Trustee's Rego engine is built
/// without the `crypto` functions (Trustee, attestation service).
///
/// # Security
/// The name alone proves nothing: an RSA key whose modulus begins like that of another key can be generated
/// in seconds. The value under the name holds the whole key, and the policy compares it; two keys with the
/// same name cannot both be stored, and the one that is not stored is denied. A program that stores such
/// values must not overwrite the value of another key, as `publish::Desired` refuses to.
pub fn ak_reference_name(ak: &PublicKey) -> String {
    let mut name = String::from(PREFIX);
    for c in ak.to_base64().chars().skip(SKIP).take(TAKE) {
        match c {
            '+' => name.push('-'),
            '/' => name.push('_'),
            '=' => {}
            c => name.push(c),
        }
    }
    name
}

/// The value stored under [`ak_reference_name`]; JSON `null` in its place revokes the key.
pub fn ak_reference_value(ak: &PublicKey, machine: &MachineId) -> Value {
    serde_json::json!({"ak": ak.to_base64(), "machine": machine.to_string()})
}

/// The name of the list of approved values of a register: `tpm_pcr4`, without padding.
pub fn pcr_reference_name(pcr: PcrIndex) -> String {
    format!("tpm_pcr{pcr}")
}

/// Guard, and path of the object with `pcrNN` and `ak_public` (Trustee, verifiers).
pub(super) fn path_of(tee: Tee) -> Option<(&'static str, &'static str)> {
    match tee {
        Tee::Tpm => Some(("input.tpm", "input.tpm")),
        Tee::AzSnpVtpm => Some((r#"input["az-snp-vtpm"]"#, r#"input["az-snp-vtpm"].tpm"#)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use proptest::prelude::*;
    use tec_core::attest::{PinnedPcrs, Tee};

    use super::super::{AttestationPolicy, MACHINE_CLAIM, PolicyIntent, TrustTier};
    use super::*;

    /// DER of an RSA key with the given modulus bytes and exponent 65537.
    fn rsa_key(modulus: &[u8]) -> PublicKey {
        fn tlv(tag: u8, content: &[u8]) -> Vec<u8> {
            let mut out = vec![tag];
            match content.len() {
                0..=127 => out.push(u8::try_from(content.len()).unwrap()),
                128..=255 => out.extend([0x81, u8::try_from(content.len()).unwrap()]),
                long => {
                    out.push(0x82);
                    out.extend(u16::try_from(long).unwrap().to_be_bytes());
                }
            }
            out.extend(content);
            out
        }
        let mut n = vec![0];
        n.extend(modulus);
        let key = tlv(0x30, &[tlv(2, &n), tlv(2, &[1, 0, 1])].concat());
        let mut bits = vec![0];
        bits.extend(key);
        let algorithm = hex::decode("300d06092a864886f70d0101010500").unwrap();
        let spki = tlv(0x30, &[algorithm, tlv(3, &bits)].concat());
        PublicKey::from_der(&spki).unwrap()
    }

    fn ec_key(coordinates: &[u8; 64]) -> PublicKey {
        let mut der =
            hex::decode("3059301306072a8648ce3d020106082a8648ce3d03010703420004").unwrap();
        der.extend(coordinates);
        PublicKey::from_der(&der).unwrap()
    }

    #[test]
    fn names_of_rsa_keys_begin_with_the_modulus_for_every_size() {
        for bytes in [256, 384, 512] {
            let mut modulus: Vec<u8> = (0..bytes).map(|i| u8::try_from(i % 251).unwrap()).collect();
            modulus[0] = 0xc3;
            let name = ak_reference_name(&rsa_key(&modulus));
            assert_eq!(name.len(), 199);
            let expected = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(&modulus[..144]);
            assert_eq!(name, format!("tec-ak-{expected}"));
        }
    }

    #[test]
    fn names_of_ecc_keys_hold_y_and_no_padding() {
        let mut coordinates = [0xfb; 64];
        let first = ak_reference_name(&ec_key(&coordinates));
        coordinates[63] = 0xfc;
        let second = ak_reference_name(&ec_key(&coordinates));
        assert_ne!(first, second);
        assert!(!first.contains('='));
        assert_eq!(first.len(), PREFIX.len() + 78);
    }

    /// The machine that the policy finds for a key with these reference values.
    fn machine_of(ak: &PublicKey, references: &Value) -> Option<Value> {
        let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm]).unwrap();
        let policy = AttestationPolicy::parse(&intent.render_attestation()).unwrap();
        let evidence = serde_json::json!({"tpm": {"pcr04": "aa", "ak_public": ak.to_base64()}});
        let verdict = policy.decide(&evidence, |name| references.get(name).cloned());
        let verdict = verdict.unwrap();
        let machine = verdict.extensions.get(MACHINE_CLAIM).cloned();
        assert_eq!(
            verdict.status() == TrustTier::Affirming,
            machine.is_some(),
            "an approved boot is affirmed for a known key, and for no other"
        );
        machine
    }

    /// Two keys whose moduli begin alike, as far as the name reaches.
    fn of_one_name(end: &[u8], other: &[u8]) -> [PublicKey; 2] {
        let start = vec![0xc3; 144];
        [end, other].map(|end| rsa_key(&[&start, end].concat()))
    }

    #[test]
    fn the_engine_of_trustee_has_no_digests() {
        let text = "package policy\nimport rego.v1\n\
            trust_claims := {\"executables\": count(crypto.sha256(\"x\"))}\n\
            extensions := []\n";
        let policy = AttestationPolicy::parse(text);
        let verdict = policy.and_then(|policy| policy.decide(&serde_json::json!({}), |_| None));
        assert!(verdict.is_err(), "names may be digests now: {verdict:?}");
    }

    proptest! {
        #[test]
        fn a_key_that_was_made_for_the_name_of_another_is_denied(
            end in prop::collection::vec(any::<u8>(), 112),
            other in prop::collection::vec(any::<u8>(), 112),
        ) {
            prop_assume!(end != other);
            let [known, stranger] = of_one_name(&end, &other);
            let name = ak_reference_name(&known);
            prop_assert_eq!(&name, &ak_reference_name(&stranger));
            let machine: MachineId = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse().unwrap();
            let value = ak_reference_value(&known, &machine);
            let references = serde_json::json!({&name: value, "tpm_pcr4": ["aa"]});
            let own = Some(Value::from(machine.to_string()));
            prop_assert_eq!(machine_of(&known, &references), own);
            prop_assert_eq!(machine_of(&stranger, &references), None);
        }

        #[test]
        fn names_are_legal_for_every_storage_back_end(
            modulus in prop::collection::vec(any::<u8>(), 256), ec in any::<[u8; 32]>(),
        ) {
            let mut modulus = modulus;
            modulus[0] |= 0x80;
            let mut coordinates = [0; 64];
            coordinates[32..].copy_from_slice(&ec);
            for key in [rsa_key(&modulus), ec_key(&coordinates)] {
                let name = ak_reference_name(&key);
                prop_assert!(name.len() <= 200);
                prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'));
            }
        }
    }
}
