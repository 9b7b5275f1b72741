//! The story, in order.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Instant;

use tec_e2e::admin;
use tec_e2e::admin::Admin;

use crate::certificates::Certificates;
use crate::host::Host;
use crate::images::Images;
use crate::network::Network;
use crate::stage::{Stage, ended};
use crate::{Args, certificates, cluster, files, intruder};

const ALL: [&str; 3] = ["n1", "n2", "n3"];

/// Plays the whole story.
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
    let images = Images::build(stage.args, base)?;
    stage.say("images of Kubernetes, etcd, CoreDNS and the join service are built")?;
    let [mut first, second, third] = hosts(&images, base)?;
    stage.say("3 hosts are up: namespaces, swtpm, a LUKS2 disk, containerd with its images")?;
    files::write_node(&first, "ControlPlane", None)?;
    let first_key = stage.key(&first)?;
    let [second_key, third_key] = [&second, &third].map(|host| worker(stage, host, &first_key));
    let (second_key, third_key) = (second_key?, third_key?);

    init(stage, &first, &first_key)?;
    cluster::deploy(stage, &first, &[&second_key, &third_key])?;
    stage.say("the join service runs as a pod, with the network of its host")?;
    join(stage, &first, &[&second, &third])?;
    stage.nodes_are_ready(&first, &ALL)?;
    cluster::machines_are_bound(stage, &first, 3)?;
    stage.say("3 nodes are Ready; the operator's registry has all 3, bound")?;
    let certificates = Certificates::first(&second)?;
    cluster::services_work(stage, &first, &ALL)?;
    stage
        .say("DNS resolves a Service, and a pod on each node reaches those on all 3 through it")?;
    intruder::check(stage, &second, &first)?;

    cluster::remove(stage, &first, "n3")?;
    intruder::is_out(stage, &third, (&second, &first))?;
    drop(third);
    stage.nodes_are_ready(&first, &["n1", "n2"])?;
    stage.say(
        "kubectl tec member remove: n3 drained, key revoked, Node deleted; its kubelet registers no \
         Node and gets no certificate",
    )?;
    let mut third = reinstall(stage, base, &images, (&first_key, &second_key, &first))?;
    stage.nodes_are_ready(&first, &ALL)?;
    cluster::services_work(stage, &first, &ALL)?;
    stage.say("n3 joined again as a new machine, and serves")?;

    worker_boots(stage, &mut third)?;
    certificates.are_renewed(&second)?;
    let approved = certificates::approved(stage, &first)?;
    stage.say(&format!(
        "the kubelet of n2 renewed both certificates; {approved} serving certificates approved"
    ))?;
    control_plane_boots(stage, &mut first, &first_key)?;
    cluster::services_work(stage, &first, &ALL)?;
    check_logs(base)?;
    stage.say("all 3 nodes serve again, and no log has a secret")
}

/// Three hosts in parallel: each waits for its disk more than it works.
fn hosts(images: &Images, base: &Path) -> anyhow::Result<[Host; 3]> {
    let create = |number: u8| -> anyhow::Result<Host> {
        let host = Host::create(base, number, &format!("n{number}"))?;
        if number == 1 {
            images.load_control_plane(&host)?;
        } else {
            images.load_worker(&host)?;
        }
        Ok(host)
    };
    thread::scope(|scope| {
        let hosts = [1, 2, 3].map(|number| scope.spawn(move || create(number)));
        let [one, two, three] = hosts
            .map(|host| host.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a host panicked"))));
        Ok([one?, two?, three?])
    })
}

/// Writes the settings of a worker; returns its key.
fn worker(stage: &Stage<'_>, host: &Host, join_service: &str) -> anyhow::Result<String> {
    files::write_node(host, "Worker", Some(join_service))?;
    stage.key(host)
}

fn init(stage: &Stage<'_>, first: &Host, key: &str) -> anyhow::Result<()> {
    let process = stage.bootstrapper(first, "run")?;
    let id = stage.admin.init(&first.address, key)?;
    ended(first, process, 0)?;
    stage.say(&format!(
        "tec node init made cluster {id} of n1: kubeadm's preflight passed and init ran, the disk was \
         re-keyed, PCR 15 extended"
    ))?;
    certificates::live_short(first)?;
    stage.nodes_are_ready(first, &["n1"])?;
    let etcd = stage.json(first, &["pod", "etcd-n1", "-n", "kube-system"])?;
    let phase = etcd.pointer("/status/phase").and_then(serde_json::Value::as_str);
    anyhow::ensure!(phase == Some("Running"), "etcd is {phase:?}");
    stage.say("n1 is Ready: etcd is a static pod, the network came with init")
}

fn join(stage: &Stage<'_>, first: &Host, hosts: &[&Host]) -> anyhow::Result<()> {
    let began = Instant::now();
    let run = |host: &&Host| stage.bootstrapper(host, "run");
    let processes = hosts.iter().map(run).collect::<anyhow::Result<Vec<_>>>()?;
    for (host, process) in hosts.iter().zip(processes) {
        ended(host, process, 0)?;
    }
    let names: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
    let seconds = began.elapsed().as_secs();
    stage.kubectl(first, &["get", "nodes", "-o", "wide"])?;
    stage.say(&format!("joined by attested TLS in {seconds} s: {}", names.join(", ")))
}

/// A new machine, with a different TPM and disk, takes the name and the address of n3.
fn reinstall(
    stage: &Stage<'_>,
    base: &Path,
    images: &Images,
    (first_key, second_key, first): (&str, &str, &Host),
) -> anyhow::Result<Host> {
    let host = Host::create(base, 3, "n3-new")?;
    images.load_worker(&host)?;
    let key = worker(stage, &host, first_key)?;
    cluster::admit(stage, first, &[second_key, &key])?;
    cluster::free_name(stage, "n3")?;
    join(stage, first, &[&host])?;
    Ok(host)
}

fn worker_boots(stage: &Stage<'_>, third: &mut Host) -> anyhow::Result<()> {
    stage.boot(third)?;
    let process = stage.bootstrapper(third, "recover")?;
    ended(third, process, 0)?;
    let process = stage.bootstrapper(third, "run")?;
    ended(third, process, 0)?;
    stage.say("a worker booted again and was opened by a rejoin ticket")
}

fn control_plane_boots(stage: &Stage<'_>, first: &mut Host, first_key: &str) -> anyhow::Result<()> {
    stage.boot(first)?;
    let process = stage.bootstrapper(first, "recover")?;
    stage.admin.recover(&first.address, first_key)?;
    ended(first, process, 0)?;
    let process = stage.bootstrapper(first, "run")?;
    ended(first, process, 0)?;
    stage.nodes_are_ready(first, &ALL)?;
    stage.say("the control plane booted again and was opened by a Recover call")
}

/// The programs logged neither the master key nor the init secret.
fn check_logs(base: &Path) -> anyhow::Result<()> {
    let secrets = [admin::MASTER_KEY.as_bytes().to_vec(), admin::INIT_SECRET.to_vec()];
    let mut logs = 0;
    for directory in ["admin", "n1", "n2", "n3", "n3-new"] {
        for entry in fs::read_dir(base.join(directory))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "log") {
                let log = fs::read(&path)?;
                let has = |secret: &Vec<u8>| log.windows(secret.len()).any(|part| part == secret);
                anyhow::ensure!(!secrets.iter().any(has), "{} contains a secret", path.display());
                logs += 1;
            }
        }
    }
    anyhow::ensure!(logs >= 20, "only {logs} logs were found");
    Ok(())
}
