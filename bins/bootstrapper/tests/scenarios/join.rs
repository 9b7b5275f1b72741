//! Join: tickets, refusals, and interrupted joins.

use std::fs;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tec_core::digest::Sha256Digest;
use tec_node::derive::ClusterId;
use tec_node::ticket::PkiFile;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::cluster::{Cluster, pki_file, ticket_file};
use crate::init;
use crate::stage::{Machine, mode};

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_gets_no_file_of_the_control_plane_and_a_control_plane_all() {
    let plane = Machine::new("plane-0", "ControlPlane");
    for (role, wants) in [("Worker", false), ("ControlPlane", true)] {
        let machine = Machine::new("node-1", role);
        let ak = machine.ak;
        let cluster = Cluster::start(&plane, &[ak], &[ak]).await;
        machine.write_metadata("node-1", role, &["127.0.0.1"]);
        machine.write_settings_with(&[cluster.ak], cluster.port);
        let program = machine.start("run");
        let (status, log) = tokio::task::spawn_blocking(|| program.wait()).await.unwrap();
        assert!(status.success(), "{log}");
        for file in PkiFile::ALL {
            let path = ticket_file(&machine, file);
            let wants = wants || file == PkiFile::CA;
            assert_eq!(path.exists(), wants, "{}", file.as_str());
            if wants {
                assert_eq!(mode(&path), file.mode());
            }
            if wants && file != PkiFile::CA {
                assert_eq!(pki_file(&machine, file), file.as_str().as_bytes());
            }
        }
        let kept = machine.path("root/run/state/constellation/ticket");
        assert!(!kept.exists(), "the ticket outlives the join");
        let kubelet = machine.path("root/run/state/kubelet/pki/kubelet-client-crt.pem");
        let certificate = fs::read_to_string(kubelet).unwrap();
        assert!(certificate.starts_with("-----BEGIN CERTIFICATE-----"));
        assert_ne!(machine.register(), Sha256Digest::ZERO);
        assert!(!machine.opens_with(b"initial").await);
        assert!(machine.calls().contains("kubeadm join --config"), "{}", machine.calls());
        machine.assert_no_secrets(&log);
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_service_that_proves_nothing_gets_nothing_and_init_still_can_win() {
    let (stranger, machine) =
        (Machine::new("stranger", "ControlPlane"), Machine::new("node-1", "ControlPlane"));
    let ak = machine.ak;
    let cluster = Cluster::start(&stranger, &[ak], &[ak]).await;
    machine.write_metadata("node-1", "ControlPlane", &["127.0.0.1"]);
    // Its key does not belong to a control plane known to this node.
    machine.write_settings_with(&[], cluster.port);
    let program = machine.start("run").serving();
    init::init(&machine, init::request()).await.unwrap();
    let (status, log) = tokio::task::spawn_blocking(|| program.wait()).await.unwrap();
    assert!(status.success(), "{log}");
    assert!(!machine.calls().contains("kubeadm join"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_of_a_service_that_is_no_member_of_its_cluster_changes_nothing() {
    let (plane, machine) =
        (Machine::new("plane-0", "ControlPlane"), Machine::new("node-1", "ControlPlane"));
    // A genuine machine with a trusted key, but its tickets name a different cluster.
    let elsewhere = plane.attestation().marker;
    elsewhere.set(&ClusterId::new([9; 32])).await.unwrap();
    drop(elsewhere);
    let cluster = Cluster::start(&plane, &[machine.ak], &[machine.ak]).await;
    machine.write_metadata("node-1", "ControlPlane", &["127.0.0.1"]);
    machine.write_settings_with(&[cluster.ak], cluster.port);
    let program = machine.start("run").serving();
    let refused = async {
        while !program.log().contains("not a member of that") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let refused = tokio::time::timeout(Duration::from_mins(2), refused).await;
    assert!(refused.is_ok(), "{}", program.log());
    // Init can still win, which proves that the register is zero.
    init::init(&machine, init::request()).await.unwrap();
    let (status, log) = tokio::task::spawn_blocking(|| program.wait()).await.unwrap();
    assert!(status.success(), "{log}");
    assert!(!machine.calls().contains("kubeadm join"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_that_failed_is_tried_again_without_the_preflight_that_was_passed_before_the_lock() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let machine = Machine::new("node-1", "Worker");
    let cluster = Cluster::start(&plane, &[machine.ak], &[]).await;
    machine.write_metadata("node-1", "Worker", &["127.0.0.1"]);
    machine.write_settings_with(&[cluster.ak], cluster.port);
    fs::write(machine.path("fail-once"), "").unwrap();
    let program = machine.start("run");
    let (status, log) = tokio::task::spawn_blocking(|| program.wait()).await.unwrap();
    assert!(status.success() && log.contains("a step failed"), "{log}");
    let skipped = fs::read_to_string(machine.path("skipped")).unwrap();
    assert_eq!(skipped, "skipPhases\":[\"preflight\"]\n".repeat(2));
    let order: Vec<String> =
        machine.calls().lines().map(|line| line.split(" --").next().unwrap().to_owned()).collect();
    let preflights = order.iter().filter(|one| *one == "kubeadm join phase preflight");
    assert_eq!(preflights.count(), 1, "{order:?}");
    assert_eq!(order[0], "kubeadm join phase preflight", "{order:?}");
    machine.assert_no_secrets(&log);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_cut_off_after_its_node_was_registered_ends_without_another_ticket() {
    let plane = Machine::new("plane-0", "ControlPlane");
    for role in ["Worker", "ControlPlane"] {
        let machine = Machine::new("node-1", role);
        let cluster = Cluster::start(&plane, &[machine.ak], &[machine.ak]).await;
        machine.write_metadata("node-1", role, &["127.0.0.1"]);
        machine.write_settings_with(&[cluster.ak], cluster.port);
        fs::write(machine.path("hold-join"), "").unwrap();
        let program = machine.start("run").serving();
        let begun = async {
            while !machine.calls().contains("kubeadm join --config") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let begun = tokio::time::timeout(Duration::from_mins(2), begun).await;
        assert!(begun.is_ok(), "{}", program.log());
        program.kill();
        cluster.registered.store(true, Ordering::SeqCst);
        fs::remove_file(machine.path("hold-join")).unwrap();
        let certificate = machine.path("root/run/state/kubelet/pki/kubelet-client-crt.pem");
        let before = fs::read(&certificate).unwrap();
        let program = machine.start("run");
        let (status, log) = tokio::task::spawn_blocking(|| program.wait()).await.unwrap();
        assert!(status.success(), "{log}");
        assert_eq!(fs::read(&certificate).unwrap(), before);
        let kept = machine.path("root/run/state/constellation/ticket");
        assert!(!kept.exists(), "the ticket outlives the join");
        cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_kubeadm_refuses_is_not_locked_for_the_cluster_of_its_ticket() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let machine = Machine::new("node-1", "ControlPlane");
    let cluster = Cluster::start(&plane, &[machine.ak], &[machine.ak]).await;
    machine.write_metadata("node-1", "ControlPlane", &["127.0.0.1"]);
    machine.write_settings_with(&[cluster.ak], cluster.port);
    fs::write(machine.path("refuse-preflight"), "").unwrap();
    let program = machine.start("run").serving();
    let refused = async {
        while !machine.calls().contains("kubeadm join phase preflight") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let refused = tokio::time::timeout(Duration::from_mins(2), refused).await;
    assert!(refused.is_ok(), "{}", program.log());
    program.kill();
    assert_eq!(machine.register(), Sha256Digest::ZERO);
    assert!(machine.opens_with(b"initial").await);
    let pki = machine.path("root/etc/kubernetes/pki");
    assert!(!pki.exists(), "keys of the cluster are on a disk that opens for all");
    cluster.stop().await;
}

/// Connects from 127.0.0.`last` and sends nothing.
async fn silent(cluster: &Cluster, last: u8) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, last], 0).into()).unwrap();
    let server = ([127, 0, 0, 1], cluster.port).into();
    socket.connect(server).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_connections_of_two_addresses_turn_away_no_third() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let cluster = Cluster::start(&plane, &[], &[]).await;
    let mut held = JoinSet::new();
    for number in 0..64 {
        let mut stream = silent(&cluster, 2 + number % 2).await;
        held.spawn(async move { stream.read_u8().await.is_err() });
    }
    let mut newcomer = silent(&cluster, 9).await;
    tokio::select! {
        closed = held.join_next() => assert!(closed.unwrap().unwrap(), "it was said something"),
        _ = newcomer.read_u8() => panic!("the newcomer was turned away"),
    }
    cluster.stop().await;
}
