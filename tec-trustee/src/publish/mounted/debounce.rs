//! Gathers changes so that they are sent together.

use tec_core::time::Timestamp;

/// Waits until there has been no change for a while, but not forever. Pure: time is an argument.
///
/// ```
/// use tec_core::time::Timestamp;
/// use tec_trustee::publish::Debounce;
/// let at = Timestamp::from_unix_seconds;
/// let mut gather = Debounce::new(5, 30);
/// gather.changed(at(0));
/// gather.changed(at(3));
/// assert_eq!(gather.due(), Some(at(8)));
/// gather.done();
/// assert_eq!(gather.due(), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debounce {
    quiet: i64,
    longest: i64,
    /// First and latest change not sent yet.
    pending: Option<(Timestamp, Timestamp)>,
}

impl Default for Debounce {
    /// Five quiet seconds, half a minute at most: little compared with the minute or so that a kubelet takes
    /// to refresh a volume.
    fn default() -> Self {
        Self::new(5, 30)
    }
}

impl Debounce {
    /// Waits for `quiet` seconds without a change, but at most `longest` seconds after the first one.
    pub fn new(quiet: u32, longest: u32) -> Self {
        Self { quiet: quiet.into(), longest: longest.into(), pending: None }
    }

    /// Something changed.
    pub fn changed(&mut self, now: Timestamp) {
        let first = self.pending.map_or(now, |(first, _)| first);
        self.pending = Some((first, now));
    }

    /// When the changes are sent; `None` if there are none.
    pub fn due(&self) -> Option<Timestamp> {
        let (first, latest) = self.pending?;
        Some(latest.plus_seconds(self.quiet).min(first.plus_seconds(self.longest)))
    }

    /// Records that the changes were sent.
    pub fn done(&mut self) {
        self.pending = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_changes_goes_out_after_the_longest_wait() {
        let at = Timestamp::from_unix_seconds;
        let mut gather = Debounce::new(5, 30);
        for second in 0..100 {
            gather.changed(at(second));
            assert!(gather.due().unwrap() <= at(30));
        }
        assert_eq!(gather.due(), Some(at(30)));
    }
}
