//! A header in memory that dies when it is told to.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::BTreeMap;

use tec_core::ignition::PinConfig;
use tec_core::port::EntropyRng;
use tec_core::secret::SecretArray;
use tec_core::secret::SecretBytes;
use tec_core::testing::SeededEntropy;
use tec_trustee::clevis;

use super::DiskError;
use super::Header;
use super::Token;

pub(crate) const KEY: [u8; 32] = [7; 32];
pub(crate) const PASSPHRASE: &[u8] = b"correct horse";

pub(crate) fn config_for(server: &str) -> PinConfig {
    let id = "7c9e6679-7425-40de-944b-e07fc1f90ae7";
    let json = format!(r#"{{"servers":[{{"url":"{server}"}}],"path":"default/{id}/root"}}"#);
    PinConfig::parse(&json).unwrap()
}

/// The passphrase, sealed with the key for a server.
pub(crate) fn sealed_for(server: &str) -> String {
    let passphrase = SecretBytes::new(PASSPHRASE.to_vec());
    let entropy = SeededEntropy::new(1);
    let mut rng = EntropyRng::new(&entropy);
    let header = config_for(server).to_header();
    clevis::seal(&header, &SecretArray::new(KEY), &passphrase, &mut rng).unwrap()
}

/// One key slot, number 1, with the passphrase.
#[derive(Debug, Default)]
pub(crate) struct FakeHeader {
    tokens: RefCell<BTreeMap<u32, Token>>,
    /// Calls that are left until it dies.
    pub(crate) life: Cell<Option<u32>>,
}

impl FakeHeader {
    pub(crate) fn bound_to(server: &str) -> Self {
        let header = Self::default();
        let slots = ["1".to_owned()];
        header.add_token(&slots, &sealed_for(server)).unwrap();
        header
    }

    fn live(&self) -> Result<(), DiskError> {
        match self.life.get() {
            Some(0) => Err(DiskError::Failed {
                operation: "live",
                message: "power cut".to_owned(),
            }),
            left => {
                self.life.set(left.map(|left| left - 1));
                Ok(())
            }
        }
    }
}

impl Header for FakeHeader {
    fn tokens(&self) -> Result<Vec<Token>, DiskError> {
        self.live()?;
        Ok(self.tokens.borrow().values().cloned().collect())
    }

    fn add_token(&self, slots: &[String], sealed: &str) -> Result<u32, DiskError> {
        self.live()?;
        let mut tokens = self.tokens.borrow_mut();
        let id = (0..9).find(|id| !tokens.contains_key(id)).unwrap();
        let token = Token {
            id,
            slots: slots.to_vec(),
            sealed: sealed.to_owned(),
        };
        tokens.insert(id, token);
        Ok(id)
    }

    fn remove_token(&self, id: u32) -> Result<(), DiskError> {
        self.live()?;
        self.tokens.borrow_mut().remove(&id);
        Ok(())
    }

    fn opens(&self, slot: &str, passphrase: &SecretBytes) -> Result<bool, DiskError> {
        self.live()?;
        Ok(slot == "1" && passphrase.expose("test") == PASSPHRASE)
    }
}
