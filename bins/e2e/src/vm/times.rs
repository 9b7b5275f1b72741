//! How long boots take, and how they spend the time.

use std::time::Duration;

use tec_guest::node::marks::Mark;

use super::boot::Boot;
use super::table;

/// The steps whose times are shown.
const STEPS: [Mark; 8] = [
    Mark::Started,
    Mark::Devices,
    Mark::Network,
    Mark::Fetched,
    Mark::Bound,
    Mark::Unlocking,
    Mark::Unlocked,
    Mark::Root,
];
/// The parts of a boot up to the unlocked root.
const SHARES: [&str; 6] =
    ["kernel and devices", "network", "TPM", "server", "Clevis and LUKS", "all"];

/// When each boot reached each step.
pub(super) fn reached(boots: &[(String, Boot)]) -> String {
    let heading: Vec<String> = STEPS.iter().map(ToString::to_string).collect();
    let heading = ["boot"].into_iter().chain(heading.iter().map(String::as_str));
    let row = |(what, boot): &(String, Boot)| {
        let times = STEPS.iter().map(|mark| {
            let at = boot.at(*mark);
            at.map_or_else(|| "-".to_owned(), |at| format!("{:.1}", at.as_secs_f64()))
        });
        [what.clone()].into_iter().chain(times).collect()
    };
    let rows: Vec<Vec<String>> = boots.iter().map(row).collect();
    table::render(&heading.collect::<Vec<_>>(), &rows)
}

/// How each boot that Clevis unlocked spent its time.
pub(super) fn shares(boots: &[(String, Boot)]) -> String {
    let heading: Vec<&str> = ["boot"].into_iter().chain(SHARES).collect();
    let row = |(what, boot): &(String, Boot)| {
        let shares = shares_of(boot)?;
        let all = shares.iter().sum::<Duration>();
        let cells = shares.iter().map(|share| {
            let percent = 100.0 * share.as_secs_f64() / all.as_secs_f64();
            format!("{:.1} ({percent:.0} %)", share.as_secs_f64())
        });
        let row = [what.clone()].into_iter().chain(cells);
        Some(row.chain([format!("{:.1}", all.as_secs_f64())]).collect())
    };
    let rows: Vec<Vec<String>> = boots.iter().filter_map(row).collect();
    table::render(&heading, &rows)
}

/// All shares except the sum; `None` for a boot that Clevis did not unlock.
fn shares_of(boot: &Boot) -> Option<[Duration; 5]> {
    let [devices, network, unlocking, unlocked] =
        [Mark::Devices, Mark::Network, Mark::Unlocking, Mark::Unlocked].map(|mark| boot.at(mark));
    let (devices, network, unlocked) = (devices?, network?, unlocked?);
    let said = &boot.step(Mark::Unlocked)?.text;
    let [tpm, server] = ["tpm_ms=", "servers_ms="].map(|name| milliseconds(said, name));
    let (tpm, server) = (tpm?, server?);
    let rest = unlocked.saturating_sub(unlocking?);
    Some([devices, network.saturating_sub(devices), tpm, server, rest.saturating_sub(tpm + server)])
}

/// A number in node-agent's log.
fn milliseconds(log: &str, name: &str) -> Option<Duration> {
    let mut words = log.split_whitespace();
    let number = words.find_map(|word| word.strip_prefix(name))?;
    Some(Duration::from_millis(number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::boot::Step;

    fn boot(log: &str) -> Boot {
        let steps = [
            (Mark::Devices, 4, ""),
            (Mark::Network, 5, ""),
            (Mark::Unlocking, 5, ""),
            (Mark::Unlocked, 10, log),
        ];
        let steps = steps.map(|(mark, seconds, text)| Step {
            mark,
            at: Duration::from_secs(seconds),
            text: text.to_owned(),
        });
        Boot { steps: steps.to_vec(), console: String::new() }
    }

    #[test]
    fn the_shares_of_a_boot_are_its_whole() {
        let boot = boot("INFO tec_agent::pin: the key was released tpm_ms=1500 servers_ms=500\n");
        assert_eq!(
            shares(&[("reboot".to_owned(), boot)]).lines().last(),
            Some(
                "reboot  4.0 (40 %)          1.0 (10 %)  1.5 (15 %)  0.5 (5 %)  3.0 (30 %)       10.0"
            )
        );
        assert!(shares_of(&self::boot("")).is_none());
    }
}
