//! The services, called without a transport.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use crate::derive::{ClusterId, MeasurementSalt};
use crate::grant::{Claim, ControlPlanes};
use crate::init as node_init;
use crate::lock::{LockedNode, MarkerState, NodeLock};
use crate::port::{ClusterInitializer, DataKeys, DerivedKeys, KeyServices, KeyUris};
use crate::state::Role;
use crate::testing::{MemoryNode, NodeRecord};
use crate::ticket::{CaPin, Component, NodeName, PkiFile};
use crate::uri::{KmsUri, ListedPlaces, StorageUri};
use async_trait::async_trait;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::digest::Sha256Digest;
use tec_core::port::{CreateOutcome, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::testing::sample;
use tokio::sync::mpsc;
use tonic::{Code, Request, Status};

use super::generated::init::init_progress::Item;
use super::generated::init::{InitProgress, InitRequest, InitResponse, KubernetesComponent};
use super::generated::join::api_server::Api as _;
use super::generated::join::{IssueJoinTicketRequest, IssueRejoinTicketRequest};
use super::generated::recoverproto::RecoverMessage;
use super::generated::recoverproto::api_server::Api as _;
use super::*;

/// Master key 40..5f, salt 60..7f (Constellation).
const KMS: &str = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                   &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";
const DISK: &str = "00000000-0000-0000-0000-0000000000AA";

#[derive(Debug)]
struct Known(&'static [u8]);

#[async_trait]
impl SecretCheck for Known {
    async fn admits(&self, secret: &SecretBytes) -> bool {
        secret.ct_eq(&SecretBytes::new(self.0.to_vec()))
    }
}

/// Messages have no `Debug`, since they carry secrets.
fn refusal_of<T>(answer: Result<T, Status>) -> Status {
    answer.err().unwrap()
}

fn node() -> Arc<MemoryNode> {
    Arc::new(MemoryNode::new(DISK.parse().unwrap()))
}

fn init_service(node: &Arc<MemoryNode>) -> InitService {
    InitService::new(InitServicePorts {
        secret: Arc::new(Known(b"init secret")),
        lock: Arc::new(NodeLock::new(Arc::clone(node) as Arc<_>)),
        keys: Arc::new(DerivedKeys),
        disk: Arc::clone(node) as Arc<_>,
        store: Arc::clone(node) as Arc<_>,
        cluster: Arc::clone(node) as Arc<_>,
        pause: Arc::clone(node) as Arc<_>,
    })
}

fn init_request() -> InitRequest {
    InitRequest {
        kms_uri: KMS.to_owned(),
        storage_uri: "storage://no-store".to_owned(),
        kubernetes_version: "v1.34.3".to_owned(),
        init_secret: b"init secret".to_vec(),
        ..InitRequest::default()
    }
}

async fn call(
    service: &InitService,
    request: InitRequest,
    watcher: &Watcher,
) -> Result<InitResponse, Status> {
    let admitted = service.admit(request).await?;
    service.carry_out(admitted, watcher).await
}

async fn init(service: &InitService, request: InitRequest) -> Result<InitResponse, Status> {
    call(service, request, &Watcher::nobody()).await
}

/// Makes a request invalid.
type Change<'a> = &'a dyn Fn(&mut InitRequest);

#[tokio::test]
async fn bad_requests_leave_the_node_untouched_and_the_service_up() {
    let node = node();
    let service = init_service(&node);
    let denied = Code::PermissionDenied;
    let invalid = Code::InvalidArgument;
    let cases: [(Change<'_>, Code); 12] = [
        (&|r| r.init_secret = b"canary".to_vec(), denied),
        // A caller that may not init is told nothing about the rest.
        (&|r| (r.init_secret, r.kms_uri) = (vec![], "canary".to_owned()), denied),
        (&|r| r.kms_uri = "canary".to_owned(), invalid),
        (&|r| r.kms_uri = "storage://no-store".to_owned(), invalid),
        (&|r| r.kms_uri = "kms://cluster-kms?key=canary".to_owned(), invalid),
        (&|r| r.kms_uri = "kms://trustee?url=canary&path=canary".to_owned(), invalid),
        (&|r| r.storage_uri = "storage://canary".to_owned(), invalid),
        // kubeadm would look these up on the network.
        (&|r| r.kubernetes_version = String::new(), invalid),
        (&|r| r.kubernetes_version = "v1.34".to_owned(), invalid),
        (&|r| r.kubernetes_version = "stable-1".to_owned(), invalid),
        (&|r| (r.kms_uri, r.master_secret) = (String::new(), b"canary".to_vec()), invalid),
        (&|r| r.kubernetes_components = vec![KubernetesComponent::default()], invalid),
    ];
    for (change, code) in cases {
        let mut request = init_request();
        change(&mut request);
        let refused = refusal_of(init(&service, request).await);
        assert_eq!(refused.code(), code, "{refused:?}");
        assert!(Reason::of(&refused).is_some(), "{refused:?}");
        assert!(!format!("{refused:?}").contains("canary"), "{refused:?}");
        assert_eq!(node.record(), NodeRecord::default());
    }
    init(&service, init_request()).await.unwrap();
}

#[tokio::test]
async fn a_master_secret_outside_of_the_uri_is_refused_unless_the_uri_has_a_key() {
    // What such clients know about URIs (Constellation).
    for (kms, storage) in [("", ""), ("kms://cluster-kms?salt=", "storage://no-store")] {
        let node = node();
        let mut request = init_request();
        (request.kms_uri, request.storage_uri) = (kms.to_owned(), storage.to_owned());
        (request.master_secret, request.salt) = (vec![9; 32], vec![9; 32]);
        let refused = refusal_of(init(&init_service(&node), request).await);
        assert_eq!(Reason::of(&refused), Some(Reason::MasterSecret));
        assert_eq!(node.record(), NodeRecord::default());
    }
    // A URI that has a key wins, whatever accompanies it.
    let node = node();
    let mut request = init_request();
    request.master_secret = vec![9; 32];
    init(&init_service(&node), request).await.unwrap();
}

/// What the node logged.
fn log() -> Vec<u8> {
    vec![b'l'; 2500]
}

/// The items that a caller receives during an init, in words; pieces of the log by their size.
async fn watched(service: &InitService, request: InitRequest) -> Vec<String> {
    let (watcher, progress) = Watcher::new();
    let answer = call(service, request, &watcher).await;
    watcher.end(answer).await;
    drop(watcher);
    let items: Vec<_> = futures::StreamExt::collect(progress).await;
    let word = |item: Result<InitProgress, Status>| match item.map(|one| one.item) {
        Ok(Some(Item::Success(answer))) => format!("success {}", answer.kubeconfig.len()),
        Ok(Some(Item::Failure(failure))) => format!("failure {}", failure.reason),
        Ok(Some(Item::Log(piece))) => format!("log {}", piece.len()),
        Ok(Some(Item::Began(step))) => step,
        Ok(Some(Item::Failed(error))) => format!("failed: {error}"),
        Ok(None) => "nothing".to_owned(),
        Err(status) => format!("{:?} {}", status.code(), Reason::of(&status).unwrap()),
    };
    items.into_iter().map(word).collect()
}

#[tokio::test]
async fn whoever_may_init_hears_of_every_step_and_gets_the_log_of_a_failure() {
    let node = node();
    let service = init_service(&node).with_log(log);
    let told = watched(&service, init_request()).await;
    let steps = "read-journal read-marker prepare write-intent lock write-state re-key-disk \
                 init-cluster write-done";
    assert_eq!(told.join(" "), format!("{steps} success 10"));

    let refusing = MemoryNode::new(DISK.parse().unwrap()).refusing(PortErrorKind::Unavailable);
    let service = init_service(&Arc::new(refusing)).with_log(log);
    let told = watched(&service, init_request()).await;
    let steps = ["read-journal", "read-marker", "prepare", "failed: prepare"];
    let end = ["failure not-prepared", "log 1024", "log 1024", "log 452"];
    assert_eq!(told, [&steps[..], &end, &["Unavailable not-prepared"]].concat());

    let mut stranger = init_request();
    stranger.init_secret = b"guess".to_vec();
    let told = watched(&service, stranger).await;
    assert_eq!(told, ["PermissionDenied init-secret"]);
}

#[derive(Debug)]
struct Enrolled(Mutex<Vec<Claim>>, Settled);

#[async_trait]
impl Enrollments for Enrolled {
    async fn list(&self) -> Result<Vec<Claim>, PortError> {
        Ok(self.0.lock().unwrap().clone())
    }

    async fn add(&self, claim: &Claim) -> Result<CreateOutcome, PortError> {
        self.0.lock().unwrap().push(claim.clone());
        Ok(CreateOutcome::Created)
    }

    async fn was_removed(&self, _name: &NodeName) -> Result<bool, PortError> {
        Ok(false)
    }

    async fn readdress(&self, _claim: &Claim) -> Result<(), PortError> {
        Ok(())
    }

    async fn settle(
        &self,
        claim: &Claim,
        key: &PublicKey,
        _ek: Option<Fingerprint>,
    ) -> Result<Settled, PortError> {
        assert_eq!(claim.ak, key.fingerprint());
        Ok(self.1)
    }

    async fn is_in_service(&self, claim: &Claim) -> Result<bool, PortError> {
        Ok(self.list().await?.contains(claim))
    }
}

/// Requests are just names here.
#[derive(Clone, Debug, Default)]
struct Cluster {
    nodes: Arc<Mutex<Vec<(&'static str, NodeStanding)>>>,
}

#[async_trait]
impl KubeletSigner for Cluster {
    fn named(&self, csr: &[u8]) -> Result<(NodeName, BTreeSet<IpAddr>), PortError> {
        std::str::from_utf8(csr)
            .ok()
            .and_then(|name| Some((name.parse().ok()?, BTreeSet::new())))
            .ok_or_else(|| PortError::new(PortErrorKind::Invalid, "read a request"))
    }

    async fn sign(&self, _csr: &[u8]) -> Result<String, PortError> {
        Ok("certificate".to_owned())
    }
}

#[async_trait]
impl ClusterFacts for Cluster {
    async fn node(&self, name: &NodeName) -> Result<NodeStanding, PortError> {
        let nodes = self.nodes.lock().unwrap();
        let found = nodes.iter().rev().find(|(one, _)| *one == name.as_str());
        Ok(found.map_or(NodeStanding::Absent, |(_, standing)| *standing))
    }

    async fn api_server(&self) -> Result<String, PortError> {
        Ok("10.0.0.1:6443".to_owned())
    }

    async fn ca_pin(&self) -> Result<CaPin, PortError> {
        Ok(CaPin::new(Sha256Digest::of("ca")))
    }

    async fn components(&self) -> Result<(String, Vec<Component>), PortError> {
        Ok(("v1.34.3".to_owned(), Vec::new()))
    }

    async fn files(&self, role: Role) -> Result<Vec<(PkiFile, SecretBytes)>, PortError> {
        let file = |file: PkiFile| (file, SecretBytes::new(file.as_str().into()));
        let is_due = |file: &PkiFile| role == Role::ControlPlane || *file == PkiFile::CA;
        Ok(PkiFile::ALL.into_iter().filter(is_due).map(file).collect())
    }
}

/// The first node has the turn until the test gives it to the next.
#[derive(Debug, Default)]
struct Turns(Mutex<Option<NodeName>>);

#[async_trait]
impl ControlPlaneTurns for Turns {
    async fn take(&self, node: &NodeName) -> Result<(), PortError> {
        let mut holder = self.0.lock().unwrap();
        match &*holder {
            Some(other) if other != node => {
                Err(PortError::new(PortErrorKind::Unavailable, "take the turn"))
            }
            _ => {
                *holder = Some(node.clone());
                Ok(())
            }
        }
    }
}

fn key(number: u64) -> Fingerprint {
    sample::public_key(number).fingerprint()
}

async fn join_service() -> JoinService {
    let cluster = Cluster::default();
    cluster.nodes.lock().unwrap().push(("by-hand", NodeStanding::Registered));
    join_service_of(cluster).await
}

async fn join_service_of(cluster: Cluster) -> JoinService {
    settled_join_service(cluster, Settled::Bound).await
}

async fn settled_join_service(cluster: Cluster, settled: Settled) -> JoinService {
    let kms = KmsUri::parse(KMS).unwrap();
    let keys = DerivedKeys.open(kms, StorageUri::NoStore).await.unwrap();
    JoinService::new(JoinServicePorts {
        keys: keys.into(),
        salt: MeasurementSalt::new([2; 32]),
        enrollments: Arc::new(Enrolled(Mutex::default(), settled)),
        control_planes: ControlPlanes::Listed([key(1), key(3)].into()),
        turns: Arc::new(Turns::default()),
        signer: Arc::new(cluster.clone()),
        facts: Arc::new(cluster),
    })
}

fn from<T>(caller: u64, message: T) -> Request<T> {
    marked(MarkerState::Unset, caller, message)
}

fn marked<T>(marker: MarkerState, caller: u64, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let caller = Caller::dangerous_assume(sample::public_key(caller), marker);
    request.extensions_mut().insert(caller);
    request
}

fn ticket_request(name: &str, disk: &str, is_control_plane: bool) -> IssueJoinTicketRequest {
    IssueJoinTicketRequest {
        disk_uuid: disk.to_owned(),
        certificate_request: name.into(),
        is_control_plane,
        ..IssueJoinTicketRequest::default()
    }
}

#[tokio::test]
async fn only_listed_control_planes_get_the_keys_of_the_cluster() {
    let service = join_service().await;
    let other = DISK.replace("AA", "BB");
    let request = from(1, ticket_request("c-1", DISK, true));
    let answer = service.issue_join_ticket(request).await.unwrap();
    let ticket = convert::ticket(answer.into_inner()).unwrap();
    assert_eq!(ticket.files.len(), PkiFile::ALL.len());
    assert_eq!(ticket.kubernetes_version, "v1.34.3");

    let request = from(2, ticket_request("c-2", &other, true));
    let refused = refusal_of(service.issue_join_ticket(request).await);
    assert_eq!(refused.code(), Code::PermissionDenied);

    let request = from(2, ticket_request("w-1", &other, false));
    let answer = service.issue_join_ticket(request).await.unwrap();
    let files = answer.into_inner().control_plane_files;
    let names: Vec<&str> = files.iter().map(|file| &*file.name).collect();
    assert_eq!(names, [PkiFile::CA.as_str()]);
    // Its first claim counts: it is not a control plane, and has no other disk or name.
    for request in [
        ticket_request("w-1", &other, true),
        ticket_request("w-1", DISK, false),
        ticket_request("c-1", &other, false),
    ] {
        let refused = service.issue_join_ticket(from(2, request)).await;
        assert_eq!(refusal_of(refused).code(), Code::PermissionDenied);
    }
}

#[tokio::test]
async fn a_node_whose_key_is_not_approved_gets_nothing_and_its_claim_does_not_count() {
    for (settled, reason) in [
        (Settled::AwaitsApproval, Reason::AwaitsApproval),
        (Settled::NeedsEndorsementKey, Reason::NeedsEndorsementKey),
        (Settled::DiskRetired, Reason::NotAdmitted),
    ] {
        let service = settled_join_service(Cluster::default(), settled).await;
        // The second one claims the same name and disk: nothing was recorded for the first.
        for key in [2, 4] {
            let request = from(key, ticket_request("w-1", DISK, false));
            let refused = refusal_of(service.issue_join_ticket(request).await);
            assert_eq!(Reason::of(&refused), Some(reason));
            assert_eq!(refused.code(), Code::FailedPrecondition);
        }
    }
}

#[tokio::test]
async fn a_ticket_has_nothing_that_authenticates_but_the_certificate_of_its_node() {
    let service = join_service().await;
    for (key, name, is_control_plane) in [(1, "c-1", true), (2, "w-2", false)] {
        let disk = DISK.replace("AA", &format!("0{key}"));
        let request = from(key, ticket_request(name, &disk, is_control_plane));
        let ticket = service.issue_join_ticket(request).await.unwrap().into_inner();
        assert_eq!(ticket.token, "");
        assert_eq!(ticket.kubelet_cert, b"certificate");
    }
}

#[tokio::test]
async fn a_node_gets_its_ticket_again_until_its_object_exists_and_then_no_more() {
    let cluster = Cluster::default();
    let service = join_service_of(cluster.clone()).await;
    let ask = async || {
        let request = from(2, ticket_request("w-1", DISK, false));
        service.issue_join_ticket(request).await
    };
    let first = ask().await.unwrap().into_inner();
    let again = ask().await.unwrap().into_inner();
    assert_eq!(first.state_disk_key, again.state_disk_key);
    let is = |standing| cluster.nodes.lock().unwrap().push(("w-1", standing));
    for standing in [NodeStanding::Registered, NodeStanding::ControlPlane] {
        is(standing);
        let refused = refusal_of(ask().await);
        assert_eq!(refused.code(), Code::AlreadyExists);
        assert_eq!(Reason::of(&refused), Some(Reason::AlreadyMember));
    }
    // It always gets what a boot needs.
    let rejoin = IssueRejoinTicketRequest { disk_uuid: DISK.to_owned(), endorsement: None };
    let rejoined = service.issue_rejoin_ticket(from(2, rejoin)).await.unwrap();
    assert_eq!(rejoined.into_inner().state_disk_key, first.state_disk_key);
    // The admin deleted the node.
    is(NodeStanding::Absent);
    ask().await.unwrap();
}

#[tokio::test]
async fn a_control_plane_whose_kubelet_is_a_member_gets_its_turn_and_no_second_certificate() {
    let cluster = Cluster::default();
    let service = join_service_of(cluster.clone()).await;
    let ask = async || {
        let request = from(1, ticket_request("c-1", DISK, true));
        service.issue_join_ticket(request).await
    };
    assert!(!ask().await.unwrap().into_inner().kubelet_cert.is_empty());
    let is = |standing| cluster.nodes.lock().unwrap().push(("c-1", standing));
    is(NodeStanding::Registered);
    assert!(ask().await.unwrap().into_inner().kubelet_cert.is_empty());
    is(NodeStanding::ControlPlane);
    let refused = refusal_of(ask().await);
    assert_eq!(Reason::of(&refused), Some(Reason::AlreadyMember));
}

#[tokio::test]
async fn a_node_that_somebody_else_made_a_member_is_not_impersonated() {
    let service = join_service().await;
    let request = from(2, ticket_request("by-hand", DISK, false));
    let refused = refusal_of(service.issue_join_ticket(request).await);
    assert_eq!(Reason::of(&refused), Some(Reason::NameTaken));
    // Nothing is kept of the claim: the same machine may have another name.
    let request = from(2, ticket_request("w-1", DISK, false));
    service.issue_join_ticket(request).await.unwrap();
}

#[tokio::test]
async fn nobody_gets_a_ticket_over_a_connection_that_is_not_attested() {
    let service = join_service().await;
    let request = Request::new(ticket_request("w-1", DISK, false));
    let refused = refusal_of(service.issue_join_ticket(request).await);
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test]
async fn a_machine_of_another_cluster_gets_no_ticket_and_one_of_ours_goes_on() {
    let service = join_service().await;
    let first = service.issue_join_ticket(from(2, ticket_request("w-1", DISK, false)));
    let ticket = convert::ticket(first.await.unwrap().into_inner()).unwrap();
    let ours = MarkerState::Set(ticket.cluster().marker());
    let others = MarkerState::Set(ClusterId::new([9; 32]).marker());
    let ask = |marker, key| {
        let disk = DISK.replace("AA", &format!("0{key}"));
        let disk = if key == 2 { DISK } else { &disk };
        let name = format!("w-{}", key - 1);
        service.issue_join_ticket(marked(marker, key, ticket_request(&name, disk, false)))
    };
    // Its join was interrupted after the lock.
    ask(ours, 2).await.unwrap();
    for key in [2, 3] {
        let refused = refusal_of(ask(others, key).await);
        assert_eq!(refused.code(), Code::PermissionDenied);
        assert_eq!(Reason::of(&refused), Some(Reason::NotAdmitted));
    }
    // A member whose TPM generated another key.
    let refused = refusal_of(ask(ours, 3).await);
    assert_eq!(Reason::of(&refused), Some(Reason::NotAdmitted));
    // Nothing was recorded for the stranger.
    ask(MarkerState::Unset, 3).await.unwrap();

    for marker in [ours, others] {
        let request = IssueRejoinTicketRequest { disk_uuid: DISK.to_owned(), endorsement: None };
        let refused = service.issue_rejoin_ticket(marked(marker, 2, request)).await;
        assert_eq!(refusal_of(refused).code(), Code::PermissionDenied);
    }
}

#[tokio::test]
async fn a_member_gets_the_key_of_its_own_disk_again_and_no_other() {
    let service = join_service().await;
    let first = service.issue_join_ticket(from(2, ticket_request("w-1", DISK, false)));
    let first = first.await.unwrap().into_inner();
    let request =
        |disk: &str| IssueRejoinTicketRequest { disk_uuid: disk.to_owned(), endorsement: None };
    // The case of the id makes no difference.
    let again = service.issue_rejoin_ticket(from(2, request(&DISK.to_lowercase())));
    let again = again.await.unwrap().into_inner();
    assert_eq!(again.state_disk_key, first.state_disk_key);
    assert_eq!(again.measurement_secret, first.measurement_secret);
    for (caller, disk) in [(2, DISK.replace("AA", "BB")), (3, DISK.to_owned())] {
        let refused = service.issue_rejoin_ticket(from(caller, request(&disk))).await;
        assert_eq!(refusal_of(refused).code(), Code::PermissionDenied);
    }
}

/// A service that never answers; counts the callers that are asking it, and their maximum.
#[derive(Debug, Default)]
struct Silent(Mutex<(usize, usize)>);

struct Asking<'s>(&'s Silent);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().0 -= 1;
    }
}

impl Silent {
    fn asking(&self) -> Asking<'_> {
        let mut count = self.0.lock().unwrap();
        *count = (count.0 + 1, count.1.max(count.0 + 1));
        Asking(self)
    }
}

#[async_trait]
impl KeyServices for Silent {
    async fn open(
        &self,
        _kms: KmsUri,
        _storage: StorageUri,
    ) -> Result<Box<dyn DataKeys>, PortError> {
        let _asking = self.asking();
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_service_that_the_node_does_not_list_is_refused_before_anybody_is_asked() {
    let silent = Arc::new(Silent::default());
    let (recovered, _keys) = mpsc::channel(1);
    let keys = Arc::clone(&silent) as Arc<_>;
    let listed = ListedPlaces::default();
    let service = RecoverService::new(keys, listed, node(), recovered);
    for check in [true, false] {
        for kms_uri in [
            "kms://trustee?url=https://stranger&path=a/b/c",
            "kms://openbao?url=http://127.0.0.1:8200&mount=m&keyName=k&token=t",
        ] {
            let refused = service.recover(Request::new(RecoverMessage {
                kms_uri: kms_uri.to_owned(),
                storage_uri: "storage://no-store".to_owned(),
                check,
            }));
            let refused = refusal_of(refused.await);
            assert_eq!(refused.code(), Code::PermissionDenied);
            assert_eq!(Reason::of(&refused), Some(Reason::UnlistedKeyService));
        }
    }
    assert_eq!(*silent.0.lock().unwrap(), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn strangers_make_a_node_ask_few_servers_at_once_and_none_for_longer_than_a_minute() {
    let silent = Arc::new(Silent::default());
    let (recovered, _keys) = mpsc::channel(1);
    let listed = "kms://trustee?url=https%3A%2F%2Fkbs&path=a%2Fb%2Fc";
    let listed = ListedPlaces::new([listed.parse().unwrap()]);
    let keys = Arc::clone(&silent) as Arc<_>;
    let service = RecoverService::new(keys, listed, node(), recovered);
    let began = tokio::time::Instant::now();
    let calls = (0..100).map(|_| {
        service.recover(Request::new(RecoverMessage {
            kms_uri: "kms://trustee?url=https%3A%2F%2Fkbs&path=a%2Fb%2Fc".to_owned(),
            storage_uri: "storage://no-store".to_owned(),
            check: true,
        }))
    });
    for answer in futures::future::join_all(calls).await {
        let refused = refusal_of(answer);
        assert_eq!(Reason::of(&refused), Some(Reason::KeyService));
        assert_eq!(refused.code(), Code::Unavailable);
    }
    assert!(began.elapsed() <= std::time::Duration::from_secs(61));
    assert_eq!(*silent.0.lock().unwrap(), (0, 4));
}

#[tokio::test]
async fn control_planes_join_one_at_a_time_and_workers_do_not_wait() {
    let service = join_service().await;
    let ask = async |key, name: &str, disk: &str, is_control_plane| {
        let disk = DISK.replace("AA", disk);
        let request = from(key, ticket_request(name, &disk, is_control_plane));
        service.issue_join_ticket(request).await
    };
    ask(1, "c-1", "01", true).await.unwrap();
    let waits = refusal_of(ask(3, "c-3", "03", true).await);
    assert_eq!(waits.code(), Code::Unavailable);
    ask(2, "w-2", "02", false).await.unwrap();
    ask(1, "c-1", "01", true).await.unwrap();
}

/// A key service that accepts only the current token.
#[derive(Debug)]
struct Rotated(&'static [u8]);

#[async_trait]
impl KeyServices for Rotated {
    async fn open(&self, kms: KmsUri, _: StorageUri) -> Result<Box<dyn DataKeys>, PortError> {
        match kms {
            KmsUri::OpenBao(key) if key.token.expose("compare") == self.0 => {
                DerivedKeys.open(KmsUri::parse(KMS).unwrap(), StorageUri::NoStore).await
            }
            _ => Err(PortError::new(PortErrorKind::Denied, "log in")),
        }
    }
}

/// A kubeadm during which the process dies.
#[derive(Debug)]
struct Dying;

#[async_trait]
impl ClusterInitializer for Dying {
    async fn prepare(&self, _: &node_init::InitRequest) -> Result<(), PortError> {
        Ok(())
    }

    async fn keep_key_uris(&self, _: &LockedNode, _: &KeyUris) -> Result<(), PortError> {
        Ok(())
    }

    async fn init(&self, _: &LockedNode, _: &node_init::InitRequest) -> Result<(), PortError> {
        std::future::pending().await
    }

    async fn kubeconfig(&self) -> Result<SecretBytes, PortError> {
        std::future::pending().await
    }
}

#[tokio::test]
async fn an_init_whose_process_died_goes_on_with_a_new_token_and_not_with_another_key() {
    let node = node();
    let request = |token: &str, key: &str| InitRequest {
        kms_uri: format!("kms://openbao?url=https://b&mount=m&keyName={key}&token={token}"),
        ..init_request()
    };
    let service = |token: &'static [u8], cluster: Arc<dyn ClusterInitializer>| {
        InitService::new(InitServicePorts {
            secret: Arc::new(Known(b"init secret")),
            lock: Arc::new(NodeLock::new(Arc::clone(&node) as Arc<_>)),
            keys: Arc::new(Rotated(token)),
            disk: Arc::clone(&node) as Arc<_>,
            store: Arc::clone(&node) as Arc<_>,
            cluster,
            pause: Arc::clone(&node) as Arc<_>,
        })
    };
    let first = service(b"one", Arc::new(Dying));
    {
        let dying = std::pin::pin!(init(&first, request("one", "k")));
        let begun = futures::poll!(dying);
        assert!(begun.is_pending());
    }
    let register = node.record().register;
    assert_ne!(register, Sha256Digest::ZERO);
    let next = service(b"two", Arc::clone(&node) as Arc<_>);
    let refused = refusal_of(init(&next, request("two", "other")).await);
    assert_eq!(Reason::of(&refused), Some(Reason::AlreadyActivated));
    init(&next, request("two", "k")).await.unwrap();
    let record = node.record();
    assert_eq!((record.register, record.extensions), (register, 1));
}
