//! Publishing to a key broker: the form `kbs-api`, and any other [`KeyBroker`].

mod deliver;

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use tec_core::port::{Entropy, KeyBroker, PortError, PortErrorKind};
use tokio::sync::Mutex;

use self::deliver::Stays;
use super::desired::{Desired, State};
use super::index::{Head, MAX_CHUNK};
use super::plan::{Action, Step, plan};
use super::record::Record;
use super::{Progress, Publisher, index};

/// Passes per call: the first does the work; each loss of state along the way costs one more. If a target
/// loses its state more often, this call gives up.
const PASSES: usize = 4;

/// Publishes to a [`KeyBroker`].
///
/// ```text
/// head of the index ─ known stamp? ─ no ─► notes of a kept state? ─ no ─► everything in doubt,
///        │ yes                                      │ yes                 index and epoch anew
///        ▼                                          ▼
/// plan ─► for each batch: doubts into the index ─► steps, values read back ─► fingerprints into it
///      ─► epoch still there?
/// ```
/// Nothing needs to survive a restart of the program: the notes in the target show a new publisher what is
/// there, and only the differences are sent. They cost one request per 128 items.
///
/// A Trustee may lose its state between any two calls and restart with its default policies. The epoch read
/// at the end reveals this, and the pass starts over with the policies.
#[derive(Debug)]
pub struct BrokerPublisher {
    broker: Arc<dyn KeyBroker>,
    entropy: Arc<dyn Entropy>,
    /// Held for a whole round: rounds for one target must not overlap.
    pub(super) record: Mutex<Record>,
}

impl BrokerPublisher {
    /// A publisher that knows nothing about its target yet.
    pub fn new(broker: Arc<dyn KeyBroker>, entropy: Arc<dyn Entropy>) -> Self {
        Self { broker, entropy, record: Mutex::default() }
    }

    /// Makes the next round send `count` of all items again, cycling through them from call to call: what
    /// someone else changed, or a storage lost without a trace, is repaired within one cycle.
    pub async fn refresh(&self, count: usize) {
        self.record.lock().await.doubt_next(count);
    }

    /// Makes one pass and returns whether it needs another.
    async fn pass(
        &self,
        desired: &Desired,
        record: &mut Record,
        changes: &mut usize,
    ) -> Result<Outcome, PortError> {
        let found = self.recognize(record).await?;
        let (steps, position) = desired.read(|state| {
            // To be able to withdraw it later, the record must know that it may be there.
            for item in state.kept().iter().filter(|item| !record.knows(item)).collect::<Vec<_>>() {
                record.doubt(item);
            }
            (plan(state, record), state.position())
        });
        let mut head = match found {
            Found::Ours(head) => head,
            Found::Foreign(old) => self.begin(record, old.as_ref()).await?,
        };
        self.deliver(desired, record, &mut head, &steps, changes).await?;
        if !index::has_epoch(&*self.broker, &head.epoch).await? {
            tracing::warn!("the target lost its state meanwhile");
            record.doubt_all();
        }
        let is_open = |state: &State| record.doubts().any(|item| !state.kept().contains(item));
        Ok(if desired.read(is_open) {
            Outcome::Again
        } else {
            let revision = position.revision();
            record.reached(position);
            Outcome::Done { revision }
        })
    }

    /// Compares the target with the record. If it is not as this publisher left it, its notes tell what is
    /// there. Without trustworthy notes everything is in doubt: what the record knows, what the notes name,
    /// and the names of other policies.
    async fn recognize(&self, record: &mut Record) -> Result<Found, PortError> {
        let mut head = index::head(&*self.broker).await?;
        if head.is_none() && record.epoch.is_some() {
            // A failed service gives the same answer, and starting over is expensive.
            head = index::head(&*self.broker).await?;
        }
        let Some(head) = head else {
            record.doubt_all();
            return Ok(Found::Foreign(None));
        };
        if record.stamps.contains(&head.stamp) {
            return Ok(Found::Ours(head));
        }
        let notes = index::notes(&*self.broker, &head).await?;
        if notes.is_whole
            && !record.is_distrustful
            && index::has_epoch(&*self.broker, &head.epoch).await?
        {
            record.adopt(notes.counting(), &head.epoch, &head.stamp);
            tracing::info!(items = record.len(), "what the target holds is known from its notes");
            return Ok(Found::Ours(head));
        }
        for item in notes.known.keys() {
            record.doubt(item);
        }
        record.doubt_all();
        Ok(Found::Foreign(Some(head)))
    }

    /// Begins a new epoch, with an index of everything in doubt. A missing head and an unreadable one look
    /// the same (Trustee, KBS admin API), so this first makes sure that the service can read at all before it
    /// overwrites an index.
    async fn begin(&self, record: &mut Record, old: Option<&Head>) -> Result<Head, PortError> {
        tracing::info!("everything is published to this target");
        let epoch = index::random(&*self.entropy);
        index::set_epoch(&*self.broker, &epoch).await?;
        let reads = index::has_epoch(&*self.broker, &epoch).await?;
        if !reads || (old.is_none() && index::head(&*self.broker).await?.is_some()) {
            return Err(PortError::new(PortErrorKind::Unavailable, "publish")
                .because("the target's reference values cannot be read reliably"));
        }
        record.epoch = Some(epoch);
        record.is_distrustful = false;
        Ok(Head::anew(old, record))
    }

    /// Takes the steps, batch by batch: an interruption between two batches loses none of the work done. A
    /// step that can never succeed does not block the others, but nothing is set while a policy is refused.
    async fn deliver(
        &self,
        desired: &Desired,
        record: &mut Record,
        head: &mut Head,
        steps: &[Step],
        changes: &mut usize,
    ) -> Result<(), PortError> {
        let mut refusals = Refusals::default();
        if steps.is_empty() && !record.unconfirmed().is_empty() {
            self.confirm(record, head).await?;
        }
        for batch in steps.chunks(MAX_CHUNK) {
            let items = batch.iter().map(|step| &step.item);
            if head.is_bloated(record.len(), batch.len()) {
                *head = Head::anew(Some(head), record);
            }
            let stamp = self.next_stamp(record);
            record.announced(items.clone());
            head.announce(&*self.broker, items, &stamp).await?;
            record.stamps = BTreeSet::from([stamp]);
            for step in batch {
                *changes += usize::from(self.take(desired, record, step, &mut refusals).await?);
            }
            self.confirm(record, head).await?;
        }
        refusals.first.map_or(Ok(()), Err)
    }

    /// Writes to the index what is known about everything announced, including by interrupted batches:
    /// otherwise the next publisher would send it once more.
    async fn confirm(&self, record: &mut Record, head: &mut Head) -> Result<(), PortError> {
        let stamp = self.next_stamp(record);
        let items = record.unconfirmed();
        head.confirm(&*self.broker, items, record, &stamp).await?;
        record.stamps = BTreeSet::from([stamp]);
        record.confirmed();
        Ok(())
    }

    /// A stamp that the head may carry from now on, whether or not the write is answered.
    fn next_stamp(&self, record: &mut Record) -> String {
        let stamp = index::random(&*self.entropy);
        record.stamps.insert(stamp.clone());
        stamp
    }

    /// Takes one step and returns whether it changed the target.
    async fn take(
        &self,
        desired: &Desired,
        record: &mut Record,
        step: &Step,
        refusals: &mut Refusals,
    ) -> Result<bool, PortError> {
        let entry = desired.entry(&step.item);
        let outcome = match (step.action, &entry) {
            (Action::Set, Some(entry)) if !refusals.of_policy => {
                record.doubt(&step.item);
                deliver::set(&*self.broker, &step.item, entry).await
            }
            (Action::Withdraw, None) => {
                record.doubt(&step.item);
                deliver::withdraw(&*self.broker, &step.item).await
            }
            // A policy is refused, or it changed since the plan was made; the next plan will include it.
            _ => return Ok(false),
        };
        match outcome {
            Ok(Stays::Yes(Some(known))) => record.note(&step.item, known),
            Ok(Stays::Yes(None)) => record.forget(&step.item),
            Ok(Stays::No) => {
                tracing::warn!(item = %step.item, "the value did not stay");
                return Ok(false);
            }
            Err(error) if is_about_the_target(&error) => return Err(error),
            Err(error) => {
                refusals.of_policy |= step.item.is_policy();
                refusals.first.get_or_insert(error);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[async_trait]
impl Publisher for BrokerPublisher {
    async fn publish(&self, desired: &Desired) -> Result<Progress, PortError> {
        let mut record = self.record.lock().await;
        let mut changes = 0;
        for _ in 0..PASSES {
            let outcome = self.pass(desired, &mut record, &mut changes).await?;
            if let Outcome::Done { revision } = outcome {
                if changes > 0 {
                    tracing::info!(changes, "published");
                }
                return Ok(Progress::Converged { changes, revision });
            }
        }
        Err(PortError::new(PortErrorKind::Unavailable, "publish")
            .because(format!("the target did not keep what it was sent in {PASSES} passes")))
    }

    async fn distrust(&self) {
        self.record.lock().await.doubt_all();
    }
}

/// The target's index.
enum Found {
    /// Its content is in the record.
    Ours(Head),
    /// There is none, or none that counts.
    Foreign(Option<Head>),
}

enum Outcome {
    Done { revision: u64 },
    Again,
}

/// Steps that can never succeed.
#[derive(Default)]
struct Refusals {
    first: Option<PortError>,
    of_policy: bool,
}

/// Whether the next call would fail the same way: it goes to the same target with the same token.
fn is_about_the_target(error: &PortError) -> bool {
    error.is_retryable() || error.kind() == PortErrorKind::Denied
}
