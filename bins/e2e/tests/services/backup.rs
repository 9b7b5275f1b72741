//! A platform that lost its vault, its volume and its Secrets comes back from a backup.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use clap::Parser as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use services::bootstrap::cli::{Action, Args};
use services::bootstrap::controller::Controller;
use services::bootstrap::restore;
use services::bootstrap::snapshots::{SnapshotError, Step};
use tec_core::code::Code;
use tec_core::secret::SecretBytes;
use tec_e2e::services::bao::Seal;
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::nats::Nats;
use tec_e2e::services::platform::Platform;
use tec_e2e::services::stage::Stage;
use tec_services::Fatal;
use tec_services::caller::Role;
use tec_services::shell::Note;
use tec_services::vault::password::Stored;
use tec_services::vault::{NATS_KEYS, OPENSEARCH_USERS, Request, call, password, snapshot};
use tec_support::exit::CodedError;
use tokio::task::JoinSet;

use crate::kills::guard;
use crate::vault::{assert_nowhere_in_plain, fatal, root_tokens, seal_status, stored_key};

/// Three files: the snapshot, the wrapped key, and the Secret.
pub(crate) struct Backup {
    snapshot: PathBuf,
    key: PathBuf,
    pub(crate) secret: Secret,
}

/// Everything that others rely on.
#[derive(Debug, PartialEq)]
pub(crate) struct Facts {
    pub(crate) key: String,
    authorities: String,
    signers: BTreeMap<&'static str, BTreeMap<u32, [u8; 32]>>,
    passwords: BTreeMap<&'static str, Vec<u8>>,
}

/// As read through the controller's own vault.
pub(crate) async fn facts(stage: &Stage, controller: &Controller) -> Facts {
    let (vault, token) = (&controller.vault, controller.standing.token().unwrap());
    let mut signers = BTreeMap::new();
    for name in NATS_KEYS {
        let answer = vault.call(&call::read_key(name).by(&token)).await.unwrap();
        let halves = call::public_keys(&answer).unwrap();
        assert!(!halves.is_empty(), "{name} has no public half");
        signers.insert(name, halves);
    }
    let mut passwords = BTreeMap::new();
    for user in OPENSEARCH_USERS {
        let answer = vault.call(&password::read(user).by(&token)).await.unwrap();
        let stored = Stored::from_answer(&answer).unwrap();
        passwords.insert(user, stored.password.expose("test").to_vec());
    }
    let key = stored_key(stage, controller).await;
    Facts { key, authorities: stage.authorities().await.unwrap(), signers, passwords }
}

/// A vault in its pod, which is never initialized before a controller comes.
async fn pod() -> (Stage, JoinSet<anyhow::Result<()>>) {
    let stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    fs::create_dir(stage.path("snapshots")).unwrap();
    let vault = guard(&stage).await;
    (stage, vault)
}

fn flags(stage: &Stage) -> [String; 2] {
    ["--snapshots".to_owned(), stage.path("snapshots").display().to_string()]
}

async fn controller(stage: &Stage) -> Controller {
    let [flag, directory] = flags(stage);
    stage.controller(&[&flag, &directory]).await.unwrap()
}

pub(crate) fn taken(step: &Step) -> Option<(String, u64)> {
    match step {
        Step::Taken { name, bytes } => Some((name.clone(), *bytes)),
        _ => None,
    }
}

/// Takes a snapshot, and copies what belongs to it elsewhere.
pub(crate) async fn back_up(stage: &Stage, controller: &Controller) -> Backup {
    let snapshots = controller.snapshots.as_ref().unwrap();
    let step = snapshots.ensure().await.unwrap();
    let (name, bytes) = taken(&step).unwrap();
    println!("a snapshot of {bytes} bytes");
    let safe = stage.path("safe");
    fs::create_dir(&safe).unwrap();
    let copy = |name: &str| {
        let to = safe.join(name);
        fs::copy(stage.path("snapshots").join(name), &to).unwrap();
        to
    };
    let mut secret = stage.secrets().unwrap().get("vault-aes").await.unwrap();
    secret.metadata.resource_version = None;
    Backup { snapshot: copy(&name), key: copy(&snapshot::key_name(&name)), secret }
}

/// Loses the vault's storage and the volume, as if they had never been.
pub(crate) async fn lose_volume(stage: &Stage, mut vault: JoinSet<anyhow::Result<()>>) {
    vault.shutdown().await;
    let _ = fs::remove_file(stage.bao.socket());
    stage.bao.wipe().unwrap();
    fs::remove_dir_all(stage.path("volume")).unwrap();
    fs::create_dir(stage.path("volume")).unwrap();
}

pub(crate) async fn lose_objects(stage: &Stage) {
    let secrets = stage.secrets().unwrap();
    for name in ["vault-aes", "services-bootstrap-tls"] {
        secrets.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let admin = stage.cluster.plane.admin().unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(admin, &stage.cluster.platform);
    maps.delete("services-bootstrap-ca", &DeleteParams::default()).await.unwrap();
}

pub(crate) async fn restore(stage: &Stage, backup: &Backup) -> anyhow::Result<()> {
    let at = |name: &str| stage.path(name).display().to_string();
    let api = stage.cluster.plane.url();
    let line = [
        "services-bootstrap",
        "restore",
        "--snapshot",
        &backup.snapshot.display().to_string(),
        "--wrapped-key",
        &backup.key.display().to_string(),
        "--namespace",
        &stage.cluster.platform,
        "--vault-socket",
        &stage.bao.socket().display().to_string(),
        "--volume",
        &at("volume"),
        "--kubernetes",
        api.trim_start_matches("https://"),
        "--kubernetes-ca",
        &at("api-ca.crt"),
        "--kubernetes-token",
        &at("api-token"),
    ];
    match Args::try_parse_from(line)?.command {
        Action::Restore(args) => restore::run(&args).await,
        _ => anyhow::bail!("this is not a restore"),
    }
}

/// The code of a restore that was refused.
async fn refused(stage: &Stage, backup: &Backup) -> Code {
    let error = restore(stage, backup).await.unwrap_err();
    println!("{error:#}");
    let coded = error.chain().find_map(|cause| cause.downcast_ref::<CodedError>());
    coded.unwrap().code
}

async fn is_initialized(stage: &Stage) -> bool {
    seal_status(stage).await["initialized"] == true
}

#[tokio::test(flavor = "multi_thread")]
async fn a_platform_that_lost_everything_comes_back_with_its_authorities_keys_and_passwords() {
    let (stage, vault) = pod().await;
    let [flag, directory] = flags(&stage);
    let platform = Platform::on(stage, &[&flag, &directory]).await.unwrap();
    let nats = Nats::start(&platform, "nats-server").await.unwrap();
    let before = facts(&platform.stage, &platform.controller).await;
    let backup = back_up(&platform.stage, &platform.controller).await;
    let Platform { stage, controller: old, .. } = platform;
    assert_nowhere_in_plain(&stage, &before.key);

    lose_volume(&stage, vault).await;
    lose_objects(&stage).await;
    drop(old);
    let _vault = guard(&stage).await;
    let secrets = stage.secrets().unwrap();
    secrets.create(&PostParams::default(), &backup.secret).await.unwrap();
    // With the Secret back, no controller initializes the vault.
    let waiting = controller(&stage).await.round().await.unwrap_err();
    assert_eq!(fatal(&waiting), Some(Fatal::StorageLost));
    restore(&stage, &backup).await.unwrap();

    let platform = Platform::on(stage, &[&flag, &directory]).await.unwrap();
    assert_eq!(facts(&platform.stage, &platform.controller).await, before);
    assert_eq!(root_tokens(&platform.stage, &before.key).await, 0);
    assert_nowhere_in_plain(&platform.stage, &before.key);
    // A server that knows the old keys accepts the users that they sign now.
    platform.broker("comp-a", &nats.url).await.unwrap();
    Nats::start(&platform, "nats-server").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_restored_is_named_and_changes_nothing() {
    let (stage, vault) = pod().await;
    let owner = controller(&stage).await;
    owner.round().await.unwrap();
    let backup = back_up(&stage, &owner).await;
    let before = facts(&stage, &owner).await;
    let (other, _others_vault) = pod().await;
    let stranger = controller(&other).await;
    stranger.round().await.unwrap();
    let foreign = back_up(&other, &stranger).await;

    // A vault in use, whether it is this one or another one.
    assert_eq!(refused(&stage, &backup).await, Code::VaultNotEmpty);
    assert_eq!(refused(&stage, &foreign).await, Code::VaultNotEmpty);
    owner.round().await.unwrap();
    assert_eq!(facts(&stage, &owner).await, before);

    lose_volume(&stage, vault).await;
    let _vault = guard(&stage).await;
    let cut = Backup { snapshot: stage.path("cut.snap"), ..copied(&backup) };
    let whole = fs::read(&backup.snapshot).unwrap();
    fs::write(&cut.snapshot, &whole[..whole.len() - 100]).unwrap();
    assert_eq!(refused(&stage, &cut).await, Code::VaultSnapshotBroken);
    let keyless = Backup { key: foreign.key.clone(), ..copied(&backup) };
    assert_eq!(refused(&stage, &keyless).await, Code::VaultKeyBroken);
    assert!(!is_initialized(&stage).await);
    let swapped = Backup { snapshot: foreign.snapshot.clone(), ..copied(&backup) };
    assert_eq!(refused(&stage, &swapped).await, Code::VaultSnapshotForeign);
    // It starts again, empty.
    stage.bao.wait().await.unwrap();
    assert!(!is_initialized(&stage).await, "a foreign vault was left");
    assert_eq!(owner.disk.read(Note::Key).unwrap(), None);
    fs::copy(&foreign.key, stage.path("volume").join("unseal.v1.json")).unwrap();
    assert_eq!(refused(&stage, &backup).await, Code::VaultNotEmpty);
    owner.disk.remove(Note::Key).unwrap();
    let secrets = stage.secrets().unwrap();
    secrets.delete("vault-aes", &DeleteParams::default()).await.unwrap();
    assert_eq!(refused(&stage, &backup).await, Code::VaultSecretMissing);
    assert!(!is_initialized(&stage).await);

    secrets.create(&PostParams::default(), &backup.secret).await.unwrap();
    restore(&stage, &backup).await.unwrap();
    let owner = controller(&stage).await;
    owner.round().await.unwrap();
    assert_eq!(facts(&stage, &owner).await, before);
}

fn copied(backup: &Backup) -> Backup {
    let Backup { snapshot, key, secret } = backup;
    Backup { snapshot: snapshot.clone(), key: key.clone(), secret: secret.clone() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_taken_when_one_is_due_and_its_login_can_do_nothing_else() {
    let (stage, _vault) = pod().await;
    let own = controller(&stage).await;
    let snapshots = own.snapshots.as_ref().unwrap();
    assert_eq!(snapshots.ensure().await.unwrap(), Step::NotHere, "it is not set up yet");
    own.round().await.unwrap();
    assert!(matches!(snapshots.ensure().await.unwrap(), Step::Taken { .. }));
    assert_eq!(snapshots.ensure().await.unwrap(), Step::NotDue);
    let mut left: Vec<_> = fs::read_dir(stage.path("snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .map(|name| name.rsplit('.').next().unwrap().to_owned())
        .collect();
    left.sort();
    assert_eq!(left, ["key", "snap"]);

    let vault = stage.bao.vault();
    let log_in = async |role| {
        let token = fs::read(stage.path("token")).unwrap();
        let answer = vault.call(&call::log_in(role, &SecretBytes::new(token))).await.unwrap();
        call::logged_in(&answer).unwrap().token
    };
    let token = log_in(Role::Snapshot).await;
    for path in ["sys/storage/raft/configuration", "kubefox/kv-opensearch/data/admin", "sys/mounts"]
    {
        let answer = vault.call(&Request::get(path).by(&token)).await.unwrap();
        assert_eq!(answer.status, 403, "{path}");
    }
    let mut nothing = Vec::new();
    let controller = log_in(Role::Controller).await;
    let answer = vault.fetch(&snapshot::take().by(&controller), &mut nothing).await.unwrap();
    assert_eq!((answer.status, nothing.len()), (403, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_without_a_key_that_belongs_to_it_is_not_kept() {
    let (stage, _vault) = pod().await;
    let own = controller(&stage).await;
    own.round().await.unwrap();
    let key = own.disk.read(Note::Key).unwrap().unwrap();
    own.disk.remove(Note::Key).unwrap();
    let snapshots = own.snapshots.as_ref().unwrap();
    let error = snapshots.ensure().await.unwrap_err();
    assert!(matches!(error, SnapshotError::NoKey), "{error:?}");
    assert_eq!(snapshots.age(), None);
    own.disk.write(Note::Key, &key).unwrap();
    assert!(matches!(snapshots.ensure().await.unwrap(), Step::Taken { .. }));
}
