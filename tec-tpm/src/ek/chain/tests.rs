//! Chains of every shape, generated for the tests.

use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SignatureAlgorithm,
};

use super::*;

const P256: &SignatureAlgorithm = &rcgen::PKCS_ECDSA_P256_SHA256;
const P384: &SignatureAlgorithm = &rcgen::PKCS_ECDSA_P384_SHA384;

type Ca = Issuer<'static, KeyPair>;

/// 2026-11-18, between 1975 and 4096, the validity of what is made here.
fn now() -> Timestamp {
    Timestamp::from_unix_seconds(1_795_000_000)
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn ca_params(name: &str, path_length: Option<u8>) -> CertificateParams {
    let mut params = named(name);
    params.is_ca = IsCa::Ca(match path_length {
        Some(length) => BasicConstraints::Constrained(length),
        None => BasicConstraints::Unconstrained,
    });
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn ek_params() -> CertificateParams {
    let mut params = named("EK");
    params.key_usages = vec![KeyUsagePurpose::KeyAgreement];
    params.extended_key_usages = vec![endorsement()];
    params
}

/// tcg-kp-EKCertificate.
fn endorsement() -> ExtendedKeyUsagePurpose {
    ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1])
}

/// A subject alternative name with the attribute tcg-at-tpmManufacturer, `id:00001014`.
fn manufacturer() -> CustomExtension {
    let name = [
        &[0x30, 0x1c, 0xa4, 0x1a, 0x30, 0x18, 0x31, 0x16, 0x30, 0x14][..],
        &[0x06, 0x05, 0x67, 0x81, 0x05, 0x02, 0x01, 0x0c, 0x0b],
        b"id:00001014",
    ];
    CustomExtension::from_oid_content(&[2, 5, 29, 17], name.concat())
}

fn key(algorithm: &'static SignatureAlgorithm) -> KeyPair {
    KeyPair::generate_for(algorithm).unwrap()
}

fn root(params: CertificateParams, algorithm: &'static SignatureAlgorithm) -> (Vec<u8>, Ca) {
    let key = key(algorithm);
    let der = params.self_signed(&key).unwrap().der().to_vec();
    (der, Issuer::new(params, key))
}

fn below(
    params: CertificateParams,
    issuer: &Ca,
    algorithm: &'static SignatureAlgorithm,
) -> (Vec<u8>, Ca) {
    let key = key(algorithm);
    let der = params.signed_by(&key, issuer).unwrap().der().to_vec();
    (der, Issuer::new(params, key))
}

fn ek(issuer: &Ca) -> EkCertificate {
    EkCertificate::from_der(&below(ek_params(), issuer, P256).0).unwrap()
}

fn store(root: &[u8], intermediates: &[&[u8]]) -> TrustStore {
    let mut store = TrustStore::new();
    store.add_root(root).unwrap();
    for der in intermediates {
        store.add_intermediate(der).unwrap();
    }
    store
}

#[test]
fn chains_on_both_curves_lead_to_their_root() {
    for algorithm in [P256, P384] {
        let (root_der, root) = root(ca_params("Root", None), algorithm);
        let (ca_der, ca) = below(ca_params("CA", None), &root, algorithm);
        for (issuer, intermediates) in [(&root, vec![]), (&ca, vec![ca_der.as_slice()])] {
            let certificate = ek(issuer);
            let store = store(&root_der, &intermediates);
            let verified = verify_ek_certificate(&certificate, &store, now()).unwrap();
            assert_eq!(verified.public(), certificate.public());
            assert_eq!(verified.root().matches("Root").count(), 1);
        }
    }
}

#[test]
fn a_ca_of_the_same_name_with_another_key_is_not_the_issuer() {
    let (_, genuine) = root(ca_params("Root", None), P256);
    let (impostor_der, _) = root(ca_params("Root", None), P256);
    assert!(matches!(
        verify_ek_certificate(&ek(&genuine), &store(&impostor_der, &[]), now()),
        Err(ChainError::Signature(_))
    ));
    // Beside the genuine one it does not matter.
    let (genuine_der, genuine) = root(ca_params("Root", None), P256);
    let mut both = store(&impostor_der, &[]);
    both.add_root(&genuine_der).unwrap();
    assert!(verify_ek_certificate(&ek(&genuine), &both, now()).is_ok());
}

#[test]
fn who_is_no_ca_vouches_for_nobody() {
    let (root_der, root) = root(ca_params("Root", None), P256);
    let (leaf_der, leaf) = below(named("Leaf"), &root, P256);
    let mut signs_only_lists = ca_params("Lists", None);
    signs_only_lists.key_usages = vec![KeyUsagePurpose::CrlSign];
    let (lists_der, lists) = below(signs_only_lists, &root, P256);
    for (issuer, der) in [(&leaf, &leaf_der), (&lists, &lists_der)] {
        assert!(matches!(
            verify_ek_certificate(&ek(issuer), &store(&root_der, &[der]), now()),
            Err(ChainError::NotCa(_))
        ));
    }
}

#[test]
fn path_lengths_are_kept() {
    let (root_der, root) = root(ca_params("Root", Some(0)), P256);
    assert!(verify_ek_certificate(&ek(&root), &store(&root_der, &[]), now()).is_ok());
    let (ca_der, ca) = below(ca_params("CA", None), &root, P256);
    assert!(matches!(
        verify_ek_certificate(&ek(&ca), &store(&root_der, &[&ca_der]), now()),
        Err(ChainError::PathLength(issuer)) if issuer.contains("Root")
    ));
}

#[test]
fn chains_end_after_five_intermediates_and_circles_end_at_all() {
    let (root_der, root) = root(ca_params("Root", None), P256);
    let mut ders: Vec<Vec<u8>> = Vec::new();
    let mut issuer = root;
    for number in 0..=MAX_INTERMEDIATES {
        let name = format!("CA {number}");
        let (der, ca) = below(ca_params(&name, None), &issuer, P256);
        ders.push(der);
        issuer = ca;
        let chain: Vec<&[u8]> = ders.iter().map(Vec::as_slice).collect();
        let result = verify_ek_certificate(&ek(&issuer), &store(&root_der, &chain), now());
        if number < MAX_INTERMEDIATES {
            assert!(result.is_ok(), "{number}");
        } else {
            assert!(matches!(result, Err(ChainError::PathLength(_))));
        }
    }
    // Three self-signed CAs of one name, none of them trusted.
    let key = key(P256);
    let params = ca_params("Circle", None);
    let circle = params.self_signed(&key).unwrap().der().to_vec();
    let certificate = ek(&Issuer::new(params, key));
    let store = store(&root_der, &[&circle, &circle, &circle]);
    assert!(matches!(
        verify_ek_certificate(&certificate, &store, now()),
        Err(ChainError::PathLength(_))
    ));
}

#[test]
fn an_expired_ca_ends_the_chain() {
    let mut params = ca_params("Root", None);
    params.not_after = rcgen::date_time_ymd(2020, 1, 1);
    let (root_der, root) = root(params, P256);
    assert!(matches!(
        verify_ek_certificate(&ek(&root), &store(&root_der, &[]), now()),
        Err(ChainError::Expired { subject, .. }) if subject.contains("Root")
    ));
}

#[test]
fn unusual_keys_and_algorithms_are_refused() {
    let (root_der, root) = root(ca_params("Root", None), &rcgen::PKCS_ED25519);
    assert!(matches!(
        verify_ek_certificate(&ek(&root), &store(&root_der, &[]), now()),
        Err(ChainError::Algorithm(oid)) if oid == "1.3.101.112"
    ));
}

#[test]
fn certificates_that_no_endorsement_key_has_are_refused() {
    let (_, root) = root(ca_params("Root", None), P256);
    let parse = |change: &dyn Fn(&mut CertificateParams), algorithm| {
        let mut params = ek_params();
        change(&mut params);
        EkCertificate::from_der(&below(params, &root, algorithm).0).unwrap_err()
    };
    let mut unknown = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
    unknown.set_criticality(true);
    assert!(matches!(
        parse(&|params| params.custom_extensions = vec![unknown.clone()], P256),
        CertificateError::CriticalExtension(oid) if oid == "1.2.3.4"
    ));
    assert!(matches!(
        parse(&|params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature], P256),
        CertificateError::KeyUsage
    ));
    // A key on a curve agrees; it encrypts nothing.
    for usages in [vec![], vec![KeyUsagePurpose::KeyEncipherment]] {
        assert!(matches!(
            parse(&|params| params.key_usages = usages.clone(), P256),
            CertificateError::KeyUsage
        ));
    }
    // Neither the purpose nor the name of a TPM: it may be for anything.
    assert!(matches!(
        parse(&|params| params.extended_key_usages = vec![], P256),
        CertificateError::Purpose
    ));
    let server = rcgen::ExtendedKeyUsagePurpose::ServerAuth;
    assert!(matches!(
        parse(&|params| params.extended_key_usages = vec![server.clone()], P256),
        CertificateError::Purpose
    ));
    assert!(matches!(
        parse(&|params| *params = ca_params("CA", None), P256),
        CertificateError::IsCa
    ));
    assert!(matches!(parse(&|_| {}, P384), CertificateError::Key(_)));
}

#[test]
fn a_certificate_without_purposes_names_its_tpm() {
    let (_, root) = root(ca_params("Root", None), P256);
    let parse = |purposes: Vec<ExtendedKeyUsagePurpose>| {
        let mut params = ek_params();
        params.extended_key_usages = purposes;
        params.custom_extensions = vec![manufacturer()];
        EkCertificate::from_der(&below(params, &root, P256).0)
    };
    assert!(parse(vec![]).is_ok());
    assert!(parse(vec![endorsement()]).is_ok());
    // Purposes that are named count, whatever the name says.
    assert!(matches!(
        parse(vec![ExtendedKeyUsagePurpose::ServerAuth]),
        Err(CertificateError::Purpose)
    ));
}
