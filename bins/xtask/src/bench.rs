//! `cargo xtask bench`: the criterion suites, and then what matters of them: each measurement as a
//! multiple of its baseline in the same run, which other machines give, too.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use anyhow::Result;
use serde_json::Value;

use crate::cargo::Metadata;
use crate::cargo::array;
use crate::cargo::cargo;
use crate::cargo::text;
use crate::process;
use crate::term;

/// Written by the suites, below the target directory.
const RATIOS: &str = "bench/ratios.json";

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run only the benchmarks whose name contains this
    filter: Option<String>,
}

/// Runs the suites and prints the ratios.
pub(crate) fn run(root: &Path, args: &Args) -> Result<()> {
    let path = Metadata::workspace(root)?.target_dir()?.join(RATIOS);
    // Ratios of an earlier run must not pass for those of this one.
    if path.exists() {
        fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    term::step("benchmarks");
    let mut bench = cargo(root);
    bench.args(["bench", "--package", "tec-benches"]);
    if let Some(filter) = &args.filter {
        bench.args(["--", filter]);
    }
    process::run(&mut bench)?;
    let json = fs::read_to_string(&path)
        .with_context(|| format!("the benchmarks left no {}", path.display()))?;
    let ratios: Value =
        serde_json::from_str(&json).with_context(|| format!("{} is not JSON", path.display()))?;
    term::step("ratios to the baseline of the same run");
    term::table(
        &["benchmark", "ours", "baseline", "ratio", "note"],
        &rows(&ratios),
    );
    Ok(())
}

fn rows(ratios: &Value) -> Vec<Vec<String>> {
    ratios
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .chain(array(ratios, "ratios"))
        .map(|entry| {
            let number = |member| entry.get(member).and_then(Value::as_f64);
            vec![
                text(entry, "name").to_owned(),
                number("ours_ns").map_or_else(String::new, nanoseconds),
                number("baseline_ns").map_or_else(String::new, nanoseconds),
                number("ratio").map_or_else(String::new, |ratio| format!("{ratio:.2}")),
                text(entry, "note").to_owned(),
            ]
        })
        .collect()
}

/// With the largest unit that leaves at least one before the point.
fn nanoseconds(ns: f64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    units.into_iter().find(|(unit, _)| ns >= *unit).map_or_else(
        || format!("{ns:.0} ns"),
        |(unit, name)| format!("{:.2} {name}", ns / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_becomes_a_row() {
        let json = serde_json::json!([
            {"name": "quote", "ours_ns": 2500.0, "baseline_ns": 2000.0, "ratio": 1.25, "note": "rsa"}
        ]);
        assert_eq!(
            rows(&json),
            [["quote", "2.50 µs", "2.00 µs", "1.25", "rsa"]]
        );
    }
}
