//! How two reports differ.

use crate::report::{Figure, Ratio, Report};

/// How a ratio or figure differs from that of another report.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Change {
    /// Name of the ratio or figure.
    pub name: String,
    /// Value in the earlier report, in readable form.
    pub before: String,
    /// Value in the later report, in readable form.
    pub after: String,
    /// Later divided by earlier, minus one.
    pub relative: f64,
    /// Whether the middle halves of both do not overlap, so that the change is more than noise.
    pub is_clear: bool,
}

/// A smaller change of a figure is noise: memory hardly varies, times do.
const CLEAR: f64 = 0.05;

impl Report {
    /// How the ratios and figures that both reports have differ from an earlier report.
    pub fn changes_since(&self, before: &Self) -> Vec<Change> {
        let ratios = self.ratios.iter().filter_map(|after| {
            let earlier = before.ratios.iter().find(|b| b.name == after.name);
            earlier.map(|earlier| earlier.change(after))
        });
        let figures = self.figures.iter().filter_map(|after| {
            let earlier = before.figures.iter().find(|b| b.name == after.name);
            earlier.map(|earlier| earlier.change(after))
        });
        ratios.chain(figures).collect()
    }
}

impl Ratio {
    fn change(&self, after: &Self) -> Change {
        Change {
            name: self.name.clone(),
            before: format!("{:.3}", self.ratio),
            after: format!("{:.3}", after.ratio),
            relative: after.ratio / self.ratio - 1.0,
            is_clear: after.low > self.high || after.high < self.low,
        }
    }
}

impl Figure {
    fn change(&self, after: &Self) -> Change {
        let relative = after.value / self.value - 1.0;
        Change {
            name: self.name.clone(),
            before: self.unit.show(self.value),
            after: self.unit.show(after.value),
            relative,
            is_clear: relative.abs() > CLEAR,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_within_the_noise_is_not_clear() {
        let report = |pairs: &[(f64, f64)]| {
            let mut report = Report::default();
            report.put_ratio(Ratio::of_rounds("x", pairs));
            report
        };
        let before = report(&[(1.0, 1.0), (1.1, 1.0), (1.2, 1.0), (1.3, 1.0)]);
        let noisy = report(&[(1.2, 1.0), (1.2, 1.0), (1.4, 1.0), (1.5, 1.0)]);
        let faster = report(&[(0.5, 1.0), (0.5, 1.0), (0.6, 1.0), (0.6, 1.0)]);
        let changes = |after: &Report| after.changes_since(&before);
        assert!(!changes(&noisy)[0].is_clear && changes(&noisy)[0].relative > 0.0);
        assert!(changes(&faster)[0].is_clear && changes(&faster)[0].relative < -0.4);
        assert_eq!(before.changes_since(&Report::default()), []);
    }
}
