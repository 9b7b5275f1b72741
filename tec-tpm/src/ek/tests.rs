//! Templates, credentials, certificates.

use std::fs;
use std::path::{Path, PathBuf};

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use tec_core::ak::{EkOffer, TpmObjects as _};
use tec_core::secret::SecretArray;
use tec_core::time::Timestamp;

use super::*;
use crate::ak::AttestationKey;
use crate::public::{ObjectName, PublicArea};
use crate::testing::SoftTpm;

fn rng() -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(9)
}

fn ak_name(tpm: &SoftTpm) -> ObjectName {
    AttestationKey::from_tpm2b(&tpm.ak_public_area()).unwrap().name()
}

#[test]
fn a_credential_comes_back_from_its_tpm_only() {
    let (mine, theirs) = (SoftTpm::p256(1), SoftTpm::p256(2));
    let secret = SecretArray::new([3; 32]);
    let credential =
        make_credential(&mine.ek().public, &ak_name(&mine), &secret, &mut rng()).unwrap();
    let answer = mine.activate_credential(&credential).unwrap();
    assert_eq!(answer.expose("test"), secret.expose("test"));
    assert!(theirs.activate_credential(&credential).is_none());

    let for_another_ak =
        make_credential(&mine.ek().public, &ak_name(&theirs), &secret, &mut rng()).unwrap();
    assert!(mine.activate_credential(&for_another_ak).is_none());
}

#[test]
fn credentials_are_a_function_of_their_arguments_and_hide_the_secret() {
    let tpm = SoftTpm::rsa(1);
    let make = || {
        let secret = SecretArray::new([0xab; 32]);
        make_credential(&tpm.public_key(), &ak_name(&tpm), &secret, &mut rng()).unwrap()
    };
    let credential = make();
    assert_eq!(credential, make());
    // TPM2B_ID_OBJECT of TPM2B_DIGEST (HMAC) and an encrypted TPM2B of 32 bytes
    assert_eq!(credential.id_object.len(), 2 + 34 + 34);
    assert_eq!(credential.encrypted_secret.len(), 2 + 256);
    assert!(!credential.id_object.windows(8).any(|window| window == [0xab; 8]));
}

#[test]
fn challenges_are_issued_to_good_keys_only() {
    let tpm = SoftTpm::p256(1);
    let issuer = CredentialIssuer::new();
    let secret = SecretArray::new([3; 32]);
    let credential =
        issuer.challenge(&tpm.ek(), &tpm.ak_public_area(), &secret, &mut rng()).unwrap();
    assert!(tpm.activate_credential(&credential).is_some());
    assert_eq!(issuer.attestation_key(&tpm.ak_public_area()).unwrap(), tpm.public_key());

    let issue = |offer: &EkOffer, area: &[u8]| issuer.issue(offer, area, &secret, &mut rng());
    assert!(matches!(issue(&tpm.ek(), &tpm.ek_public_area()), Err(IssuerError::Ak(_))));
    let with_garbage = EkOffer::new(tpm.ek().public, Some(vec![1, 2, 3]));
    assert!(matches!(
        issue(&with_garbage, &tpm.ak_public_area()),
        Err(IssuerError::Certificate(_))
    ));
}

#[derive(Debug)]
struct At(Timestamp);

impl tec_core::port::Clock for At {
    fn now(&self) -> Timestamp {
        self.0
    }
}

/// Endorsement key, issuer and root of a real boot in an emulator.
struct Fixture {
    folder: PathBuf,
    ek: Vec<u8>,
    issuer: Vec<u8>,
    root: Vec<u8>,
}

fn fixture() -> Fixture {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/boots/bookworm-sb-on/quote");
    let pem = |name: &str| {
        let text = fs::read(folder.join(name)).unwrap();
        // The file may hold more than one certificate; the first is meant.
        let (_, der) = pem_rfc7468::decode_vec(&first_block(&text)).unwrap();
        der
    };
    Fixture {
        ek: fs::read(folder.join("ek-rsa.crt.der")).unwrap(),
        issuer: pem("ek-issuer.pem"),
        root: pem("ek-root.pem"),
        folder: folder.clone(),
    }
}

fn first_block(text: &[u8]) -> Vec<u8> {
    let text = String::from_utf8(text.to_vec()).unwrap();
    let end = "-----END CERTIFICATE-----";
    let begin = text.find("-----BEGIN").unwrap();
    let stop = text.find(end).unwrap() + end.len();
    text.as_bytes()[begin..stop].to_vec()
}

impl Fixture {
    fn certificate(&self) -> EkCertificate {
        EkCertificate::from_der(&self.ek).unwrap()
    }

    fn store(&self) -> TrustStore {
        let mut store = TrustStore::new();
        store.add_root(&self.root).unwrap();
        store.add_intermediate(&self.issuer).unwrap();
        store
    }

    /// A moment at which all three are valid.
    fn now(&self) -> Timestamp {
        self.certificate().parsed().validity().0.plus_seconds(60)
    }
}

#[test]
fn a_real_certificate_is_for_the_key_and_leads_to_its_root() {
    let fixture = fixture();
    let certificate = fixture.certificate();
    let area = fs::read(fixture.folder.join("ek-rsa.pub.tpm2b")).unwrap();
    assert_eq!(certificate.public(), PublicArea::from_tpm2b(&area).unwrap().key());
    let verified = verify_ek_certificate(&certificate, &fixture.store(), fixture.now()).unwrap();
    assert_eq!(verified.public(), certificate.public());
    let padded = [&fixture.ek[..], &[0xff; 30]].concat();
    assert!(EkCertificate::from_nv(&padded).is_ok());
    assert!(matches!(EkCertificate::from_der(&padded), Err(CertificateError::Malformed(_))));
}

#[test]
fn a_chain_with_a_gap_or_out_of_time_is_refused() {
    let fixture = fixture();
    let certificate = fixture.certificate();
    let verify =
        |store: &TrustStore, now| verify_ek_certificate(&certificate, store, now).map(|_| ());
    let now = fixture.now();

    let mut only_root = TrustStore::new();
    only_root.add_root(&fixture.root).unwrap();
    assert!(matches!(verify(&only_root, now), Err(ChainError::UnknownIssuer(_))));
    let mut no_root = TrustStore::new();
    no_root.add_intermediate(&fixture.issuer).unwrap();
    no_root.add_intermediate(&fixture.root).unwrap();
    assert!(verify(&no_root, now).is_err());

    let day = 86_400;
    assert!(matches!(
        verify(&fixture.store(), now.plus_seconds(-day)),
        Err(ChainError::NotYetValid { .. })
    ));
    let (_, until) = certificate.parsed().validity();
    if until < Timestamp::from_unix_seconds(i64::MAX) {
        assert!(matches!(
            verify(&fixture.store(), until.plus_seconds(1)),
            Err(ChainError::Expired { .. })
        ));
    }
}

#[test]
fn a_certificate_that_its_issuer_did_not_sign_is_refused() {
    let fixture = fixture();
    // The last byte belongs to the signature.
    let mut forged = fixture.ek.clone();
    *forged.last_mut().unwrap() ^= 1;
    let forged = EkCertificate::from_der(&forged).unwrap();
    assert!(matches!(
        verify_ek_certificate(&forged, &fixture.store(), fixture.now()),
        Err(ChainError::Signature(_))
    ));
}

#[test]
fn a_ca_is_no_endorsement_key_and_an_endorsement_key_no_ca() {
    let fixture = fixture();
    assert!(matches!(EkCertificate::from_der(&fixture.issuer), Err(CertificateError::IsCa)));
}

#[test]
fn with_roots_only_vouched_keys_are_challenged() {
    let fixture = fixture();
    let tpm = SoftTpm::p256(1);
    let clock = std::sync::Arc::new(At(fixture.now()));
    let issuer = CredentialIssuer::with_roots(fixture.store(), clock.clone());
    let secret = SecretArray::new([3; 32]);
    let issue = |issuer: &CredentialIssuer, offer: &EkOffer| {
        issuer.issue(offer, &tpm.ak_public_area(), &secret, &mut rng())
    };
    let vouched = EkOffer::new(fixture.certificate().public().clone(), Some(fixture.ek.clone()));
    assert!(issue(&issuer, &vouched).is_ok());
    assert!(matches!(issue(&issuer, &tpm.ek()), Err(IssuerError::NoCertificate)));
    let borrowed = EkOffer::new(tpm.ek().public, Some(fixture.ek.clone()));
    assert!(matches!(issue(&issuer, &borrowed), Err(IssuerError::OtherKey)));
    let strict = CredentialIssuer::with_roots(TrustStore::new(), clock);
    assert!(matches!(
        issue(&strict, &vouched),
        Err(IssuerError::Chain(ChainError::UnknownIssuer(_)))
    ));
}

#[test]
fn oversized_and_truncated_certificates_are_refused() {
    assert!(matches!(
        EkCertificate::from_der(&vec![0; 20_000]),
        Err(CertificateError::TooLarge(20_000))
    ));
    let fixture = fixture();
    for cut in 0..fixture.ek.len() {
        assert!(matches!(
            EkCertificate::from_der(&fixture.ek[..cut]),
            Err(CertificateError::Malformed(_))
        ));
    }
}
