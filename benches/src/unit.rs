//! Units of measurements, and their readable form.

use serde::{Deserialize, Serialize};

/// What a number counts. Numbers are stored in the base unit and shown in the most convenient one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unit {
    /// Items.
    Count,
    /// Bytes.
    Bytes,
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes per second.
    BytesPerSecond,
    /// Items per second.
    PerSecond,
}

const BINARY: [(f64, &str); 3] = [(1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1_024.0, "KiB")];
const DECIMAL: [(f64, &str); 2] = [(1e6, "M"), (1e3, "k")];
const TIME: [(f64, &str); 3] = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];

impl Unit {
    /// The number with the largest prefix that leaves at least one before the decimal point.
    pub fn show(self, value: f64) -> String {
        let (prefixes, base, end): (&[(f64, &str)], _, _) = match self {
            Self::Count => (&DECIMAL, "", ""),
            Self::PerSecond => (&DECIMAL, "", "/s"),
            Self::Bytes => (&BINARY, "B", ""),
            Self::BytesPerSecond => (&BINARY, "B", "/s"),
            Self::Nanoseconds => (&TIME, "ns", ""),
        };
        let found = prefixes.iter().find(|(unit, _)| value >= *unit);
        let (scaled, name) = found.map_or((value, base), |(unit, name)| (value / unit, *name));
        let number = number(scaled);
        let space = if name.is_empty() { "" } else { " " };
        format!("{number}{space}{name}{end}")
    }

    /// The number as part of a figure's name, such as `64kib`.
    pub fn label(self, value: f64) -> String {
        self.show(value).replace(' ', "").to_lowercase()
    }
}

/// Three significant digits, without trailing zeros after the point.
fn number(value: f64) -> String {
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    let text = format!("{value:.decimals$}");
    match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_the_handiest_prefix() {
        for (unit, value, text) in [
            (Unit::Nanoseconds, 999.0, "999 ns"),
            (Unit::Nanoseconds, 2_500.0, "2.5 µs"),
            (Unit::Nanoseconds, 3e6, "3 ms"),
            (Unit::Bytes, 2_147_483_648.0, "2 GiB"),
            (Unit::Bytes, 1_024.0, "1 KiB"),
            (Unit::BytesPerSecond, 1.61e9, "1.5 GiB/s"),
            (Unit::Count, 80.0, "80"),
            (Unit::Count, 65_536.0, "65.5 k"),
            (Unit::PerSecond, 123.4, "123/s"),
        ] {
            assert_eq!(unit.show(value), text);
        }
        assert_eq!(Unit::Bytes.label(65_536.0), "64kib");
    }
}
