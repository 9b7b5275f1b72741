//! The guard in front of a key broker that believes what the evidence claims, like verifiers that identify
//! register values by their position. The attacks get the key without the guard, and fail with it.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "clippy takes helpers of tests for library code; servers end with their test"
)]

mod served;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kbs_guard::compose;
use kbs_guard::keys::Keys;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng as _;
use serde_json::Value;
use tec_core::ak::PublicKey;
use tec_core::attest::{PinnedPcrs, Tee, VerifiedEvidence, VerifyError};
use tec_core::code::Code;
use tec_core::digest::Sha256Digest;
use tec_core::id::{MachineId, ResourcePath};
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrValues};
use tec_core::port::{
    AttestationEvidence, Attester, AuditAction, Clock, EvidenceRequest, KeyBroker as _, PolicySlot,
    PortError, Verifier,
};
use tec_core::secret::SecretBytes;
use tec_core::store::{AuditVerdict, Store};
use tec_support::reserve::Reserve;
use tec_support::{SystemClock, SystemEntropy};
use tec_tpm::evidence::TpmEvidence;
use tec_tpm::testing::{SelectionFields, SoftTpm};
use tec_tpm::verifier::{ByTee, TpmVerifier};
use tec_trustee::guard::Guard;
use tec_trustee::kbs::{Kbs, KbsConfig, MemoryBackend};
use tec_trustee::policy::{
    PolicyIntent, ak_reference_name, ak_reference_value, pcr_reference_name,
};
use tec_trustee::token::TokenSigner;

use self::served::{MACHINE, OTHER, fetch, machine, serve};

const DISK_KEY: &[u8] = b"the key of the disk";
const SHA256: u16 = 0x000b;
const SHA1: u16 = 0x0004;

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock)
}

/// Believes the key, and the values in the order in which they arrive.
#[derive(Debug)]
struct Believer;

#[async_trait]
impl Verifier for Believer {
    async fn verify(&self, request: EvidenceRequest<'_>) -> Result<VerifiedEvidence, VerifyError> {
        let malformed = |at: &str| VerifyError::Malformed(at.to_owned());
        let key = request.evidence["ak_public"].as_str().unwrap_or_default();
        let ak = PublicKey::from_base64(key).map_err(|_| malformed("ak_public"))?;
        let pcrs = request.evidence["tpm_quote"]["pcrs"].as_array();
        let pcrs = pcrs.ok_or_else(|| malformed("pcrs"))?;
        let values = PcrValues::new([Sha256Digest::ZERO; PCR_COUNT]);
        let mut verified = VerifiedEvidence::new(Tee::Tpm, ak, values);
        for (index, value) in pcrs.iter().enumerate() {
            verified.claims.insert(format!("pcr{index:02}"), value.clone());
        }
        verified.claims.insert("ak_public".to_owned(), key.into());
        Ok(verified)
    }
}

/// A key broker with the policies of this project and a verifier that believes everything.
async fn broker(tpm: &SoftTpm, keys: &[(MachineId, PublicKey)]) -> SocketAddr {
    let backend = Arc::new(MemoryBackend::new());
    let intent = PolicyIntent::new(PinnedPcrs::boot_manager(), [Tee::Tpm]).unwrap();
    for (slot, text) in [
        (PolicySlot::Attestation, intent.render_attestation()),
        (PolicySlot::Resource, intent.render_resource()),
    ] {
        backend.set_policy(slot, &text).await.unwrap();
    }
    let approved = tpm.pcrs().value(PcrIndex::BOOT_MANAGER).to_string();
    let name = pcr_reference_name(PcrIndex::BOOT_MANAGER);
    let values = Value::from(vec![approved]);
    backend.set_reference_value(&name, &values).await.unwrap();
    for (machine, key) in keys {
        let (name, value) = (ak_reference_name(key), ak_reference_value(key, machine));
        backend.set_reference_value(&name, &value).await.unwrap();
        let path = ResourcePath::luks_root(machine);
        let secret = SecretBytes::new(DISK_KEY.to_vec());
        backend.put(&path, &secret).await.unwrap();
    }
    let kbs = Kbs::new(KbsConfig::new(
        backend,
        Arc::new(Believer),
        TokenSigner::random(&mut ChaCha20Rng::seed_from_u64(1)),
        clock(),
        Arc::new(SystemEntropy),
    ));
    serve(kbs.router()).await
}

/// Evidence computed by a function of TPM and nonce.
struct Forger<'a> {
    tpm: &'a SoftTpm,
    forge: Forge,
}

impl std::fmt::Debug for Forger<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Forger")
    }
}

#[async_trait]
impl Attester for Forger<'_> {
    fn tee(&self) -> Tee {
        Tee::Tpm
    }

    async fn attest(&self, report_data: &[u8; 48]) -> Result<AttestationEvidence, PortError> {
        let evidence = (self.forge)(self.tpm, &report_data[..32]);
        Ok(AttestationEvidence::new(Tee::Tpm, evidence))
    }
}

type Forge = fn(&SoftTpm, &[u8]) -> Value;

/// A quote of these selections, signed by the TPM and accompanied by `values`.
fn quote(
    tpm: &SoftTpm,
    nonce: &[u8],
    banks: &[(u16, [u8; 3])],
    values: Vec<Sha256Digest>,
) -> Value {
    let mut fields = tpm.attest_fields(nonce);
    fields.selections = banks
        .iter()
        .map(|(bank, bitmap)| SelectionFields { bank: *bank, bitmap: bitmap.to_vec() })
        .collect();
    fields.pcr_digest = tec_tpm::testing::AttestFields::digest(&values);
    let message = fields.marshal();
    let signature = tpm.sign(&message);
    TpmEvidence::new(message, signature, values, tpm.public_key()).to_value()
}

fn event() -> Sha256Digest {
    Sha256Digest::new([0xab; 32])
}

/// The value of PCR 4 after the approved boot; the resettable PCR 16 can be made to hold the same value.
fn approved() -> Sha256Digest {
    let tpm = SoftTpm::rsa(99);
    tpm.extend(PcrIndex::BOOT_MANAGER, &event());
    *tpm.pcrs().value(PcrIndex::BOOT_MANAGER)
}

/// The TPM's values, with the approved one placed at index 4 without booting it.
fn forged_values(tpm: &SoftTpm) -> Vec<Sha256Digest> {
    let mut values: Vec<_> = tpm.pcrs().iter().map(|(_, value)| *value).collect();
    values[4] = approved();
    values
}

struct World {
    direct: SocketAddr,
    guarded: SocketAddr,
    guard: Guard,
    store: Arc<Store>,
    keys: Keys,
    dir: tempfile::TempDir,
}

fn write_key(dir: &Path, machine: &str, tpm: &SoftTpm) {
    let file = dir.join("keys").join(format!("{machine}.pub"));
    fs::write(file, tpm.public_key().to_pem()).unwrap();
}

impl World {
    /// Both the broker and the guard know both machines.
    async fn new(good: &SoftTpm, other: &SoftTpm) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("keys")).unwrap();
        write_key(dir.path(), MACHINE, good);
        write_key(dir.path(), OTHER, other);
        let store = compose::open(&dir.path().join("state")).unwrap();
        let keys = Keys::new(vec![dir.path().join("keys")], Arc::clone(&store), clock());
        keys.sync().await.unwrap();
        let known = [(machine(MACHINE), good.public_key()), (machine(OTHER), other.public_key())];
        let direct = broker(good, &known).await;
        let upstream = direct.to_string().parse().unwrap();
        let verifier = ByTee::new().with(Tee::Tpm, Arc::new(TpmVerifier::new()));
        let registries = compose::of_store(&store, clock());
        let reserve = Reserve::of(dir.path(), 0);
        let guard = compose::guard(upstream, verifier, registries, reserve, None);
        let guarded = serve(compose::public(&guard, 1000.try_into().unwrap())).await;
        Self { direct, guarded, guard, store, keys, dir }
    }
}

/// Two machines after the approved boot; the second has since booted something else.
async fn world() -> (World, SoftTpm, SoftTpm) {
    let (good, changed) = (SoftTpm::rsa(1), SoftTpm::rsa(2));
    good.extend(PcrIndex::BOOT_MANAGER, &event());
    changed.extend(PcrIndex::BOOT_MANAGER, &Sha256Digest::new([0xee; 32]));
    let world = World::new(&good, &changed).await;
    (world, good, changed)
}

#[tokio::test]
async fn an_approved_machine_gets_its_key_through_the_guard_as_without() {
    let (world, good, _) = world().await;
    for server in [world.direct, world.guarded] {
        let key = fetch(server, MACHINE, &good).await.unwrap();
        assert!(key.ct_eq(&SecretBytes::new(DISK_KEY.to_vec())));
    }
    let verdict = world.store.verify_audit().unwrap();
    assert!(matches!(verdict, AuditVerdict::Intact { events: 3, .. }), "{verdict:?}");
}

#[tokio::test]
async fn quotes_that_take_values_out_of_place_get_nothing_through_the_guard() {
    let (world, _, changed) = world().await;
    assert!(fetch(world.direct, OTHER, &changed).await.is_err());
    let attacks: [(&str, Forge); 8] = [
        ("PCRs 0 to 3, then 16 to 23", |tpm, nonce| {
            let mut values = forged_values(tpm);
            values.truncate(12);
            quote(tpm, nonce, &[(SHA256, [0x0f, 0, 0xff])], values)
        }),
        ("a short selection with a long list", |tpm, nonce| {
            quote(tpm, nonce, &[(SHA256, [0x0f, 0, 0xff])], forged_values(tpm))
        }),
        ("the full selection twice", |tpm, nonce| {
            let twice = [(SHA256, [0xff; 3]), (SHA256, [0xff; 3])];
            quote(tpm, nonce, &twice, forged_values(tpm))
        }),
        ("three selections of one bank, in another order", |tpm, nonce| {
            let parts = [(SHA256, [0x0f, 0, 0]), (SHA256, [0, 0, 1]), (SHA256, [0xe0, 0xff, 0xfe])];
            quote(tpm, nonce, &parts, forged_values(tpm))
        }),
        ("two banks", |tpm, nonce| {
            let banks = [(SHA1, [0xff; 3]), (SHA256, [0xff; 3])];
            quote(tpm, nonce, &banks, forged_values(tpm))
        }),
        ("another bank", |tpm, nonce| quote(tpm, nonce, &[(SHA1, [0xff; 3])], forged_values(tpm))),
        ("no selection", |tpm, nonce| quote(tpm, nonce, &[], forged_values(tpm))),
        ("values beside the quoted ones", |tpm, nonce| {
            let mut evidence = tpm.quote(nonce).to_value();
            evidence["tpm_quote"]["pcrs"][4] = approved().to_string().into();
            evidence
        }),
    ];
    for (name, forge) in attacks {
        let forger = Forger { tpm: &changed, forge };
        let direct = fetch(world.direct, OTHER, &forger).await;
        assert!(direct.is_ok(), "{name} is no attack on the lax broker: {direct:?}");
        let refused = fetch(world.guarded, OTHER, &forger).await.unwrap_err();
        let code = refused.code();
        assert!(
            matches!(code, Code::SelectionWrong | Code::EvidenceMalformed | Code::QuoteInvalid),
            "{name}: {code}"
        );
    }
}

#[tokio::test]
async fn a_foreign_key_in_honest_evidence_gets_nothing() {
    let (world, good, _) = world().await;
    let stranger = SoftTpm::rsa(3);
    stranger.extend(PcrIndex::BOOT_MANAGER, &event());
    let refused = fetch(world.guarded, MACHINE, &stranger).await;
    assert_eq!(refused.unwrap_err().code(), Code::AkNotBound);

    // Names the registered key next to a stranger's signature.
    let forger = Forger {
        tpm: &stranger,
        forge: |tpm, nonce| {
            let mut evidence = tpm.quote(nonce).to_value();
            let named = SoftTpm::rsa(1).public_key().as_der().to_vec();
            evidence["ak_public"] = STANDARD.encode(named).into();
            evidence
        },
    };
    assert!(fetch(world.direct, MACHINE, &forger).await.is_ok());
    let refused = fetch(world.guarded, MACHINE, &forger).await;
    assert_eq!(refused.unwrap_err().code(), Code::QuoteInvalid);
    let refused = fetch(world.guarded, OTHER, &good).await;
    assert_eq!(refused.unwrap_err().code(), Code::ReleaseDenied);
}

#[tokio::test]
async fn refusals_do_not_fill_the_audit_log() {
    let (world, good, _) = world().await;
    for _ in 0..50 {
        fetch(world.guarded, OTHER, &good).await.unwrap_err();
    }
    let lines = world.store.audit_events(0, 1_000).unwrap();
    let refusals = lines.iter().filter(|line| line.event.action == AuditAction::KeyRefused);
    assert_eq!(refusals.count(), 30);
}

#[tokio::test]
async fn a_key_counts_as_long_as_its_file_is_there() {
    let (world, good, _) = world().await;
    let file = world.dir.path().join("keys").join(format!("{MACHINE}.pub"));
    let pem = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    world.keys.sync().await.unwrap();
    let refused = fetch(world.guarded, MACHINE, &good).await;
    assert_eq!(refused.unwrap_err().code(), Code::AkNotBound);

    fs::write(&file, pem).unwrap();
    world.keys.sync().await.unwrap();
    assert!(fetch(world.guarded, MACHINE, &good).await.is_ok());

    // A different machine's file cannot take it over, and garbage is skipped.
    let keys = world.dir.path().join("keys");
    write_key(world.dir.path(), "11111111-2222-4333-8444-555555555555", &good);
    fs::write(keys.join("README.pub"), "no key").unwrap();
    fs::write(keys.join(format!("{OTHER}.pub")), "no key").unwrap();
    world.keys.sync().await.unwrap();
    assert!(fetch(world.guarded, MACHINE, &good).await.is_ok());
}

/// The status of one request on its own connection.
async fn status(server: SocketAddr, line: &str) -> u16 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(server).await.unwrap();
    let request =
        format!("{line} HTTP/1.1\r\nhost: guard\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn sessions_that_begin_are_limited_by_rate_and_nothing_else_is() {
    let (world, ..) = world().await;
    // One per second, with a burst of ten.
    let slow = serve(compose::public(&world.guard, 1.try_into().unwrap())).await;
    let mut statuses = Vec::new();
    for _ in 0..40 {
        statuses.push(status(slow, "POST /kbs/v0/auth").await);
    }
    assert_eq!(statuses[..10], [401; 10], "empty bodies, but looked at");
    assert!(statuses.iter().filter(|status| **status == 429).count() > 20);
    for _ in 0..20 {
        assert_eq!(status(slow, "GET /healthz").await, 200);
        assert_eq!(status(slow, "POST /kbs/v0/attest").await, 401);
    }
}
