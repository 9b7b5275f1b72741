//! The guard with Azure virtual machines, in front of a key broker that gives everything to everyone.
#![expect(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "clippy takes helpers of tests for library code; servers end with their test"
)]

mod served;

use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use kbs_guard::compose;
use kbs_guard::keys::Keys;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde_json::Value;
use tec_core::attest::{Tee, VerifiedEvidence, VerifyError};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::id::ResourcePath;
use tec_core::pcr::{PCR_COUNT, PcrValues};
use tec_core::port::{
    AttestationEvidence, Attester, Clock, EvidenceRequest, KeyBroker as _, PolicySlot, PortError,
    Verifier,
};
use tec_core::secret::SecretBytes;
use tec_core::store::Store;
use tec_core::time::Timestamp;
use tec_support::reserve::Reserve;
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::snp::Policy;
use tec_tpm::testing::{SoftAzure, SoftSnp};
use tec_tpm::verifier::{AzSnpEvidenceVersion, AzSnpVtpmVerifier, ByTee};
use tec_trustee::kbs::{Kbs, KbsConfig, MemoryBackend};
use tec_trustee::token::TokenSigner;

use self::served::{MACHINE, OTHER, fetch, machine, serve};

/// A time at which the certificates of the chips are valid.
#[derive(Debug)]
struct Then;

impl Clock for Then {
    fn now(&self) -> Timestamp {
        SoftSnp::now()
    }
}

/// Accepts any evidence as coming from one key.
#[derive(Debug)]
struct Believer(SoftAzure);

#[async_trait]
impl Verifier for Believer {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        let values = PcrValues::new([Sha256Digest::ZERO; PCR_COUNT]);
        let key = self.0.tpm().public_key();
        Ok(VerifiedEvidence::new(request.tee, key, values))
    }
}

async fn broker() -> SocketAddr {
    let backend = Arc::new(MemoryBackend::new());
    let all = "package policy\nimport rego.v1\nallow if true\n";
    backend.set_policy(PolicySlot::Resource, all).await.unwrap();
    for id in [MACHINE, OTHER] {
        let path = ResourcePath::luks_root(&machine(id));
        let secret = SecretBytes::new(id.as_bytes().to_vec());
        backend.put(&path, &secret).await.unwrap();
    }
    let signer = TokenSigner::random(&mut ChaCha20Rng::seed_from_u64(1));
    let believer = Arc::new(Believer(SoftAzure::new(9)));
    let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
    let config = KbsConfig::new(backend, believer, signer, clock, entropy);
    serve(Kbs::new(config.with_tees([Tee::Tpm, Tee::AzSnpVtpm])).router()).await
}

struct World {
    guarded: SocketAddr,
    _store: Arc<Store>,
    _dir: tempfile::TempDir,
}

impl World {
    /// The guard accepts guests of one measurement, and knows the key of `registered`.
    async fn new(registered: &SoftAzure) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keys = dir.path().join("keys");
        fs::create_dir(&keys).unwrap();
        let file = keys.join(format!("{MACHINE}.pub"));
        fs::write(file, registered.tpm().public_key().to_pem()).unwrap();
        let store = compose::open(&dir.path().join("state")).unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let keys = Keys::new(vec![keys], Arc::clone(&store), Arc::clone(&clock));
        keys.sync().await.unwrap();
        let policy = Policy::new().with_measurements([[0x4d; 48]]);
        let roots = SoftSnp::roots().clone();
        let azure = AzSnpVtpmVerifier::with_roots(Arc::new(Then), policy, roots);
        let verifier = ByTee::new().with(Tee::AzSnpVtpm, Arc::new(azure));
        let upstream = broker().await.to_string().parse().unwrap();
        let (registries, reserve) = (compose::of_store(&store, clock), Reserve::of(dir.path(), 0));
        let guard = compose::guard(upstream, verifier, registries, reserve, None);
        Self {
            guarded: serve(compose::public(&guard, 1000.try_into().unwrap())).await,
            _store: store,
            _dir: dir,
        }
    }
}

/// Evidence computed by a function of machine and report data.
struct Forger<'a>(&'a SoftAzure, Forge);

type Forge = fn(&SoftAzure, &[u8]) -> Value;

impl std::fmt::Debug for Forger<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forger")
    }
}

#[async_trait]
impl Attester for Forger<'_> {
    fn tee(&self) -> Tee {
        Tee::AzSnpVtpm
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        let evidence = (self.1)(self.0, report_data);
        Ok(AttestationEvidence::new(Tee::AzSnpVtpm, evidence))
    }
}

const VERSIONS: [Forge; 3] = [
    |azure, data| azure.evidence(AzSnpEvidenceVersion::V0, data).to_value(),
    |azure, data| azure.evidence(AzSnpEvidenceVersion::V1, data).to_value(),
    |azure, data| azure.evidence(AzSnpEvidenceVersion::V2, data).to_value(),
];

#[tokio::test]
async fn evidence_of_every_version_passes_for_the_own_path() {
    let azure = SoftAzure::new(1);
    let world = World::new(&azure).await;
    for honest in VERSIONS {
        let attester = Forger(&azure, honest);
        let key = fetch(world.guarded, MACHINE, &attester).await;
        assert_eq!(key.unwrap().expose("compare"), MACHINE.as_bytes());
        let foreign = fetch(world.guarded, OTHER, &attester).await;
        assert_eq!(foreign.unwrap_err().code(), Code::ReleaseDenied);
    }
}
