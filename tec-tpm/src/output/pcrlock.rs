//! Component files of `systemd-pcrlock` (systemd.pcrlock(5)): records in the TCG's CEL-JSON format.

use serde::Serialize;
use tec_core::image::ExpectedPcrs;
use tec_core::pcr::PcrIndex;

use super::{OutputError, to_json};
use crate::event_log::Bank;

const FORM: &str = "a pcrlock file";

#[derive(Serialize)]
struct File {
    records: Vec<Record>,
}

#[derive(Serialize)]
struct Record {
    pcr: PcrIndex,
    digests: Vec<Digest>,
}

#[derive(Serialize)]
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
