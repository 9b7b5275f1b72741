//! Several targets.

use async_trait::async_trait;
use tec_core::port::{PortError, PortErrorKind};
use tec_core::testing::{Faulty, MemoryBroker};

use super::*;

fn to(broker: Arc<dyn tec_core::port::KeyBroker>) -> Arc<BrokerPublisher> {
    Arc::new(BrokerPublisher::new(broker, entropy(1)))
}

#[tokio::test]
async fn a_broken_target_does_not_stop_the_others_and_is_left_alone_for_longer_each_time() {
    let clock = clock();
    let mut fanout = Fanout::new(Arc::clone(&clock) as _, entropy(1));
    let (first, second) = (Arc::new(MemoryBroker::new()), Arc::new(MemoryBroker::new()));
    let away = Faulty::crash_at(Arc::new(MemoryBroker::new()), 0, tec_core::testing::Fault::Before);
    fanout.add("in-cluster", to(Arc::clone(&first) as _));
    fanout.add("external", to(Arc::clone(&second) as _));
    fanout.add("away", to(Arc::new(away)));
    let wanted = desired([1]);

    let status = fanout.publish(&wanted).await;
    for (name, broker) in [("in-cluster", &first), ("external", &second)] {
        assert_eq!(status[name].health, Health::Healthy);
        assert_eq!((status[name].lag, status[name].revision), (0, wanted.revision()));
        assert!(broker.resource(&sample::secret_path(1)).is_some());
    }
    let away = &status["away"];
    assert_eq!(away.health, Health::Failing(PortErrorKind::Unavailable));
    assert_eq!((away.lag, away.failures), (wanted.revision(), 1));
    assert!(away.error.as_ref().unwrap().contains("fault injected"));
    assert_eq!(fanout.next_due(), Some(away.due));

    // Not due yet: skipped, while the others get the next change.
    register(&wanted, 2);
    let status = fanout.publish(&wanted).await;
    assert_eq!(status["away"].failures, 1);
    assert_eq!(status["external"].lag, 0);
    let mut waits = Vec::new();
    for _ in 0..12 {
        clock.set(fanout.next_due().unwrap());
        let begin = clock.now();
        let due = fanout.publish(&wanted).await["away"].due;
        waits.push(due.unix_seconds() - begin.unix_seconds());
    }
    assert!(waits[0] >= 1 && waits[5] > waits[0], "{waits:?}");
    assert!(waits.iter().all(|wait| *wait <= 300), "{waits:?}");
    assert!(waits[11] >= 150, "{waits:?}");
}

#[derive(Debug)]
struct Refuses;

#[async_trait]
impl Publisher for Refuses {
    async fn publish(&self, _: &Desired) -> Result<Progress, PortError> {
        Err(PortError::new(PortErrorKind::Denied, "publish"))
    }

    async fn distrust(&self) {}
}

#[tokio::test]
async fn what_needs_somebody_is_told_apart_and_targets_come_and_go() {
    let clock = clock();
    let mut fanout = Fanout::new(Arc::clone(&clock) as _, entropy(1));
    fanout.add("denied", Arc::new(Refuses));
    let wanted = desired([1]);
    let status = fanout.publish_to("denied", &wanted).await.unwrap();
    assert_eq!(status.health, Health::Broken(PortErrorKind::Denied));
    assert_eq!(fanout.publish_to("unknown", &wanted).await, None);

    let broker = Arc::new(MemoryBroker::new());
    fanout.add("denied", to(Arc::clone(&broker) as _));
    assert_eq!(fanout.publish(&wanted).await["denied"].health, Health::Healthy);
    // The pod was replaced: everything is sent again, not only what changed.
    let path = sample::secret_path(1);
    tec_core::port::KeyBroker::remove(&*broker, &path).await.unwrap();
    fanout.distrust("denied").await;
    fanout.publish(&wanted).await;
    assert!(broker.resource(&path).is_some());
    fanout.remove("denied");
    assert!(fanout.status().is_empty());
}
