//! Long procedures as state machines without I/O.
//!
//! *What it is*: the trait [`Plan`] and the loop [`run`], which connects a plan to its environment. A plan
//! receives what happened ([`Plan::Event`]) and returns what to do next ([`Plan::Effect`]). It does nothing
//! itself, so a crash, a lost answer or a restart at any step can be unit-tested (see
//! `testing::crash_everywhere`, feature `test-util`).
//!
//! *What it is not*: a place for state that must survive. A plan dies with its process; the next process
//! starts with a new plan, which uses effects to find out what already exists.
//!
//! ```text
//!              Event                         Effect
//!   first ──────────────► Plan::step ───────────────► Shell::perform ──┐
//!              ▲                                                       │
//!              └───────────────────── Event ◄──────────────────────────┘
//! ```

use std::collections::VecDeque;

use async_trait::async_trait;

/// A procedure of many steps that may be interrupted at any of them.
///
/// *Contract*
/// * `step` is pure: the same plan and event give the same effects. Time and randomness arrive as
///   events.
/// * Effects are carried out in list order, and each is answered by at most one event; a failure is
///   also an event. An empty list means that the plan waits for an event or has finished.
/// * Every effect can be repeated and still converges: create if absent, compare-and-swap, read
///   back. A new plan that starts from what an interrupted one left reaches the same end.
/// * A plan finishes with an effect that says so, for example `Finish(outcome)`, which gets no
///   answer.
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
    /// An event that the plan receives.
    type Event;
    /// An effect that the plan requests.
    type Effect;

    /// Takes one event and returns what to do next.
    fn step(&mut self, event: Self::Event) -> Vec<Self::Effect>;
}

/// The environment of a plan: carries out its effects.
///
/// *Contract*: a failed effect is answered with an event that says so. Only the effect that ends
/// the plan, and those that the plan documents as unanswered, return `None`.
#[async_trait]
pub trait Shell<P: Plan>: Send {
    /// Carries out one effect and returns the event for the plan.
    ///
    /// # Cancel safety
    /// May be dropped at any await; see the contract of [`Plan`].
    async fn perform(&mut self, effect: P::Effect) -> Option<P::Event>;
}

/// Runs a plan until no event is left.
///
/// # Cancel safety
/// May be dropped at any await: the next plan finds what was begun.
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
