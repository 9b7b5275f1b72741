//! The results of a run, and the file that all suites of a run write to.

use std::io::ErrorKind;
use std::path::Path;
use std::{fmt, fs};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::unit::Unit;

/// File of the report, below the target directory.
pub const REPORT: &str = "bench/report.json";

/// Everything that the suites of one run measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Report {
    /// The commit that was measured.
    pub commit: String,
    /// The machine that it was measured on.
    pub machine: String,
    /// Ours against a baseline.
    pub ratios: Vec<Ratio>,
    /// Single numbers.
    pub figures: Vec<Figure>,
}

/// The result of a comparison with a baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ratio {
    /// Name of the comparison.
    pub name: String,
    /// Nanoseconds of one of our operations; median over rounds.
    pub ours_ns: f64,
    /// Nanoseconds of one operation of the baseline; median over rounds.
    pub baseline_ns: f64,
    /// Ours divided by the baseline; median over pairs of neighboring rounds.
    pub ratio: f64,
    /// Lower quartile of the pairs.
    pub low: f64,
    /// Upper quartile of the pairs.
    pub high: f64,
    /// Highest desired ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<f64>,
    /// What is compared.
    pub note: String,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Figure {
    /// Name.
    pub name: String,
    /// Value.
    pub value: f64,
    /// Unit of the value.
    pub unit: Unit,
    /// Highest desired value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<f64>,
    /// What was measured.
    pub note: String,
}

/// Highest desired values, by the name of a ratio or figure or its prefix up to a slash; times in
/// nanoseconds, sizes in bytes. Nothing fails for missing its goal; the table shows it.
const GOALS: [(&str, f64); 18] = [
    // 0.7 of the handshakes of mutual TLS.
    ("atls", 1.429),
    ("atls_quotes", 1.429),
    ("continuous/growth", 1.05),
    ("guard/unlock", 1.1),
    ("kbs/policy", 0.05),
    ("kbs/unlocks", 2.0),
    // 0.9 of the unlocks of `tec serve` per second of a processor.
    ("kube_broker/processor", 1.111),
    // 0.8 and 0.9 of the operations of a bare create.
    ("kube_registration/key", 1.25),
    ("kube_registration/key_growth", 1.2),
    ("kube_registration/machine", 1.111),
    ("pcr/predict", 1.15),
    ("pcr/process", 1.3),
    ("pcr/event_log", 1.2),
    ("silent/kbs-guard", 157_286_400.0),
    ("silent/ratio", 2.0),
    ("silent/strangers", 2.0),
    ("silent/strangers_memory", 157_286_400.0),
    ("silent/tec", 157_286_400.0),
];

fn goal(name: &str) -> Option<f64> {
    let fits = |family: &str| {
        let rest = name.strip_prefix(family);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let found = GOALS.iter().find(|(family, _)| fits(family));
    found.map(|(_, goal)| *goal)
}

impl Ratio {
    /// Computed from pairs of nanoseconds per operation, ours first.
    pub fn of_rounds(name: &str, pairs: &[(f64, f64)]) -> Self {
        let ratios = || pairs.iter().map(|(ours, baseline)| ours / baseline);
        Self {
            name: name.to_owned(),
            ours_ns: quantile(2, pairs.iter().map(|(ours, _)| *ours)),
            baseline_ns: quantile(2, pairs.iter().map(|(_, baseline)| *baseline)),
            ratio: quantile(2, ratios()),
            low: quantile(1, ratios()),
            high: quantile(3, ratios()),
            goal: goal(name),
            note: String::new(),
        }
    }

    /// Our operations per second.
    pub fn ours_per_second(&self) -> f64 {
        1e9 / self.ours_ns
    }

    /// The baseline's operations per second.
    pub fn baseline_per_second(&self) -> f64 {
        1e9 / self.baseline_ns
    }

    /// Both rates, ours first.
    pub fn per_second(&self) -> String {
        let (ours, baseline) = (self.ours_per_second(), self.baseline_per_second());
        format!("{ours:.0} against {baseline:.0} per second")
    }

    /// Whether the goal is reached; `None` if there is none.
    pub fn reaches_goal(&self) -> Option<bool> {
        self.goal.map(|goal| self.ratio <= goal)
    }
}

impl Figure {
    /// A number with its unit and a description.
    pub fn new(name: &str, value: f64, unit: Unit, note: &str) -> Self {
        Self { name: name.to_owned(), value, unit, goal: goal(name), note: note.to_owned() }
    }

    /// Whether the goal is reached; `None` if there is none.
    pub fn reaches_goal(&self) -> Option<bool> {
        self.goal.map(|goal| self.value <= goal)
    }
}

impl Report {
    /// The report in `file`; an empty one if the file does not exist.
    pub fn read(file: &Path) -> Result<Self> {
        let json = match fs::read_to_string(file) {
            Ok(json) => json,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", file.display()));
            }
        };
        serde_json::from_str(&json)
            .with_context(|| format!("{} contains no report", file.display()))
    }

    /// Writes the report to `file`, and creates the folders above it.
    pub fn write(&self, file: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self).context("cannot write the report as JSON")?;
        if let Some(dir) = file.parent() {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        fs::write(file, json + "\n").with_context(|| format!("cannot write {}", file.display()))
    }

    /// Changes the report in `file`, or starts one. Suites run one after another, so none overwrites what
    /// another adds.
    pub fn update(file: &Path, change: impl FnOnce(&mut Self)) -> Result<()> {
        let mut report = Self::read(file)?;
        change(&mut report);
        report.write(file)
    }

    /// Adds a ratio, replacing an earlier one with the same name.
    pub fn put_ratio(&mut self, ratio: Ratio) {
        self.ratios.retain(|other| other.name != ratio.name);
        self.ratios.push(ratio);
    }

    /// Adds a figure, replacing an earlier one with the same name.
    pub fn put_figure(&mut self, figure: Figure) {
        self.figures.retain(|other| other.name != figure.name);
        self.figures.push(figure);
    }
}

/// A quartile of the values, by its number; NaN for an empty list.
fn quantile(quarters: usize, values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let place = values.len() * quarters / 4;
    values.get(place).copied().unwrap_or(f64::NAN)
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ours, baseline] =
            [self.ours_ns, self.baseline_ns].map(|ns| Unit::Nanoseconds.show(ns));
        write!(
            f,
            "{}: {:.3} of the baseline ({:.3} to {:.3}; {ours} against {baseline}): {}",
            self.name, self.ratio, self.low, self.high, self.note
        )
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.unit.show(self.value);
        write!(f, "{}: {value}: {}", self.name, self.note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_that_was_disturbed_changes_nothing() {
        let pairs = [(2.0, 1.0), (4.0, 2.0), (900.0, 1.0), (2.2, 1.0), (2.0, 50.0)];
        let ratio = Ratio::of_rounds("x", &pairs);
        assert!((ratio.ratio - 2.0).abs() < 1e-9);
        assert!((ratio.baseline_ns - 1.0).abs() < 1e-9);
        assert!((ratio.low - 2.0).abs() < 1e-9 && (ratio.high - 2.2).abs() < 1e-9);
    }

    #[test]
    fn suites_share_one_file_and_a_name_occurs_once() {
        let dir = std::env::temp_dir().join(format!("tec-report-{}", std::process::id()));
        let file = dir.join(REPORT);
        let ratio = |name: &str, ours| Ratio::of_rounds(name, &[(ours, 1.0)]);
        for one in [ratio("a", 1.0), ratio("b", 2.0), ratio("a", 3.0)] {
            Report::update(&file, |report| report.put_ratio(one)).unwrap();
        }
        let figure = Figure::new("silent/tec", 9.0, Unit::Bytes, "a note");
        Report::update(&file, |report| report.put_figure(figure.clone())).unwrap();
        let report = Report::read(&file).unwrap();
        assert_eq!(report.ratios, [ratio("b", 2.0), ratio("a", 3.0)]);
        assert_eq!(report.figures, [figure]);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn goals_are_those_of_a_family_of_names() {
        assert_eq!(goal("pcr/predict/trixie"), Some(1.15));
        assert_eq!(goal("pcr/predict"), Some(1.15));
        assert_eq!(goal("pcr/predictor"), None);
        let slow = Ratio::of_rounds("pcr/predict/x", &[(1.2, 1.0)]);
        assert_eq!(slow.reaches_goal(), Some(false));
        assert_eq!(Ratio::of_rounds("x", &[]).reaches_goal(), None);
    }
}
