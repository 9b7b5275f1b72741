//! A header in memory that dies on command.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use tec_core::ignition::PinConfig;
use tec_core::port::EntropyRng;
use tec_core::secret::{SecretArray, SecretBytes};
use tec_core::testing::SeededEntropy;
use tec_trustee::clevis;

use super::super::{
    DiskError, Header, RecoveryState, RecoveryToken, RecoveryView, SlotMark, Token,
};

pub(crate) const KEY: [u8; 32] = [7; 32];
pub(crate) const PASSPHRASE: &[u8] = b"correct horse";

pub(crate) fn config_for(server: &str) -> PinConfig {
    let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let json = format!(r#"{{"servers":[{{"url":"{server}"}}],"path":"default/{id}/root"}}"#);
    PinConfig::parse(&json).unwrap()
}

/// The passphrase, sealed with the key for a server.
pub(crate) fn sealed_for(server: &str) -> String {
    sealed_for_ca(server, "")
}

fn sealed_for_ca(server: &str, authorities: &str) -> String {
    let passphrase = SecretBytes::new(PASSPHRASE.to_vec());
    let entropy = SeededEntropy::new(1);
    let mut rng = EntropyRng::new(&entropy);
    let mut header = config_for(server).to_header();
    authorities.clone_into(&mut header.servers[0].cert);
    clevis::seal(&header, &SecretArray::new(KEY), &passphrase, &mut rng).unwrap()
}

#[derive(Debug)]
struct State {
    slots: BTreeMap<u32, Vec<u8>>,
    marks: BTreeMap<u32, SlotMark>,
    pins: BTreeMap<u32, Token>,
    recovery: BTreeMap<u32, RecoveryToken>,
}

/// Key slot 1 holds the passphrase, until more slots are created.
#[derive(Debug)]
pub(crate) struct FakeHeader {
    state: Mutex<State>,
    /// Calls left until it dies.
    pub(crate) life: Life,
}

/// A number that tests can set.
#[derive(Debug, Default)]
pub(crate) struct Life(Mutex<Option<u32>>);

impl Life {
    pub(crate) fn set(&self, calls: Option<u32>) {
        *self.0.lock().unwrap() = calls;
    }

    /// Counts a call; returns whether it dies at this call.
    fn is_over(&self) -> bool {
        let mut left = self.0.lock().unwrap();
        let is_over = *left == Some(0);
        *left = left.map(|left| left.saturating_sub(1));
        is_over
    }
}

impl FakeHeader {
    pub(crate) fn bound_to(server: &str) -> Self {
        Self::bound_to_ca(server, "")
    }

    pub(crate) fn bound_to_ca(server: &str, authorities: &str) -> Self {
        let header = Self {
            state: Mutex::new(State {
                slots: BTreeMap::from([(1, PASSPHRASE.to_vec())]),
                marks: BTreeMap::new(),
                pins: BTreeMap::new(),
                recovery: BTreeMap::new(),
            }),
            life: Life::default(),
        };
        let slots = ["1".to_owned()];
        header.add_token(&slots, &sealed_for_ca(server, authorities)).unwrap();
        header
    }

    /// Another program creates a slot, with a stretched password.
    pub(crate) fn fill(&self, slot: u32, passphrase: &[u8]) {
        self.now().slots.insert(slot, passphrase.to_vec());
    }

    /// The recovery slots and tokens on the disk, even after it died.
    pub(crate) fn recovery_now(&self) -> RecoveryView {
        let state = self.now();
        RecoveryView {
            slots: state.slots.keys().copied().collect(),
            marks: state.marks.clone(),
            tokens: state.recovery.values().cloned().collect(),
        }
    }

    fn live(&self) -> Result<MutexGuard<'_, State>, DiskError> {
        if self.life.is_over() {
            return Err(DiskError::Failed { operation: "live", message: "power cut".to_owned() });
        }
        Ok(self.now())
    }

    fn now(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl State {
    fn free(&self) -> u32 {
        let is_taken = |id: &u32| self.pins.contains_key(id) || self.recovery.contains_key(id);
        (0..9).find(|id| !is_taken(id)).unwrap()
    }
}

impl Header for FakeHeader {
    fn tokens(&self) -> Result<Vec<Token>, DiskError> {
        Ok(self.live()?.pins.values().cloned().collect())
    }

    fn add_token(&self, slots: &[String], sealed: &str) -> Result<u32, DiskError> {
        let mut state = self.live()?;
        let id = state.free();
        let token = Token { id, slots: slots.to_vec(), sealed: sealed.to_owned() };
        state.pins.insert(id, token);
        Ok(id)
    }

    fn remove_token(&self, id: u32) -> Result<(), DiskError> {
        let mut state = self.live()?;
        state.pins.remove(&id);
        state.recovery.remove(&id);
        Ok(())
    }

    fn recovery(&self) -> Result<RecoveryView, DiskError> {
        drop(self.live()?);
        Ok(self.recovery_now())
    }

    fn add_recovery_token(
        &self,
        slot: u32,
        state: RecoveryState,
        mark: SlotMark,
    ) -> Result<u32, DiskError> {
        let mut disk = self.live()?;
        assert!(state == RecoveryState::Intended || disk.slots.contains_key(&slot));
        let id = disk.free();
        let mark = Some(mark);
        let token = RecoveryToken { id, slot, state, mark };
        disk.recovery.insert(id, token);
        Ok(id)
    }

    fn add_slot(
        &self,
        (slot, mark): (u32, SlotMark),
        old: &SecretBytes,
        new: &SecretBytes,
    ) -> Result<(), DiskError> {
        let mut state = self.live()?;
        state.marks.insert(slot, mark);
        assert!(state.slots.values().any(|known| known == old.expose("test")));
        let earlier = state.slots.insert(slot, new.expose("test").to_vec());
        assert!(earlier.is_none());
        Ok(())
    }

    fn remove_slot(&self, slot: u32) -> Result<(), DiskError> {
        let mut state = self.live()?;
        assert!(state.slots.remove(&slot).is_some());
        state.marks.remove(&slot);
        // As in LUKS2, removing a slot also removes it from its tokens.
        for token in state.pins.values_mut() {
            token.slots.retain(|known| *known != slot.to_string());
        }
        for token in state.recovery.values_mut().filter(|token| token.slot == slot) {
            token.state = RecoveryState::Intended;
        }
        Ok(())
    }

    fn opens(&self, slot: &str, passphrase: &SecretBytes) -> Result<bool, DiskError> {
        let state = self.live()?;
        let mut slots = state.slots.iter();
        let known = slots.find(|(number, _)| number.to_string() == slot);
        Ok(known.is_some_and(|(_, known)| known == passphrase.expose("test")))
    }
}
