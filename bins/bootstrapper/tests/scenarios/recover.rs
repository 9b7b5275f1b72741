//! After a reboot: rejoin and Recover.

use std::fs;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::uri::PathAndQuery;
use tec_core::digest::Sha256Digest;
use tec_node::rpc::generated::recoverproto::RecoverMessage;
use tec_node::rpc::generated::recoverproto::api_client::ApiClient;
use tonic::{Code, Request};
use tonic_prost::ProstCodec;

use crate::cluster::Cluster;
use crate::init;
use crate::stage::{KMS, Machine, Program};

pub(crate) async fn ended(program: Program) -> String {
    let (status, log) = tokio::task::spawn_blocking(|| program.wait()).await.unwrap();
    assert!(status.success(), "{log}");
    log
}

fn message(kms_uri: &str) -> RecoverMessage {
    RecoverMessage {
        kms_uri: kms_uri.to_owned(),
        storage_uri: "storage://no-store".to_owned(),
        check: false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_booted_again_is_opened_by_its_cluster_and_only_starts_its_kubelet() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let mut machine = Machine::new("node-1", "Worker");
    let ak = machine.ak;
    let cluster = Cluster::start(&plane, &[ak], &[]).await;
    machine.write_metadata("node-1", "Worker", &["127.0.0.1"]);
    machine.write_settings_with(&[cluster.ak], cluster.port);
    ended(machine.start("run")).await;
    let register = machine.register();

    machine.reboot();
    // Ports of the TPM may have changed.
    machine.write_settings_with(&[cluster.ak], cluster.port);
    assert_eq!(machine.register(), Sha256Digest::ZERO);
    let (status, _) = machine.run("run");
    assert_eq!(status.code(), Some(3), "the disk has to be recovered first");
    let log = ended(machine.start("recover")).await;
    assert_eq!(machine.register(), register);
    assert_eq!(machine.calls(), "systemctl start state.mount\n");
    machine.assert_no_secrets(&log);
    ended(machine.start("run")).await;
    assert!(machine.calls().ends_with("systemctl enable --now kubelet.service\n"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn recover_takes_the_right_secret_only_and_keeps_serving_after_a_wrong_one() {
    let mut machine = Machine::new("plane-0", "ControlPlane");
    let program = machine.start("run").serving();
    init::init(&machine, init::request()).await.unwrap();
    ended(program).await;
    let register = machine.register();

    machine.reboot();
    machine.write_settings(&[]);
    let program = machine.start("recover").serving();
    let mut client = ApiClient::new(machine.dial(&machine.recovery_address()).await);
    let wrong = KMS.replace("QEFC", "QUFC");
    for (kms, code) in [
        (&*wrong, Code::FailedPrecondition),
        ("kms://cluster-kms", Code::InvalidArgument),
        // What an older client sends: parts of a stream, with different field numbers.
        ("", Code::InvalidArgument),
    ] {
        let refused = client.recover(message(kms)).await.err().unwrap();
        assert_eq!(refused.code(), code, "{kms}");
    }
    // A new connection proves that the register is still zero.
    let mut client = ApiClient::new(machine.dial(&machine.recovery_address()).await);
    client.recover(message(KMS)).await.unwrap();
    let log = ended(program).await;
    assert_eq!(machine.register(), register);
    machine.assert_no_secrets(&log);
    assert!(ended(machine.start("recover")).await.contains("recovered already"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_recovers_a_node_that_cannot_even_ask_join_services() {
    let mut machine = Machine::new("plane-0", "ControlPlane");
    let program = machine.start("run").serving();
    init::init(&machine, init::request()).await.unwrap();
    ended(program).await;
    machine.reboot();
    machine.write_settings(&[]);
    let settings = machine.path("settings.toml");
    let text = fs::read_to_string(&settings).unwrap();
    let lost = "measurements = '/nonexistent/measurements.json'";
    fs::write(&settings, text.replace("dangerous_any_measurements = true", lost)).unwrap();
    let program = machine.start("recover").serving();
    while !program.log().contains("join services cannot be asked") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut client = ApiClient::new(machine.dial(&machine.recovery_address()).await);
    client.recover(message(KMS)).await.unwrap();
    ended(program).await;
}

/// The first message of older clients (Constellation).
#[derive(Clone, PartialEq, prost::Message)]
struct OlderMessage {
    #[prost(bytes = "vec", tag = "2")]
    measurement_secret: Vec<u8>,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_client_that_streams_is_told_so_and_a_large_message_is_refused() {
    let mut machine = Machine::new("plane-0", "ControlPlane");
    let program = machine.start("run").serving();
    init::init(&machine, init::request()).await.unwrap();
    ended(program).await;
    machine.reboot();
    machine.write_settings(&[]);
    let mut program = machine.start("recover").serving();
    let channel = machine.dial(&machine.recovery_address()).await;

    let mut large = ApiClient::new(channel.clone());
    let refused = large.recover(message(&"k".repeat(100_000))).await;
    assert_eq!(refused.err().unwrap().code(), Code::ResourceExhausted);

    let mut older = tonic::client::Grpc::new(channel);
    older.ready().await.unwrap();
    let first = OlderMessage { measurement_secret: vec![7; 32] };
    // Waits for an answer before it sends more.
    let stream = stream::iter([first]).chain(stream::pending());
    let path = PathAndQuery::from_static("/recoverproto.API/Recover");
    let codec = ProstCodec::<OlderMessage, OlderMessage>::default();
    let answer = older.streaming(Request::new(stream), path, codec).await;
    let told = match answer {
        Err(status) => status,
        Ok(answer) => answer.into_inner().message().await.err().unwrap(),
    };
    assert_eq!(told.code(), Code::InvalidArgument, "{told}");
    assert!(program.is_running());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_disk_of_a_recovery_that_died_is_recovered_and_not_taken_for_a_new_one() {
    let mut machine = Machine::new("plane-0", "ControlPlane");
    let program = machine.start("run").serving();
    init::init(&machine, init::request()).await.unwrap();
    ended(program).await;
    let register = machine.register();

    machine.reboot();
    machine.write_settings(&[]);
    fs::write(machine.path("refuse-units"), "").unwrap();
    let program = machine.start("recover").serving();
    let mut client = ApiClient::new(machine.dial(&machine.recovery_address()).await);
    client.recover(message(KMS)).await.unwrap();
    while !machine.calls().contains("systemctl start") {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    program.kill();
    // The file of the first passphrase now contains the key that opens the disk.
    assert_eq!(machine.run("run").0.code(), Some(3));

    fs::remove_file(machine.path("refuse-units")).unwrap();
    let program = machine.start("recover").serving();
    let mut client = ApiClient::new(machine.dial(&machine.recovery_address()).await);
    client.recover(message(KMS)).await.unwrap();
    ended(program).await;
    assert_eq!(machine.register(), register);
}
