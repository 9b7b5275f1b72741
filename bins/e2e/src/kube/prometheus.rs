//! Simulates what Prometheus knows after scraping programs, and which alerts it would fire. Not a PromQL
//! engine: it evaluates the conditions from which the alert expressions are generated.

use std::collections::BTreeMap;

use tec_k8s::signal::{Aggregate, Alert, Comparison, Condition, Matcher, Selector};

type Labels = BTreeMap<String, String>;

/// Seconds.
const DAY: f64 = 86_400.0;

#[derive(Debug)]
struct Series {
    name: String,
    labels: Labels,
    value: f64,
}

/// Scrapes, one round after another.
#[derive(Debug, Default)]
pub struct Prometheus(Vec<Vec<Series>>);

impl Prometheus {
    /// One round: the response of each pod with its job, `None` if the pod did not answer. Pods are
    /// identified by their position.
    pub fn scrape(&mut self, answers: &[(&str, Option<&str>)]) {
        let mut round = Vec::new();
        for (place, (job, answer)) in answers.iter().enumerate() {
            let own = [("job", (*job).to_owned()), ("instance", place.to_string())];
            let own = own.map(|(label, value)| (label.to_owned(), value));
            let value = f64::from(u8::from(answer.is_some()));
            round.push(Series { name: "up".to_owned(), labels: own.clone().into(), value });
            let lines = answer.unwrap_or_default().lines();
            round.extend(lines.filter_map(parse).map(|mut series| {
                series.labels.extend(own.clone());
                series
            }));
        }
        self.0.push(round);
    }

    /// Whether the expression of the alert with this name is true at this time.
    pub fn fires(&self, name: &str, now: i64) -> bool {
        let mut named = Alert::ALL.iter().filter(|alert| alert.name == name);
        named.any(|alert| alert.any_of.iter().any(|condition| self.holds(condition, now)))
    }

    fn holds(&self, condition: &Condition, now: i64) -> bool {
        match condition {
            Condition::Down(jobs) => !self.last().iter().any(|series| {
                let job = series.labels.get("job").map(String::as_str).unwrap_or_default();
                series.name == "up" && series.value > 0.0 && jobs.contains(&job)
            }),
            Condition::Level(how, of, comparison) => self.level(*how, of, *comparison),
            Condition::Grows(by, of, than, _) => {
                grouped(self.growth(of), *by).values().any(|sum| *sum > f64::from(*than))
            }
            Condition::Share(of, all, percent, _) => {
                let sum = |of| self.growth(of).iter().map(|(_, value)| value).sum::<f64>();
                100.0 * sum(of) > f64::from(*percent) * sum(all)
            }
            Condition::Since(of, days) => {
                let latest = self.selected(of).map(|series| series.value).reduce(f64::max);
                latest.is_some_and(|latest| seconds(now) - latest > f64::from(*days) * DAY)
            }
            Condition::Within(of, days) => {
                let limit = f64::from(*days) * DAY;
                self.selected(of).any(|series| series.value - seconds(now) < limit)
            }
        }
    }

    fn last(&self) -> &[Series] {
        self.0.last().map(Vec::as_slice).unwrap_or_default()
    }

    fn selected(&self, of: &Selector) -> impl Iterator<Item = &Series> {
        self.last().iter().filter(move |series| matches(series, of))
    }

    fn level(&self, how: Aggregate, of: &Selector, comparison: Comparison) -> bool {
        let values: Vec<f64> = match how {
            Aggregate::Sum => {
                let all: Vec<f64> = self.selected(of).map(|series| series.value).collect();
                if all.is_empty() { all } else { vec![all.iter().sum()] }
            }
            Aggregate::Max => {
                self.selected(of).map(|series| series.value).reduce(f64::max).into_iter().collect()
            }
            Aggregate::MinBy(label) => {
                let mut least: BTreeMap<Option<&String>, f64> = BTreeMap::new();
                for series in self.selected(of) {
                    let value = least.entry(series.labels.get(label)).or_insert(f64::INFINITY);
                    *value = value.min(series.value);
                }
                least.into_values().collect()
            }
        };
        values.iter().any(|value| match comparison {
            Comparison::Less(than) => *value < f64::from(than),
            Comparison::Equal(to) => (*value - f64::from(to)).abs() < f64::EPSILON,
            Comparison::More(than) => *value > f64::from(than),
        })
    }

    /// How much each series grew. The first value of a series does not count as growth.
    fn growth(&self, of: &Selector) -> Vec<(Labels, f64)> {
        let mut growth = Vec::new();
        for pair in self.0.windows(2) {
            let [before, after] = pair else { continue };
            for series in after.iter().filter(|series| matches(series, of)) {
                let same = |one: &&Series| one.name == series.name && one.labels == series.labels;
                if let Some(known) = before.iter().find(same) {
                    growth.push((series.labels.clone(), (series.value - known.value).max(0.0)));
                }
            }
        }
        growth
    }
}

/// Converts seconds since 1970, which are far below 2^52.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn seconds(time: i64) -> f64 {
    time as f64
}

fn grouped(growth: Vec<(Labels, f64)>, by: Option<&str>) -> BTreeMap<Option<String>, f64> {
    let mut sums: BTreeMap<Option<String>, f64> = BTreeMap::new();
    for (labels, value) in growth {
        *sums.entry(by.and_then(|label| labels.get(label).cloned())).or_default() += value;
    }
    sums
}

fn matches(series: &Series, of: &Selector) -> bool {
    let value = |label: &str| series.labels.get(label).map(String::as_str).unwrap_or_default();
    series.name == of.metric.as_str()
        && of.labels.iter().all(|matcher| match matcher {
            Matcher::Is(label, wanted) => value(label) == *wanted,
            Matcher::IsNot(label, other) => value(label) != *other,
        })
}

/// A line of the text format 0.0.4.
fn parse(line: &str) -> Option<Series> {
    let (series, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let pairs = labels.trim_end_matches('}').split(',').filter_map(|pair| {
        let (label, value) = pair.split_once('=')?;
        Some((label.to_owned(), value.trim_matches('"').to_owned()))
    });
    Some(Series { name: name.to_owned(), labels: pairs.collect(), value: value.parse().ok()? })
}
