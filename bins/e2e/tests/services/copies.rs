//! Files of snapshots leave the vault's container and come back into it: whole, or not at all.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use services::bootstrap::controller::Controller;
use tec_e2e::kube::{eventually, program};
use tec_e2e::packages::{directory, tool};
use tec_e2e::services::bao::Seal;
use tec_e2e::services::cluster::Cluster;
use tec_e2e::services::stage::Stage;
use tec_e2e::transcript::execute;
use tec_services::vault::snapshot;

use crate::backup::{facts, lose_objects, lose_volume, taken};
use crate::kills::guard;
use crate::small_disk::SmallDisk;
use crate::vault::root_tokens;

/// A container with the program and a directory of snapshots.
struct Container(PathBuf);

impl Container {
    fn new(directory: PathBuf) -> Self {
        fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn start(&self, words: &[&str]) -> Child {
        let mut command = Command::new(program("services-bootstrap").unwrap());
        command.arg("snapshots").args(words).env("TEC_SNAPSHOTS", &self.0);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn run(&self, words: &[&str], input: &[u8]) -> Output {
        let mut child = self.start(words);
        // A program that refuses ends before it has read everything.
        let _ = child.stdin.take().unwrap().write_all(input);
        child.wait_with_output().unwrap()
    }

    fn must(&self, words: &[&str], input: &[u8]) -> Vec<u8> {
        let output = self.run(words, input);
        assert!(output.status.success(), "{words:?}: {output:?}");
        output.stdout
    }

    /// The code of the error that it prints.
    fn refused(&self, words: &[&str], input: &[u8]) -> String {
        let output = self.run(words, input);
        let told = String::from_utf8(output.stderr).unwrap();
        println!("{told}");
        assert_eq!(output.status.code(), Some(1), "{words:?}: {told}");
        let at = told.find("TEC-V").unwrap();
        told[at..at + "TEC-V000".len()].to_owned()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// A vault that takes a snapshot each time that it is asked.
async fn source() -> (Stage, Controller, tokio::task::JoinSet<anyhow::Result<()>>) {
    let stage = Stage::prepare(Cluster::shared().await.unwrap(), &Seal::Shamir).unwrap();
    fs::create_dir(stage.path("snapshots")).unwrap();
    let vault = guard(&stage).await;
    let directory = stage.path("snapshots").display().to_string();
    let mut controller = stage.controller(&["--snapshots", &directory]).await.unwrap();
    controller.round().await.unwrap();
    controller.snapshots.as_mut().unwrap().schedule.every = Duration::ZERO;
    (stage, controller, vault)
}

/// Name and content of a snapshot, and of its key.
async fn take(stage: &Stage, controller: &Controller) -> [(String, Vec<u8>); 2] {
    let step = controller.snapshots.as_ref().unwrap().ensure().await.unwrap();
    let (name, _) = taken(&step).unwrap();
    [name.clone(), snapshot::key_name(&name)].map(|name| {
        let content = fs::read(stage.path("snapshots").join(&name)).unwrap();
        (name, content)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_is_stored_whole_or_not_at_all() {
    let (stage, controller, _vault) = source().await;
    let [(name, content), (key_name, key)] = take(&stage, &controller).await;
    let container = Container::new(stage.path("container"));
    let half = &content[..content.len() / 2];

    // A copy that is killed in the middle.
    let mut child = container.start(&["put", &name]);
    child.stdin.as_mut().unwrap().write_all(half).unwrap();
    let temporary = container.0.join("copy.tmp");
    eventually("it writes", async || Ok(fs::metadata(&temporary).is_ok_and(|file| file.len() > 0)))
        .await
        .unwrap();
    assert_eq!(container.refused(&["put", &name], &content), "TEC-V534", "two at a time");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(container.names(), ["copy.tmp"]);

    // A connection that breaks, and one that alters what it carries.
    assert_eq!(container.refused(&["put", &name], half), "TEC-V530");
    let mut altered = content.clone();
    altered[content.len() / 2] ^= 1;
    assert_eq!(container.refused(&["put", &name], &altered), "TEC-V530");
    assert_eq!(container.refused(&["put", &key_name], &key[..key.len() - 1]), "TEC-V530");
    assert_eq!(container.refused(&["get", &name], b""), "TEC-V534");
    assert!(container.names().is_empty(), "{:?}", container.names());
    let output = container.run(&["put", "../unseal.v1.json"], &key);
    assert_eq!(output.status.code(), Some(2), "{output:?}");

    container.must(&["put", &name], &content);
    assert!(container.must(&["list"], b"").is_empty(), "its key is not there yet");
    container.must(&["put", &key_name], &key);
    assert_eq!(container.must(&["list"], b""), format!("{name}\n").into_bytes());
    assert_eq!(container.must(&["get", &name], b""), content);
    assert_eq!(container.must(&["get", &key_name], b""), key);
    assert_eq!(container.names(), [key_name.clone(), name.clone()]);
    let mode = fs::metadata(container.0.join(&name)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_exists_is_never_replaced_by_another_one() {
    let (stage, controller, _vault) = source().await;
    let [(name, content), _] = take(&stage, &controller).await;
    // A different snapshot, in which a key was created in the meantime.
    controller.round().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let [(_, other), _] = take(&stage, &controller).await;
    assert_ne!(content, other);
    let container = Container::new(stage.path("container"));
    container.must(&["put", &name], &content);
    container.must(&["put", &name], &content);
    assert_eq!(container.refused(&["put", &name], &other), "TEC-V533");
    assert_eq!(fs::read(container.0.join(&name)).unwrap(), content);
    assert_eq!(container.names(), [name]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_leaves_half_of_the_free_space() {
    let (stage, controller, _vault) = source().await;
    let [(name, content), _] = take(&stage, &controller).await;
    let disk = SmallDisk::mount(&stage.path("container"), 8);
    let container = Container::new(stage.path("container"));
    let size = u64::try_from(content.len()).unwrap();
    // The file would fit, but would leave too little.
    for left in [0, size + 8192] {
        disk.fill(left);
        let free = disk.free();
        assert_eq!(container.refused(&["put", &name], &content), "TEC-V534");
        assert_eq!(disk.free(), free);
        disk.empty();
    }
    container.must(&["put", &name], &content);
}

/// Stands in for the pod: `exec` runs the program here, on the vault of the test. Everything else is the real
/// kubectl.
const KUBECTL: &str = r#"#!/bin/sh
set -eu
case "$*" in
  "create namespace platform")
    # The cluster is lost now, and another one is there.
    touch "$WORLD/lost"
    until [ -e "$WORLD/empty" ]; do sleep 0.1; done
    exit ;;
  *" wait "* | *" delete pod vault-0") exit ;;
  *" exec "*)
    while [ "$1" != "--" ]; do shift; done
    shift
    words=$(printf '%s ' "$@" | sed "s|/vault/snapshots|$TEC_SNAPSHOTS|")
    exec $words ;;
esac
[ "$1 $2" = "--namespace platform" ]
shift 2
exec "$KUBECTL" --kubeconfig "$ADMIN" --namespace "$POD_NAMESPACE" "$@"
"#;

/// A shell whose `kubectl` reaches this vault, in an empty directory.
fn shell(stage: &Stage) -> Command {
    let (home, programs) = (stage.path("home"), stage.path("programs"));
    fs::create_dir(&home).unwrap();
    fs::create_dir(&programs).unwrap();
    for (name, content) in [("kubectl", KUBECTL), ("helm", "#!/bin/sh\n")] {
        let file = programs.join(name);
        fs::write(&file, content).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let own = program("services-bootstrap").unwrap();
    let known = std::env::var_os("PATH").unwrap();
    let path = [programs, own.parent().unwrap().to_owned()].into_iter();
    let path = std::env::join_paths(path.chain(std::env::split_paths(&known))).unwrap();
    let api = stage.cluster.plane.url();
    let mut shell = Command::new("bash");
    shell
        .current_dir(&home)
        .env("PATH", path)
        .env("WORLD", stage.dir.path())
        .env("KUBECTL", tool("bin/kubectl").unwrap())
        .env("ADMIN", stage.cluster.plane.admin_kubeconfig().unwrap())
        .env("TEC_SNAPSHOTS", stage.path("snapshots"))
        .env("POD_NAMESPACE", &stage.cluster.platform)
        .env("TEC_VAULT_SOCKET", stage.bao.socket())
        .env("TEC_VOLUME", stage.path("volume"))
        .env("TEC_KUBERNETES", api.trim_start_matches("https://"))
        .env("TEC_KUBERNETES_CA", stage.path("api-ca.crt"))
        .env("TEC_KUBERNETES_TOKEN", stage.path("api-token"));
    shell
}

async fn exists(file: &Path) {
    eventually("the page", async || Ok(file.exists())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_on_backups_brings_back_what_was_lost() {
    let (stage, controller, vault) = source().await;
    take(&stage, &controller).await;
    let before = facts(&stage, &controller).await;
    drop(controller);
    let page = directory().join("../../../docs/how-to/back-up-the-services.md");
    let mut shell = shell(&stage);
    let followed = tokio::task::spawn_blocking(move || execute(&page, &mut shell));

    let lost = async {
        exists(&stage.path("lost")).await;
        lose_volume(&stage, vault).await;
        lose_objects(&stage).await;
        fs::remove_dir_all(stage.path("snapshots")).unwrap();
        fs::create_dir(stage.path("snapshots")).unwrap();
        let vault = guard(&stage).await;
        fs::write(stage.path("empty"), "").unwrap();
        vault
    };
    // A page that fails early never loses the vault.
    let mut followed = followed;
    let _vault = tokio::select! {
        vault = lost => vault,
        failed = &mut followed => panic!("{failed:?}"),
    };
    followed.await.unwrap().unwrap();
    let controller = stage.controller(&[]).await.unwrap();
    controller.round().await.unwrap();
    assert_eq!(facts(&stage, &controller).await, before);
    assert_eq!(root_tokens(&stage, &before.key).await, 0);
}
