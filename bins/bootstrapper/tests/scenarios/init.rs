//! Init: once, repeated, concurrent, and after a crash.

use std::fs;
use std::time::Duration;

use tec_core::digest::Sha256Digest;
use tec_node::derive::{ClusterId, DataKeyId};
use tec_node::port::StateDisk as _;
use tec_node::rpc::generated::init::api_client::ApiClient;
use tec_node::rpc::generated::init::{InitRequest, InitResponse};
use tec_node::state::NodeState;
use tec_node::uri::KmsUri;
use tonic::{Code, Status};

use crate::stage::{INIT_SECRET, KMS, Machine, mode};

pub(crate) fn request() -> InitRequest {
    InitRequest {
        kms_uri: KMS.to_owned(),
        storage_uri: "storage://no-store".to_owned(),
        kubernetes_version: "v1.34.3".to_owned(),
        init_secret: INIT_SECRET.to_vec(),
        ..InitRequest::default()
    }
}

pub(crate) async fn init(machine: &Machine, request: InitRequest) -> Result<InitResponse, Status> {
    let channel = machine.dial(&machine.init_address()).await;
    let answer = ApiClient::new(channel).init(request).await;
    answer.map(tonic::Response::into_inner)
}

async fn derived(machine: &Machine) -> Vec<u8> {
    let KmsUri::Cluster(master) = KmsUri::parse(KMS).unwrap() else {
        unreachable!("the URI names a master secret");
    };
    let id = DataKeyId::state_disk(machine.disk().id().await.unwrap());
    let key = tec_node::port::DataKeys::data_key(&master, &id, 32).await;
    key.unwrap().expose("compare").to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn init_makes_a_cluster_and_leaves_no_secret_behind() {
    let machine = Machine::new("Plane_0", "ControlPlane");
    let program = machine.start("run").serving();
    let answer = init(&machine, request()).await.unwrap();
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");

    assert_eq!(answer.kubeconfig, b"kubeconfig of the admin\n");
    let event = Sha256Digest::of(&answer.cluster_id);
    assert_eq!(machine.register(), Sha256Digest::ZERO.extended(&event));
    assert!(machine.opens_with(&derived(&machine).await).await);
    assert!(!machine.opens_with(b"initial").await);
    let state = machine.path("root/run/state/constellation/node_state.json");
    let state = NodeState::from_json(&fs::read(state).unwrap()).unwrap();
    assert_eq!(state.role, tec_node::state::Role::ControlPlane);

    let calls = machine.calls();
    let order: Vec<&str> = calls.lines().map(|line| line.split(" --").next().unwrap()).collect();
    assert_eq!(
        order,
        [
            "kubeadm init phase preflight",
            "kubeadm init phase certs all",
            "systemctl enable",
            "kubeadm init",
        ]
    );
    let pki = machine.path("root/run/state/kubelet/pki");
    assert_eq!(mode(&pki.join("kubelet-client-key.pem")), 0o600);
    let modes = fs::read_to_string(machine.path("modes")).unwrap();
    assert!(modes.lines().all(|mode| mode == "600"), "{modes}");
    machine.assert_no_secrets(&log);
    let left = fs::read_dir(machine.path("root/run/tec-bootstrapper")).unwrap();
    let left: Vec<_> = left.map(|one| one.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "temporary files are left");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_init_is_refused_while_the_first_runs_whose_caller_may_come_back() {
    let machine = Machine::new("plane-0", "ControlPlane");
    fs::write(machine.path("hold"), "").unwrap();
    let program = machine.start("run").serving();
    // The first caller gives up waiting; the node continues.
    let first = init(&machine, request());
    let until_held = async {
        while !machine.calls().contains("kubeadm init --skip") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        answer = first => panic!("{:?}", answer.err()),
        () = until_held => {}
    }
    let channel = machine.dial_any(&machine.init_address()).await;
    let mut client = ApiClient::new(channel);
    let mut other = request();
    other.kubernetes_version = "v1.33.0".to_owned();
    let refused = client.init(other).await.err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    fs::remove_file(machine.path("hold")).unwrap();
    let answer = loop {
        match client.init(request()).await {
            Err(status) if status.code() == Code::FailedPrecondition => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => break answer.unwrap().into_inner(),
        }
    };
    assert_eq!(answer.kubeconfig, b"kubeconfig of the admin\n");
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");
    let inits = machine.calls().matches("kubeadm init --skip").count();
    assert_eq!(inits, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_init_that_fails_beyond_the_lock_is_taken_up_again_by_itself_and_by_the_next_process() {
    let machine = Machine::new("plane-0", "ControlPlane");
    fs::write(machine.path("fail-once"), "").unwrap();
    fs::write(machine.path("hold"), "").unwrap();
    let program = machine.start("run").serving();
    let held = async {
        while !machine.calls().contains("kubeadm init --skip") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        answer = init(&machine, request()) => panic!("{:?}", answer.err()),
        () = held => {}
    }
    program.kill();
    let register = machine.register();
    assert_ne!(register, Sha256Digest::ZERO);
    let claim = machine.path("root/run/state/constellation/claim.json");
    assert!(claim.exists(), "a member without a claim could be impersonated");
    fs::remove_file(machine.path("hold")).unwrap();

    // The next process knows that the node is not done, and accepts only the same request.
    let program = machine.start("run").serving();
    let channel = machine.dial_any(&machine.init_address()).await;
    let answer = ApiClient::new(channel).init(request()).await.unwrap();
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");
    assert_eq!(answer.into_inner().kubeconfig, b"kubeconfig of the admin\n");
    assert_eq!(machine.register(), register, "the register was extended once");
    machine.assert_no_secrets(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_starts_again_only_starts_its_kubelet() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let program = machine.start("run").serving();
    init(&machine, request()).await.unwrap();
    program.wait();
    fs::remove_file(machine.path("calls")).unwrap();
    let (status, log) = machine.run("run");
    assert!(status.success(), "{log}");
    assert_eq!(machine.calls(), "systemctl enable --now kubelet.service\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_do_not_bootstrap_one_node() {
    let machine = Machine::new("plane-0", "ControlPlane");
    fs::create_dir_all(machine.path("root/run/tec-bootstrapper")).unwrap();
    let other = fs::File::create(machine.path("root/run/tec-bootstrapper/lock")).unwrap();
    other.lock().unwrap();
    let (status, log) = machine.run("run");
    assert!(!status.success() && log.contains("another bootstrapper"), "{log}");
    assert_eq!(machine.register(), Sha256Digest::ZERO);
    // It ended, with whatever outcome.
    drop(other);
    let program = machine.start("run").serving();
    init(&machine, request()).await.unwrap();
    let (status, log) = program.wait();
    assert!(status.success(), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_register_that_the_journal_does_not_explain_makes_no_member() {
    let machine = Machine::new("plane-0", "ControlPlane");
    let stranger = ClusterId::new([9; 32]);
    let marker = machine.attestation().marker;
    marker.set(&stranger).await.unwrap();
    drop(marker);
    let (status, log) = machine.run("run");
    assert!(!status.success() && log.contains("reboot"), "{log}");
    assert_eq!(machine.calls(), "");
}
