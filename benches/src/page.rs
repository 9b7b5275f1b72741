//! The report as one page that needs nothing else: no scripts, nothing from outside.

use std::fmt::Write as _;

use crate::change::Change;
use crate::draw;
use crate::draw::escape;
use crate::report::{Figure, Ratio, Report};
use crate::unit::Unit;

const STYLE: &str = "
:root { color-scheme: light dark; --ok: #2a7d4f; --no: #b3541e; --line: #8885;
  --c0: #2f6fb7; --c1: #c2601a; --c2: #2a8a57; --c3: #8a4fb0; --c4: #b03a5b; --c5: #7a7a1f }
@media (prefers-color-scheme: dark) { :root { --ok: #6cc792; --no: #e79a66;
  --c0: #79aee8; --c1: #eba063; --c2: #6cc792; --c3: #c294e6; --c4: #ea8aa6; --c5: #cfcf6a } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid var(--line);
  vertical-align: top }
.num { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
code { font: 12.5px/1.45 ui-monospace, monospace }
.ok { color: var(--ok); font-weight: 600 } .no { color: var(--no); font-weight: 600 }
.small { opacity: .75; font-size: 13px }
figure { margin: 0 } svg { width: 100%; height: auto; font: 12px system-ui, sans-serif }
svg text { fill: currentColor } .grid { stroke: var(--line) } .label { opacity: .75 }
polyline { fill: none; stroke: currentColor; stroke-width: 2 } circle { fill: currentColor }
.before { stroke-dasharray: 4 4; opacity: .6 }
.key { margin-right: 1.2rem; white-space: nowrap } .key::before { content: '\\25cf\\00a0' }
.c0 { color: var(--c0) } .c1 { color: var(--c1) } .c2 { color: var(--c2) }
.c3 { color: var(--c3) } .c4 { color: var(--c4) } .c5 { color: var(--c5) }";

/// The page of a report, compared with an earlier one if there is one.
pub fn render(report: &Report, before: Option<&Report>) -> String {
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\">\
         <meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>TEC: benchmarks</title>\
         <style>{STYLE}</style><h1>Benchmarks</h1><p class=\"small\">{} on {}.</p>",
        escape(&report.commit),
        escape(&report.machine)
    );
    if let Some(before) = before {
        html += &changes(report, before);
    }
    html += &ratios(&report.ratios);
    html += &figures(&report.figures);
    for chart in &report.charts {
        let earlier = before.and_then(|b| b.charts.iter().find(|c| c.name == chart.name));
        let _ = write!(html, "<h2>{}</h2>", escape(&chart.title));
        html += &draw::draw(chart, earlier);
    }
    html + "</html>\n"
}

fn changes(report: &Report, before: &Report) -> String {
    let mut html = format!(
        "<h2>Since {}</h2><p class=\"small\">Measured on {}. Dashed lines below are of that report. \
         Changes within the noise are pale.</p><table><tr><th>Name<th class=\"num\">Before\
         <th class=\"num\">Now<th class=\"num\">Change",
        escape(&before.commit),
        escape(&before.machine)
    );
    for change in report.changes_since(before) {
        let Change {
            name,
            before,
            after,
            relative,
            is_clear,
        } = &change;
        let class = match (*is_clear, *relative > 0.0) {
            (false, _) => "small",
            (true, true) => "no",
            (true, false) => "ok",
        };
        let _ = write!(
            html,
            "<tr><td><code>{}</code><td class=\"num\">{before}<td class=\"num\">{after}\
             <td class=\"num\"><span class=\"{class}\">{:+.1} %</span>",
            escape(name),
            relative * 100.0
        );
    }
    html + "</table>"
}

fn ratios(ratios: &[Ratio]) -> String {
    if ratios.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2>Ours against a baseline of the same run</h2><p class=\"small\">Medians over pairs of \
         neighboring rounds; half of the pairs lie within the range.</p>\
         <table><tr><th>Name<th class=\"num\">Ratio<th class=\"num\">Range<th class=\"num\">Goal\
         <th class=\"num\">Ours<th class=\"num\">Baseline<th>What",
    );
    for ratio in ratios {
        let goal = ratio
            .goal
            .map_or_else(String::new, |goal| format!("{goal}"));
        let [ours, baseline] =
            [ratio.ours_ns, ratio.baseline_ns].map(|ns| Unit::Nanoseconds.show(ns));
        let _ = write!(
            html,
            "<tr><td><code>{}</code><td class=\"num\"><span class=\"{}\">{:.3}</span>\
             <td class=\"num\">{:.3}–{:.3}<td class=\"num\">{goal}<td class=\"num\">{ours}\
             <td class=\"num\">{baseline}<td>{}",
            escape(&ratio.name),
            class(ratio.reaches_goal()),
            ratio.ratio,
            ratio.low,
            ratio.high,
            escape(&ratio.note)
        );
    }
    html + "</table>"
}

fn figures(figures: &[Figure]) -> String {
    if figures.is_empty() {
        return String::new();
    }
    let mut html = String::from(
        "<h2>Figures</h2><table><tr><th>Name<th class=\"num\">Value<th class=\"num\">Goal<th>What",
    );
    for figure in figures {
        let goal = figure
            .goal
            .map_or_else(String::new, |goal| figure.unit.show(goal));
        let _ = write!(
            html,
            "<tr><td><code>{}</code><td class=\"num\"><span class=\"{}\">{}</span>\
             <td class=\"num\">{goal}<td>{}",
            escape(&figure.name),
            class(figure.reaches_goal()),
            figure.unit.show(figure.value),
            escape(&figure.note)
        );
    }
    html + "</table>"
}

fn class(reaches_goal: Option<bool>) -> &'static str {
    match reaches_goal {
        Some(true) => "ok",
        Some(false) => "no",
        None => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::{Axis, Chart};

    fn report(ours: f64) -> Report {
        let mut report = Report::default();
        report.put_ratio(Ratio::of_rounds("pcr/predict/<x>", &[(ours, 1.0)]));
        let value = ours * f64::from(1 << 20);
        report.put_figure(Figure::new("pcr/peak_memory", value, Unit::Bytes, "a note"));
        let axis = Axis::linear("cores", Unit::Count);
        let mut chart = Chart::new("c", "Scaling", axis.clone(), axis);
        chart.push("images", vec![(1.0, ours), (2.0, ours)]);
        report.put_chart(chart);
        report
    }

    #[test]
    fn the_page_loads_nothing_and_runs_nothing() {
        let page = render(&report(1.0), None);
        for outside in [
            "<script", "http://", "https://", "<img", "<link", "@import", "url(",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("&lt;x&gt;") && page.contains("1.000") && page.contains("16 MiB"));
        assert_eq!(page.matches("<svg").count(), 1);
    }

    #[test]
    fn a_missed_goal_and_a_change_for_the_worse_stand_out() {
        let page = render(&report(20.0), Some(&report(1.0)));
        assert!(page.contains("+1900.0 %") && page.contains("class=\"before c0\""));
        assert_eq!(page.matches("class=\"no\"").count(), 4);
    }
}
