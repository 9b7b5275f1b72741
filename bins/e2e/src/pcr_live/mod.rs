//! Predictions compared with real boots: Debian's current packages, booted in virtual machines, and
//! everything that the predictor says about them.
//!
//! *What it is*: the proof that `tec_tpm::compute` is right about firmware, boot loaders and kernels that
//! were never recorded. The predictor sees only the boot files and the variables before the boot; the machine
//! is queried afterwards.
//!
//! *What it is not*: a test of nodes. The guest runs one program, which reports and switches off.
//!
//! ```text
//!  Case ─ setup ─► boot files, variables ─┬─ BootPredictor ────────────────► Prediction ─┐
//!                                         └─ Machine ─► registers, quote, log ── compare ─┴─► report
//! ```

mod boot;
mod case;
mod compare;
mod report;
mod setup;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clap::{Parser, ValueEnum};

pub use self::boot::{Recording, record};
pub use self::case::{Case, Setup};
pub use self::compare::{Difference, RegisterResult, Values, Verdict, compare};

/// Boots at a time. A machine keeps one processor busy; more would only make each one slower.
const AT_ONCE: usize = 2;

/// Boots virtual machines and compares their measurements with the prediction.
#[derive(Clone, Debug, Parser)]
#[command(version)]
#[non_exhaustive]
pub struct Settings {
    /// Print the names of all cases
    #[arg(long)]
    pub list: bool,
    /// Cases to boot
    #[arg(long = "case", value_name = "NAME", required_unless_present = "list")]
    pub cases: Vec<Case>,
    /// Cache of tools and boot files, as set up by `cargo xtask pcr-live`
    #[arg(long, env = "TEC_CACHE")]
    pub cache: PathBuf,
    /// Program that runs as process 1 of the machines, statically linked
    #[arg(long, default_value = "target/guest/tec-guest")]
    pub guest: PathBuf,
    /// Directory for logs, variables, consoles and boot files of each case
    #[arg(long, default_value = "target/pcr-live")]
    pub artefacts: PathBuf,
    /// Format of the result on standard output
    #[arg(long, value_enum, default_value_t)]
    pub output: Output,
}

/// Format of the result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Output {
    /// A table.
    #[default]
    Text,
    /// JSON.
    Json,
}

/// The result of one case.
#[derive(Debug)]
#[non_exhaustive]
pub struct CaseResult {
    /// The case.
    pub case: Case,
    /// Where its files are.
    pub artefacts: PathBuf,
    /// The comparison, or why there is none.
    pub compared: anyhow::Result<Compared>,
}

/// A boot compared with its prediction.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Compared {
    /// The predicted registers, in order.
    pub registers: Vec<RegisterResult>,
    /// Whether the system got an event log.
    pub has_log: bool,
    /// How long set-up and boot took.
    pub took: Duration,
}

impl CaseResult {
    /// Whether the boot measured what was predicted.
    pub fn holds(&self) -> bool {
        let compared = self.compared.as_ref();
        compared.is_ok_and(|compared| compared.registers.iter().all(|r| r.verdict.holds()))
    }
}

/// Boots all cases in order, two at a time; `tell` is called when each one starts and ends.
pub fn run(settings: &Settings, tell: impl Fn(&str) + Sync) -> Vec<CaseResult> {
    let queue: Mutex<VecDeque<_>> =
        Mutex::new(settings.cases.iter().copied().enumerate().collect());
    let done = Mutex::new(Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((number, case)) = next() {
                    tell(&format!("{case}: booting"));
                    let result = boot(case, settings);
                    let word = if result.holds() { "as predicted" } else { "FAILED" };
                    tell(&format!("{case}: {word}"));
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    done.push((number, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

fn boot(case: Case, settings: &Settings) -> CaseResult {
    let compared = record(case, settings).and_then(|recording| {
        Ok(Compared {
            registers: compare(&recording)?,
            has_log: recording.log.is_some(),
            took: recording.took,
        })
    });
    CaseResult { case, artefacts: settings.artefacts.join(case.to_string()), compared }
}

/// The result in the requested format.
pub fn render(results: &[CaseResult], output: Output) -> String {
    match output {
        Output::Text => report::table(results),
        Output::Json => format!("{:#}\n", report::json(results)),
    }
}
