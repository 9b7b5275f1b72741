//! How long ago something was, in one word.

use tec_core::time::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// For example `4m`, in the largest unit of which at least two have passed; `0s` for what is yet to come.
pub fn age(now: Timestamp, at: Timestamp) -> String {
    let seconds = now.unix_seconds().saturating_sub(at.unix_seconds()).max(0);
    let units = [(DAY, "d"), (HOUR, "h"), (MINUTE, "m")];
    let found = units.into_iter().find(|(unit, _)| seconds >= 2 * unit);
    let (unit, word) = found.unwrap_or((1, "s"));
    format!("{}{word}", seconds / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_has_one_unit_and_is_never_negative() {
        let at = Timestamp::from_unix_seconds(1_000_000);
        let after = |seconds| age(at.plus_seconds(seconds), at);
        for (seconds, text) in
            [(-5, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
        {
            assert_eq!(after(seconds), text);
        }
    }
}
