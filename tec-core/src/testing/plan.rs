//! Runs plans in a world in which effects fail, answers are lost, and the process dies at every step.

use std::collections::VecDeque;
use std::fmt;

use rand_chacha::ChaCha20Rng;
use rand_core::{Rng as _, SeedableRng as _};

use crate::plan::Plan;

/// The environment of a plan in a test: everything that survives a crash.
pub trait World {
    /// The plan under test.
    type Plan: Plan;

    /// Starts a process: returns a plan that remembers nothing, and its first event.
    fn boot(&mut self) -> (Self::Plan, <Self::Plan as Plan>::Event);

    /// Carries out the effect; `None` if the plan gets no answer.
    fn apply(
        &mut self,
        effect: <Self::Plan as Plan>::Effect,
    ) -> Option<<Self::Plan as Plan>::Event>;

    /// The event for an effect that fails or whose answer is lost; `None` if the effect cannot
    /// fail, such as a wait.
    fn failure(&self, effect: &<Self::Plan as Plan>::Effect)
    -> Option<<Self::Plan as Plan>::Event>;

    /// The effect in a word or two, for reports.
    fn name(&self, effect: &<Self::Plan as Plan>::Effect) -> String;
}

/// What happens to one effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// Nothing: the effect happens, and the plan gets the answer.
    None,
    /// It fails before anything happens, and the plan gets the failure.
    Fails,
    /// It happens, but the plan gets a failure.
    LostAck,
    /// The process dies before it, and another starts.
    CrashBefore,
    /// It happens; the process dies before the plan gets the answer, and another starts.
    CrashAfter,
}

impl Mishap {
    /// All except [`None`](Self::None).
    pub const ALL: [Self; 4] = [Self::Fails, Self::LostAck, Self::CrashBefore, Self::CrashAfter];

    fn kills(self) -> bool {
        matches!(self, Self::CrashBefore | Self::CrashAfter)
    }
}

/// Result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanRun {
    /// Names of the effects in order, including those hit by a mishap.
    pub effects: Vec<String>,
    /// Number of processes started after the first.
    pub restarts: usize,
}

/// One row of [`crash_everywhere`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlanRow {
    /// Number of the effect in the run without mishaps, starting at 0.
    pub number: usize,
    /// Its name.
    pub effect: String,
    /// What happened to the effect.
    pub mishap: Mishap,
    /// Effects until the end.
    pub effects: usize,
    /// Processes started after the first.
    pub restarts: usize,
}

impl fmt::Display for PlanRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mishap = format!("{:?}", self.mishap);
        let (number, effect) = (self.number, &self.effect);
        let (effects, restarts) = (self.effects, self.restarts);
        write!(f, "{number:>3}  {effect:<32} {mishap:<12} {effects:>4} {restarts:>3}")
    }
}

/// Runs the world's plan to its end; `schedule` decides what happens to the effect with each
/// number.
///
/// # Panics
/// If the plan does not finish within `limit` effects: it does not converge.
pub fn run_plan<W: World>(
    world: &mut W,
    limit: usize,
    mut schedule: impl FnMut(usize) -> Mishap,
) -> PlanRun {
    let mut run = PlanRun::default();
    while !run_process(world, limit, &mut schedule, &mut run) {
        run.restarts += 1;
    }
    run
}

/// Runs one process; returns `false` if it died.
fn run_process<W: World>(
    world: &mut W,
    limit: usize,
    schedule: &mut impl FnMut(usize) -> Mishap,
    run: &mut PlanRun,
) -> bool {
    let (mut plan, first) = world.boot();
    let mut events = VecDeque::from([first]);
    while let Some(event) = events.pop_front() {
        for effect in plan.step(event) {
            let mishap = schedule(run.effects.len());
            run.effects.push(world.name(&effect));
            assert!(
                run.effects.len() <= limit,
                "no end after {limit} effects, the last of them {:?}",
                run.effects.iter().rev().take(8).collect::<Vec<_>>()
            );
            events.extend(suffer(world, effect, mishap));
            if mishap.kills() {
                return false;
            }
        }
    }
    true
}

fn suffer<W: World>(
    world: &mut W,
    effect: <W::Plan as Plan>::Effect,
    mishap: Mishap,
) -> Option<<W::Plan as Plan>::Event> {
    let failure = world.failure(&effect);
    match (mishap, failure) {
        (Mishap::CrashBefore, _) => None,
        (Mishap::Fails, Some(failure)) => Some(failure),
        (Mishap::LostAck, Some(failure)) => {
            world.apply(effect);
            Some(failure)
        }
        (Mishap::None | Mishap::CrashAfter | Mishap::Fails | Mishap::LostAck, _) => {
            world.apply(effect)
        }
    }
}

/// Runs the plan once without a mishap, then once for every effect of that run and every
/// [`Mishap`], each in a new world; `check` inspects each world when its plan has finished.
///
/// Returns one row per run, for printing.
///
/// # Panics
/// If a run does not finish within `limit` effects.
pub fn crash_everywhere<W: World>(
    limit: usize,
    mut make: impl FnMut() -> W,
    mut check: impl FnMut(&W),
) -> Vec<PlanRow> {
    let mut healthy = make();
    let plain = run_plan(&mut healthy, limit, |_| Mishap::None);
    check(&healthy);
    let mut rows = Vec::new();
    for (number, effect) in plain.effects.iter().enumerate() {
        for mishap in Mishap::ALL {
            let mut world = make();
            let run =
                run_plan(&mut world, limit, |at| if at == number { mishap } else { Mishap::None });
            check(&world);
            rows.push(PlanRow {
                number,
                effect: effect.clone(),
                mishap,
                effects: run.effects.len(),
                restarts: run.restarts,
            });
        }
    }
    rows
}

/// A schedule in which about `per_mille` of 1000 effects suffer a mishap, all kinds equally likely. The same
/// `seed` gives the same mishaps. None occurs after the first `until` effects, so that every run ends.
pub fn seeded_mishaps(seed: u64, per_mille: u32, until: usize) -> impl FnMut(usize) -> Mishap {
    let mut rng = ChaCha20Rng::seed_from_u64(seed);
    move |number| {
        let (draw, sort) = (rng.next_u32() % 1000, rng.next_u32() % 4);
        match (number < until && draw < per_mille, sort) {
            (false, _) => Mishap::None,
            (true, 0) => Mishap::Fails,
            (true, 1) => Mishap::LostAck,
            (true, 2) => Mishap::CrashBefore,
            (true, _) => Mishap::CrashAfter,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Increments a counter until it is three; sloppy plans do not check before they increment.
    struct Count {
        sloppy: bool,
    }

    #[derive(Debug)]
    enum Event {
        Start,
        Read(u32),
        Failed,
    }

    enum Effect {
        Read,
        Add,
        Finish,
    }

    impl Plan for Count {
        type Event = Event;
        type Effect = Effect;

        fn step(&mut self, event: Event) -> Vec<Effect> {
            match event {
                Event::Start if self.sloppy => vec![Effect::Add, Effect::Add, Effect::Add],
                Event::Start | Event::Failed => vec![Effect::Read],
                Event::Read(3..) => vec![Effect::Finish],
                Event::Read(_) => vec![Effect::Add, Effect::Read],
            }
        }
    }

    struct Counter {
        value: u32,
        sloppy: bool,
    }

    impl World for Counter {
        type Plan = Count;

        fn boot(&mut self) -> (Count, Event) {
            let sloppy = self.sloppy;
            (Count { sloppy }, Event::Start)
        }

        fn apply(&mut self, effect: Effect) -> Option<Event> {
            match effect {
                Effect::Read => Some(Event::Read(self.value)),
                Effect::Add => {
                    self.value += 1;
                    None
                }
                Effect::Finish => None,
            }
        }

        fn failure(&self, effect: &Effect) -> Option<Event> {
            matches!(effect, Effect::Read).then_some(Event::Failed)
        }

        fn name(&self, effect: &Effect) -> String {
            match effect {
                Effect::Read => "read".to_owned(),
                Effect::Add => "add".to_owned(),
                Effect::Finish => "finish".to_owned(),
            }
        }
    }

    fn counter(sloppy: bool) -> Counter {
        Counter { value: 0, sloppy }
    }

    #[test]
    fn a_plan_that_looks_first_ends_alike_whatever_happens() {
        let rows = crash_everywhere(50, || counter(false), |world| assert_eq!(world.value, 3));
        assert_eq!(rows.len(), 8 * Mishap::ALL.len());
        assert!(rows.iter().any(|row| row.restarts == 1));
        assert!(rows[0].to_string().contains("read"), "{}", rows[0]);
    }

    #[test]
    fn a_plan_that_does_not_look_is_found_out() {
        let mut world = counter(true);
        run_plan(&mut world, 50, |at| match at {
            1 => Mishap::CrashAfter,
            _ => Mishap::None,
        });
        assert_eq!(world.value, 5);
    }

    #[test]
    fn a_seed_gives_the_same_mishaps_and_an_end_to_them() {
        let mishaps = |seed| -> Vec<_> { (0..60).map(seeded_mishaps(seed, 500, 40)).collect() };
        assert_eq!(mishaps(7), mishaps(7));
        assert_ne!(mishaps(7), mishaps(8));
        assert!(mishaps(7)[40..].iter().all(|m| *m == Mishap::None));
    }

    #[test]
    #[should_panic(expected = "no end after 20 effects")]
    fn a_plan_without_an_end_is_found_out() {
        run_plan(&mut counter(false), 20, |_| Mishap::Fails);
    }
}
