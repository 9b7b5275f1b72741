//! The state of a state directory, for `tec status` and its page.

use std::path::Path;

use serde::Serialize;
use tec_core::ak::AkState;
use tec_core::attest::Attempt;
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::image::ExpectedPcrs;
use tec_core::machine::{Machine, MachineState};
use tec_core::port::{
    AkRegistry, AttemptLog as _, Clock as _, ImageRegistry, MachineRegistry, PortError,
};
use tec_core::store::{Store, StoreError};
use tec_support::SystemClock;
use tec_support::exit::CodedError;

use crate::attempt::LastSeen;
use crate::image::UnpinnedImage;
use crate::state::{Endpoints, Running, Said};

/// Machines are read in pages of this size.
const PAGE: usize = 1000;
/// How many refusals are shown.
const REFUSALS: usize = 5;
/// How far back to look for refusals, in attempts.
const LOOK_BACK: usize = 200;

#[derive(Serialize)]
pub(crate) struct Status {
    /// Whether `tec serve` runs on the state directory.
    pub(crate) running: bool,
    pub(crate) endpoints: Option<Endpoints>,
    pub(crate) machines: Counts,
    pub(crate) keys_waiting: usize,
    pub(crate) images_live: usize,
    /// Approved images of whose boot parts are not checked.
    pub(crate) unpinned: Vec<UnpinnedImage>,
    pub(crate) refusals: Vec<Attempt>,
    /// Machines whose last attempt was refused: they are refused now.
    pub(crate) refused_now: usize,
    /// The machine that attested last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) last_seen: Option<SeenMachine>,
    pub(crate) needs_you: Vec<String>,
}

#[derive(Serialize)]
pub(crate) struct SeenMachine {
    pub(crate) machine: MachineId,
    #[serde(flatten)]
    pub(crate) seen: LastSeen,
}

#[derive(Serialize)]
pub(crate) struct Counts {
    pub(crate) unclaimed: usize,
    pub(crate) active: usize,
    pub(crate) quarantined: usize,
    pub(crate) revoked: usize,
    pub(crate) retired: usize,
}

impl Status {
    /// The contents of a state directory.
    pub(crate) async fn of(state_dir: &Path, store: &Store) -> anyhow::Result<Self> {
        let unavailable = || unavailable("read the store");
        let machines = machines(store).await?;
        let count = |state| machines.iter().filter(|machine| machine.state == state).count();
        let keys = AkRegistry::list(store, None).await.map_err(unavailable())?;
        let now = SystemClock.now();
        let images = ImageRegistry::list(store).await.map_err(unavailable())?;
        let mut refusals = store.latest(None, LOOK_BACK).await.map_err(unavailable())?;
        refusals.retain(|attempt| attempt.ladder.code.is_some());
        refusals.truncate(REFUSALS);
        // Long, and shown for a single attempt only.
        for attempt in &mut refusals {
            attempt.measured = ExpectedPcrs::default();
        }
        let last = store.last_attempts().map_err(unread)?;
        let refused = last.values().filter(|attempt| attempt.ladder.code.is_some());
        let seen = last.iter().max_by_key(|(_, attempt)| attempt.at);
        let mut status = Self {
            running: Running::is(state_dir),
            endpoints: Endpoints::read(state_dir).ok(),
            machines: Counts {
                unclaimed: count(MachineState::Unclaimed),
                active: count(MachineState::Active),
                quarantined: count(MachineState::Quarantined),
                revoked: count(MachineState::Revoked),
                retired: count(MachineState::Retired),
            },
            keys_waiting: keys.iter().filter(|key| key.state == AkState::Pending).count(),
            images_live: images.iter().filter(|image| image.is_live(now)).count(),
            unpinned: UnpinnedImage::among(&images, Said::pins(state_dir)?),
            refusals,
            refused_now: refused.count(),
            last_seen: seen
                .map(|(machine, last)| SeenMachine { machine: *machine, seen: LastSeen::of(last) }),
            needs_you: Vec::new(),
        };
        status.needs_you = needs_you(&status);
        Ok(status)
    }

    /// Whether the server runs, and where.
    pub(crate) fn server(&self) -> Vec<String> {
        let mut lines =
            vec![format!("server        {}", if self.running { "running" } else { "stopped" })];
        if let Some(endpoints) = &self.endpoints {
            lines.push(format!("registration  {}", endpoints.register));
            lines.push(format!("AK            {}", endpoints.ak));
            lines.extend(endpoints.kbs.iter().map(|kbs| format!("key broker    {}", kbs.url)));
        }
        lines
    }
}

fn needs_you(status: &Status) -> Vec<String> {
    let mut list = Vec::new();
    if !status.running {
        list.push("the server is stopped, so no node registers or unlocks: tec serve".to_owned());
    }
    if status.images_live == 0 {
        list.push("no image is approved, so no node gets a key: tec image approve".to_owned());
    }
    if status.keys_waiting > 0 {
        list.push(format!("{} keys wait for approval: tec ak list", status.keys_waiting));
    }
    if !status.refusals.is_empty() {
        list.push("boots were refused: tec explain <attempt>".to_owned());
    }
    list
}

/// All machines of a store.
pub(crate) async fn machines(store: &Store) -> anyhow::Result<Vec<Machine>> {
    let mut machines: Vec<Machine> = Vec::new();
    loop {
        let after = machines.last().map(|machine| machine.id);
        let page = MachineRegistry::list(store, after, PAGE)
            .await
            .map_err(unavailable("list the machines"))?;
        if page.is_empty() {
            return Ok(machines);
        }
        machines.extend(page);
    }
}

fn unread(error: StoreError) -> CodedError {
    CodedError::caused(error.code(), "read the last attempts", error)
}

fn unavailable(what: &'static str) -> impl FnOnce(PortError) -> CodedError {
    move |error| CodedError::caused(error.code().unwrap_or(Code::StoreUnavailable), what, error)
}
