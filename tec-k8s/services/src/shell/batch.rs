//! Requests of concurrent callers, made together: while one is under way, the next ones gather.

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

/// What waits for the next request, and who waits for its answer.
#[derive(Debug)]
pub(super) struct Batch<I, O> {
    waiting: Mutex<Vec<(I, oneshot::Sender<O>)>>,
    turn: tokio::sync::Mutex<()>,
}

impl<I, O> Default for Batch<I, O> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), turn: tokio::sync::Mutex::default() }
    }
}

impl<I: Clone, O> Batch<I, O> {
    /// The answer to `input`. Whoever has the turn makes one request for all that wait, through `request`,
    /// which answers in their order; `None` if it left this one out.
    ///
    /// # Cancel safety
    /// What was requested for others is requested again by one of them.
    pub(super) async fn ask<F>(&self, input: I, request: impl Fn(Vec<I>) -> F) -> Option<O>
    where
        F: Future<Output = Vec<O>>,
    {
        loop {
            let mut answer = self.wait(input.clone());
            let _turn = self.turn.lock().await;
            match answer.try_recv() {
                Ok(answer) => return Some(answer),
                // Whoever requested it gave up.
                Err(TryRecvError::Closed) => continue,
                Err(TryRecvError::Empty) => {}
            }
            let waiting = std::mem::take(&mut *self.waiting.lock());
            let (inputs, waiters): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
            for (waiter, answer) in waiters.into_iter().zip(request(inputs).await) {
                // Who no longer waits needs no answer.
                let _ = waiter.send(answer);
            }
            return answer.try_recv().ok();
        }
    }

    fn wait(&self, input: I) -> oneshot::Receiver<O> {
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().push((input, sender));
        receiver
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio::sync::Semaphore;

    use super::*;

    /// Requests that wait for a permit each, and what each was for.
    #[derive(Default)]
    struct Requests {
        batch: Batch<u32, u32>,
        made: Mutex<Vec<Vec<u32>>>,
    }

    impl Requests {
        async fn double(&self, input: u32, gate: &Semaphore) -> Option<u32> {
            self.batch
                .ask(input, |inputs| async {
                    self.made.lock().push(inputs.clone());
                    gate.acquire().await.unwrap().forget();
                    inputs.into_iter().map(|input| 2 * input).collect()
                })
                .await
        }
    }

    #[tokio::test]
    async fn those_who_ask_during_a_request_share_the_next_one() {
        let (requests, gate) = (Requests::default(), Semaphore::new(0));
        let all = futures::future::join_all((1..=4).map(|input| requests.double(input, &gate)));
        let (answers, ()) = tokio::join!(all, async { gate.add_permits(2) });
        assert_eq!(answers, [2, 4, 6, 8].map(Some));
        let made = requests.made.lock();
        assert!(made.len() <= 2 && made.concat() == [1, 2, 3, 4], "{made:?}");
    }

    #[tokio::test]
    async fn who_gives_up_leaves_nobody_without_an_answer() {
        let (requests, gate) = (Requests::default(), Semaphore::new(0));
        let mut first = Box::pin(requests.double(1, &gate));
        let mut second = Box::pin(requests.double(2, &gate));
        let mut third = Box::pin(requests.double(3, &gate));
        for waits in [&mut first, &mut second, &mut third] {
            assert!(waits.as_mut().now_or_never().is_none());
        }
        drop(first);
        // The second makes a request for the third, too, and gives up.
        assert!(second.as_mut().now_or_never().is_none());
        drop(second);
        gate.add_permits(1);
        assert_eq!(third.await, Some(6));
    }

    #[tokio::test]
    async fn a_request_that_leaves_one_out_has_no_answer_for_it() {
        let batch = Batch::<u32, u32>::default();
        assert_eq!(batch.ask(1, |_| async { Vec::new() }).await, None);
    }
}
