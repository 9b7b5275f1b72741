//! Attestation tokens compared with the crate that generates Trustee's.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ear::{Algorithm, Ear, Profile, RawValueKind, TrustTier, register_profile};
use rand_chacha::ChaCha20Rng;
use rand_core::SeedableRng as _;
use serde_json::{Value, json};
use tec_core::time::Timestamp;
use tec_trustee::policy::{AttestationPolicy, Verdict};
use tec_trustee::token::{TokenSigner, ear_claims};

/// 2100-01-01T00:00:00Z.
const ISSUED: i64 = 4_102_444_800;

/// The profile that Trustee registers (EAR, draft-ietf-rats-ear), with the claim of our policies.
fn profile() {
    let mut profile = Profile::new("tag:github.com,2024:confidential-containers/Trustee");
    profile.register_appraisal_extension("tec.machine", -75_001, RawValueKind::String).unwrap();
    register_profile(&profile).unwrap();
}

/// The verdict of a policy with these trust claims.
fn verdict(claims: &BTreeMap<&str, i8>) -> Verdict {
    let text = format!(
        "package policy\nimport rego.v1\ntrust_claims := {}\n\
         extensions := [{{\"name\": \"tec.machine\", \"key\": -75001, \"value\": \"m\"}}]",
        json!(claims)
    );
    AttestationPolicy::parse(&text).and_then(|policy| policy.decide(&json!({}), |_| None)).unwrap()
}

/// Verified and parsed by the other side.
fn read(verdict: &Verdict) -> Ear {
    let evidence = json!({"tpm": {"pcr04": "aa"}, "report_data": null});
    let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7".parse().unwrap();
    // The other side reads the clock: a token that expires in 2100.
    let at = Timestamp::from_unix_seconds(ISSUED);
    let claims = ear_claims(id, at, 300, verdict, &evidence);
    let signer = TokenSigner::random(&mut ChaCha20Rng::seed_from_u64(1));
    let token = signer.sign(&claims).unwrap();
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap()).unwrap();
    let header: Value = serde_json::from_slice(&header).unwrap();
    let key = header["jwk"].to_string();
    Ear::from_jwt_jwk(&token, Algorithm::ES256, key.as_bytes()).unwrap()
}

#[test]
fn a_token_reads_as_an_attestation_result_with_the_same_tier() {
    profile();
    for (executables, instance, tier) in [
        (3, 2, TrustTier::Affirming),
        (33, 2, TrustTier::Warning),
        (3, 97, TrustTier::Contraindicated),
        (0, 0, TrustTier::None),
    ] {
        let claims = BTreeMap::from([
            ("executables", executables),
            ("instance-identity", instance),
            ("hardware", 0),
        ]);
        let mut ear = read(&verdict(&claims));
        assert_eq!(ear.iat, ISSUED);
        let appraisal = ear.submods.remove("cpu0").unwrap();
        assert_eq!(appraisal.status, tier, "{claims:?}");
        let claim = appraisal.trust_vector.by_name("executables").unwrap();
        assert_eq!(claim.value(), executables);
        assert_eq!(appraisal.policy_id.as_deref(), Some("default"));
        let machine = appraisal.extensions.get_by_name("tec.machine");
        assert_eq!(format!("{machine:?}"), "Some(String(\"m\"))");
        // Their own computation over the same vector gives the same tier.
        let mut again = appraisal;
        again.status = TrustTier::None;
        again.update_status_from_trust_vector();
        assert_eq!(again.status, tier);
    }
}
