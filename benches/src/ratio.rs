//! One measured ratio, and the file that all suites of a run write into.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::Context as _;
use anyhow::Result;
use serde::Deserialize;
use serde::Serialize;

/// What a comparison found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ratio {
    /// Name of the comparison.
    pub name: String,
    /// Nanoseconds of one of our operations; median over rounds.
    pub ours_ns: f64,
    /// Nanoseconds of one operation of the baseline; median over rounds.
    pub baseline_ns: f64,
    /// Ours by baseline; median over pairs of neighboring rounds.
    pub ratio: f64,
    /// What is compared.
    pub note: String,
}

impl Ratio {
    /// From pairs of nanoseconds per operation, ours first.
    pub(crate) fn of_rounds(name: &str, pairs: &[(f64, f64)]) -> Self {
        Self {
            name: name.to_owned(),
            ours_ns: median(pairs.iter().map(|(ours, _)| *ours)),
            baseline_ns: median(pairs.iter().map(|(_, baseline)| *baseline)),
            ratio: median(pairs.iter().map(|(ours, baseline)| ours / baseline)),
            note: String::new(),
        }
    }

    /// Operations of ours per second.
    pub fn ours_per_second(&self) -> f64 {
        1e9 / self.ours_ns
    }

    /// Operations of the baseline per second.
    pub fn baseline_per_second(&self) -> f64 {
        1e9 / self.baseline_ns
    }

    /// Adds itself to the list in `file`, in the place of an earlier one of the same name.
    pub(crate) fn save(&self, file: &Path) -> Result<()> {
        let mut all = read(file)?;
        all.retain(|other| other.name != self.name);
        all.push(self.clone());
        let json = serde_json::to_string_pretty(&all).context("cannot write the ratios as JSON")?;
        if let Some(dir) = file.parent() {
            fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        // Suites run one after another, so nobody reads a half-written file.
        fs::write(file, json + "\n").with_context(|| format!("cannot write {}", file.display()))
    }
}

fn read(file: &Path) -> Result<Vec<Ratio>> {
    let json = match fs::read_to_string(file) {
        Ok(json) => json,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", file.display()));
        }
    };
    serde_json::from_str(&json).with_context(|| format!("{} holds no ratios", file.display()))
}

/// Not a number for an empty list.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {:.2} of the baseline ({:.0} ns against {:.0} ns): {}",
            self.name, self.ratio, self.ours_ns, self.baseline_ns, self.note
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_round_that_was_disturbed_changes_nothing() {
        let pairs = [
            (2.0, 1.0),
            (4.0, 2.0),
            (900.0, 1.0),
            (2.2, 1.0),
            (2.0, 50.0),
        ];
        let ratio = Ratio::of_rounds("x", &pairs);
        assert!((ratio.ratio - 2.0).abs() < 1e-9);
        assert!((ratio.baseline_ns - 1.0).abs() < 1e-9);
    }

    #[test]
    fn suites_share_one_file_and_a_name_occurs_once() {
        let dir = std::env::temp_dir().join(format!("tec-ratios-{}", std::process::id()));
        let file = dir.join("bench/ratios.json");
        let ratio = |name: &str, ours| Ratio::of_rounds(name, &[(ours, 1.0)]);
        for one in [ratio("a", 1.0), ratio("b", 2.0), ratio("a", 3.0)] {
            one.save(&file).unwrap();
        }
        assert_eq!(read(&file).unwrap(), [ratio("b", 2.0), ratio("a", 3.0)]);
        fs::remove_dir_all(&dir).unwrap();
    }
}
