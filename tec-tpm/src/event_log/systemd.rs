//! systemd's own log of what it measured: `/run/log/systemd/tpm2-measure.log`.
//!
//! ```text
//! 0x1e {"pcr":9,"digests":[{"hashAlg":"sha256","digest":"…"}],"content_type":"systemd",
//!       "content":{"string":"os-separator","eventType":"os-separator",…}} \n
//! ```
//! A JSON text sequence (RFC 7464) of records in the form of the TCG Canonical Event Log 1.0. Records of NV indices
//! name no register.

use std::borrow::Cow;

use serde::Deserialize;
use tec_core::attest::LoggedEvent;
use tec_core::boot::SYSTEMD;
use tec_core::digest::Sha256Digest;
use tec_core::pcr::PcrIndex;

use crate::evidence::MAX_SYSTEMD_LOG;

/// Maximum number of records; a whole boot has about 20.
const MAX_RECORDS: usize = 4096;
/// Maximum number of bytes of a text that is kept.
const MAX_TEXT: usize = 512;
/// Separator of records (RFC 7464, 2.2).
const SEPARATOR: u8 = 0x1e;

#[derive(Deserialize)]
struct Record<'r> {
    pcr: Option<PcrIndex>,
    #[serde(borrow, default)]
    digests: Vec<BankDigest<'r>>,
    #[serde(borrow)]
    content: Option<Content<'r>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BankDigest<'r> {
    #[serde(borrow)]
    hash_alg: Cow<'r, str>,
    #[serde(borrow)]
    digest: Cow<'r, str>,
}

#[derive(Deserialize)]
struct Content<'r> {
    #[serde(borrow)]
    string: Option<Cow<'r, str>>,
}

/// The records of this log that extend a register of the SHA-256 bank, numbered from 0; `None` if it is not such a
/// log, is cut off, or is too long. What they claim is not checked.
pub fn systemd_records(log: &[u8]) -> Option<Vec<LoggedEvent>> {
    if log.len() > MAX_SYSTEMD_LOG {
        return None;
    }
    let texts = log.split(|byte| *byte == SEPARATOR).map(<[u8]>::trim_ascii);
    let texts = texts.filter(|text| !text.is_empty()).take(MAX_RECORDS + 1);
    let records = texts.map(|text| serde_json::from_slice(text).ok());
    let records: Vec<Record<'_>> = records.collect::<Option<_>>()?;
    if records.len() > MAX_RECORDS {
        return None;
    }
    Some((0..).zip(&records).filter_map(|(number, record)| record.event(number)).collect())
}

impl Record<'_> {
    fn event(&self, number: u32) -> Option<LoggedEvent> {
        let sha256 = self.digests.iter().find(|digest| digest.hash_alg == "sha256")?;
        let digest: Sha256Digest = sha256.digest.parse().ok()?;
        let is_plain = |text: &&str| {
            let is_shown = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
            text.len() <= MAX_TEXT && text.bytes().all(is_shown)
        };
        let text = self.content.as_ref().and_then(|content| content.string.as_deref());
        let text = text.filter(is_plain).map(str::to_owned);
        Some(LoggedEvent::new(number, self.pcr?, digest, SYSTEMD, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str) -> String {
        let digest = Sha256Digest::of(text);
        format!(
            "\x1e{{\"pcr\":9,\"digests\":[{{\"hashAlg\":\"sha1\",\"digest\":\"00\"}},\
             {{\"hashAlg\":\"sha256\",\"digest\":\"{digest}\"}}],\"content_type\":\"systemd\",\
             \"content\":{{\"string\":\"{text}\",\"timestamp\":1}}}}\n"
        )
    }

    #[test]
    fn records_of_registers_are_read_and_those_of_nv_indices_left_out() {
        let nv = "\x1e{\"nv_index\":30474752,\"digests\":[],\"content\":{\"string\":\"x\"}}\n";
        let log = [record("os-separator"), nv.to_owned(), record("nvpcr-separator")].concat();
        let records = systemd_records(log.as_bytes()).unwrap();
        let read: Vec<_> = records.iter().map(|r| (r.number, r.detail.as_deref())).collect();
        assert_eq!(read, [(0, Some("os-separator")), (2, Some("nvpcr-separator"))]);
        assert_eq!(records[0].digest, Sha256Digest::of("os-separator"));
        assert_eq!((records[0].pcr, records[0].kind.as_str()), (PcrIndex::BOOT_FILES, SYSTEMD));
        assert_eq!(systemd_records(b""), Some(Vec::new()));
    }

    #[test]
    fn a_text_that_cannot_be_shown_is_not_kept() {
        for text in ["\\u001b[2J", "\u{202e}", &"a".repeat(MAX_TEXT + 1)] {
            assert_eq!(systemd_records(record(text).as_bytes()).unwrap()[0].detail, None);
        }
    }

    #[test]
    fn a_log_that_is_cut_off_or_too_long_is_none() {
        let log = record("os-separator").repeat(3);
        // Without its end, the last record is whole until its brace.
        for end in 1..log.len() - 2 {
            let whole = systemd_records(&log.as_bytes()[..end]);
            assert!(whole.is_none_or(|records| records.len() < 3), "{end}");
        }
        for bad in ["x", "\x1e[1]", "\x1e{\"pcr\":24}", "\x1e{\"pcr\":1,\"pcr\":2}", "\x1e{}{}"] {
            assert_eq!(systemd_records(bad.as_bytes()), None, "{bad}");
        }
        let small = "\x1e{\"pcr\":9}\n";
        assert!(systemd_records(small.repeat(MAX_RECORDS).as_bytes()).is_some());
        for many in [MAX_RECORDS + 1, 10_000] {
            assert_eq!(systemd_records(small.repeat(many).as_bytes()), None);
        }
        let large = [record("a").into_bytes(), vec![b' '; MAX_SYSTEMD_LOG]].concat();
        assert_eq!(systemd_records(&large), None);
    }
}
