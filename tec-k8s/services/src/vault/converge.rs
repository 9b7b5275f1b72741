//! Converges objects to the desired state, one at a time: check, create or repair, check again.

use std::collections::VecDeque;

use super::object::{Look, Making, Object};
use super::{Request, Response, Verdict};

/// Number of times that an object may differ after it was written.
const CONTESTS: u32 = 14;

/// How to handle a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Repair it.
    Repair,
    /// Report it.
    Audit,
}

/// The next step.
#[derive(Debug)]
pub(super) enum Turn {
    /// Make this call.
    Call(Request),
    /// Every object has the desired state.
    Done,
    /// This object differs, and is only reported.
    Drift(String),
    /// This object differs, and cannot be repaired.
    Conflict(String),
    /// This object was repaired again and again, and differs each time.
    Contested(String),
    /// A call failed.
    Failed(Verdict),
}

#[derive(Debug)]
pub(super) struct Converge {
    objects: VecDeque<Object>,
    mode: Mode,
    state: State,
    /// How often an object differed after it was written.
    contests: u32,
}

#[derive(Debug)]
enum State {
    /// The answer is the current state of the first object.
    Looking,
    /// The answer is the state after the write: now it must be the desired one.
    Checking,
    /// The answer is to a call that creates it.
    Making(Making),
    /// The answer is to the call that repairs it.
    Mending,
}

impl Converge {
    pub(super) fn new(objects: Vec<Object>, mode: Mode) -> Self {
        let state = State::Looking;
        let objects = objects.into();
        Self { objects, mode, state, contests: 0 }
    }

    /// The first call.
    pub(super) fn begin(&mut self) -> Turn {
        self.look(State::Looking)
    }

    /// The next call, given the answer to the last one.
    pub(super) fn answer(&mut self, answer: &Response) -> Turn {
        let Some(object) = self.objects.front() else {
            return Turn::Done;
        };
        match &mut self.state {
            State::Looking | State::Checking => match object.judge(answer) {
                Look::Same => {
                    self.objects.pop_front();
                    self.look(State::Looking)
                }
                Look::Unknown(verdict) => Turn::Failed(verdict),
                look => self.change(look),
            },
            State::Making(making) => match answer.verdict() {
                // Someone else was faster, or an answer was lost.
                Verdict::Exists => self.look(State::Checking),
                Verdict::Good => match making.next(&object.make, answer) {
                    Ok(Some(request)) => Turn::Call(request),
                    Ok(None) => self.look(State::Checking),
                    Err(verdict) => Turn::Failed(verdict),
                },
                verdict => Turn::Failed(verdict),
            },
            State::Mending => match answer.verdict() {
                Verdict::Good => self.look(State::Checking),
                verdict => Turn::Failed(verdict),
            },
        }
    }

    fn look(&mut self, state: State) -> Turn {
        self.state = state;
        match self.objects.front() {
            Some(object) => Turn::Call(Request::get(object.look.clone())),
            None => Turn::Done,
        }
    }

    /// An object that was written differs: another controller wrote it too, or a vault that stands by does not
    /// know yet what the leader wrote for it. It is looked at again after the others.
    fn contested(&mut self) -> Turn {
        let Some(object) = self.objects.pop_front() else {
            return Turn::Done;
        };
        self.contests += 1;
        match object.mend {
            None => Turn::Conflict(object.name),
            Some(_) if self.contests > CONTESTS => Turn::Contested(object.name),
            Some(_) => {
                self.objects.push_back(object);
                self.look(State::Looking)
            }
        }
    }

    fn change(&mut self, look: Look) -> Turn {
        let Some(object) = self.objects.front() else {
            return Turn::Done;
        };
        if matches!(self.state, State::Checking) {
            return self.contested();
        }
        if self.mode == Mode::Audit {
            return Turn::Drift(object.name.clone());
        }
        if look == Look::Absent {
            let (making, request) = Making::begin(&object.make);
            self.state = State::Making(making);
            return Turn::Call(request);
        }
        match &object.mend {
            Some((path, body)) => {
                let request = Request::post(path.clone(), body);
                self.state = State::Mending;
                Turn::Call(request)
            }
            None => Turn::Conflict(object.name.clone()),
        }
    }
}
