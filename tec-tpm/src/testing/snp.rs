//! A processor with SNP in software, under a made-up AMD.

mod certificates;

use std::sync::OnceLock;

use p384::ecdsa::signature::hazmat::PrehashSigner as _;
use p384::ecdsa::{Signature, SigningKey as P384Key};
use p384::elliptic_curve::Generate as _;
use p384::pkcs8::EncodePublicKey as _;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use sha2::{Digest as _, Sha384};
use tec_core::time::Timestamp;

use self::certificates::{
    distinguished_name, extension, integer, intermediate_key, made_up_roots, sign_certificate,
};
use crate::compute::testing::der;
use crate::snp::{
    ECDSA_P384_SHA384, GuestPolicy, Product, REPORT_SIZE, Roots, SCALAR, SIGNED_SIZE, SigningKey,
    Tcb,
};

/// Fields of the certificate of a key; change one, and have it signed with [`SoftSnp::certify`].
#[derive(Clone, Debug)]
pub struct CertificateFields {
    /// Common name of the issuer.
    pub issuer: String,
    /// Common name of the subject.
    pub subject: String,
    /// First and last second of validity, `YYMMDDhhmmssZ`.
    pub validity: [String; 2],
    /// SubjectPublicKeyInfo in DER.
    pub key: Vec<u8>,
    /// Identifier and content of each extension. None is critical.
    pub extensions: Vec<(String, Vec<u8>)>,
}

impl CertificateFields {
    /// The content of an extension, to be changed.
    pub fn extension(&mut self, oid: &str) -> Option<&mut Vec<u8>> {
        let found = self.extensions.iter_mut().find(|(one, _)| one == oid);
        found.map(|(_, content)| content)
    }
}

/// A chip with SNP in software: one key, its certificate, and reports with any content. Everything
/// comes from the seed; [`Roots::amd`] trusts none of it.
///
/// ```
/// use tec_tpm::snp::{Policy, Product, UntrustedReport};
/// use tec_tpm::testing::SoftSnp;
///
/// let chip = SoftSnp::vcek(Product::Turin, 1);
/// let (report, certificate) = (chip.report(&[7; 64]), chip.certificate());
/// let untrusted = UntrustedReport::new(&report, &certificate);
/// let verified = untrusted.verify(SoftSnp::roots(), &Policy::new(), SoftSnp::now())?;
/// assert_eq!(verified.product(), Product::Turin);
/// # Ok::<(), tec_tpm::snp::Refused>(())
/// ```
#[derive(Debug)]
pub struct SoftSnp {
    product: Product,
    kind: SigningKey,
    key: P384Key,
    seed: u64,
    certificate: OnceLock<Vec<u8>>,
}

/// TCB of all chips here.
const TCB: Tcb = Tcb {
    fmc: 0,
    bootloader: 4,
    tee: 1,
    snp: 24,
    // Such a number takes two bytes as an INTEGER.
    microcode: 219,
};

impl SoftSnp {
    /// A chip that signs with its own key.
    pub fn vcek(product: Product, seed: u64) -> Self {
        Self::new(product, SigningKey::Vcek, seed)
    }

    /// A chip that signs with the key of a cloud provider.
    pub fn vlek(product: Product, seed: u64) -> Self {
        Self::new(product, SigningKey::Vlek, seed)
    }

    fn new(product: Product, kind: SigningKey, seed: u64) -> Self {
        Self {
            product,
            kind,
            key: P384Key::generate_from_rng(&mut ChaCha20Rng::seed_from_u64(seed)),
            seed,
            certificate: OnceLock::new(),
        }
    }

    /// The CAs of the made-up AMD.
    pub fn roots() -> &'static Roots {
        static ROOTS: OnceLock<Roots> = OnceLock::new();
        ROOTS.get_or_init(made_up_roots)
    }

    /// A time at which all certificates here are valid.
    pub fn now() -> Timestamp {
        // 2026-01-01T00:00:00Z
        Timestamp::from_unix_seconds(1_767_225_600)
    }

    fn hardware_id(&self) -> Vec<u8> {
        let id = Sha384::digest(self.seed.to_be_bytes()).repeat(2);
        let length = if self.product == Product::Turin { 8 } else { 64 };
        id.into_iter().take(length).collect()
    }

    /// Fields of the certificate of the key.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "a key of this curve can be encoded"
    )]
    pub fn certificate_fields(&self) -> CertificateFields {
        let key = self.key.verifying_key().to_public_key_der();
        let (issuer, subject) = match self.kind {
            SigningKey::Vlek => (format!("SEV-VLEK-{}", self.product), "SEV-VLEK"),
            _ => (format!("SEV-{}", self.product), "SEV-VCEK"),
        };
        CertificateFields {
            issuer,
            subject: subject.to_owned(),
            validity: ["250101000000Z".to_owned(), "320101000000Z".to_owned()],
            key: key.expect("encode a key").as_bytes().to_vec(),
            extensions: self.extensions(),
        }
    }

    fn extensions(&self) -> Vec<(String, Vec<u8>)> {
        let arc = |tail: &str| format!("1.3.6.1.4.1.3704.1.{tail}");
        let mut all = vec![
            (arc("1"), integer(0)),
            (arc("2"), der(0x16, &[self.product.as_str().as_bytes()])),
            (arc("3.1"), integer(TCB.bootloader)),
            (arc("3.2"), integer(TCB.tee)),
            (arc("3.3"), integer(TCB.snp)),
            (arc("3.8"), integer(TCB.microcode)),
        ];
        if self.product == Product::Turin {
            all.push((arc("3.9"), integer(TCB.fmc)));
        }
        all.push(match self.kind {
            SigningKey::Vlek => (arc("5"), der(0x16, &[b"CN=cloud.test"])),
            _ => (arc("4"), self.hardware_id()),
        });
        all
    }

    /// A certificate of these fields, signed by the CA between root and keys.
    pub fn certify(&self, fields: &CertificateFields) -> Vec<u8> {
        let extensions: Vec<Vec<u8>> =
            fields.extensions.iter().map(|(oid, content)| extension(oid, content)).collect();
        let name = |name: &str| distinguished_name(name);
        sign_certificate(
            intermediate_key(),
            &name(&fields.issuer),
            &name(&fields.subject),
            &fields.validity,
            &fields.key,
            &extensions,
        )
    }

    /// The certificate of the key, in DER.
    pub fn certificate(&self) -> Vec<u8> {
        let certify = || self.certify(&self.certificate_fields());
        self.certificate.get_or_init(certify).clone()
    }

    /// The signed part of a report: change bytes of it, and sign it with [`sign`](Self::sign).
    pub fn unsigned(&self, report_data: &[u8; 64]) -> [u8; SIGNED_SIZE] {
        let mut body = [0; SIGNED_SIZE];
        let tcb = tcb(TCB, self.product);
        let policy = GuestPolicy::from_bits(0x1f).union(GuestPolicy::SMT);
        let signing_key = u32::from(self.kind == SigningKey::Vlek) << 2;
        let [family, model] = match self.product {
            Product::Milan => [0x19, 0x01],
            Product::Genoa => [0x19, 0x11],
            Product::Turin => [0x1a, 0x02],
        };
        // Interface 1.55, build 29, as now and as committed.
        let firmware = [29, 55, 1, 0];
        for (offset, bytes) in [
            (0x000, &3_u32.to_le_bytes()[..]),
            (0x004, &10_u32.to_le_bytes()),
            (0x008, &policy.union(GuestPolicy::ALWAYS).bits().to_le_bytes()),
            (0x034, &ECDSA_P384_SHA384.to_le_bytes()),
            (0x038, &tcb),
            (0x040, &1_u64.to_le_bytes()),
            (0x048, &signing_key.to_le_bytes()),
            (0x050, report_data),
            (0x090, &[0x4d; 48]),
            (0x0c0, &[0x0d; 32]),
            (0x0e0, &[0x1d; 48]),
            (0x110, &[0xa0; 48]),
            (0x180, &tcb),
            (0x188, &[family, model, 1]),
            (0x1e0, &tcb),
            (0x1e8, &firmware),
            (0x1ec, &firmware),
            (0x1f0, &tcb),
        ] {
            put(&mut body, offset, bytes);
        }
        if self.kind == SigningKey::Vcek {
            put(&mut body, 0x1a0, &self.hardware_id());
        }
        body
    }

    /// Signs such a part; firmware would sign only what it wrote.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "a digest of this size can be signed"
    )]
    pub fn sign(&self, body: &[u8; SIGNED_SIZE]) -> Vec<u8> {
        let signature: Signature =
            self.key.sign_prehash(&Sha384::digest(body)).expect("sign a digest");
        let mut report = body.to_vec();
        let (r, s) = signature.split_bytes();
        for scalar in [r, s] {
            report.extend(scalar.iter().rev());
            report.resize(report.len() + 72 - SCALAR, 0);
        }
        report.resize(REPORT_SIZE, 0);
        report
    }

    /// The report of a valid guest.
    pub fn report(&self, report_data: &[u8; 64]) -> Vec<u8> {
        self.sign(&self.unsigned(report_data))
    }
}

/// The eight bytes of a report.
fn tcb(tcb: Tcb, product: Product) -> [u8; 8] {
    let Tcb { fmc, bootloader, tee, snp, microcode } = tcb;
    match product {
        Product::Turin => [fmc, bootloader, tee, snp, 0, 0, 0, microcode],
        _ => [bootloader, tee, 0, 0, 0, 0, snp, microcode],
    }
}

fn put(bytes: &mut [u8], offset: usize, content: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(offset).zip(content) {
        *to = *from;
    }
}
