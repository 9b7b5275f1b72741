//! Shows a report on standard output: its ratios and figures, or what changed since an earlier one.
//! `cargo xtask bench` calls this.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use tec_benches::Report;

#[derive(Debug, Parser)]
#[command(name = "tec-benches", about = "Shows a report of the benchmarks")]
struct Args {
    /// The report
    report: PathBuf,
    /// Earlier report to compare with
    #[arg(long)]
    since: Option<PathBuf>,
    /// Commit to record in the report, along with this machine
    #[arg(long)]
    commit: Option<String>,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let mut report = read(&args.report)?;
    if let Some(commit) = args.commit {
        report.commit = commit;
        report.machine = machine();
        report.write(&args.report)?;
    }
    let before = args.since.as_deref().map(read).transpose()?;
    let text = match &before {
        Some(before) => changes(&report, before),
        None => findings(&report),
    };
    let mut stdout = std::io::stdout();
    stdout.write_all(text.as_bytes()).context("cannot print")
}

fn read(file: &Path) -> Result<Report> {
    anyhow::ensure!(file.is_file(), "there is no report {}", file.display());
    Report::read(file)
}

/// Ratios and figures, one per line.
fn findings(report: &Report) -> String {
    let verdict = |reached: Option<bool>| match reached {
        Some(true) => "reached ",
        Some(false) => "MISSED  ",
        None => "        ",
    };
    let ratios = report.ratios.iter();
    let ratios = ratios.map(|ratio| format!("{}{ratio}\n", verdict(ratio.reaches_goal())));
    let figures = report.figures.iter();
    let figures = figures.map(|figure| format!("{}{figure}\n", verdict(figure.reaches_goal())));
    ratios.chain(figures).collect()
}

/// Changes, one per line; `*` marks those that are more than noise.
fn changes(report: &Report, before: &Report) -> String {
    let changes = report.changes_since(before).into_iter().map(|change| {
        let mark = if change.is_clear { '*' } else { ' ' };
        format!(
            "{mark} {:+7.1} %  {}: {}, was {}\n",
            change.relative * 100.0,
            change.name,
            change.after,
            change.before
        )
    });
    changes.collect()
}

/// Processor and number of cores, from Linux.
fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim())
    });
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} with {cores} cores", model.unwrap_or("a processor"))
}

#[cfg(test)]
mod tests {
    use tec_benches::Ratio;

    use super::*;

    fn report(ours: f64) -> Report {
        let mut report = Report::default();
        report.put_ratio(Ratio::of_rounds("pcr/predict/x", &[(ours, 1.0)]));
        report
    }

    #[test]
    fn a_missed_goal_and_a_change_for_the_worse_stand_out() {
        assert!(findings(&report(1.0)).starts_with("reached pcr/predict/x: 1.000 "));
        assert!(findings(&report(20.0)).starts_with("MISSED  pcr/predict/x: 20.000 "));
        let text = changes(&report(20.0), &report(1.0));
        assert_eq!(text, "* +1900.0 %  pcr/predict/x: 20.000, was 1.000\n");
    }
}
