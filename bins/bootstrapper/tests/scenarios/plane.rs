//! Control planes that are not listed: an admin signed for them.

use std::fs;
use std::time::Duration;

use bootstrapper::instance::node::Attestation;
use tec_core::port::Clock as _;
use tec_node::derive::ClusterId;
use tec_node::plane::{AdminKey, PlaneTicket};
use tec_node::rpc::Reason;
use tec_node::rpc::generated::join::IssueJoinTicketRequest;
use tec_node::ticket::PkiFile;
use tec_support::{SystemClock, SystemEntropy};
use tonic::Status;

use crate::cluster::{ANYTHING, Cluster, ticket_file};
use crate::endorse::{ask, connect, prove};
use crate::recover::ended;
use crate::stage::Machine;

const HOUR: i64 = 3600;

/// Admits these nodes, and tickets signed by this admin.
fn taking(admin: &AdminKey, nodes: &[&Machine]) -> String {
    let keys: Vec<String> = nodes.iter().map(|node| format!("'{}'", node.ak)).collect();
    let signer = admin.fingerprint().unwrap();
    format!(
        "control_plane_signers = ['{signer}']\n[nodes]\n{ANYTHING}attestation_keys = [{}]\n",
        keys.join(", ")
    )
}

fn request(ticket: &str) -> IssueJoinTicketRequest {
    IssueJoinTicketRequest {
        is_control_plane: true,
        control_plane_ticket: ticket.to_owned(),
        ..IssueJoinTicketRequest::default()
    }
}

fn assert_refused(answer: Result<(), Status>, why: &str) {
    let status = answer.unwrap_err();
    assert_eq!(Reason::of(&status), Some(Reason::ControlPlaneTicket), "{status}");
    assert!(status.message().starts_with("TEC-B408: "), "{status}");
    assert!(status.message().contains(why), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_a_control_plane_by_a_ticket_that_an_admin_signed_for_it_and_nobody_else_is() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let machine = Machine::new("node-1", "ControlPlane");
    let other = Machine::new("node-2", "ControlPlane");
    let admin = AdminKey::generate(&SystemEntropy);
    let cluster = Cluster::taking(&plane, &taking(&admin, &[&machine, &other]), &[]).await;
    let until = SystemClock.now().plus_seconds(HOUR);
    let ticket = PlaneTicket { cluster: cluster.id, node: machine.ak, until };
    let text = ticket.sign(&admin).unwrap();

    let intruder = other.attestation();
    let channel = connect(&cluster, &intruder).await;
    let unlisted = ask(&channel, request("")).await.unwrap_err();
    assert_eq!(Reason::of(&unlisted), Some(Reason::NotAdmitted));
    // It may be for its endorsement key, until it proves a different one.
    let replayed = ask(&channel, request(&text)).await.unwrap_err();
    assert_eq!(Reason::of(&replayed), Some(Reason::NeedsEndorsementKey));
    for (wrong, why) in [
        (PlaneTicket { until: SystemClock.now().plus_seconds(-1), ..ticket }, "it expired"),
        (PlaneTicket { cluster: ClusterId::new([9; 32]), ..ticket }, "another cluster"),
    ] {
        let wrong = PlaneTicket { node: other.ak, ..wrong };
        assert_refused(ask(&channel, request(&wrong.sign(&admin).unwrap())).await, why);
    }
    let stranger = AdminKey::generate(&SystemEntropy);
    let forged = PlaneTicket { node: other.ak, ..ticket }.sign(&stranger).unwrap();
    assert_refused(ask(&channel, request(&forged)).await, "is not in control_plane_signers");

    fs::write(machine.path("plane-ticket"), &text).unwrap();
    machine.write_metadata("node-1", "ControlPlane", &["127.0.0.1"]);
    machine.write_settings_with(&[cluster.ak], cluster.port);
    let path = machine.path("plane-ticket");
    machine.add_setting(&format!("control_plane_ticket = '{}'", path.display()));
    let ended = tokio::time::timeout(Duration::from_mins(2), ended(machine.start("run"))).await;
    ended.unwrap();
    assert!(PkiFile::ALL.into_iter().all(|file| ticket_file(&machine, file).exists()));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ticket_or_a_list_may_name_the_endorsement_key_that_a_node_proves() {
    let plane = Machine::new("plane-0", "ControlPlane");
    let (machine, other) = (Machine::new("node-1", "Worker"), Machine::new("node-2", "Worker"));
    let (attestation, intruder) = (machine.attestation(), other.attestation());
    let [ek, another] = [
        attestation.endorser.offer().await.unwrap().ek.public.fingerprint(),
        intruder.endorser.offer().await.unwrap().ek.public.fingerprint(),
    ];
    let admin = AdminKey::generate(&SystemEntropy);
    let signer = admin.fingerprint().unwrap();
    let settings = format!(
        "control_plane_signers = ['{signer}']\n[nodes]\n{ANYTHING}endorsement_keys = ['{ek}', '{another}']\n"
    );
    let cluster = Cluster::taking(&plane, &settings, &[]).await;
    let until = SystemClock.now().plus_seconds(HOUR);
    let text = PlaneTicket { cluster: cluster.id, node: ek, until }.sign(&admin).unwrap();
    let with_proof = async |attestation: &Attestation, text: &str| {
        let channel = connect(&cluster, attestation).await;
        let proof = prove(&channel, attestation).await;
        ask(&channel, IssueJoinTicketRequest { endorsement: Some(proof), ..request(text) }).await
    };
    let unlisted = with_proof(&intruder, "").await.unwrap_err();
    assert_eq!(Reason::of(&unlisted), Some(Reason::NotAdmitted));
    assert_refused(with_proof(&intruder, &text).await, "for another node");
    with_proof(&attestation, &text).await.unwrap();
    // A member needs no ticket to get its own again.
    with_proof(&attestation, "").await.unwrap();
    cluster.stop().await;
    let cluster = Cluster::taking(&plane, &settings, &[another]).await;
    let channel = connect(&cluster, &intruder).await;
    let proof = prove(&channel, &intruder).await;
    let listed = IssueJoinTicketRequest { endorsement: Some(proof), ..request("") };
    ask(&channel, listed).await.unwrap();
    cluster.stop().await;
}
