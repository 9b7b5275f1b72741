//! What happens, in order.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context as _;
use serde_json::Value;

use crate::files::NAMESPACE;
use crate::host::Host;
use crate::network::{GATEWAY, Network};
use crate::stage::{Stage, ended, until};
use crate::{Args, files, intruder};
use tec_e2e::admin;
use tec_e2e::admin::Admin;

/// Namespace and account of the join service, as its manifest says.
const JOIN_SERVICE: &str = "tec-join-service";

/// etcd on the bridge.
fn etcd(base: &Path) -> anyhow::Result<EtcdProcess> {
    let log = fs::File::create(base.join("etcd.log"))?;
    let url = format!("http://{GATEWAY}:2379");
    let peer = format!("http://{GATEWAY}:2380");
    let started = Command::new("etcd")
        .arg("--data-dir")
        .arg(base.join("etcd"))
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    Ok(EtcdProcess(started.context("start etcd")?))
}

struct EtcdProcess(std::process::Child);

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Plays it all.
pub(crate) fn play(args: &Args) -> anyhow::Result<()> {
    let base = tempfile::Builder::new().prefix("tec-bootstrap-").tempdir()?;
    let stage = Stage {
        args,
        began: Instant::now(),
        admin: Admin::new(args.bin_dir.join("tec"), base.path())?,
    };
    let played = acts(&stage, base.path());
    if played.is_err() {
        let kept = base.keep();
        stage.say(&format!("logs are kept in {}", kept.display()))?;
    }
    played
}

fn acts(stage: &Stage<'_>, base: &Path) -> anyhow::Result<()> {
    let _network = Network::create()?;
    let _etcd = etcd(base)?;
    let (mut first, first_key) = stage.host(base, 1, "ControlPlane", None)?;
    stage.say("three hosts come up: namespaces, swtpm, a LUKS2 disk each")?;
    let (second, second_key) = stage.host(base, 2, "ControlPlane", Some(&first_key))?;
    let (mut third, third_key) = stage.host(base, 3, "Worker", Some(&first_key))?;

    init(stage, &first, &first_key)?;
    files::write_join_service(&first, &[&second_key, &third_key], &[&second_key])?;
    let service = stage.join_service(&first)?;
    for (host, what) in [(&second, "a control plane"), (&third, "a worker")] {
        let process = stage.bootstrapper(host, "run")?;
        ended(host, process, 0)?;
        stage.say(&format!("{} joined as {what}", host.name))?;
    }
    check_members(stage, &first)?;
    intruder::check(stage, &third, &first)?;

    stage.boot(&mut third)?;
    let process = stage.bootstrapper(&third, "recover")?;
    ended(&third, process, 0)?;
    let process = stage.bootstrapper(&third, "run")?;
    ended(&third, process, 0)?;
    stage.say("the worker booted again and was opened by a rejoin ticket")?;

    drop(service);
    stage.boot(&mut first)?;
    let process = stage.bootstrapper(&first, "recover")?;
    stage.admin.recover(&first.address, &first_key)?;
    ended(&first, process, 0)?;
    let process = stage.bootstrapper(&first, "run")?;
    ended(&first, process, 0)?;
    until("the API server", || stage.kubectl(&first, &["get", "--raw=/readyz"]).is_ok())?;
    stage.say("the first control plane booted again and was opened by a Recover call")?;
    check_members(stage, &first)?;
    check_logs(base)?;
    stage.say("all three are members, and no log has a secret")
}

/// Whatever the programs logged: neither the master key nor the init secret.
fn check_logs(base: &Path) -> anyhow::Result<()> {
    let secrets = [admin::MASTER_KEY.as_bytes().to_vec(), admin::INIT_SECRET.to_vec()];
    let mut logs = 0;
    for directory in ["admin", "n1", "n2", "n3"] {
        for entry in fs::read_dir(base.join(directory))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let log = fs::read(&path)?;
                let has = |secret: &Vec<u8>| log.windows(secret.len()).any(|part| part == secret);
                anyhow::ensure!(!secrets.iter().any(has), "{} has a secret", path.display());
                logs += 1;
            }
        }
    }
    anyhow::ensure!(logs >= 8, "only {logs} logs were found");
    Ok(())
}

fn init(stage: &Stage<'_>, first: &Host, key: &str) -> anyhow::Result<()> {
    let process = stage.bootstrapper(first, "run")?;
    let id = stage.admin.init(&first.address, key)?;
    ended(first, process, 0)?;
    stage.say(&format!(
        "tec init made cluster {id} of n1: kubeadm init, disk re-keyed, PCR 15 extended"
    ))?;
    let crds = stage.args.crds.display().to_string();
    stage.kubectl(first, &["apply", "-f", &crds])?;
    stage.kubectl(first, &["create", "namespace", NAMESPACE])?;
    // Without an approval policy no key is bound.
    let cluster = files::write_cluster(first)?.display().to_string();
    stage.kubectl(first, &["apply", "-f", &cluster])?;
    // The service runs with the rights of its manifest, and no others.
    let manifest = stage.args.manifest.display().to_string();
    stage.kubectl(first, &["apply", "-f", &manifest])?;
    let account = ["create", "token", JOIN_SERVICE, "-n", JOIN_SERVICE];
    let token = stage.kubectl(first, &account)?;
    files::write_kubeconfig(first, token.trim())
}

/// What stands for a kubelet makes its Node after kubeadm has ended.
fn check_members(stage: &Stage<'_>, first: &Host) -> anyhow::Result<()> {
    until("the members", || members_are_there(stage, first).is_ok())?;
    stage.say("3 nodes, 2 control planes; the operator's registry has all 3, bound")
}

/// Three nodes, two of them control planes; a machine with a bound key for each; a pod
/// of the join service for each control plane.
fn members_are_there(stage: &Stage<'_>, first: &Host) -> anyhow::Result<()> {
    let items = |kind: &str, namespace: &[&str]| -> anyhow::Result<Vec<Value>> {
        let mut arguments = vec!["get", kind, "-o", "json"];
        arguments.extend(namespace);
        let json: Value = serde_json::from_str(&stage.kubectl(first, &arguments)?)?;
        let items = json.get("items").and_then(Value::as_array);
        Ok(items.cloned().unwrap_or_default())
    };
    let nodes = items("nodes", &[])?;
    let mark = "/metadata/labels/node-role.kubernetes.io~1control-plane";
    let planes = nodes.iter().filter(|node| node.pointer(mark).is_some()).count();
    anyhow::ensure!(
        (nodes.len(), planes) == (3, 2),
        "there are {} nodes, {planes} of them control planes",
        nodes.len()
    );
    let machines = items("machines", &["-n", NAMESPACE])?;
    let bound = |machine: &&Value| machine.pointer("/status/attestationKey/name").is_some();
    let bound = machines.iter().filter(bound).count();
    anyhow::ensure!(bound == 3, "{bound} machines have a bound key, not 3");
    // Here nothing runs them, but admission let them in, with the TPM's device.
    let pods = items("pods", &["-n", JOIN_SERVICE])?.len();
    anyhow::ensure!(pods == 2, "the join service has {pods} pods, not 2");
    Ok(())
}
