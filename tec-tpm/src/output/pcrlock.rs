//! Component files of `systemd-pcrlock` (systemd.pcrlock(5)): records in the TCG's CEL-JSON format.

use serde::{Deserialize, Serialize};
use tec_core::digest::Sha256Digest;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::{PcrIndex, PcrSet};

use super::{OutputError, from_json, to_json};
use crate::event_log::{Bank, Event, EventLog};

const FORM: &str = "a pcrlock file";

#[derive(Deserialize, Serialize)]
struct File {
    records: Vec<Record>,
}

#[derive(Deserialize, Serialize)]
struct Record {
    pcr: PcrIndex,
    digests: Vec<Digest>,
}

#[derive(Deserialize, Serialize)]
struct Digest {
    #[serde(rename = "hashAlg")]
    algorithm: String,
    digest: String,
}

/// The measurements of an image, those of each register in order, as one component.
///
/// # Errors
/// [`OutputError::Json`], in practice never.
pub fn pcrlock(expected: &ExpectedPcrs) -> Result<String, OutputError> {
    let events = expected.pcrs.iter().flat_map(|pcr| &pcr.events);
    let record = |event: &tec_core::image::ImageEvent| Record {
        pcr: event.pcr,
        digests: vec![Digest {
            algorithm: Bank::Sha256.as_str().to_owned(),
            digest: event.hash.to_string(),
        }],
    };
    let records = events.map(record).collect();
    to_json(&File { records }, FORM)
}

/// The events of a log that extend one of `registers`, with the digests of all banks but SHA-1.
///
/// # Errors
/// [`OutputError::Json`], in practice never.
pub fn pcrlock_of_log(log: &EventLog<'_>, registers: PcrSet) -> Result<String, OutputError> {
    let record = |event: &Event<'_>| {
        let pcr = event.extends().filter(|pcr| registers.contains(*pcr))?;
        let banks = Bank::ALL.into_iter().filter(|bank| *bank != Bank::Sha1);
        let digest = |bank: Bank| {
            Some(Digest {
                algorithm: bank.as_str().to_owned(),
                digest: hex::encode(event.digests.get(bank)?),
            })
        };
        let digests = banks.filter_map(digest).collect();
        Some(Record { pcr, digests })
    };
    let records = log.events().iter().filter_map(record).collect();
    to_json(&File { records }, FORM)
}

/// Reads the SHA-256 digests of a component.
///
/// # Errors
/// [`OutputError`] when it is not a component, or a record lacks the digest.
pub fn read_pcrlock(text: &str) -> Result<Vec<(PcrIndex, Sha256Digest)>, OutputError> {
    let file: File = from_json(text, FORM)?;
    let mut events = Vec::with_capacity(file.records.len());
    for (number, record) in file.records.iter().enumerate() {
        let mut digests = record.digests.iter();
        let digest = digests
            .find(|digest| digest.algorithm == Bank::Sha256.as_str())
            .ok_or(OutputError::NoSha256 { number })?;
        let digest = digest.digest.parse().map_err(|_| OutputError::Member {
            member: format!("digest of record {number}"),
            form: FORM,
        })?;
        events.push((record.pcr, digest));
    }
    Ok(events)
}
