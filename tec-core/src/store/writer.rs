//! The single writer: collects all waiting writes into one transaction and syncs once.

use std::fmt;
use std::sync::Arc;
use std::thread::JoinHandle;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::error::{Failure, StoreError};
use crate::port::PortErrorKind;

/// Maximum number of queued writes before callers have to wait.
const QUEUE: usize = 1024;
/// Maximum number of writes in one transaction, so that the first write does not wait long.
const BATCH: usize = 256;

/// Handle to the writer thread; dropping it waits until the queue is empty.
pub(super) struct Writer {
    queue: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("running", &self.is_running()).finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts the thread, which owns the connection.
    pub(super) fn start(db: Connection) -> Result<Self, StoreError> {
        let (queue, jobs) = mpsc::channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("tec-store-writer".to_owned())
            .spawn(move || serve(db, jobs))
            .map_err(|source| StoreError::Database {
                operation: "start the writer of the store",
                kind: PortErrorKind::Unavailable,
                source: source.into(),
            })?;
        Ok(Self { queue: Some(queue), thread: Some(thread) })
    }

    pub(super) fn is_running(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Queues `work` and waits for its commit. If it fails, it leaves nothing behind. It may be
    /// called again if its changes were rolled back through no fault of its own.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let (reply, answer) = oneshot::channel();
        let task = Task { work, outcome: Err(StoreError::Stopped.into()), reply };
        let queue = self.queue.as_ref().ok_or(StoreError::Stopped)?;
        queue.send(Box::new(task)).await.map_err(|_| StoreError::Stopped)?;
        answer.await.unwrap_or(Err(StoreError::Stopped.into()))
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has nothing to report here; its callers got errors.
            let _ended = thread.join();
        }
    }
}

/// One write in the queue.
trait Job: Send {
    /// Runs the write inside a savepoint. Returns whether to keep its changes.
    fn run(&mut self, db: &Connection) -> Keep;

    /// Answers the caller, after the commit.
    fn answer(self: Box<Self>, commit: Result<(), Arc<StoreError>>);
}

enum Keep {
    Yes,
    No,
}

struct Task<T, W> {
    work: W,
    outcome: Result<T, Failure>,
    reply: oneshot::Sender<Result<T, Failure>>,
}

impl<T, W> Job for Task<T, W>
where
    T: Send,
    W: FnMut(&Connection) -> Result<T, Failure> + Send,
{
    fn run(&mut self, db: &Connection) -> Keep {
        self.outcome = (self.work)(db);
        match self.outcome {
            Ok(_) => Keep::Yes,
            Err(_) => Keep::No,
        }
    }

    fn answer(self: Box<Self>, commit: Result<(), Arc<StoreError>>) {
        let answer = match (commit, self.outcome) {
            (Ok(()), outcome) => outcome,
            (Err(_), Err(Failure::Store(own))) => Err(Failure::Store(own)),
            // A refusal may depend on what another call of this transaction wrote, which is gone.
            (Err(shared), _) => Err(StoreError::Commit(shared).into()),
        };
        // A caller that is gone does not want the answer.
        let _gone = self.reply.send(answer);
    }
}

fn serve(mut db: Connection, mut queue: mpsc::Receiver<Box<dyn Job>>) {
    let mut batch = Vec::with_capacity(BATCH);
    while queue.blocking_recv_many(&mut batch, BATCH) > 0 {
        if let Some(commit) = carry_out(&mut db, &mut batch) {
            answer(&mut batch, &commit);
            continue;
        }
        // One of them ended the transaction for all: run each on its own, so that it fails alone.
        for job in batch.drain(..) {
            let mut alone = vec![job];
            let commit = carry_out(&mut db, &mut alone).unwrap_or_else(|| Err(rolled_back()));
            answer(&mut alone, &commit);
        }
    }
}

fn answer(batch: &mut Vec<Box<dyn Job>>, commit: &Committed) {
    for job in batch.drain(..) {
        job.answer(commit.clone());
    }
}

fn rolled_back() -> Arc<StoreError> {
    Arc::new(StoreError::Database {
        operation: "write to the store",
        kind: PortErrorKind::Unavailable,
        source: "the transaction was rolled back".into(),
    })
}

/// One transaction for all of `batch`; dropping it rolls back. `None` if one of the writes ended it, so that
/// nothing was kept of the others.
fn carry_out(db: &mut Connection, batch: &mut [Box<dyn Job>]) -> Option<Committed> {
    transact(db, batch)
        .map_err(|source| Arc::new(StoreError::sqlite("write to the store", source)))
        .transpose()
}

/// Whether a transaction was committed and, if not, why.
type Committed = Result<(), Arc<StoreError>>;

fn transact(db: &mut Connection, batch: &mut [Box<dyn Job>]) -> rusqlite::Result<Option<()>> {
    let mut transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for job in batch {
        let savepoint = transaction.savepoint()?;
        let ended = match job.run(&savepoint) {
            Keep::Yes => savepoint.commit(),
            Keep::No => savepoint.finish(),
        };
        if transaction.is_autocommit() {
            // Some failures end the whole transaction (sqlite.org/lang_transaction.html, section
            // 3.1), for example a full disk; another savepoint would begin a new one.
            return Ok(None);
        }
        ended?;
    }
    transaction.commit().map(Some)
}
