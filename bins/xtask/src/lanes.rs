//! Runs work on several threads.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, anyhow};

/// The lowest priority of nice(2).
const LOWEST: i32 = 19;

/// As many lanes as there are processors.
pub(crate) fn per_processor() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does the work for each item, starting with the first, on so many threads; returns the results in the order of
/// completion.
pub(crate) fn at_once<T: Sync, R: Send>(
    items: &[T],
    lanes: usize,
    work: &(dyn Fn(&T) -> R + Sync),
) -> Result<Vec<R>> {
    let waiting = Mutex::new(items.iter());
    let next = || {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.next()
    };
    let answers = Mutex::new(Vec::new());
    let lane = || {
        while let Some(item) = next() {
            let answer = work(item);
            let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers.push(answer);
        }
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        for one in running {
            one.join().map_err(|_| anyhow!("a thread panicked"))?;
        }
        anyhow::Ok(())
    })?;
    Ok(answers.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// From now on, this thread and the programs it starts only get the processor time that others leave.
pub(crate) fn give_way() {
    // A priority that stays as it is costs time, nothing else.
    let _ = rustix::process::nice(LOWEST);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        let mut answers = at_once(&[1, 2, 3, 4, 5], 2, &|item| item * 2).unwrap();
        answers.sort_unstable();
        assert_eq!(answers, [2, 4, 6, 8, 10]);
    }

    #[test]
    fn a_panic_is_an_error() {
        at_once(&[1, 2], 2, &|item| assert_eq!(*item, 1)).unwrap_err();
    }
}
