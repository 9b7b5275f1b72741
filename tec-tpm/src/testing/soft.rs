//! A TPM in software, as far as attestation needs one.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use p256::ecdsa;
use p256::elliptic_curve::Generate as _;
use parking_lot::Mutex;
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use rsa::pkcs1v15;
use rsa::pkcs8::EncodePublicKey as _;
use rsa::signature::{SignatureEncoding as _, Signer as _};
use rsa::traits::PublicKeyParts as _;
use sha2::Sha256;
use tec_core::ak::{Credential, EkOffer, PublicKey};
use tec_core::attest::Tee;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrSet, PcrValues};
use tec_core::port::{AttestationEvidence, Attester, PortError};
use tec_core::secret::SecretBytes;

use super::credential::open_with_p256;
use super::{AttestFields, SelectionFields};
use crate::evidence::TpmEvidence;
use crate::public::{
    ALG_AES, ALG_CFB, ALG_ECC, ALG_NULL, ALG_RSA, ECC_NIST_P256, ObjectAttributes, PublicArea,
};
use crate::quote::{ALG_ECDSA, ALG_RSASSA, ALG_SHA256};
use crate::wire::push_sized;
use crate::{ak, ek, verifier};

/// The registers of a PC Client TPM that begin with all bits set (TCG PC Client Platform TPM
/// Profile, "PCR Initial and Reset Values"): those of a dynamic launch.
const BEGIN_SET: std::ops::RangeInclusive<u8> = 17..=22;

enum SoftKey {
    Rsa(pkcs1v15::SigningKey<Sha256>),
    P256(ecdsa::SigningKey),
}

struct State {
    values: [Sha256Digest; PCR_COUNT],
    reset_count: u32,
    event_log: Option<Vec<u8>>,
}

/// A TPM in software: one attestation key, a P-256 endorsement key, 24 registers of the SHA-256
/// bank. Keys come from the seed alone.
///
/// ```
/// use tec_tpm::testing::SoftTpm;
///
/// let tpm = SoftTpm::p256(1);
/// let evidence = tpm.quote(&[7; 32]);
/// let quote = evidence.quote().verify(&tpm.public_key(), &[7; 32])?;
/// assert_eq!(quote.pcrs(), &tpm.pcrs());
/// # Ok::<(), tec_tpm::quote::QuoteError>(())
/// ```
pub struct SoftTpm {
    key: SoftKey,
    ek: p256::SecretKey,
    state: Mutex<State>,
    /// Time of the first [`Attester::attest`]: from then on, its clock runs. `None` if it never runs.
    began: Option<OnceLock<Instant>>,
}

impl fmt::Debug for SoftTpm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SoftTpm").field("ak", &self.public_key()).finish_non_exhaustive()
    }
}

fn values_at_reset() -> [Sha256Digest; PCR_COUNT] {
    let mut values = [Sha256Digest::ZERO; PCR_COUNT];
    for (index, value) in PcrIndex::all().zip(&mut values) {
        if BEGIN_SET.contains(&u8::from(index)) {
            *value = Sha256Digest::new([0xff; 32]);
        }
    }
    values
}

impl SoftTpm {
    /// With an RSA 2048 attestation key.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "2048 bits is a size that always works"
    )]
    pub fn rsa(seed: u64) -> Self {
        let key = rsa::RsaPrivateKey::new(&mut ChaCha20Rng::seed_from_u64(seed), 2048)
            .expect("generate an RSA key");
        Self::with_key(SoftKey::Rsa(pkcs1v15::SigningKey::new(key)), seed)
    }

    /// With a P-256 attestation key; much faster to generate than an RSA key.
    pub fn p256(seed: u64) -> Self {
        let key = ecdsa::SigningKey::generate_from_rng(&mut ChaCha20Rng::seed_from_u64(seed));
        Self::with_key(SoftKey::P256(key), seed)
    }

    fn with_key(key: SoftKey, seed: u64) -> Self {
        let mut ek_seed = [0xee; 32];
        for (to, from) in ek_seed.iter_mut().zip(seed.to_be_bytes()) {
            *to = from;
        }
        Self {
            key,
            ek: p256::SecretKey::generate_from_rng(&mut ChaCha20Rng::from_seed(ek_seed)),
            state: Mutex::new(State { values: values_at_reset(), reset_count: 1, event_log: None }),
            began: Some(OnceLock::new()),
        }
    }

    /// Its clock never runs: equal inputs give equal evidence.
    pub fn with_still_clock(mut self) -> Self {
        self.began = None;
        self
    }

    /// Attestation key.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "the keys made here are all acceptable"
    )]
    pub fn public_key(&self) -> PublicKey {
        let der = match &self.key {
            SoftKey::Rsa(key) => key.as_ref().to_public_key().to_public_key_der(),
            SoftKey::P256(key) => key.verifying_key().to_public_key_der(),
        };
        PublicKey::from_der(der.expect("encode a key").as_bytes()).expect("parse a key")
    }

    /// TPM2B_PUBLIC of the attestation key.
    pub fn ak_public_area(&self) -> Vec<u8> {
        let attributes = ak::REQUIRED.union(ObjectAttributes::USER_WITH_AUTH);
        let (kind, parameters) = match &self.key {
            SoftKey::Rsa(key) => {
                let mut parameters = be16(&[ALG_NULL, ALG_RSASSA, ALG_SHA256, 2048, 0, 0]);
                push_sized(&mut parameters, &key.as_ref().n_bytes());
                (ALG_RSA, parameters)
            }
            SoftKey::P256(key) => {
                let fields = [ALG_NULL, ALG_ECDSA, ALG_SHA256, ECC_NIST_P256, ALG_NULL];
                let parameters = with_point(be16(&fields), &key.verifying_key().into());
                (ALG_ECC, parameters)
            }
        };
        public_area(kind, attributes, &[], &parameters)
    }

    /// TPM2B_PUBLIC of the endorsement key, of the default template L-2.
    pub fn ek_public_area(&self) -> Vec<u8> {
        let fields = [ALG_AES, 128, ALG_CFB, ALG_NULL, ECC_NIST_P256, ALG_NULL];
        let parameters = with_point(be16(&fields), &self.ek.public_key());
        public_area(ALG_ECC, ek::TEMPLATE, &ek::POLICY_A, &parameters)
    }

    /// The endorsement key, without a certificate.
    #[expect(
        clippy::expect_used,
        clippy::missing_panics_doc,
        reason = "the area above is well formed"
    )]
    pub fn ek(&self) -> EkOffer {
        let area = PublicArea::from_tpm2b(&self.ek_public_area()).expect("own area");
        EkOffer::new(area.key().clone(), None)
    }

    /// TPM2_ActivateCredential: the secret, if the challenge is for this TPM's keys.
    pub fn activate_credential(&self, credential: &Credential) -> Option<SecretBytes> {
        let area = PublicArea::from_tpm2b(&self.ak_public_area()).ok()?;
        open_with_p256(&self.ek, &area.name(), credential)
    }

    /// Extends a register.
    pub fn extend(&self, index: PcrIndex, event: &Sha256Digest) {
        let mut state = self.state.lock();
        if let Some(value) = state.values.get_mut(index.as_usize()) {
            *value = value.extended(event);
        }
    }

    /// The registers.
    pub fn pcrs(&self) -> PcrValues {
        PcrValues::new(self.state.lock().values)
    }

    /// Power off and on: the registers are reset, the keys stay, the log is gone.
    pub fn reboot(&self) {
        let mut state = self.state.lock();
        state.values = values_at_reset();
        state.reset_count += 1;
        state.event_log = None;
    }

    /// The log that evidence will carry.
    pub fn set_event_log(&self, log: Vec<u8>) {
        self.state.lock().event_log = Some(log);
    }

    /// The content of a quote over the registers, before it is signed.
    pub fn attest_fields(&self, nonce: &[u8]) -> AttestFields {
        let state = self.state.lock();
        AttestFields { reset_count: state.reset_count, ..AttestFields::quote(nonce, &state.values) }
    }

    /// Signs any message as a TPMT_SIGNATURE. A real TPM would not.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        match &self.key {
            SoftKey::Rsa(key) => {
                let mut out = be16(&[ALG_RSASSA, ALG_SHA256]);
                push_sized(&mut out, &key.sign(message).to_bytes());
                out
            }
            SoftKey::P256(key) => {
                let mut out = be16(&[ALG_ECDSA, ALG_SHA256]);
                let signature: ecdsa::Signature = key.sign(message);
                let (r, s) = signature.split_bytes();
                push_sized(&mut out, &r);
                push_sized(&mut out, &s);
                out
            }
        }
    }

    /// Signs these fields, with the current registers as values.
    pub fn quote_fields(&self, fields: &AttestFields) -> TpmEvidence {
        let message = fields.marshal();
        let signature = self.sign(&message);
        let values = self.state.lock().values.to_vec();
        TpmEvidence::new(message, signature, values, self.public_key())
    }

    /// A quote over some registers, with their values, as other agents create them.
    pub fn quote_of(&self, some: impl IntoIterator<Item = PcrIndex>, nonce: &[u8]) -> TpmEvidence {
        let some: PcrSet = some.into_iter().collect();
        let pcrs = self.pcrs();
        let values: Vec<Sha256Digest> = some.iter().map(|pcr| *pcrs.value(pcr)).collect();
        let mut bitmap = vec![0; 3];
        for pcr in some.iter().map(PcrIndex::as_usize) {
            if let Some(byte) = bitmap.get_mut(pcr / 8) {
                *byte |= 1 << (pcr % 8);
            }
        }
        let mut fields = self.attest_fields(nonce);
        fields.selections = vec![SelectionFields { bank: ALG_SHA256, bitmap }];
        fields.pcr_digest = AttestFields::digest(&values);
        let message = fields.marshal();
        TpmEvidence::new(message.clone(), self.sign(&message), values, self.public_key())
    }

    /// A quote over all registers.
    pub fn quote(&self, nonce: &[u8]) -> TpmEvidence {
        self.quote_at(nonce, Duration::ZERO)
    }

    fn quote_at(&self, nonce: &[u8], since: Duration) -> TpmEvidence {
        let mut fields = self.attest_fields(nonce);
        fields.clock_ms += u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let evidence = self.quote_fields(&fields);
        match self.state.lock().event_log.clone() {
            Some(log) => evidence.with_event_log(log),
            None => evidence,
        }
    }
}

#[async_trait]
impl Attester for SoftTpm {
    fn tee(&self) -> Tee {
        Tee::Tpm
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        // Servers compare the TPM's clock with theirs: on a busy machine, one that stands still was set back.
        let began = self.began.as_ref().map(|began| began.get_or_init(Instant::now));
        let since = began.map_or(Duration::ZERO, Instant::elapsed);
        let evidence = self.quote_at(&verifier::nonce(report_data), since);
        Ok(AttestationEvidence::new(Tee::Tpm, evidence.to_value()))
    }
}

fn be16(fields: &[u16]) -> Vec<u8> {
    fields.iter().flat_map(|field| field.to_be_bytes()).collect()
}

fn with_point(mut parameters: Vec<u8>, key: &p256::PublicKey) -> Vec<u8> {
    let point = key.to_sec1_bytes();
    for coordinate in point.get(1..).unwrap_or_default().chunks(32) {
        push_sized(&mut parameters, coordinate);
    }
    parameters
}

fn public_area(
    kind: u16,
    attributes: ObjectAttributes,
    policy: &[u8],
    parameters: &[u8],
) -> Vec<u8> {
    let mut area = be16(&[kind, ALG_SHA256]);
    area.extend(attributes.bits().to_be_bytes());
    push_sized(&mut area, policy);
    area.extend(parameters);
    let mut out = Vec::new();
    push_sized(&mut out, &area);
    out
}
