//! Reference values as Trustee accepts them.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;
use tec_core::time::Timestamp;

use super::{OutputError, from_json, register_number, to_json};
use crate::combine::Combined;

const CONFIG_MAP: &str = "a list of reference values";
const MESSAGE: &str = "a message of reference values";
/// Version of the records and messages (Trustee, RVPS message).
const VERSION: &str = "0.1.0";
/// Name of a register's values, without padding: `tpm_pcr4`.
const PREFIX: &str = "tpm_pcr";
/// A value that no policy asks for, but that the lists of the existing operator begin with.
const SVN: (&str, &str) = ("tpm_svn", "1");

/// The values that registers may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferenceValues {
    registers: BTreeMap<PcrIndex, BTreeSet<Sha256Digest>>,
}

/// Member order is that of the existing operator's list.
#[derive(Deserialize, Serialize)]
struct Record {
    version: String,
    name: String,
    expiration: String,
    value: Vec<String>,
}

#[derive(Deserialize, Serialize)]
struct Message {
    version: String,
    #[serde(rename = "type")]
    kind: String,
    payload: String,
}

impl ReferenceValues {
    /// No values.
    pub fn new() -> Self {
        Self::default()
    }

    /// The values of one unmodified image.
    pub fn of_image(expected: &ExpectedPcrs) -> Self {
        let pcrs = expected.pcrs.iter();
        pcrs.fold(Self::new(), |values, pcr| values.with(pcr.id, pcr.value))
    }

    /// The values that occur while a fleet is updated.
    ///
    /// # Security
    /// Lists per register accept the value of one state together with that of another; see
    /// [`Combined::joint`] for what occurs together.
    pub fn of_fleet(combined: &Combined) -> Self {
        let values = |pcr| (pcr, combined.values(pcr).into_iter().collect());
        Self { registers: combined.registers().iter().map(values).collect() }
    }

    /// Adds a value.
    pub fn with(mut self, pcr: PcrIndex, value: Sha256Digest) -> Self {
        self.registers.entry(pcr).or_default().insert(value);
        self
    }

    /// The values of a register, sorted.
    pub fn values(&self, pcr: PcrIndex) -> impl Iterator<Item = &Sha256Digest> {
        self.registers.get(&pcr).into_iter().flatten()
    }

    /// Registers that have values.
    pub fn registers(&self) -> impl Iterator<Item = PcrIndex> {
        self.registers.keys().copied()
    }

    /// The list that a ConfigMap holds for Trustee's reference value provider. Trustee stores
    /// `expiration` but does not check it.
    ///
    /// # Errors
    /// [`OutputError::Json`], in practice never.
    pub fn to_config_map(&self, expiration: Timestamp) -> Result<String, OutputError> {
        let record = |(name, value)| Record {
            version: VERSION.to_owned(),
            name,
            expiration: expiration.to_string(),
            value,
        };
        let named: BTreeMap<String, Vec<String>> = self.named().collect();
        let records: Vec<_> = named.into_iter().map(record).collect();
        to_json(&records, CONFIG_MAP)
    }

    /// The message that Trustee accepts at `POST /reference-value`: type `sample`, with the base64
    /// of an object from names to values as payload.
    ///
    /// # Errors
    /// [`OutputError::Json`], in practice never.
    pub fn to_message(&self) -> Result<String, OutputError> {
        let named: BTreeMap<String, Vec<String>> = self.named().collect();
        let payload = serde_json::to_vec(&named)
            .map_err(|source| OutputError::Json { form: MESSAGE, source })?;
        let message = Message {
            version: VERSION.to_owned(),
            kind: "sample".to_owned(),
            payload: STANDARD.encode(payload),
        };
        to_json(&message, MESSAGE)
    }

    fn named(&self) -> impl Iterator<Item = (String, Vec<String>)> {
        let svn = (SVN.0.to_owned(), vec![SVN.1.to_owned()]);
        let registers = self.registers.iter().map(|(pcr, values)| {
            let values = values.iter().map(ToString::to_string);
            (format!("{PREFIX}{pcr}"), values.collect())
        });
        std::iter::once(svn).chain(registers)
    }

    /// Reads the list of a ConfigMap. Names other than those of registers are ignored.
    ///
    /// # Errors
    /// [`OutputError`] when it is not such a list.
    pub fn read_config_map(text: &str) -> Result<Self, OutputError> {
        let records: Vec<Record> = from_json(text, CONFIG_MAP)?;
        let named = records.into_iter().map(|record| (record.name, record.value));
        Self::of_named(named, CONFIG_MAP)
    }

    /// Reads a message. Names other than those of registers are ignored.
    ///
    /// # Errors
    /// [`OutputError`] when it is not such a message.
    pub fn read_message(text: &str) -> Result<Self, OutputError> {
        let message: Message = from_json(text, MESSAGE)?;
        let refuse =
            |member: &str| OutputError::Member { member: member.to_owned(), form: MESSAGE };
        if message.version != VERSION {
            return Err(refuse("version"));
        }
        if message.kind != "sample" {
            return Err(refuse("type"));
        }
        let payload = STANDARD.decode(message.payload).map_err(|_| refuse("payload"))?;
        let payload = String::from_utf8(payload).map_err(|_| refuse("payload"))?;
        let named: BTreeMap<String, serde_json::Value> = from_json(&payload, MESSAGE)?;
        let mut lists = Vec::new();
        for (name, value) in named {
            if name.starts_with(PREFIX) {
                let list = serde_json::from_value(value).map_err(|_| refuse(&name))?;
                lists.push((name, list));
            }
        }
        Self::of_named(lists, MESSAGE)
    }

    fn of_named(
        named: impl IntoIterator<Item = (String, Vec<String>)>,
        form: &'static str,
    ) -> Result<Self, OutputError> {
        let mut read = Self::new();
        for (name, values) in named {
            let Some(number) = name.strip_prefix(PREFIX) else {
                continue;
            };
            let refuse = || OutputError::Member { member: name.clone(), form };
            let pcr = register_number(number).ok_or_else(refuse)?;
            if read.registers.contains_key(&pcr) {
                return Err(OutputError::Repeated(pcr));
            }
            let digests = values.iter().map(|value| value.parse().map_err(|_| refuse()));
            read.registers.insert(pcr, digests.collect::<Result<_, _>>()?);
        }
        Ok(read)
    }
}
