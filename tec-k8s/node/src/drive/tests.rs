mod crash;
mod race;

use std::sync::Arc;

use async_trait::async_trait;
use tec_core::digest::Sha256Digest;
use tec_core::secret::SecretArray;

use super::*;
use crate::derive::{ClusterId, MeasurementSalt};
use crate::init::{InitOutcome, InitRequest, InitStep, KubeProxy};
use crate::join::JoinOutcome;
use crate::lock::NodeLock;
use crate::port::{DerivedKeys, KeyServices as _, KeyUris, TicketSource};
use crate::recover::RecoverOutcome;
use crate::state::Role;
use crate::testing::MemoryNode;
use crate::ticket::{CaPin, JoinTicket};
use crate::uri::{KmsUri, StorageUri};

/// Master key 40..5f, salt 60..7f (Constellation).
const KMS: &str = "kms://cluster-kms?key=QEFCQ0RFRkdISUpLTE1OT1BRUlNUVVZXWFlaW1xdXl8=\
                   &salt=YGFiY2RlZmdoaWprbG1ub3BxcnN0dXZ3eHl6e3x9fn8=";

fn node() -> Arc<MemoryNode> {
    let disk = "00000000-0000-0000-0000-0000000000AA".parse().unwrap();
    Arc::new(MemoryNode::new(disk))
}

fn request(name: &str) -> InitRequest {
    InitRequest {
        digest: Sha256Digest::of(name),
        kubernetes_version: "v1.34.3".to_owned(),
        components: Vec::new(),
        proxy: KubeProxy::Replaced,
    }
}

async fn keys() -> Box<dyn DataKeys> {
    let (kms, storage) = (KmsUri::parse(KMS), StorageUri::parse("storage://no-store"));
    DerivedKeys.open(kms.unwrap(), storage.unwrap()).await.unwrap()
}

fn uris() -> KeyUris {
    let text = |text: &str| SecretBytes::new(text.as_bytes().to_vec());
    KeyUris { kms: text(KMS), storage: text("storage://no-store") }
}

/// The ports of a node.
fn ports<'p>(node: &'p Arc<MemoryNode>, lock: &'p NodeLock, uris: &'p KeyUris) -> InitPorts<'p> {
    InitPorts { lock, disk: &**node, store: &**node, cluster: &**node, uris, pause: &**node }
}

async fn init(node: &Arc<MemoryNode>, lock: &NodeLock, request: &InitRequest) -> InitReport {
    drive_init(ports(node, lock, &uris()), &*keys().await, request).await
}

fn lock(node: &Arc<MemoryNode>) -> NodeLock {
    NodeLock::new(Arc::clone(node) as Arc<_>)
}

/// Tickets of one cluster.
#[derive(Debug)]
struct Tickets(Role);

#[async_trait]
impl TicketSource for Tickets {
    async fn fetch(&self) -> Result<JoinTicket, tec_core::port::PortError> {
        let files = crate::ticket::PkiFile::ALL.into_iter();
        let files = files.filter(|_| self.0 == Role::ControlPlane);
        Ok(JoinTicket {
            state_disk_key: SecretArray::new([1; 32]),
            measurement_salt: MeasurementSalt::new([2; 32]),
            measurement_secret: MeasurementSecret::new([3; 32]),
            kubelet_certificate: String::new(),
            api_server: "10.0.0.1:6443".to_owned(),
            ca_pin: CaPin::new(Sha256Digest::of("ca")),
            files: files.map(|file| (file, SecretBytes::new(vec![]))).collect(),
            components: Vec::new(),
            kubernetes_version: "v1.34.3".to_owned(),
        })
    }
}

async fn join(node: &Arc<MemoryNode>, lock: &NodeLock, role: Role) -> Option<JoinOutcome> {
    let ports = JoinPorts {
        lock,
        disk: &**node,
        store: &**node,
        tickets: &Tickets(role),
        cluster: &**node,
        pause: &**node,
    };
    drive_join(ports, &"node-1".parse().unwrap(), role).await
}

#[tokio::test]
async fn a_check_tells_the_cluster_that_would_be_and_changes_nothing() {
    let (node, request) = (node(), request("request"));
    let lock = lock(&node);
    let uris = uris();
    let ports = ports(&node, &lock, &uris);
    let checked = check_init(ports, &*keys().await, &request).await.outcome;
    let Some(InitOutcome::Possible(cluster)) = checked else {
        panic!("{checked:?}");
    };
    assert_eq!(node.record(), crate::testing::NodeRecord::default());
    let made = init(&node, &lock, &request).await.outcome;
    assert_eq!(made, Some(InitOutcome::Initialized(cluster)));
    let checked = check_init(ports, &*keys().await, &request).await.outcome;
    assert_eq!(checked, made, "a cluster that is there is told as such");
}

#[tokio::test]
async fn another_init_is_told_that_the_node_is_taken() {
    let node = node();
    let lock = lock(&node);
    let first = init(&node, &lock, &request("first")).await.outcome;
    assert!(matches!(first, Some(InitOutcome::Initialized(_))));
    let second = init(&node, &lock, &request("second")).await.outcome;
    assert_eq!(second, Some(InitOutcome::AlreadyActivated));
    // The first caller, who lost the answer, gets it again.
    assert_eq!(init(&node, &lock, &request("first")).await.outcome, first);
    assert_eq!(node.record().initialized, 1);
}

#[tokio::test]
async fn what_cannot_be_prepared_leaves_the_node_untouched() {
    for (kind, refused) in [(PortErrorKind::Invalid, true), (PortErrorKind::Unavailable, false)] {
        let disk = "00000000-0000-0000-0000-0000000000aa".parse().unwrap();
        let node = Arc::new(MemoryNode::new(disk).refusing(kind));
        let outcome = init(&node, &lock(&node), &request("request")).await.outcome;
        let expected = if refused {
            InitOutcome::Refused(InitStep::Prepare)
        } else {
            InitOutcome::Retry(InitStep::Prepare)
        };
        assert_eq!(outcome, Some(expected));
        assert_eq!(node.record(), crate::testing::NodeRecord::default());
    }
}

#[tokio::test]
async fn a_member_is_left_alone_by_both() {
    let node = node();
    join(&node, &lock(&node), Role::Worker).await;
    let before = node.record();
    // Another process of the same boot.
    let lock = lock(&node);
    let joined = join(&node, &lock, Role::Worker).await;
    assert_eq!(joined, Some(JoinOutcome::AlreadyMember));
    let initialized = init(&node, &lock, &request("request")).await.outcome;
    assert_eq!(initialized, Some(InitOutcome::AlreadyActivated));
    assert_eq!(node.record(), before);
}

#[tokio::test]
async fn services_that_are_not_built_in_are_refused() {
    let kms = KmsUri::parse("kms://trustee?url=https%3A%2F%2Fkbs&path=a%2Fb%2Fc").unwrap();
    let error = DerivedKeys.open(kms, StorageUri::NoStore).await.unwrap_err();
    assert_eq!(error.kind(), PortErrorKind::Invalid);
}

#[tokio::test]
async fn keys_that_do_not_open_the_disk_change_nothing_and_the_right_ones_do() {
    let node = node();
    let joined = join(&node, &lock(&node), Role::Worker).await;
    let Some(JoinOutcome::Joined(cluster)) = joined else {
        panic!("{joined:?}");
    };
    node.reboot();
    let lock = lock(&node);
    let ports =
        RecoverPorts { lock: &lock, disk: &*node, mapped: &*node, store: &*node, pause: &*node };
    let mut keys = OfferedKeys {
        state_disk_key: SecretBytes::new(vec![9; 32]),
        measurement_secret: MeasurementSecret::new([3; 32]),
    };
    let refused = drive_recover(ports, &keys).await;
    assert_eq!((refused, node.record().register), (None, Sha256Digest::ZERO));
    keys.state_disk_key = SecretBytes::new(vec![1; 32]);
    for _ in 0..2 {
        let recovered = drive_recover(ports, &keys).await;
        assert_eq!(recovered, Some(RecoverOutcome::Recovered(cluster)));
        assert_eq!(node.record().register, cluster.marker());
    }
}

#[tokio::test]
async fn a_right_key_with_a_wrong_secret_does_not_mark_the_node_for_another_cluster() {
    let node = node();
    join(&node, &lock(&node), Role::Worker).await;
    node.reboot();
    let lock = lock(&node);
    let ports =
        RecoverPorts { lock: &lock, disk: &*node, mapped: &*node, store: &*node, pause: &*node };
    let keys = OfferedKeys {
        state_disk_key: SecretBytes::new(vec![1; 32]),
        measurement_secret: MeasurementSecret::new([9; 32]),
    };
    let refused = drive_recover(ports, &keys).await;
    assert_eq!(refused, Some(RecoverOutcome::OtherCluster));
    assert_eq!(node.record().register, Sha256Digest::ZERO);
}

#[tokio::test]
async fn a_disk_that_no_known_key_opens_is_found_before_the_lock() {
    let node = node();
    // Another cluster took the disk in an earlier boot.
    join(&node, &lock(&node), Role::Worker).await;
    node.reboot();
    let before = node.record();
    let outcome = init(&node, &lock(&node), &request("request")).await.outcome;
    assert_eq!(outcome, Some(InitOutcome::Retry(InitStep::Prepare)));
    assert_eq!(node.record(), before);
}

/// Gives back someone else's reservation at the first wait.
#[derive(Debug)]
struct GivesBack<'l>(&'l NodeLock);

#[async_trait]
impl crate::port::Pause for GivesBack<'_> {
    fn failed(&self, _step: &dyn std::fmt::Debug, _error: &tec_core::port::PortError) {}

    async fn pause(&self, _doublings: u32) {
        self.0.release();
    }
}

#[tokio::test]
async fn a_join_waits_for_a_journal_that_an_init_may_give_back() {
    let node = node();
    let lock = lock(&node);
    assert!(lock.reserve(ClusterId::new([9; 32])));
    let ports = JoinPorts {
        lock: &lock,
        disk: &*node,
        store: &*node,
        tickets: &Tickets(Role::Worker),
        cluster: &*node,
        pause: &GivesBack(&lock),
    };
    let joined = drive_join(ports, &"node-1".parse().unwrap(), Role::Worker).await;
    assert!(matches!(joined, Some(JoinOutcome::Joined(_))), "{joined:?}");
}

/// Tickets of which the second is refused: another control plane is joining.
#[derive(Debug)]
struct Busy {
    role: Role,
    asked: std::sync::atomic::AtomicUsize,
    joined: Arc<MemoryNode>,
}

#[async_trait]
impl TicketSource for Busy {
    async fn fetch(&self) -> Result<JoinTicket, tec_core::port::PortError> {
        let before = self.asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        if before == 1 {
            assert_eq!(self.joined.record().joined, 0);
            let busy =
                tec_core::port::PortError::new(PortErrorKind::Unavailable, "ask for a ticket");
            return Err(busy);
        }
        Tickets(self.role).fetch().await
    }
}

#[tokio::test]
async fn a_control_plane_without_the_turn_waits_instead_of_joining_by_an_old_ticket() {
    for (role, asked) in [(Role::ControlPlane, 3), (Role::Worker, 1)] {
        let node = node();
        let lock = lock(&node);
        let tickets = Busy {
            role,
            asked: std::sync::atomic::AtomicUsize::default(),
            joined: Arc::clone(&node),
        };
        let ports = JoinPorts {
            lock: &lock,
            disk: &*node,
            store: &*node,
            tickets: &tickets,
            cluster: &*node,
            pause: &*node,
        };
        let joined = drive_join(ports, &"node-1".parse().unwrap(), role).await;
        assert!(matches!(joined, Some(JoinOutcome::Joined(_))), "{joined:?}");
        assert_eq!(tickets.asked.into_inner(), asked, "{role}");
        let record = node.record();
        assert_eq!(record.joined, 1);
        assert_eq!(record.state.unwrap().role, role);
    }
}
