//! Rate limits per account.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use tec_core::time::Timestamp;

use super::caller::Account;

/// Weight of one call. A bucket holds the calls of one minute, and each second restores a weight equal to the
/// number of calls allowed per minute.
const CALL: u64 = 60;
/// Full buckets are dropped if there are more buckets than this.
const REMEMBERED: usize = 1024;

/// A bucket of calls for each account.
///
/// # Security
/// Only an account that proved its identity takes from its bucket, so forging its name uses nothing up.
#[derive(Debug)]
pub struct Rates {
    per_minute: NonZeroU32,
    used: BTreeMap<Account, Used>,
}

#[derive(Clone, Copy, Debug)]
struct Used {
    weight: u64,
    at: Timestamp,
}

impl Rates {
    /// Allows each account this many calls per minute, even in one burst.
    pub fn new(per_minute: NonZeroU32) -> Self {
        Self { per_minute, used: BTreeMap::new() }
    }

    /// Whether the account has a call left. Does not take it.
    pub fn allows(&self, account: &Account, now: Timestamp) -> bool {
        let used = self.used.get(account);
        used.is_none_or(|used| self.left(*used, now) + CALL <= self.full())
    }

    /// Takes a call from the account's bucket, if one is left.
    pub fn take(&mut self, account: &Account, now: Timestamp) -> bool {
        if !self.allows(account, now) {
            return false;
        }
        let weight = self.used.get(account).map_or(0, |u| self.left(*u, now)) + CALL;
        if self.used.len() >= REMEMBERED {
            let mut used = std::mem::take(&mut self.used);
            used.retain(|_, used| self.left(*used, now) > 0);
            self.used = used;
        }
        self.used.insert(account.clone(), Used { weight, at: now });
        true
    }

    /// Capacity of a bucket, as a weight.
    fn full(&self) -> u64 {
        u64::from(self.per_minute.get()) * CALL
    }

    /// The part of the usage that has not been restored yet. A clock that goes backwards restores nothing.
    fn left(&self, used: Used, now: Timestamp) -> u64 {
        let seconds = now.unix_seconds().saturating_sub(used.at.unix_seconds());
        let back = u64::try_from(seconds).unwrap_or(0);
        let back = back.saturating_mul(u64::from(self.per_minute.get()));
        used.weight.saturating_sub(back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_unix_seconds(1_700_000_000 + seconds)
    }

    fn rates(per_minute: u32) -> Rates {
        Rates::new(NonZeroU32::new(per_minute).unwrap())
    }

    #[test]
    fn a_bucket_is_used_up_and_filled_again_evenly() {
        let (mut rates, account) = (rates(3), "apps/comp-a".parse().unwrap());
        assert!((0..3).all(|_| rates.take(&account, at(0))));
        assert!(!rates.take(&account, at(0)) && !rates.take(&account, at(19)));
        assert!(rates.take(&account, at(20)));
        assert!(!rates.take(&account, at(39)));
        assert_eq!((0..9).filter(|_| rates.take(&account, at(600))).count(), 3);
    }

    #[test]
    fn a_look_takes_nothing_and_accounts_do_not_share() {
        let mut rates = rates(1);
        let (one, other) = ("apps/a".parse().unwrap(), "apps/b".parse().unwrap());
        assert!((0..9).all(|_| rates.allows(&one, at(0))));
        assert!(rates.take(&one, at(0)));
        assert!(!rates.allows(&one, at(0)) && rates.take(&other, at(0)));
        assert!(!rates.allows(&one, at(-3600)), "a clock went backwards");
    }

    #[test]
    fn accounts_that_called_long_ago_are_forgotten() {
        let mut rates = rates(60);
        for number in 0..5_000_i64 {
            let account = format!("apps/comp-{number}").parse().unwrap();
            assert!(rates.take(&account, at(number)));
        }
        assert!(rates.used.len() <= REMEMBERED, "{}", rates.used.len());
    }
}
