use parking_lot::Mutex;
use tec_core::luks::LuksResource;
use tec_core::rotation::{Confirmed, Forget};
use tec_core::testing::SeededEntropy;

use super::*;
use crate::disk::tests::fake::{FakeHeader, KEY, config_for};

const SERVER: &str = "https://a:1";
const NEW: [u8; 32] = [8; 32];
const NEWER: [u8; 32] = [9; 32];

/// A server with the transitions of the real ones, which loses answers on command.
#[derive(Debug)]
struct FakeBroker {
    keys: Mutex<Keys<[u8; 32]>>,
    /// Calls left until an answer is lost.
    life: Mutex<Option<u32>>,
    /// Whether an admin cancels before the next confirmation.
    cancels: Mutex<bool>,
}

fn resource(key: [u8; 32]) -> SecretBytes {
    LuksResource::of_key(&SecretArray::new(key)).into_bytes()
}

fn name(key: [u8; 32]) -> Sha256Digest {
    KeyMark::of(&resource(key)).name()
}

impl FakeBroker {
    fn pending() -> Self {
        let keys = Keys::Settled { current: KEY }.begin(NEW).unwrap();
        Self { keys: Mutex::new(keys), life: Mutex::new(None), cancels: Mutex::new(false) }
    }

    fn keys(&self) -> Keys<[u8; 32]> {
        self.keys.lock().clone()
    }

    fn begin(&self, new: [u8; 32]) {
        let begun = self.keys().begin(new).unwrap();
        *self.keys.lock() = begun;
    }

    /// As `tec key cancel`, with the dangerous flag.
    fn cancel(&self) {
        let keys = self.keys();
        let forget = match keys {
            Keys::Promoted { .. } => Forget::DangerouslyPrevious,
            _ => Forget::Pending,
        };
        *self.keys.lock() = keys.cancel(forget).unwrap_or_else(|unchanged| unchanged);
    }

    fn wire(&self) -> Kept {
        self.keys().map(|key| name(*key))
    }

    /// The answer of a call that was carried out, unless it is lost.
    fn answer<T>(&self, answer: T) -> Result<T, Failure> {
        let mut left = self.life.lock();
        if *left == Some(0) {
            return Err(Failure::Rotation("the answer was lost"));
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
        if std::mem::take(&mut *self.cancels.lock()) {
            self.cancel();
        }
        let key = [KEY, NEW, NEWER]
            .into_iter()
            .find(|key| *KeyMark::of(&resource(*key)).digest() == report.sha256)
            .unwrap();
        match self.keys().confirm(report.step, &key) {
            Confirmed::Changed(keys) => *self.keys.lock() = keys,
            Confirmed::Already => {}
            Confirmed::Unknown => return Err(Failure::NotCurrent),
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
    assert_alone(header, broker, NEW);
}

/// One key alone opens the disk, and nothing else is left.
fn assert_alone(header: &FakeHeader, broker: &FakeBroker, key: [u8; 32]) {
    assert_eq!(broker.keys(), Keys::Settled { current: key });
    for one in [KEY, NEW, NEWER] {
        assert_eq!(opens(header, one), one == key, "{one:?}");
    }
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
        *broker.life.lock() = Some(life);
        let first = run(&[&header], &broker).await;
        *broker.life.lock() = None;
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
    *broker.keys.lock() = Keys::Promoted { current: NEW, previous: KEY };
    run(&[&header], &broker).await.unwrap();
    assert_replaced(&header, &broker);
}

#[tokio::test]
async fn a_server_that_releases_another_key_than_it_names_changes_nothing() {
    let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
    let kept = Kept::Pending { current: name(KEY), pending: name(NEWER) };
    let error = fetched(&kept, &broker).await.err();
    assert!(matches!(error, Some(Failure::Rotation(_))), "{error:?}");
    assert!(opens(&header, KEY));
}

#[tokio::test]
async fn a_rotation_that_is_canceled_at_any_step_leaves_a_disk_that_opens_and_the_next_run_cleans_it()
 {
    let mut outcomes = Vec::new();
    for life in 0..100 {
        let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
        header.life.set(Some(life));
        let first = run(&[&header], &broker).await;
        broker.cancel();
        let current = *broker.keys().current();
        assert!(opens(&header, current), "after {life} calls");
        outcomes.push(run(&[&header], &broker).await.unwrap());
        assert_alone(&header, &broker, current);
        if first.is_ok() {
            for outcome in [Rotated::Cleaned, Rotated::NothingPending] {
                assert!(outcomes.contains(&outcome), "{outcomes:?}");
            }
            return;
        }
    }
    panic!("it never ended");
}

#[tokio::test]
async fn a_rotation_after_a_canceled_one_ends_with_the_newest_key_alone() {
    for life in 0..100 {
        let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
        header.life.set(Some(life));
        let first = run(&[&header], &broker).await;
        broker.cancel();
        broker.begin(NEWER);
        assert!(opens(&header, *broker.keys().current()), "after {life} calls");
        assert_eq!(run(&[&header], &broker).await.unwrap(), Rotated::Replaced);
        assert_alone(&header, &broker, NEWER);
        if first.is_ok() {
            return;
        }
    }
    panic!("it never ended");
}

#[tokio::test]
async fn a_power_cut_while_dead_slots_are_removed_leaves_a_disk_that_opens() {
    for life in 0..100 {
        let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
        *broker.cancels.lock() = true;
        let canceled = run(&[&header], &broker).await;
        assert!(matches!(canceled, Err(Failure::NotCurrent)), "{canceled:?}");
        assert!(opens(&header, KEY) && opens(&header, NEW), "the slot is left");
        header.life.set(Some(life));
        let first = run(&[&header], &broker).await;
        assert!(opens(&header, KEY), "after {life} calls");
        run(&[&header], &broker).await.unwrap();
        assert_alone(&header, &broker, KEY);
        if first.is_ok() {
            return;
        }
    }
    panic!("it never ended");
}

#[tokio::test]
async fn a_slot_that_the_released_key_does_not_replace_stays() {
    let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
    *broker.cancels.lock() = true;
    run(&[&header], &broker).await.unwrap_err();
    *broker.keys.lock() = Keys::Settled { current: NEWER };
    let before = header.tokens().unwrap();
    assert_eq!(run(&[&header], &broker).await.unwrap(), Rotated::NothingPending);
    assert_eq!(header.tokens().unwrap(), before);
}

#[tokio::test]
async fn a_token_that_was_added_after_the_server_was_asked_is_not_dead() {
    let (header, broker) = (FakeHeader::bound_to(SERVER), FakeBroker::pending());
    let mut disk = Disk::look(&header).unwrap();
    *broker.cancels.lock() = true;
    run(&[&header], &broker).await.unwrap_err();
    let pair = fetched(&broker.wire(), &broker).await.unwrap();
    let config = config_for(SERVER).to_header();
    assert_eq!(dead_tokens(&disk, &config, &pair).unwrap(), []);
    disk = Disk::look(&header).unwrap();
    assert_eq!(dead_tokens(&disk, &config, &pair).unwrap().len(), 1);
    let elsewhere = config_for("https://b:1").to_header();
    assert_eq!(dead_tokens(&disk, &elsewhere, &pair).unwrap(), []);
}

#[test]
fn a_disk_at_two_servers_is_not_rotated() {
    let (one, other) = (FakeHeader::bound_to(SERVER), FakeHeader::bound_to("https://b:1"));
    let error = common_config(&[&one, &other]).unwrap_err();
    assert!(matches!(error, Failure::Rotation(_)), "{error:?}");
    assert!(common_config(&[&one]).unwrap().is_some());
}
