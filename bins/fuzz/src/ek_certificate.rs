//! Certificates of endorsement keys, and chains to a root.

use std::str::FromStr as _;
use std::sync::OnceLock;
use std::time::Duration;

use p256::ecdsa::{DerSignature, SigningKey};
use p256::elliptic_curve::Generate as _;
use p256::pkcs8::EncodePublicKey as _;
use tec_core::time::Timestamp;
use tec_tpm::ek::{EkCertificate, TrustStore, verify_ek_certificate};
use x509_cert::Certificate;
use x509_cert::builder::profile::BuilderProfile;
use x509_cert::builder::{Builder as _, CertificateBuilder};
use x509_cert::certificate::TbsCertificate;
use x509_cert::der::asn1::GeneralizedTime;
use x509_cert::der::flagset::FlagSet;
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode as _, Encode as _};
use x509_cert::ext::pkix::{BasicConstraints, ExtendedKeyUsage, KeyUsage, KeyUsages};
use x509_cert::ext::{Extension, ToExtension as _};
use x509_cert::name::Name;
use x509_cert::serial_number::SerialNumber;
use x509_cert::spki::{SubjectPublicKeyInfo, SubjectPublicKeyInfoRef};
use x509_cert::time::{Time, Validity};

use crate::Seed;
use crate::sample::{p256_tpm, rng, rsa_tpm};

/// 2026-01-01T00:00:00Z, within all validities here.
const NOW: i64 = 1_767_225_600;
/// A year, roughly.
const YEAR: u64 = 31_557_600;
/// tcg-kp-EKCertificate (TCG EK Credential Profile for TPM Family 2.0, "Extended Key Usage").
const EK_PURPOSE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.23.133.8.1");

/// DER has one form; padding of an NV index changes nothing; and a chain to the root exists only for exactly
/// the bytes that the root's CA signed.
pub(crate) fn ek_certificate(data: &[u8]) {
    let from_nv = EkCertificate::from_nv(data);
    let Ok(certificate) = EkCertificate::from_der(data) else {
        if let Ok(padded) = from_nv {
            check(&padded, None);
        }
        return;
    };
    for padding in [&[][..], &[0; 9], &[0xff; 9]] {
        let padded = [data, padding].concat();
        let same = EkCertificate::from_nv(&padded).expect("padding is cut off");
        assert_eq!(same.public(), certificate.public());
        assert_eq!(EkCertificate::from_der(&padded).is_ok(), padding.is_empty());
    }
    check(&certificate, Some(data));
}

fn check(certificate: &EkCertificate, der: Option<&[u8]>) {
    let at = |seconds| Timestamp::from_unix_seconds(seconds);
    let now = verify_ek_certificate(certificate, store(), at(NOW));
    assert!(verify_ek_certificate(certificate, &TrustStore::new(), at(NOW)).is_err());
    assert!(verify_ek_certificate(certificate, store(), at(0)).is_err());
    let Ok(verified) = now else { return };
    assert_eq!(verified.public(), certificate.public());
    assert_eq!(verified.root(), "CN=Root");
    if let Some(der) = der {
        let mut known = certified().iter();
        assert!(known.any(|one| signed(one) == signed(der)), "nobody signed this");
    }
}

/// The signed part.
pub(crate) fn signed(der: &[u8]) -> Vec<u8> {
    let certificate = Certificate::from_der(der).expect("an accepted certificate");
    let signed = certificate.tbs_certificate().to_der();
    signed.expect("what was decoded can be encoded")
}

/// Issuer and extensions of a certificate.
struct Profile {
    issuer: Name,
    subject: Name,
    extensions: Vec<Extension>,
}

impl BuilderProfile for Profile {
    fn get_issuer(&self, _subject: &Name) -> Name {
        self.issuer.clone()
    }

    fn get_subject(&self) -> Name {
        self.subject.clone()
    }

    fn build_extensions(
        &self,
        _key: SubjectPublicKeyInfoRef<'_>,
        _issuer_key: SubjectPublicKeyInfoRef<'_>,
        _tbs: &TbsCertificate,
    ) -> x509_cert::builder::Result<Vec<Extension>> {
        Ok(self.extensions.clone())
    }
}

fn extension<
    E: x509_cert::ext::Criticality + x509_cert::der::oid::AssociatedOid + x509_cert::der::Encode,
>(
    value: &E,
) -> Extension {
    value.to_extension(&Name::default(), &[]).expect("an extension can be encoded")
}

fn usage(usages: impl Into<FlagSet<KeyUsages>>) -> Extension {
    extension(&KeyUsage(usages.into()))
}

pub(crate) fn ca() -> Vec<Extension> {
    let constraints = BasicConstraints { ca: true, path_len_constraint: None };
    vec![extension(&constraints), usage(KeyUsages::KeyCertSign)]
}

fn ek(usages: impl Into<FlagSet<KeyUsages>>) -> Vec<Extension> {
    let constraints = BasicConstraints { ca: false, path_len_constraint: None };
    let purposes = ExtendedKeyUsage(vec![EK_PURPOSE]);
    vec![extension(&constraints), usage(usages), extension(&purposes)]
}

fn name(text: &str) -> Name {
    Name::from_str(text).expect("a name")
}

fn time(seconds: u64) -> Time {
    let since = Duration::from_secs(seconds);
    Time::from(GeneralizedTime::from_unix_duration(since).expect("a time"))
}

/// Signs a certificate; ECDSA is deterministic here (RFC 6979), so the bytes are always the same.
pub(crate) fn certify(
    issuer: (&str, &SigningKey),
    subject: &str,
    key: &[u8],
    extensions: Vec<Extension>,
) -> Vec<u8> {
    let profile = Profile { issuer: name(issuer.0), subject: name(subject), extensions };
    let begin = u64::try_from(NOW).expect("after 1970") - YEAR;
    let validity = Validity::new(time(begin), time(begin + 10 * YEAR));
    let key = SubjectPublicKeyInfo::from_der(key).expect("a key in DER");
    CertificateBuilder::new(profile, SerialNumber::from(7_u32), validity, key)
        .and_then(|builder| builder.build::<_, DerSignature>(issuer.1))
        .expect("a certificate is built")
        .to_der()
        .expect("a certificate is encoded")
}

pub(crate) fn authority(seed: u64) -> (SigningKey, Vec<u8>) {
    let key = SigningKey::generate_from_rng(&mut rng(seed));
    let public = key.verifying_key().to_public_key_der();
    let public = public.expect("a key is encoded").as_bytes().to_vec();
    (key, public)
}

fn root() -> (SigningKey, Vec<u8>) {
    authority(31)
}

fn intermediate() -> (SigningKey, Vec<u8>) {
    authority(32)
}

/// A root, and an intermediate CA for the endorsement keys.
fn store() -> &'static TrustStore {
    static STORE: OnceLock<TrustStore> = OnceLock::new();
    STORE.get_or_init(|| {
        let ((root_key, root), (_, intermediate)) = (root(), intermediate());
        let mut store = TrustStore::new();
        let root = certify(("CN=Root", &root_key), "CN=Root", &root, ca());
        store.add_root(&root).expect("a root");
        let between = certify(("CN=Root", &root_key), "CN=Vendor", &intermediate, ca());
        store.add_intermediate(&between).expect("a CA");
        store
    })
}

/// The certificates that chain to the root: all that its CAs ever signed.
fn certified() -> &'static [Vec<u8>; 2] {
    static CERTIFIED: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    CERTIFIED.get_or_init(|| {
        let (vendor, _) = intermediate();
        let vendor = ("CN=Vendor", &vendor);
        let ecc = p256_tpm().ek().public;
        // The RSA key is really an attestation key; nothing in a certificate shows that.
        let rsa = rsa_tpm().public_key();
        [
            certify(vendor, "CN=EK 1", ecc.as_der(), ek(KeyUsages::KeyAgreement)),
            certify(vendor, "CN=EK 2", rsa.as_der(), ek(KeyUsages::KeyEncipherment)),
        ]
    })
}

pub(crate) fn seeds() -> Vec<Seed> {
    let [ecc, rsa] = certified();
    let (stranger, _) = authority(33);
    let key = p256_tpm().ek().public;
    let foreign =
        |issuer, extensions| certify((issuer, &stranger), "CN=EK 3", key.as_der(), extensions);
    vec![
        Seed::new("ecc", ecc.clone()),
        Seed::new("rsa", rsa.clone()),
        Seed::new("padded", [ecc, &[0xff; 12][..]].concat()),
        Seed::new("of_a_stranger", foreign("CN=Vendor", ek(KeyUsages::KeyAgreement))),
        Seed::new("unknown_issuer", foreign("CN=Nobody", ek(KeyUsages::KeyAgreement))),
        Seed::new("ca", foreign("CN=Vendor", ca())),
    ]
}
