//! The clock of the TPM that holds a key, and the check that it never goes backwards.
//!
//! ```text
//!            resets   restarts   clock
//! last         12        0      81 000 ms   as the last quote that was accepted said
//! now          13        .      ≥ 81 000    the machine was switched off and on       ► follows
//! now          13        .      ≥ 20 000    its power failed, and the first quote of
//!                                           run 12 said 20 000 (see `SAVED_EVERY_MS`) ► follows
//! now          12        1      ≥ 81 000    it slept, or was shut down in good order  ► follows
//! now          12        0      as much later as the quote came later                 ► follows
//! now          11        .         .        an older state of the TPM is used         ► fault
//! ```
//! The clock of a TPM only ever moves forward, except for what a power failure loses. If a quote shows an
//! earlier reading, the state of an emulated TPM was copied and both copies run, or an older state was restored.

use serde::{Deserialize, Serialize};

use crate::tee::Tee;
use crate::time::Timestamp;

/// State of a TPM's clock (TPM 2.0 Library Part 2, "TPMS_CLOCK_INFO").
///
/// The TPM adds a number to both counts if the signing key is not in the endorsement or platform
/// hierarchy (Part 2, "TPMS_ATTEST"). The number is constant for a key, so differences are correct
/// modulo 2^32; the counts themselves mean nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TpmClock {
    /// Milliseconds that the TPM has been powered since its owner last cleared it.
    pub clock_ms: u64,
    /// Number of TPM resets (reboots) since then.
    pub reset_count: u32,
    /// Number of restarts and resumes since the last reset.
    pub restart_count: u32,
    /// Whether the TPM has never reported a higher `clock_ms`.
    pub safe: bool,
}

/// One boot of a TPM: its counts since it was last reset, restarted or resumed.
///
/// Meaningful only in comparison with another one of the same key, see [`TpmClock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TpmBoot {
    /// Number of TPM resets.
    pub resets: u32,
    /// Number of restarts and resumes since the last reset.
    pub restarts: u32,
}

impl TpmClock {
    /// The boot in which the clock was read.
    pub fn boot(&self) -> TpmBoot {
        TpmBoot { resets: self.reset_count, restarts: self.restart_count }
    }
}

/// A reading of a TPM's clock, with bounds on its time by our own clock: after the challenge was
/// issued, and before the quote arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ClockReading {
    /// What the TPM reported.
    pub clock: TpmClock,
    /// When the challenge was issued.
    pub asked_at: Timestamp,
    /// When the quote arrived.
    pub at: Timestamp,
    /// Type of the evidence that contained the quote.
    #[serde(default = "quote_alone")]
    pub tee: Tee,
    /// What the first quote of the same boot reported; `None` if this is the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_began_ms: Option<u64>,
    /// Whether this quote, or an accepted one before, was made while the initramfs ran, as PCR 11 showed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_initramfs: bool,
    /// Whether this is still the boot of the first quote of the key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_first_boot: bool,
}

/// Evidence type of readings that predate this field.
fn quote_alone() -> Tee {
    Tee::Tpm
}

/// TPM counters went backwards: cloned or restored TPM state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClockFault {
    /// The TPM was reset fewer times.
    #[error("its TPM counts {fewer} fewer resets than at {last}")]
    Resets {
        /// Number of missing resets.
        fewer: u32,
        /// When the last quote arrived.
        last: Timestamp,
    },
    /// A processor report vouched for the key before, but none does now.
    #[error("its evidence was of type {was} at {last} and is now of type {is}, which proves less")]
    LessEvidence {
        /// Type of the last evidence.
        was: Tee,
        /// Type of this evidence.
        is: Tee,
        /// When the last quote arrived.
        last: Timestamp,
    },
    /// The TPM was restarted fewer times since the same reset.
    #[error("its TPM counts {fewer} fewer restarts than at {last}, with the same number of resets")]
    Restarts {
        /// Number of missing restarts.
        fewer: u32,
        /// When the last quote arrived.
        last: Timestamp,
    },
    /// The TPM was reset in the meantime, but was powered for less time.
    #[error(
        "its TPM was powered for {less_ms} ms less than at {last}, although it has been reset since"
    )]
    Powered {
        /// Milliseconds that are missing.
        less_ms: u64,
        /// When the last quote arrived.
        last: Timestamp,
    },
    /// The TPM was not reset in the meantime, but its clock and ours advanced by different amounts.
    #[error(
        "its TPM has not been reset since {last}, but its clock advanced by {ticked_ms} ms in {passed_s} s"
    )]
    Apart {
        /// Milliseconds by which the TPM's clock advanced.
        ticked_ms: i128,
        /// Seconds by which our clock advanced.
        passed_s: i64,
        /// When the last quote arrived.
        last: Timestamp,
    },
}

/// After a power failure, a TPM's clock restarts from its last saved value, which is no older than
/// this (Part 2, "TPMS_CLOCK_INFO", clock: at least once per 2^22 ms), or than the last start of an
/// emulated one: swtpm writes its file at a start, and then only with other state. It reports such a
/// clock as `safe` after seconds, although it reported a higher one before.
const SAVED_EVERY_MS: u64 = 1 << 22;
/// The TPM's clock may be off by a duration divided by this. Its oscillator is not exact, and its
/// owner may change the rate (Part 3, "TPM2_ClockRateAdjust"); a third exceeds both.
const DRIFT: i128 = 3;
/// Milliseconds by which our own clock may have been adjusted in the meantime.
const SET_MS: i128 = 5_000;
const MS: i128 = 1_000;

impl ClockReading {
    /// Creates a reading.
    pub fn new(clock: TpmClock, asked_at: Timestamp, at: Timestamp) -> Self {
        Self {
            clock,
            asked_at,
            at,
            tee: Tee::Tpm,
            boot_began_ms: None,
            in_initramfs: false,
            in_first_boot: true,
        }
    }

    /// Whether the machine gets its disk key in an initramfs only: it has asked in one, and the boot is over in which
    /// it was set up.
    pub fn is_bound_to_initramfs(&self) -> bool {
        self.in_initramfs && !self.in_first_boot
    }

    /// The first reading of a key whose machine attested with other keys before: a new key is no new machine, so that
    /// what the machine showed and when it was set up stay. The clocks cannot be compared, see [`TpmClock`].
    pub fn after_other_keys(mut self, others: impl IntoIterator<Item = Self>) -> Self {
        for other in others {
            self.in_initramfs |= other.in_initramfs;
            self.in_first_boot = false;
        }
        self
    }

    /// Says whether the quote was made while the initramfs ran.
    pub fn with_initramfs(mut self, is_running: bool) -> Self {
        self.in_initramfs = is_running;
        self
    }

    /// Sets the type of the evidence that contained the quote.
    pub fn with_tee(mut self, tee: Tee) -> Self {
        self.tee = tee;
        self
    }

    /// Checks that this can be the same TPM as in the last reading. If so, returns the reading to
    /// keep: the later one by the TPM's clock, since quotes may overtake one another.
    ///
    /// # Errors
    /// The reading contradicts the last one; the error says how.
    ///
    /// # Security
    /// The first use of a copy looks like a reboot. The copies are detected once both have been
    /// used, unless they were powered off for the same time. A key that a processor once vouched
    /// for is accepted only with a processor report, which an attacker who moved the TPM's state
    /// elsewhere does not have.
    pub fn succeeding(self, last: &Self) -> Result<Self, ClockFault> {
        if last.tee != self.tee && last.tee != Tee::Tpm {
            return Err(ClockFault::LessEvidence { was: last.tee, is: self.tee, last: last.at });
        }
        let resets = steps(last.clock.reset_count, self.clock.reset_count);
        let restarts = steps(last.clock.restart_count, self.clock.restart_count);
        let kept = match (resets, restarts) {
            (..0, _) => Err(ClockFault::Resets { fewer: resets.unsigned_abs(), last: last.at }),
            (0, ..0) => Err(ClockFault::Restarts { fewer: restarts.unsigned_abs(), last: last.at }),
            (0, 0) => self.of_the_same_run(last),
            _ => self.of_a_later_run(last),
        };
        kept.map(|mut kept| {
            kept.in_initramfs = self.in_initramfs || last.in_initramfs;
            kept.in_first_boot = last.in_first_boot && (resets, restarts) == (0, 0);
            kept
        })
    }

    fn of_a_later_run(self, last: &Self) -> Result<Self, ClockFault> {
        if self.clock.clock_ms >= last.boot_began_ms().saturating_sub(SAVED_EVERY_MS) {
            return Ok(self);
        }
        let less_ms = last.clock.clock_ms.saturating_sub(self.clock.clock_ms);
        Err(ClockFault::Powered { less_ms, last: last.at })
    }

    fn boot_began_ms(&self) -> u64 {
        self.boot_began_ms.unwrap_or(self.clock.clock_ms)
    }

    /// Both clocks ran continuously between the quotes: at least from the last quote's arrival to
    /// this challenge, at most from the last challenge to this quote's arrival.
    fn of_the_same_run(self, last: &Self) -> Result<Self, ClockFault> {
        let ticked_ms = i128::from(self.clock.clock_ms) - i128::from(last.clock.clock_ms);
        // Points in time are whole seconds, rounded down.
        let least = ms_between(last.at, self.asked_at) - MS;
        let most = ms_between(last.asked_at, self.at) + MS;
        let (slow, fast) = (least - least.abs() / DRIFT, most + most.abs() / DRIFT);
        if (slow - SET_MS..=fast + SET_MS).contains(&ticked_ms) {
            let mut kept = if ticked_ms < 0 { *last } else { self }.with_tee(self.tee);
            kept.boot_began_ms = Some(last.boot_began_ms().min(self.clock.clock_ms));
            return Ok(kept);
        }
        Err(ClockFault::Apart {
            ticked_ms,
            passed_s: self.at.unix_seconds() - last.at.unix_seconds(),
            last: last.at,
        })
    }
}

/// Steps from one count to another, the shorter way around.
fn steps(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}

fn ms_between(from: Timestamp, to: Timestamp) -> i128 {
    (i128::from(to.unix_seconds()) - i128::from(from.unix_seconds())) * MS
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAST: ClockReading = ClockReading {
        clock: clock(12, 1, 900_000),
        asked_at: Timestamp::EPOCH,
        at: Timestamp::EPOCH,
        tee: Tee::Tpm,
        boot_began_ms: None,
        in_initramfs: false,
        in_first_boot: false,
    };

    const fn clock(reset_count: u32, restart_count: u32, clock_ms: u64) -> TpmClock {
        TpmClock { clock_ms, reset_count, restart_count, safe: true }
    }

    /// A quote whose challenge was issued, and which arrived, this many seconds after the last one.
    fn read(clock: TpmClock, asked: i64, came: i64) -> ClockReading {
        let at = Timestamp::from_unix_seconds;
        ClockReading { in_first_boot: false, ..ClockReading::new(clock, at(asked), at(came)) }
    }

    #[test]
    fn a_machine_is_bound_to_its_initramfs_after_its_first_boot() {
        let at = Timestamp::EPOCH;
        let quote = |resets, is_early| {
            let clock = clock(resets, 0, u64::from(resets) * 1_000);
            ClockReading::new(clock, at, at).with_initramfs(is_early)
        };
        let mut last = quote(1, true);
        for (resets, is_early, is_bound) in
            [(1, false, false), (2, false, true), (2, true, true), (3, false, true)]
        {
            last = quote(resets, is_early).succeeding(&last).unwrap();
            assert_eq!(last.is_bound_to_initramfs(), is_bound, "{last:?}");
        }
        let mut last = quote(1, false);
        for (resets, is_early, is_bound) in [(2, false, false), (3, true, true), (4, false, true)] {
            last = quote(resets, is_early).succeeding(&last).unwrap();
            assert_eq!(last.is_bound_to_initramfs(), is_bound, "{last:?}");
        }
    }

    fn fault(clock: TpmClock, asked: i64, came: i64) -> ClockFault {
        read(clock, asked, came).succeeding(&LAST).unwrap_err()
    }

    #[test]
    fn a_reboot_a_restart_and_a_later_quote_of_the_same_run_follow() {
        for (next, seconds) in [
            (clock(13, 0, 900_000), 1),
            (clock(500, 7, 900_001), 1),
            (clock(12, 2, 900_000), 86_400),
            (clock(12, 1, 930_000), 30),
            (clock(12, 1, 900_000), 0),
            (clock(12, 1, 900_000 + 86_400_000), 86_400 + 3_000),
        ] {
            let reading = read(next, seconds, seconds);
            let is_same = next.boot() == LAST.clock.boot();
            let boot_began_ms = is_same.then_some(LAST.clock.clock_ms);
            let kept = ClockReading { boot_began_ms, ..reading };
            assert_eq!(reading.succeeding(&LAST), Ok(kept), "{next:?}");
        }
    }

    #[test]
    fn counts_wrap_around_since_tpms_add_a_number_of_their_own() {
        let last = read(clock(u32::MAX, u32::MAX, 5), 0, 0);
        for next in [clock(0, 9, 5), clock(u32::MAX, 3, 5)] {
            let reading = read(next, 1, 1);
            assert_eq!(reading.succeeding(&last), Ok(reading));
        }
        let back = read(clock(0, 0, 5), 0, 0);
        let fault = last.succeeding(&back).unwrap_err();
        assert!(matches!(fault, ClockFault::Resets { fewer: 1, .. }));
    }

    #[test]
    fn an_older_state_is_told_by_what_is_missing() {
        let last = Timestamp::EPOCH;
        let fewer = 2;
        let resets = ClockFault::Resets { fewer, last };
        assert_eq!(fault(clock(10, 9, 999_999), 60, 60), resets);
        let restarts = ClockFault::Restarts { fewer: 1, last };
        assert_eq!(fault(clock(12, 0, 999_999), 60, 60), restarts);
        let long = ClockReading { clock: clock(12, 1, 2 * SAVED_EVERY_MS), ..LAST };
        let powered = ClockFault::Powered { less_ms: 2 * SAVED_EVERY_MS - 1_000, last };
        assert_eq!(read(clock(99, 0, 1_000), 60, 60).succeeding(&long), Err(powered));
    }

    #[test]
    fn two_copies_that_were_reset_as_often_show_by_their_clocks() {
        // Both booted once from one state, an hour apart: the second did not run during that hour.
        for clock_ms in [899_000, 900_000, 910_000, 900_000 + 2 * 3_600_000] {
            let apart = fault(clock(12, 1, clock_ms), 3_600, 3_601);
            assert!(matches!(apart, ClockFault::Apart { .. }), "{clock_ms}");
        }
        let behind = fault(clock(12, 1, 880_000), 0, 1);
        assert!(matches!(behind, ClockFault::Apart { .. }));
    }

    /// Emulated TPMs save their clock with other state only, and call it safe all the same.
    #[test]
    fn a_power_cut_may_lose_the_clock_of_a_whole_run_but_not_of_earlier_ones() {
        const DAY: i64 = 86_400;
        let began = 10 * SAVED_EVERY_MS;
        let first = read(clock(12, 0, began), 0, 0);
        let day = read(clock(12, 0, began + 86_400_000), DAY, DAY).succeeding(&first).unwrap();
        for safe in [true, false] {
            let after = |clock_ms| TpmClock { safe, ..clock(13, 0, clock_ms) };
            let cut = read(after(began - SAVED_EVERY_MS), DAY + 60, DAY + 60);
            assert_eq!(cut.succeeding(&day), Ok(cut), "it was saved before the first quote");
            let less_ms = 86_400_000 + SAVED_EVERY_MS + 1;
            let older = read(after(began - SAVED_EVERY_MS - 1), DAY + 60, DAY + 60);
            let fault = ClockFault::Powered { less_ms, last: day.at };
            assert_eq!(older.succeeding(&day), Err(fault));
        }
    }

    #[test]
    fn quotes_that_overtake_one_another_follow_and_the_later_one_is_kept() {
        // Both challenges were issued at the same time; the quote that was created first arrived
        // last, and late.
        let (second, first) = (clock(12, 1, 900_040), clock(12, 1, 900_000));
        let last = read(second, 0, 1);
        let kept = ClockReading { boot_began_ms: Some(900_000), ..last };
        assert_eq!(read(first, 0, 120).succeeding(&last), Ok(kept));
    }

    #[test]
    fn a_key_that_the_processor_vouched_for_comes_with_its_report_ever_after() {
        let reading = |tee| read(clock(13, 0, 900_000), 1, 1).with_tee(tee);
        let plain = reading(Tee::Tpm).succeeding(&LAST);
        assert_eq!(plain, Ok(reading(Tee::Tpm)));
        let vouched = reading(Tee::AzSnpVtpm).succeeding(&LAST).unwrap();
        assert_eq!(vouched.tee, Tee::AzSnpVtpm);
        let fault = reading(Tee::Tpm).succeeding(&vouched).unwrap_err();
        assert!(matches!(fault, ClockFault::LessEvidence { .. }));
    }

    #[test]
    fn a_reading_of_an_earlier_version_is_of_a_quote_alone() {
        let mut earlier = serde_json::to_value(LAST.with_tee(Tee::AzSnpVtpm)).unwrap();
        let members = earlier.as_object_mut().unwrap();
        members.remove("tee");
        assert!(!members.contains_key("boot_began_ms"));
        let read: ClockReading = serde_json::from_value(earlier).unwrap();
        assert_eq!(read, LAST);
    }
}
