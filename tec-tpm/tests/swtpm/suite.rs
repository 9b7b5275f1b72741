//! What every way to a TPM does.

use std::sync::Arc;

use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use tec_core::attest::{LogEvidence, Tee};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;
use tec_core::port::{Attester as _, EvidenceRequest, PortError, PortErrorKind, Verifier as _};
use tec_core::secret::SecretArray;
use tec_core::time::Timestamp;
use tec_tpm::ak::{AkAlgorithm, AkHandle, AkOrigin, AttestationKey};
use tec_tpm::ek::{EkAlgorithm, EkCertificate, TrustStore, make_credential, verify_ek_certificate};
use tec_tpm::quote::QuoteError;
use tec_tpm::testing::Swtpm;
use tec_tpm::tpm::{AnyTpm as _, TpmAttester, TpmError};
use tec_tpm::verifier::TpmVerifier;

use super::Tpm;

const NONCE: [u8; 32] = [0x5a; 32];
const AK: AkHandle = AkHandle::DEFAULT;

#[expect(clippy::unwrap_used, reason = "clippy takes helpers of tests for library code")]
fn open(swtpm: &Swtpm) -> Tpm {
    Tpm::open(&swtpm.tcti()).unwrap()
}

fn secret(seed: u64) -> SecretArray<32> {
    SecretArray::random(&mut ChaCha20Rng::seed_from_u64(seed))
}

#[test]
fn an_attestation_key_is_made_once_and_survives_a_reboot() {
    let mut swtpm = Swtpm::start().unwrap();
    let first = open(&swtpm).ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap();
    assert_eq!(first.origin, AkOrigin::Created);
    let parsed = AttestationKey::from_tpm2b(&first.tpm2b_public).unwrap();
    assert_eq!(parsed.public(), first.key.public());

    let again = open(&swtpm).ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap();
    assert_eq!(again.origin, AkOrigin::Found);
    swtpm.restart().unwrap();
    let later = open(&swtpm).ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap();
    assert_eq!(later.origin, AkOrigin::Found);
    for ak in [again, later] {
        assert_eq!(ak.key.public(), first.key.public());
    }
}

#[test]
fn another_handle_gives_another_key() {
    let swtpm = Swtpm::start().unwrap();
    let tpm = open(&swtpm);
    let other = AkHandle::new(0x8101_0003).unwrap();
    let first = tpm.ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap();
    let second = tpm.ensure_ak(other, AkAlgorithm::Rsa2048).unwrap();
    assert_ne!(first.key.public(), second.key.public());
}

#[test]
fn quotes_of_both_algorithms_verify_and_follow_the_registers() {
    for algorithm in [AkAlgorithm::Rsa2048, AkAlgorithm::EccP256] {
        let mut swtpm = Swtpm::start().unwrap();
        let tpm = open(&swtpm);
        let ak = tpm.ensure_ak(AK, algorithm).unwrap();

        let event = Sha256Digest::of("a boot loader");
        let before = tpm.quote(AK, &NONCE).unwrap();
        tpm.pcr_extend(PcrIndex::BOOT_MANAGER, &event).unwrap();
        let after = tpm.quote(AK, &NONCE).unwrap();

        let verify = |evidence: &tec_tpm::evidence::TpmEvidence| {
            evidence.quote().verify(ak.key.public(), &NONCE)
        };
        let (before, after) = (verify(&before).unwrap(), verify(&after).unwrap());
        let old = before.pcrs().value(PcrIndex::BOOT_MANAGER);
        let new = after.pcrs().value(PcrIndex::BOOT_MANAGER);
        assert_eq!(*new, old.extended(&event));
        assert_eq!(after.pcrs(), &tpm.pcr_read().unwrap());
        drop(tpm);

        swtpm.restart().unwrap();
        let evidence = open(&swtpm).quote(AK, &NONCE).unwrap();
        let rebooted = verify(&evidence).unwrap();
        assert_eq!(rebooted.pcrs().value(PcrIndex::BOOT_MANAGER), &Sha256Digest::ZERO);
        assert_eq!(rebooted.clock().reset_count, after.clock().reset_count + 1);
    }
}

#[test]
fn a_quote_is_for_one_nonce_and_one_key() {
    let (one, two) = (Swtpm::start().unwrap(), Swtpm::start().unwrap());
    let (one, two) = (open(&one), open(&two));
    let ak = one.ensure_ak(AK, AkAlgorithm::EccP256).unwrap();
    let stranger = two.ensure_ak(AK, AkAlgorithm::EccP256).unwrap();
    let evidence = one.quote(AK, &NONCE).unwrap();
    let verify = |key, nonce: &[u8]| evidence.quote().verify(key, nonce).map(drop);
    assert_eq!(verify(ak.key.public(), &NONCE), Ok(()));
    assert_eq!(verify(ak.key.public(), &[0; 32]), Err(QuoteError::Nonce));
    assert_eq!(verify(stranger.key.public(), &NONCE), Err(QuoteError::Signature));
}

#[test]
fn what_occupies_the_handle_is_named_and_kept() {
    let swtpm = Swtpm::start().unwrap();
    let tpm = open(&swtpm);
    let ecc = tpm.ensure_ak(AK, AkAlgorithm::EccP256).unwrap();
    assert!(matches!(
        tpm.ensure_ak(AK, AkAlgorithm::Rsa2048),
        Err(TpmError::HandleOccupied { handle: AK, source: None })
    ));
    let still = tpm.ensure_ak(AK, AkAlgorithm::EccP256).unwrap();
    assert_eq!(still.key.public(), ecc.key.public());

    let error = tpm.ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap_err();
    assert_eq!(PortError::from(error).kind(), PortErrorKind::Conflict);

    assert!(tpm.evict_ak(AK).unwrap());
    assert!(!tpm.evict_ak(AK).unwrap());
    let rsa = tpm.ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap();
    assert_eq!(rsa.origin, AkOrigin::Created);
}

#[test]
fn a_storage_key_at_the_handle_is_refused_and_kept() {
    // swtpm_setup persists an endorsement key of RSA 2048 there.
    let occupied = AkHandle::new(0x8101_0001).unwrap();
    let swtpm = Swtpm::manufacture().unwrap();
    let tpm = open(&swtpm);
    for result in [
        tpm.ensure_ak(occupied, AkAlgorithm::Rsa2048).map(drop),
        tpm.evict_ak(occupied).map(drop),
        tpm.quote(occupied, &NONCE).map(drop),
    ] {
        assert!(
            matches!(result, Err(TpmError::HandleOccupied { source: Some(_), .. })),
            "{result:?}"
        );
    }
}

#[test]
fn without_a_key_there_is_no_quote() {
    let swtpm = Swtpm::start().unwrap();
    let tpm = open(&swtpm);
    assert!(matches!(tpm.quote(AK, &NONCE), Err(TpmError::NoAk(AK))));
}

#[test]
fn credentials_of_both_sorts_of_endorsement_keys_come_back() {
    let swtpm = Swtpm::start().unwrap();
    for (algorithm, ek_algorithm) in
        [(AkAlgorithm::Rsa2048, EkAlgorithm::Rsa2048), (AkAlgorithm::EccP256, EkAlgorithm::EccP256)]
    {
        let handle = AkHandle::new(0x8101_0010 + algorithm as u32).unwrap();
        let tpm = open(&swtpm).with_ek(ek_algorithm);
        let ak = tpm.ensure_ak(handle, algorithm).unwrap();
        let ek = tpm.read_ek().unwrap();
        assert!(ek.certificate.is_none());

        let secret = secret(1);
        let mut rng = ChaCha20Rng::seed_from_u64(2);
        let credential = make_credential(&ek.public, &ak.key.name(), &secret, &mut rng).unwrap();
        let answer = tpm.activate_credential(handle, &credential).unwrap();
        assert_eq!(answer.expose("test"), secret.expose("test"));
    }
}

#[test]
fn a_credential_for_another_tpm_or_another_key_is_refused() {
    let (mine, theirs) = (Swtpm::start().unwrap(), Swtpm::start().unwrap());
    let (mine, theirs) = (open(&mine), open(&theirs));
    let my_ak = mine.ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap();
    let their_ak = theirs.ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap();
    let my_ek = mine.read_ek().unwrap();
    let their_ek = theirs.read_ek().unwrap();

    let mut rng = ChaCha20Rng::seed_from_u64(3);
    for (ek, ak) in [(&their_ek, &my_ak), (&my_ek, &their_ak)] {
        let credential = make_credential(&ek.public, &ak.key.name(), &secret(4), &mut rng).unwrap();
        assert!(matches!(
            mine.activate_credential(AK, &credential),
            Err(TpmError::ChallengeRefused(_))
        ));
    }
    // Nothing is left behind that would keep the right answer from coming.
    let secret = secret(5);
    let credential = make_credential(&my_ek.public, &my_ak.key.name(), &secret, &mut rng).unwrap();
    let answer = mine.activate_credential(AK, &credential).unwrap();
    assert_eq!(answer.expose("test"), secret.expose("test"));
}

#[test]
fn failures_leave_no_objects_behind() {
    // A TPM has room for three transient objects; leaks would show at the fourth call.
    let swtpm = Swtpm::start().unwrap();
    let tpm = open(&swtpm);
    tpm.ensure_ak(AK, AkAlgorithm::EccP256).unwrap();
    let garbage = tec_core::ak::Credential::new(vec![0, 1, 0], vec![0, 1, 0]);
    for _ in 0..5 {
        assert!(matches!(
            tpm.activate_credential(AK, &garbage),
            Err(TpmError::ChallengeRefused(_))
        ));
    }
    assert!(tpm.read_ek().is_ok());
}

#[test]
fn the_certificate_of_a_manufactured_tpm_leads_to_its_root() {
    let swtpm = Swtpm::manufacture().unwrap();
    let ca = swtpm.ca().unwrap();
    let offer = open(&swtpm).read_ek().unwrap();
    let certificate = EkCertificate::from_der(&offer.certificate.unwrap()).unwrap();
    assert_eq!(*certificate.public(), offer.public);

    let der = |pem: &str| pem_rfc7468::decode_vec(pem.as_bytes()).unwrap().1;
    let mut store = TrustStore::new();
    store.add_root(&der(&ca.root_pem)).unwrap();
    store.add_intermediate(&der(&ca.issuer_pem)).unwrap();
    let now = std::fs::metadata(swtpm.state_path()).unwrap().modified().unwrap();
    let now = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let now = Timestamp::from_unix_seconds(i64::try_from(now).unwrap());
    let verified = verify_ek_certificate(&certificate, &store, now).unwrap();
    assert_eq!(*verified.public(), offer.public);
}

#[tokio::test]
async fn attester_and_verifier_agree() {
    let swtpm = Swtpm::start().unwrap();
    let tpm = Arc::new(open(&swtpm));
    let ak = tpm.ensure_ak(AK, AkAlgorithm::Rsa2048).unwrap();
    tpm.pcr_extend(PcrIndex::MOK, &Sha256Digest::of("key list")).unwrap();
    let attester = TpmAttester::new(tpm, AK).with_event_log(Arc::new(|| Some(b"no log".to_vec())));

    let report_data = [9; 48];
    let made = attester.attest(&report_data).await.unwrap();
    let request = EvidenceRequest::new(Tee::Tpm, &made.evidence, &report_data);
    let verified = TpmVerifier::new().verify(request).await.unwrap();
    assert_eq!(verified.ak, *ak.key.public());
    assert!(matches!(verified.log, LogEvidence::Broken { .. }));
    let mok = Sha256Digest::ZERO.extended(&Sha256Digest::of("key list"));
    assert_eq!(verified.claims["pcr14"], mok.to_string());
}

#[test]
fn strings_that_name_no_tpm_are_refused() {
    for tcti in ["", "device:", "swtpm:path=/run/x", "nonsense:x", "swtpm"] {
        assert!(matches!(Tpm::open(tcti), Err(TpmError::Tcti { .. })), "{tcti}");
    }
    assert!(matches!(Tpm::open("device:/nonexistent/tpm"), Err(TpmError::Open { .. })));
}
