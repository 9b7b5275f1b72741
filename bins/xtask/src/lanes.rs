//! Runs work on as many threads as there are processors.

use std::num::NonZero;
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Result, anyhow};

/// Does the work for each item, starting with the first, and returns the results in the order of completion.
///
/// # Errors
/// A thread panicked.
pub(crate) fn at_once<T: Sync, R: Send>(
    items: &[T],
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
    let lanes = thread::available_parallelism().map_or(1, NonZero::get);
    thread::scope(|scope| {
        let running: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        for one in running {
            one.join().map_err(|_| anyhow!("a thread panicked"))?;
        }
        anyhow::Ok(())
    })?;
    Ok(answers.into_inner().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_worked_on_once() {
        let mut answers = at_once(&[1, 2, 3, 4, 5], &|item| item * 2).unwrap();
        answers.sort_unstable();
        assert_eq!(answers, [2, 4, 6, 8, 10]);
    }

    #[test]
    fn a_panic_is_an_error() {
        at_once(&[1, 2], &|item| assert_eq!(*item, 1)).unwrap_err();
    }
}
