//! The attestation token: an EAR as a JWT signed with ES256 (EAR, draft-ietf-rats-ear).
//!
//! # Security
//! A signer accepts only its own key. The key in a token's own header is never
//! used.
//!
//! ```
//! use tec_core::time::Timestamp;
//! use tec_trustee::token::TokenSigner;
//! # use rand_core::SeedableRng as _;
//! # let mut rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
//! let signer = TokenSigner::random(&mut rng);
//! let token = signer.sign(&serde_json::json!({"exp": 300}))?;
//! let now = Timestamp::from_unix_seconds(100);
//! assert!(signer.verify(&token, now).is_ok());
//! let stranger = TokenSigner::random(&mut rng);
//! assert!(stranger.verify(&token, now).is_err());
//! # Ok::<(), tec_trustee::token::TokenError>(())
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use p256::ecdsa::SigningKey;
use p256::ecdsa::signature::Signer as _;
use p256::elliptic_curve::Generate as _;
use rand_core::CryptoRng;
use serde_json::{Map, Value};
use tec_core::id::AttemptId;
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;

use crate::jwt::{Unverified, verify_es256};
use crate::policy::Verdict;

/// Largest token that is examined; one with evidence has about 8 KiB.
const MAX_TOKEN: usize = 512 * 1024;
/// Largest PEM file of a signer.
const MAX_PEM: usize = 16 * 1024;
/// Profile of the token (EAR, draft-ietf-rats-ear).
const PROFILE: &str = "tag:github.com,2024:confidential-containers/Trustee";
/// Issuer that clients of Trustee v0.21 and later see (EAR, draft-ietf-rats-ear).
const ISSUER: &str = "CoCo-Attestation-Service";
/// Name of the one appraisal policy (Trustee, attestation service).
const POLICY_ID: &str = "default";

/// A token cannot be created or is not accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// The signer's key is not a P-256 private key in PEM.
    #[error("the token signer's key is not a P-256 private key in PEM")]
    SignerKey,
    /// The claims cannot be written.
    #[error("cannot write the claims of the token")]
    Write(#[source] serde_json::Error),
    /// Malformed, expired, or not signed by the signer.
    #[error("the token is not accepted")]
    Refused,
}

/// The key that signs tokens. Zeroized on drop.
#[derive(derive_more::Debug)]
#[debug("TokenSigner([redacted], {} certificates)", chain.len())]
pub struct TokenSigner {
    key: SigningKey,
    /// Certificates in DER, the signer's own first.
    chain: Vec<Vec<u8>>,
}

impl TokenSigner {
    /// A new key. Tokens are worthless once it is gone, which is fine for tokens that last a few minutes.
    pub fn random(rng: &mut dyn CryptoRng) -> Self {
        Self { key: SigningKey::from(p256::SecretKey::generate_from_rng(rng)), chain: Vec::new() }
    }

    /// Reads a private key in PEM: PKCS #8 or SEC 1.
    pub fn from_pem(pem: &SecretBytes) -> Result<Self, TokenError> {
        let text = Some(pem.expose("parse the token signer's key"))
            .filter(|pem| pem.len() <= MAX_PEM)
            .and_then(|pem| std::str::from_utf8(pem).ok())
            .ok_or(TokenError::SignerKey)?;
        let key = p256::SecretKey::from_pem(text.trim()).map_err(|_| TokenError::SignerKey)?;
        Ok(Self { key: SigningKey::from(key), chain: Vec::new() })
    }

    /// The signer with this key and certificate. The certificate goes into the header, so that a KBS that
    /// trusts the CA accepts its tokens.
    #[cfg(feature = "signer")]
    pub fn of(issued: &crate::signer::IssuedSigner) -> Result<Self, TokenError> {
        let certificate = issued.certificate_der().map_err(|_| TokenError::SignerKey)?;
        Ok(Self::from_pem(issued.key_pem())?.with_certificates(vec![certificate]))
    }

    /// Adds the certificate chain in DER, the signer's own first; it goes into the header as `x5c`.
    pub fn with_certificates(mut self, chain: Vec<Vec<u8>>) -> Self {
        self.chain = chain;
        self
    }

    /// Header: `typ`, `alg`, `jwk`, and no `kid`.
    fn header(&self) -> Value {
        let point = self.key.verifying_key().to_sec1_point(false);
        let coordinate = |bytes: Option<&[u8]>| URL_SAFE_NO_PAD.encode(bytes.unwrap_or_default());
        let mut jwk = serde_json::json!({
            "alg": "ES256", "kty": "EC", "crv": "P-256",
            "x": coordinate(point.x().map(AsRef::as_ref)),
            "y": coordinate(point.y().map(AsRef::as_ref)),
        });
        if !self.chain.is_empty()
            && let Some(jwk) = jwk.as_object_mut()
        {
            let chain = self.chain.iter().map(|der| STANDARD.encode(der)).collect();
            jwk.insert("x5c".to_owned(), chain);
        }
        serde_json::json!({"typ": "JWT", "alg": "ES256", "jwk": jwk})
    }

    /// Signs claims.
    pub fn sign(&self, claims: &Value) -> Result<String, TokenError> {
        let encode = |value: &Value| {
            serde_json::to_vec(value)
                .map(|json| URL_SAFE_NO_PAD.encode(json))
                .map_err(TokenError::Write)
        };
        let signed = format!("{}.{}", encode(&self.header())?, encode(claims)?);
        let signature: p256::ecdsa::Signature = self.key.sign(signed.as_bytes());
        let signature = URL_SAFE_NO_PAD.encode(signature.to_bytes());
        Ok(format!("{signed}.{signature}"))
    }

    /// The claims of a token that the signer signed and not expired; `exp` is required, and 60
    /// seconds of clock difference are tolerated.
    ///
    /// # Errors
    /// `Refused`, without a reason.
    pub fn verify(&self, token: &str, now: Timestamp) -> Result<Value, TokenError> {
        Unverified::split(token, MAX_TOKEN)
            .and_then(|token| {
                token.claims(now, |alg, signed, signature| {
                    alg == "ES256" && verify_es256(self.key.verifying_key(), signed, signature)
                })
            })
            .ok_or(TokenError::Refused)
    }
}

/// The claims of a token about one appraisal, with one submodule `cpu0`. `attempt` is its `jti`; `evidence` is what the
/// policy saw, annotated.
pub fn ear_claims(
    attempt: AttemptId,
    issued_at: Timestamp,
    lifetime_seconds: i64,
    verdict: &Verdict,
    evidence: &Value,
) -> Value {
    let mut cpu: Map<String, Value> = verdict.extensions.clone();
    let own = [
        ("ear.status", Value::from(verdict.status().as_str())),
        ("ear.trustworthiness-vector", serde_json::json!(verdict.claims)),
        ("ear.appraisal-policy-id", POLICY_ID.into()),
        ("ear.veraison.annotated-evidence", evidence.clone()),
    ];
    cpu.extend(own.map(|(name, value)| (name.to_owned(), value)));
    serde_json::json!({
        "eat_profile": PROFILE,
        "iss": ISSUER,
        "iat": issued_at.unix_seconds(),
        "exp": issued_at.plus_seconds(lifetime_seconds).unix_seconds(),
        "jti": attempt.to_string(),
        "ear.verifier-id": {
            "developer": "TEC",
            "build": concat!(env!("CARGO_PKG_NAME"), " ", env!("CARGO_PKG_VERSION")),
        },
        "submods": {"cpu0": cpu},
    })
}

#[cfg(test)]
mod tests {
    use p256::pkcs8::EncodePrivateKey as _;
    use rand_chacha::ChaCha20Rng;
    use rand_core::SeedableRng as _;
    use serde_json::json;

    use super::*;

    fn signer(seed: u64) -> TokenSigner {
        TokenSigner::random(&mut ChaCha20Rng::seed_from_u64(seed))
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(seconds)
    }

    fn part(token: &str, index: usize) -> Value {
        let part = token.split('.').nth(index).unwrap();
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
    }

    #[test]
    fn header_and_claims_are_those_of_trustee() {
        let mut verdict = Verdict::default();
        verdict.claims.insert("executables".to_owned(), 3);
        verdict.extensions.insert("tec.machine".to_owned(), "m".into());
        let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse().unwrap();
        let evidence = json!({"tpm": {}});
        let claims = ear_claims(id, at(1000), 300, &verdict, &evidence);
        let signer = signer(1).with_certificates(vec![vec![1, 2, 3]]);
        let token = signer.sign(&claims).unwrap();
        let header = part(&token, 0);
        assert_eq!((&header["typ"], &header["alg"]), (&json!("JWT"), &json!("ES256")));
        assert!(header.get("kid").is_none());
        assert_eq!(header["jwk"]["x5c"], json!(["AQID"]));
        assert_eq!(header["jwk"]["x"].as_str().unwrap().len(), 43);
        let claims = part(&token, 1);
        assert_eq!(claims["exp"], 1300);
        assert_eq!(claims["eat_profile"], PROFILE);
        assert_eq!(claims["submods"]["cpu0"]["ear.status"], "affirming");
        assert_eq!(claims["submods"]["cpu0"]["tec.machine"], "m");
        assert_eq!(
            claims["submods"]["cpu0"]["ear.trustworthiness-vector"],
            json!({"executables": 3})
        );
    }

    #[test]
    fn only_the_key_of_the_signer_counts_whatever_the_header_says() {
        let (own, other) = (signer(1), signer(2));
        let token = other.sign(&json!({"exp": 1000})).unwrap();
        assert!(own.verify(&token, at(0)).is_err());
        assert!(other.verify(&token, at(0)).is_ok());
    }

    #[test]
    fn expiry_is_required_and_has_a_minute_of_leeway() {
        let signer = signer(1);
        let token = signer.sign(&json!({"exp": 1000})).unwrap();
        assert!(signer.verify(&token, at(1059)).is_ok());
        assert!(signer.verify(&token, at(1060)).is_err());
        for claims in [json!({}), json!({"exp": "soon"}), json!({"exp": 9, "nbf": 500})] {
            let token = signer.sign(&claims).unwrap();
            assert!(signer.verify(&token, at(0)).is_err(), "{claims}");
        }
    }

    #[test]
    fn altered_and_unsigned_tokens_are_refused() {
        let signer = signer(1);
        let token = signer.sign(&json!({"exp": 1000})).unwrap();
        let (signed, signature) = token.rsplit_once('.').unwrap();
        let payload = URL_SAFE_NO_PAD.encode(r#"{"exp":9999}"#);
        let header = signed.split_once('.').unwrap().0;
        let none = URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#);
        for bad in [
            String::new(),
            format!("{header}.{payload}.{signature}"),
            format!("{none}.{payload}."),
            format!("{signed}."),
            "a.b.c".to_owned(),
            format!("{token}.x"),
            "A".repeat(1_000_000),
        ] {
            assert!(signer.verify(&bad, at(0)).is_err());
        }
    }

    #[test]
    fn a_signer_is_read_from_pem() {
        let key = p256::SecretKey::generate_from_rng(&mut ChaCha20Rng::seed_from_u64(3));
        let pem = key.to_pkcs8_pem(p256::pkcs8::LineEnding::LF).unwrap();
        let read = TokenSigner::from_pem(&SecretBytes::new(pem.as_bytes().to_vec())).unwrap();
        let token = read.sign(&json!({"exp": 10})).unwrap();
        let original = TokenSigner { key: SigningKey::from(key), chain: Vec::new() };
        assert!(original.verify(&token, at(0)).is_ok());
        for bad in ["", "-----BEGIN PRIVATE KEY-----", "hello"] {
            let pem = SecretBytes::new(bad.as_bytes().to_vec());
            assert!(matches!(TokenSigner::from_pem(&pem), Err(TokenError::SignerKey)));
        }
    }
}
