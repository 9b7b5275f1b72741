//! The header of a tar entry, and the records of an extended one.

use super::BLOCK;
use super::error::TarError;

/// The parts of a header that matter (POSIX pax, "ustar Interchange Format").
#[derive(Debug)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
    pub(super) size: u64,
}

impl Header {
    /// Parses the header at `at`.
    ///
    /// Name 100; size at 124, 12; checksum at 148, 8; type at 156; link at 157, 100; magic at 257,
    /// 6; prefix at 345, 155.
    pub(super) fn parse(block: &[u8; BLOCK], at: u64) -> Result<Self, TarError> {
        let part = |from: usize, size: usize| block.get(from..from + size).unwrap_or_default();
        if number(part(148, 8), at)? != checksum(block) {
            return Err(TarError::Checksum(at));
        }
        let mut path = Vec::new();
        // GNU's older format, whose magic ends in a blank, keeps other things in the prefix.
        if part(257, 6) == b"ustar\0" {
            path.extend_from_slice(until_zero(part(345, 155)));
        }
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(until_zero(part(0, 100)));
        Ok(Self {
            kind: block.get(156).copied().unwrap_or_default(),
            path,
            link: until_zero(part(157, 100)).to_owned(),
            size: number(part(124, 12), at)?,
        })
    }
}

/// Whether this may be the first block of a tar stream.
pub(in crate::compute::input) fn is_header(block: &[u8; BLOCK]) -> bool {
    Header::parse(block, 0).is_ok()
}

/// Sum of all bytes, with those of the checksum itself counted as spaces.
fn checksum(block: &[u8; BLOCK]) -> u64 {
    let sum = |from: usize, to: usize| {
        let part = block.get(from..to).unwrap_or_default();
        part.iter().map(|byte| u64::from(*byte)).sum::<u64>()
    };
    sum(0, 148) + 8 * u64::from(b' ') + sum(156, BLOCK)
}

/// An octal number between spaces and zeros; or, with the highest bit set, a binary one (GNU tar,
/// "Basic Tar Format").
fn number(field: &[u8], at: u64) -> Result<u64, TarError> {
    let refused = TarError::Number(at);
    if let Some((0x80, rest)) = field.split_first() {
        let (high, low) = rest.split_at(rest.len().saturating_sub(8));
        let low = low.first_chunk().copied().map(u64::from_be_bytes);
        let fits = high.iter().all(|byte| *byte == 0);
        return low.filter(|low| fits && *low <= MAX_SIZE).ok_or(refused);
    }
    let text = until_zero(field).trim_ascii();
    if text.is_empty() {
        return Ok(0);
    }
    let digit = |value: u64, digit: &u8| match digit {
        b'0'..=b'7' => Some(value * 8 + u64::from(digit - b'0')),
        _ => None,
    };
    text.iter().try_fold(0, digit).ok_or(refused)
}

/// Largest number; small enough that adding to it never overflows.
const MAX_SIZE: u64 = 1 << 62;

/// A decimal number.
pub(super) fn decimal(text: &[u8], at: u64) -> Result<u64, TarError> {
    let digits = text.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(text).ok().filter(|_| digits);
    let value = text.and_then(|text| text.parse().ok());
    value.filter(|value| *value <= MAX_SIZE).ok_or(TarError::Number(at))
}

/// The records of an extended header (POSIX pax, "pax Extended Header"): the size of the record as
/// a decimal number, a space, key, `=`, value, line feed.
#[derive(Debug)]
pub(super) struct Pax<'a> {
    rest: &'a [u8],
    at: u64,
}

impl<'a> Pax<'a> {
    pub(super) fn new(records: &'a [u8], at: u64) -> Self {
        Self { rest: records, at }
    }

    fn record(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        let blank = self.rest.iter().position(|byte| *byte == b' ')?;
        let size = decimal(self.rest.get(..blank)?, self.at).ok()?;
        let size = usize::try_from(size).ok()?;
        let record = self.rest.get(blank + 1..size)?;
        let record = record.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        self.rest = self.rest.get(size..)?;
        Some((record.get(..equals)?, record.get(equals + 1..)?))
    }
}

impl<'a> Iterator for Pax<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), TarError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let record = self.record().ok_or(TarError::Record(self.at));
        if record.is_err() {
            self.rest = &[];
        }
        Some(record)
    }
}

fn until_zero(field: &[u8]) -> &[u8] {
    field.split(|byte| *byte == 0).next().unwrap_or_default()
}
