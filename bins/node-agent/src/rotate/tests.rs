use std::sync::{Mutex, PoisonError};

use tec_core::luks::LuksResource;
use tec_core::rotation::Confirmed;
use tec_core::testing::SeededEntropy;

use super::*;
use crate::disk::fake::{FakeHeader, KEY, config_for};

const SERVER: &str = "https://a:1";
const NEW: [u8; 32] = [8; 32];

/// A server with the transitions of the real ones, which loses answers on command.
#[derive(Debug)]
struct FakeBroker {
    keys: Mutex<Keys<[u8; 32]>>,
    /// Calls left until an answer is lost.
    life: Mutex<Option<u32>>,
}

fn resource(key: [u8; 32]) -> SecretBytes {
    LuksResource::of_key(&SecretArray::new(key)).into_bytes()
}

fn digest(key: [u8; 32]) -> tec_core::digest::Sha256Digest {
    *KeyMark::of(&resource(key)).digest()
}

impl FakeBroker {
    fn pending() -> Self {
        let keys = Keys::Settled { current: KEY }.begin(NEW).unwrap();
        Self { keys: Mutex::new(keys), life: Mutex::new(None) }
    }

    fn keys(&self) -> Keys<[u8; 32]> {
        self.keys.lock().unwrap().clone()
    }

    fn wire(&self) -> Kept {
        match self.keys() {
            Keys::Settled { current } => Kept::Settled { current: digest(current) },
            Keys::Pending { current, pending } => {
                Kept::Pending { current: digest(current), pending: digest(pending) }
            }
            Keys::Promoted { current, previous } => {
                Kept::Promoted { current: digest(current), previous: digest(previous) }
            }
        }
    }

    /// The answer of a call that was carried out, unless it is lost.
    fn answer<T>(&self, answer: T) -> Result<T, Failure> {
        let mut left = self.life.lock().unwrap_or_else(PoisonError::into_inner);
        if *left == Some(0) {
            return Err(Failure::Rotation { reason: "the answer was lost" });
        }
        *left = left.map(|left| left - 1);
        Ok(answer)
    }
}

#[async_trait]
impl Broker for FakeBroker {
    async fn kept(&self) -> Result<Option<Kept>, Failure> {
        self.answer(Some(self.wire()))
    }

    async fn key(&self, which: Which) -> Result<SecretBytes, Failure> {
        let key = match (which, self.keys()) {
            (Which::Current, keys) => *keys.current(),
            (Which::Pending, Keys::Pending { pending: key, .. })
            | (Which::Previous, Keys::Promoted { previous: key, .. }) => key,
            other => panic!("there is no such key: {other:?}"),
        };
        self.answer(resource(key))
    }

    async fn confirm(&self, report: &Report) -> Result<Kept, Failure> {
        let key = if report.sha256 == digest(NEW) { NEW } else { KEY };
        let confirmed = self.keys().confirm(report.step.into(), &key);
        if let Confirmed::Changed(keys) = confirmed {
            *self.keys.lock().unwrap() = keys;
        }
        self.answer(self.wire())
    }
}

fn opens(header: &FakeHeader, key: [u8; 32]) -> bool {
    header.life.set(None);
    opening(header, &SecretArray::new(key)).unwrap().is_some()
}

async fn run(headers: &[&FakeHeader], broker: &FakeBroker) -> Result<Rotated, Failure> {
    let headers: Vec<&dyn Header> = headers.iter().map(|one| *one as &dyn Header).collect();
    let config = config_for(SERVER).to_header();
    follow(&headers, &config, broker, &SeededEntropy::new(5)).await
}

/// The new key alone opens the disk, and nothing unfinished is left.
fn assert_replaced(header: &FakeHeader, broker: &FakeBroker) {
    assert_eq!(broker.keys(), Keys::Settled { current: NEW });
    assert!(opens(header, NEW) && !opens(header, KEY));
    assert_eq!(header.tokens().unwrap().len(), 1);
    let view = header.recovery_now();
    assert_eq!((view.slots.len(), view.tokens.len()), (1, 0), "{view:?}");
}

#[tokio::test]
async fn the_new_key_replaces_the_old_one_in_slot_and_token() {
    let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
    assert_eq!(run(&[&header], &broker).await.unwrap(), Rotated::Replaced);
    assert_replaced(&header, &broker);
    assert_eq!(run(&[&header], &broker).await.unwrap(), Rotated::NothingPending);
}

#[tokio::test]
async fn a_power_cut_at_any_step_leaves_a_disk_that_the_released_key_opens() {
    for life in 0..100 {
        let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
        header.life.set(Some(life));
        let first = run(&[&header], &broker).await;
        assert!(opens(&header, *broker.keys().current()), "after {life} calls");
        run(&[&header], &broker).await.unwrap();
        assert_replaced(&header, &broker);
        if first.is_ok() {
            assert!(life > 10, "{life}");
            return;
        }
    }
    panic!("it never ended");
}

#[tokio::test]
async fn an_answer_that_is_lost_at_any_step_leaves_a_disk_that_the_released_key_opens() {
    for life in 0..100 {
        let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
        *broker.life.lock().unwrap() = Some(life);
        let first = run(&[&header], &broker).await;
        *broker.life.lock().unwrap() = None;
        assert!(opens(&header, *broker.keys().current()), "after {life} answers");
        run(&[&header], &broker).await.unwrap();
        assert_replaced(&header, &broker);
        if first.is_ok() {
            assert!(life >= 6, "{life}");
            return;
        }
    }
    panic!("it never ended");
}

#[tokio::test]
async fn every_disk_is_staged_before_the_server_is_told() {
    let (one, other) = (FakeHeader::bound_to(SERVER), FakeHeader::bound_to(SERVER));
    let broker = FakeBroker::pending();
    other.life.set(Some(4));
    run(&[&one, &other], &broker).await.unwrap_err();
    assert_eq!(broker.keys(), Keys::Pending { current: KEY, pending: NEW });
    assert!(opens(&one, KEY) && opens(&other, KEY));
    run(&[&one, &other], &broker).await.unwrap();
    assert_replaced(&one, &broker);
    assert_replaced(&other, &broker);
}

#[tokio::test]
async fn a_disk_that_was_away_is_staged_before_the_old_key_is_forgotten() {
    let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
    *broker.keys.lock().unwrap() = Keys::Promoted { current: NEW, previous: KEY };
    run(&[&header], &broker).await.unwrap();
    assert_replaced(&header, &broker);
}

#[tokio::test]
async fn a_server_that_releases_another_key_than_it_names_changes_nothing() {
    let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
    let kept = Kept::Pending { current: digest(KEY), pending: digest([9; 32]) };
    assert!(matches!(fetched(&kept, &broker).await, Err(Failure::Rotation { .. })));
    assert!(opens(&header, KEY));
}

#[test]
fn a_disk_at_two_servers_is_not_rotated() {
    let (one, other) = (FakeHeader::bound_to(SERVER), FakeHeader::bound_to("https://b:1"));
    let error = common_config(&[&one, &other]).unwrap_err();
    assert!(matches!(error, Failure::Rotation { .. }), "{error:?}");
    assert!(common_config(&[&one]).unwrap().is_some());
}
