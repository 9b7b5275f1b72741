//! The fold from events to register values.

use sha1::Sha1;
use sha2::digest::Output;
use sha2::{Digest, Sha256, Sha384, Sha512};
use tec_core::digest::Sha256Digest;
use tec_core::pcr::{PCR_COUNT, PcrIndex, PcrSet, PcrValues};

use super::bank::Bank;
use super::error::EventLogError;
use super::event::Event;
use super::parse::EventLog;

/// The values that a log replays to in one bank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    bank: Bank,
    /// One digest per register.
    values: Vec<Vec<u8>>,
    extended: PcrSet,
}

impl Replayed {
    /// The bank.
    pub fn bank(&self) -> Bank {
        self.bank
    }

    /// Value of a register; the reset value if no event extends it.
    pub fn value(&self, pcr: PcrIndex) -> &[u8] {
        self.values.get(pcr.as_usize()).map_or(&[], Vec::as_slice)
    }

    /// Registers that at least one event extends.
    pub fn extended(&self) -> PcrSet {
        self.extended
    }
}

impl<'a> EventLog<'a> {
    /// Folds the events into the registers of `bank`.
    ///
    /// Registers start as the PC Client Platform TPM Profile specifies ("PCR Initial and Reset
    /// Values"): at zero (PCR 0 at the start-up locality), PCR 17 to 22 at all ones.
    ///
    /// # Errors
    /// [`EventLogError::NoBank`] and [`EventLogError::MissingDigest`].
    pub fn replay(&self, bank: Bank) -> Result<Replayed, EventLogError> {
        fn owned<const N: usize>(values: [[u8; N]; PCR_COUNT]) -> Vec<Vec<u8>> {
            values.iter().map(|value| value.to_vec()).collect()
        }
        let values = match bank {
            Bank::Sha1 => self.fold(bank, |e| e.digests.sha1, extended::<Sha1, _>).map(owned),
            Bank::Sha256 => self.fold(bank, |e| e.digests.sha256, extended::<Sha256, _>).map(owned),
            Bank::Sha384 => self.fold(bank, |e| e.digests.sha384, extended::<Sha384, _>).map(owned),
            Bank::Sha512 => self.fold(bank, |e| e.digests.sha512, extended::<Sha512, _>).map(owned),
        }?;
        Ok(Replayed {
            bank,
            values,
            extended: self.events().iter().filter_map(Event::extends).collect(),
        })
    }

    /// As [`replay`](Self::replay) for the SHA-256 bank, in the type that quotes use.
    ///
    /// # Errors
    /// [`EventLogError::NoBank`] and [`EventLogError::MissingDigest`].
    pub fn replay_sha256(&self) -> Result<PcrValues, EventLogError> {
        self.fold(Bank::Sha256, |e| e.digests.sha256, extended::<Sha256, _>)
            .map(|values| PcrValues::new(values.map(Sha256Digest::new)))
    }

    fn fold<const N: usize>(
        &self,
        bank: Bank,
        select: impl Fn(&Event<'a>) -> Option<&'a [u8; N]>,
        extend: impl Fn(&[u8; N], &[u8; N]) -> [u8; N],
    ) -> Result<[[u8; N]; PCR_COUNT], EventLogError> {
        if self.banks().all(|covered| covered != bank) {
            return Err(EventLogError::NoBank(bank));
        }
        let mut values = self.reset_values();
        for event in self.events() {
            let Some(pcr) = event.extends() else { continue };
            let digest = select(event).ok_or(EventLogError::MissingDigest {
                offset: event.offset,
                number: event.number,
                bank,
            })?;
            if let Some(value) = values.get_mut(pcr.as_usize()) {
                *value = extend(value, digest);
            }
        }
        Ok(values)
    }

    fn reset_values<const N: usize>(&self) -> [[u8; N]; PCR_COUNT] {
        let mut values = [[0; N]; PCR_COUNT];
        for value in values.iter_mut().skip(17).take(6) {
            *value = [0xff; N];
        }
        if let Some(last) = values.first_mut().and_then(|pcr0| pcr0.last_mut()) {
            *last = self.startup_locality();
        }
        values
    }
}

/// What a register with this value holds after an extend by `event` (TPM 2.0 Library Part 1, "PCR Operations",
/// `TPM2_PCR_Extend`).
pub(crate) fn extended<D: Digest, const N: usize>(old: &[u8; N], event: &[u8; N]) -> [u8; N]
where
    [u8; N]: From<Output<D>>,
{
    D::new().chain_update(old).chain_update(event).finalize().into()
}
