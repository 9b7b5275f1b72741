//! Long procedures as state machines without I/O.
//!
//! *What it is*: the trait [`Plan`] and the loop [`run`] that connects a plan to the outside. A plan
//! is told what happened ([`Plan::Event`]) and says what to do next ([`Plan::Effect`]). It does
//! nothing itself, so that a crash, a lost answer or a restart at every step is a unit test (see
//! `testing::crash_everywhere`, feature `test-util`).
//!
//! *What it is not*: a place for state that must survive. A process that dies takes its plan along;
//! the next one begins with a new plan and finds out by effects what is there already.
//!
//! ```text
//!              Event                         Effect
//!   first ──────────────► Plan::step ───────────────► Shell::perform ──┐
//!              ▲                                                       │
//!              └───────────────────── Event ◄──────────────────────────┘
//! ```

use std::collections::VecDeque;

use async_trait::async_trait;

/// A procedure of many steps, each of which may be the last.
///
/// *Contract*
/// * `step` is pure: the same plan and event give the same effects. Time and randomness come as
///   events.
/// * Effects are carried out in the order of the list, and each is answered by at most one event;
///   failure is an event, too. An empty list means that the plan waits for an event, or has ended.
/// * Every effect is written so that doing it again converges: create if absent, compare and swap,
///   read back. A new plan over what a dead one left comes to the same end.
/// * A plan ends with an effect that says so, for example `Finish(outcome)`, which gets no answer.
///
/// *Implementations*: services in `service`. *Conformance*: `testing::crash_everywhere`.
///
/// ```
/// use tec_core::plan::Plan;
///
/// /// Makes a file once, and ends.
/// enum EnsureFile { Looking, Writing }
/// enum Event { Start, Found(bool), Written }
/// #[derive(Debug, PartialEq)]
/// enum Effect { Look, Create, Finish }
///
/// impl Plan for EnsureFile {
///     type Event = Event;
///     type Effect = Effect;
///     fn step(&mut self, event: Event) -> Vec<Effect> {
///         match (&self, event) {
///             (Self::Looking, Event::Start) => vec![Effect::Look],
///             (Self::Looking, Event::Found(false)) => {
///                 *self = Self::Writing;
///                 vec![Effect::Create]
///             }
///             (Self::Looking, Event::Found(true)) | (Self::Writing, Event::Written) => {
///                 vec![Effect::Finish]
///             }
///             _ => Vec::new(),
///         }
///     }
/// }
///
/// let mut plan = EnsureFile::Looking;
/// assert_eq!(plan.step(Event::Start), [Effect::Look]);
/// assert_eq!(plan.step(Event::Found(true)), [Effect::Finish]);
/// ```
pub trait Plan {
    /// What the plan is told.
    type Event;
    /// What the plan wants done.
    type Effect;

    /// Takes one event, and says what to do next.
    fn step(&mut self, event: Self::Event) -> Vec<Self::Effect>;
}

/// The outside of a plan: carries out its effects.
///
/// *Contract*: an effect that fails is answered with an event that says so; only the effect that
/// ends the plan, and those that the plan documents as unanswered, give `None`.
#[async_trait]
pub trait Shell<P: Plan>: Send {
    /// Carries out one effect, and returns what the plan is told about it.
    ///
    /// # Cancel safety
    /// May be dropped at any await; see the contract of [`Plan`].
    async fn perform(&mut self, effect: P::Effect) -> Option<P::Event>;
}

/// Runs a plan until no event is left.
///
/// # Cancel safety
/// May be dropped at any await: what was begun is found again by the next plan.
pub async fn run<P>(plan: &mut P, first: P::Event, shell: &mut dyn Shell<P>)
where
    P: Plan + Send,
    P::Event: Send,
    P::Effect: Send,
{
    let mut events = VecDeque::from([first]);
    while let Some(event) = events.pop_front() {
        for effect in plan.step(event) {
            events.extend(shell.perform(effect).await);
        }
    }
}
