//! Boots virtual machines and compares their measurements with the prediction.

use std::io::Write as _;
use std::process::ExitCode;

use clap::Parser as _;
use tec_e2e::pcr_live;
use tec_e2e::pcr_live::{Case, CaseResult, Settings};
use tec_support::exit;

fn main() -> ExitCode {
    exit::finish(run(&Settings::parse()))
}

fn run(settings: &Settings) -> anyhow::Result<u8> {
    let mut stdout = std::io::stdout();
    if settings.list {
        for case in Case::all() {
            writeln!(stdout, "{case}")?;
        }
        return Ok(exit::OK);
    }
    let results = pcr_live::run(settings, |line| {
        // A closed standard error must not stop the run.
        let _ = writeln!(std::io::stderr(), "   {line}");
    });
    stdout.write_all(pcr_live::render(&results, settings.output).as_bytes())?;
    let as_predicted = results.iter().all(CaseResult::holds);
    Ok(if as_predicted { exit::OK } else { exit::FAILED })
}
