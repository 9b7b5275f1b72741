//! A Trustee in memory, and the other inputs of the controllers in tests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tec_core::ak::{Fingerprint, PublicKey};
use tec_core::attest::PinnedPcrs;
use tec_core::boot::Pins;
use tec_core::code::Code;
use tec_core::id::MachineId;
use tec_core::image::{ApprovedImage, ExpectedPcrs};
use tec_core::port::{Clock, PortError, PortErrorKind};
use tec_core::secret::SecretBytes;
use tec_core::time::Timestamp;
use tec_k8s::api::{PublishSpec, TargetStatus, TrustedExecutionCluster};
use tec_k8s::controller::{LabelReader, Published, Round, TagReader, Trust};
use tec_support::SystemClock;

/// What is known about one machine.
type Facts = (Option<Fingerprint>, Option<Vec<u8>>);

#[derive(Debug, Default)]
struct State {
    desired: BTreeMap<MachineId, Facts>,
    held: BTreeMap<MachineId, Facts>,
    /// Machines whose disk key is never replaced.
    kept: BTreeSet<MachineId>,
    images: Vec<ApprovedImage>,
    held_images: Vec<ApprovedImage>,
    is_down: bool,
    rounds: u64,
    losses: u64,
}

/// One Trustee named `trustee`, which tests can inspect and take down.
#[derive(Debug, Default)]
pub struct MemoryTrust(Mutex<State>);

impl MemoryTrust {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it down, or brings it up again.
    pub fn set_down(&self, is_down: bool) {
        self.state().is_down = is_down;
    }

    /// The disk key it holds for a machine.
    pub fn key(&self, machine: &MachineId) -> Option<Vec<u8>> {
        self.state().held.get(machine)?.1.clone()
    }

    /// The attestation key it holds for a machine.
    pub fn ak(&self, machine: &MachineId) -> Option<Fingerprint> {
        self.state().held.get(machine)?.0
    }

    /// Whether the running operator sent it the disk key of a machine.
    pub fn knows(&self, machine: &MachineId) -> bool {
        self.knows_key(machine)
    }

    /// Names of the images that it allows to boot.
    pub fn images(&self) -> Vec<String> {
        let state = self.state();
        state.held_images.iter().map(|image| image.name.to_string()).collect()
    }

    /// Simulates a restart of the operator: what it sent is forgotten, what the Trustee holds is not.
    pub fn restart_operator(&self) {
        let mut state = self.state();
        state.desired.clear();
        state.kept.clear();
        state.images.clear();
    }

    /// How many times the operator reported that the Trustee may have lost its state.
    pub fn losses(&self) -> u64 {
        self.state().losses
    }

    /// Rounds so far.
    pub fn rounds(&self) -> u64 {
        self.state().rounds
    }
}

#[async_trait]
impl Trust for MemoryTrust {
    async fn configure(
        &self,
        _: &TrustedExecutionCluster,
        _: &PublishSpec,
    ) -> Result<(), PortError> {
        Ok(())
    }

    fn pins(&self) -> Pins {
        PinnedPcrs::boot_manager().into()
    }

    fn knows_key(&self, machine: &MachineId) -> bool {
        self.state().desired.get(machine).is_some_and(|facts| facts.1.is_some())
    }

    fn set_machine(
        &self,
        machine: &MachineId,
        ak: Option<&PublicKey>,
        key: Option<SecretBytes>,
    ) -> Result<bool, PortError> {
        let mut state = self.state();
        let facts = state.desired.entry(*machine).or_default();
        let old = facts.clone();
        facts.0 = ak.map(PublicKey::fingerprint);
        if let Some(key) = key {
            facts.1 = Some(key.expose("the test looks at it").to_vec());
        }
        let is_new = old != *facts;
        if facts.1.is_some() {
            state.kept.remove(machine);
        }
        Ok(is_new)
    }

    fn keep_machine(&self, machine: &MachineId, ak: Option<&PublicKey>) -> Result<bool, PortError> {
        let mut state = self.state();
        let facts = state.desired.entry(*machine).or_default();
        let old = facts.clone();
        facts.0 = ak.map(PublicKey::fingerprint);
        let is_new = old != *facts;
        if facts.1.is_some() {
            return Ok(is_new);
        }
        Ok(state.kept.insert(*machine) || is_new)
    }

    fn forget_machine(&self, machine: &MachineId) -> bool {
        let mut state = self.state();
        state.kept.remove(machine);
        state.desired.remove(machine).is_some()
    }

    fn set_images(&self, images: Vec<ApprovedImage>) -> Result<bool, PortError> {
        let mut state = self.state();
        let is_new = state.images != images;
        state.images = images;
        Ok(is_new)
    }

    fn published(&self, machine: &MachineId) -> Published {
        let state = self.state();
        let is_there = state.held.get(machine) == state.desired.get(machine);
        let targets = if is_there { vec!["trustee".to_owned()] } else { Vec::new() };
        Published::new(targets, 1)
    }

    async fn round(&self) -> Round {
        let mut state = self.state();
        state.rounds += 1;
        if state.is_down {
            let why = Some("it is down".to_owned());
            let target = TargetStatus::new("trustee", 1, why);
            return Round::new(vec![target], Some(std::time::Duration::from_millis(200)));
        }
        let State { desired, held, kept, images, held_images, .. } = &mut *state;
        let mut next = desired.clone();
        for (machine, facts) in &mut next {
            if kept.contains(machine) {
                facts.1 = held.get(machine).and_then(|facts| facts.1.clone());
            }
        }
        *held = next;
        held_images.clone_from(images);
        Round::new(vec![TargetStatus::new("trustee", 0, None)], None)
    }

    async fn distrust(&self, _: &str) {
        let mut state = self.state();
        state.held.clear();
        state.losses += 1;
    }
}

/// Labels of images, as set by tests. Other images cannot be read.
#[derive(Debug, Default)]
pub struct Labels(Mutex<BTreeMap<String, ExpectedPcrs>>);

impl Labels {
    /// Gives an image a label.
    pub fn set(&self, reference: &str, expected: ExpectedPcrs) {
        let mut labels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        labels.insert(reference.to_owned(), expected);
    }
}

#[async_trait]
impl LabelReader for Labels {
    async fn label(
        &self,
        reference: &str,
        _: Option<SecretBytes>,
    ) -> Result<Option<ExpectedPcrs>, PortError> {
        let labels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        labels.get(reference).cloned().map(Some).ok_or_else(|| {
            PortError::new(PortErrorKind::NotFound, format!("read the image {reference}"))
        })
    }
}

#[derive(Debug, Default)]
struct Pointers {
    tags: BTreeMap<String, Result<String, (PortErrorKind, Code)>>,
    built: BTreeMap<String, Timestamp>,
    looks: u64,
}

/// Where tags point to, as set by tests. Other tags do not exist.
#[derive(Debug, Default)]
pub struct Tags(Mutex<Pointers>);

impl Tags {
    fn pointers(&self) -> MutexGuard<'_, Pointers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a tag point to an image, by digest.
    pub fn set(&self, tag: &str, reference: &str) {
        self.pointers().tags.insert(tag.to_owned(), Ok(reference.to_owned()));
    }

    /// Sets when an image was built.
    pub fn set_built(&self, reference: &str, at: Timestamp) {
        self.pointers().built.insert(reference.to_owned(), at);
    }

    /// Lets looks at a tag fail.
    pub fn fail(&self, tag: &str, kind: PortErrorKind, code: Code) {
        self.pointers().tags.insert(tag.to_owned(), Err((kind, code)));
    }

    /// Number of looks so far.
    pub fn looks(&self) -> u64 {
        self.pointers().looks
    }
}

#[async_trait]
impl TagReader for Tags {
    async fn resolve(&self, tag: &str, _: Option<SecretBytes>) -> Result<String, PortError> {
        let mut pointers = self.pointers();
        pointers.looks += 1;
        let absent = Err((PortErrorKind::NotFound, Code::ImageAbsent));
        pointers.tags.get(tag).cloned().unwrap_or(absent).map_err(|(kind, code)| {
            PortError::new(kind, format!("look up the tag {tag}")).with_code(code)
        })
    }

    async fn built_at(
        &self,
        reference: &str,
        _: Option<SecretBytes>,
    ) -> Result<Option<Timestamp>, PortError> {
        Ok(self.pointers().built.get(reference).copied())
    }
}

/// The system clock, which tests can set forward.
#[derive(Clone, Debug, Default)]
pub struct ShiftedClock(Arc<AtomicI64>);

impl ShiftedClock {
    /// Sets the clock forward.
    pub fn advance(&self, seconds: i64) {
        self.0.fetch_add(seconds, Ordering::Relaxed);
    }
}

impl Clock for ShiftedClock {
    fn now(&self) -> Timestamp {
        SystemClock.now().plus_seconds(self.0.load(Ordering::Relaxed))
    }
}
