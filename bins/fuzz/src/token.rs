//! Tokens of attestation and of admins.

use std::sync::OnceLock;

use p256::SecretKey;
use p256::elliptic_curve::Generate as _;
use p256::pkcs8::{EncodePrivateKey as _, EncodePublicKey as _, LineEnding};
use serde_json::{Value, json};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_trustee::kbs::AdminAuth;
use tec_trustee::token::TokenSigner;

use crate::Seed;
use crate::sample::rng;

/// Time of all checks.
const NOW: i64 = 1000;

/// Only what was signed is accepted: the claims of an accepted token are those of a known one, and it is no
/// longer accepted after it expires.
pub(crate) fn token(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let at = Timestamp::from_unix_seconds;
    let authority = authority();
    if let Ok(claims) = authority.signer.verify(text, at(NOW)) {
        assert!(claims == attested() || claims == admin());
        assert!(signed_part(text).is_some_and(|part| authority.signed.contains(&part)));
        assert!(authority.signer.verify(text, at(NOW + 1_000_000)).is_err());
    }
    if authority.admins.accepts(text, at(NOW)) {
        assert_eq!(signed_part(text), signed_part(admin_token()));
        assert!(!authority.admins.accepts(text, at(NOW + 1_000_000)));
    }
    // A token of a different issuer is invalid, whatever it contains.
    assert!(stranger().verify(text, at(NOW)).is_err());
}

/// Header and payload, without the signature, since ECDSA allows two.
fn signed_part(token: &str) -> Option<String> {
    let (signed, _) = token.rsplit_once('.')?;
    Some(signed.to_owned())
}

fn attested() -> Value {
    json!({"exp": 2000, "submods": {"cpu0": {"ear.status": "affirming"}}})
}

fn admin() -> Value {
    json!({"exp": 2000, "role": "admin"})
}

/// One key that signs both kinds of tokens.
struct Authority {
    signer: TokenSigner,
    admins: AdminAuth,
    signed: Vec<String>,
}

fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| {
        let key = SecretKey::generate_from_rng(&mut rng(41));
        let private = key.to_pkcs8_pem(LineEnding::LF).expect("a key in PEM");
        let private = SecretBytes::new(private.as_bytes().to_vec());
        let public = key.public_key().to_public_key_pem(LineEnding::LF);
        let public = public.expect("a key in PEM");
        let signer = TokenSigner::from_pem(&private).expect("the key of a signer");
        let sign = |claims: Value| signer.sign(&claims).expect("claims are signed");
        let signed = [attested(), admin()].map(sign);
        Authority {
            admins: AdminAuth::from_pem(&public).expect("the key of an admin"),
            signed: signed.iter().filter_map(|token| signed_part(token)).collect(),
            signer,
        }
    })
}

/// Accepts the tokens of a key that has signed none.
fn stranger() -> &'static TokenSigner {
    static STRANGER: OnceLock<TokenSigner> = OnceLock::new();
    STRANGER.get_or_init(|| TokenSigner::random(&mut rng(42)))
}

/// The verifier that accepts [`admin_token`].
pub(crate) fn admins() -> AdminAuth {
    authority().admins.clone()
}

/// An admin's token.
pub(crate) fn admin_token() -> &'static str {
    static TOKEN: OnceLock<String> = OnceLock::new();
    TOKEN.get_or_init(|| authority().signer.sign(&admin()).expect("claims are signed"))
}

pub(crate) fn seeds() -> Vec<Seed> {
    let sign = |claims: Value| authority().signer.sign(&claims).expect("claims are signed");
    let good = sign(attested());
    let stranger = TokenSigner::random(&mut rng(43)).sign(&attested());
    vec![
        Seed::new("good", good.clone()),
        Seed::new("admin", admin_token()),
        Seed::new("expired", sign(json!({"exp": 1}))),
        Seed::new("no_expiry", sign(json!({"role": "admin"}))),
        Seed::new("of_a_stranger", stranger.expect("claims are signed")),
        // {"alg":"none"}
        Seed::new("unsigned", good.replace(header(&good), "eyJhbGciOiJub25lIn0")),
    ]
}

fn header(token: &str) -> &str {
    token.split_once('.').map_or(token, |(header, _)| header)
}
