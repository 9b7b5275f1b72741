use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;

use super::*;

fn now() -> Timestamp {
    Timestamp::from_unix_seconds(1_800_000_000)
}

fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

fn ca(seed: u64) -> SignerCa {
    SignerCa::generate(&mut rng(seed), now()).unwrap()
}

fn days(days: i64) -> Timestamp {
    now().plus_seconds(days * DAY)
}

#[test]
fn the_same_randomness_and_time_give_the_same_files() {
    let (first, second) = (ca(1), ca(1));
    assert_eq!(first.certificate_pem().unwrap(), second.certificate_pem().unwrap());
    let signer = |ca: &SignerCa| ca.issue(&mut rng(2), now()).unwrap().certificate_pem().unwrap();
    assert_eq!(signer(&first), signer(&second));
    assert_ne!(first.certificate_pem().unwrap(), ca(3).certificate_pem().unwrap());
}

#[test]
fn files_are_read_back_and_keys_do_not_print() {
    let ca = ca(1);
    let again = SignerCa::from_pem(&ca.key_pem().unwrap(), &ca.certificate_pem().unwrap());
    let signer = again.unwrap().issue(&mut rng(2), now()).unwrap();
    let text = signer.certificate_pem().unwrap();
    let read = IssuedSigner::from_pem(signer.key_pem(), &text).unwrap();
    assert_eq!(read.ends_at(), days(90));
    assert!(read.key_pem().ct_eq(signer.key_pem()));
    assert!(ca.renew(&read, &mut rng(4), now()).unwrap().is_none());
    let pem = signer.key_pem().expose("search for it").to_vec();
    let body = String::from_utf8(pem).unwrap().lines().nth(1).unwrap().to_owned();
    assert!(!format!("{signer:?} {ca:?}").contains(&body));
}

#[test]
fn a_signer_is_renewed_thirty_days_before_its_end_and_not_earlier() {
    let ca = ca(1);
    let signer = ca.issue(&mut rng(2), now()).unwrap();
    for (day, renewed) in [(0, false), (59, false), (60, true), (89, true), (200, true)] {
        let renewal = ca.renew(&signer, &mut rng(3), days(day)).unwrap();
        assert_eq!(renewal.is_some(), renewed, "day {day}");
    }
    // Issued in the future: the clock was wrong then, or is wrong now.
    let early = ca.renew(&signer, &mut rng(3), days(-2)).unwrap();
    assert!(early.is_some());
}

#[test]
fn a_signer_of_another_ca_is_replaced() {
    let foreign = ca(2).issue(&mut rng(3), now()).unwrap();
    let renewal = ca(1).renew(&foreign, &mut rng(4), now()).unwrap();
    assert!(renewal.is_some());
}

#[test]
fn a_ca_issues_nothing_that_outlives_it() {
    let ca = ca(1);
    assert!(ca.issue(&mut rng(2), days(CA_DAYS - SIGNER_DAYS)).is_ok());
    assert!(matches!(
        ca.issue(&mut rng(2), days(CA_DAYS - SIGNER_DAYS + 1)),
        Err(SignerError::CaEnds(ends_at)) if ends_at == ca.ends_at().unix_seconds()
    ));
}

#[test]
fn files_that_do_not_fit_together_are_refused() {
    let (ca, other) = (ca(1), ca(2));
    let certificate = ca.certificate_pem().unwrap();
    assert!(matches!(
        SignerCa::from_pem(&other.key_pem().unwrap(), &certificate),
        Err(SignerError::Pair("CA"))
    ));
    let signer = ca.issue(&mut rng(3), now()).unwrap();
    assert!(matches!(
        SignerCa::from_pem(signer.key_pem(), &signer.certificate_pem().unwrap()),
        Err(SignerError::NotCa)
    ));
    assert!(matches!(
        IssuedSigner::from_pem(signer.key_pem(), &certificate),
        Err(SignerError::Pair("token signer"))
    ));
    let key = SecretBytes::new(b"no key".to_vec());
    assert!(matches!(SignerCa::from_pem(&key, &certificate), Err(SignerError::Key("CA"))));
    assert!(matches!(
        SignerCa::from_pem(&ca.key_pem().unwrap(), "no certificate"),
        Err(SignerError::Certificate { role: "CA", .. })
    ));
}
