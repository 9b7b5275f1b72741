//! Points in time as seconds since the Unix epoch; the clock itself is a [`port`](crate::port::Clock).

use std::fmt;
use std::str::FromStr;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::text::text_form;

/// Seconds since 1970-01-01T00:00:00Z; RFC 3339 in JSON and in output for humans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// Creates a timestamp from seconds since the Unix epoch. Values outside the years 0 to 9999 are clamped,
    /// since RFC 3339 cannot express them.
    pub fn from_unix_seconds(seconds: i64) -> Self {
        // 0000-01-01T00:00:00Z and 9999-12-31T23:59:59Z
        Self(seconds.clamp(-62_167_219_200, 253_402_300_799))
    }

    /// Seconds since the Unix epoch.
    pub fn unix_seconds(self) -> i64 {
        self.0
    }

    /// This point in time plus `seconds`, which may be negative.
    pub fn plus_seconds(self, seconds: i64) -> Self {
        Self::from_unix_seconds(self.0.saturating_add(seconds))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = OffsetDateTime::from_unix_timestamp(self.0)
            .ok()
            .and_then(|t| t.format(&Rfc3339).ok())
            .ok_or(fmt::Error)?;
        f.write_str(&text)
    }
}

/// The text is not an RFC 3339 date and time.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not an RFC 3339 date and time such as 2026-11-21T09:00:00Z")]
#[non_exhaustive]
pub struct ParseTimestampError {
    /// The given text.
    pub text: String,
}

impl FromStr for Timestamp {
    type Err = ParseTimestampError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        OffsetDateTime::parse(text, &Rfc3339)
            .map(|t| Self::from_unix_seconds(t.unix_timestamp()))
            .map_err(|_| ParseTimestampError { text: text.chars().take(64).collect() })
    }
}

text_form!(Timestamp);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_round_trips() {
        let t = Timestamp::from_unix_seconds(1_795_000_000);
        assert_eq!(t.to_string(), "2026-11-18T11:06:40Z");
        assert_eq!(t.to_string().parse::<Timestamp>().unwrap(), t);
        assert!("yesterday".parse::<Timestamp>().is_err());
    }

    #[test]
    fn far_values_are_clamped_and_printable() {
        for s in [i64::MIN, i64::MAX] {
            let t = Timestamp::from_unix_seconds(s);
            assert_eq!(t.to_string().parse::<Timestamp>().unwrap(), t);
        }
    }
}
