//! Charts as SVG.

use std::fmt::Write as _;

use crate::chart::{Axis, Chart, Line, Scale};
use crate::unit::Unit;

/// Size of the drawing, and of the plot within it, in pixels.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 86.0;
const RIGHT: f64 = 740.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 320.0;
/// Most ticks of one axis.
const TICKS: usize = 9;
/// Most powers on an axis of ratios: those of two in 64 bits.
const MOST_POWERS: usize = 64;
/// Colors of the style sheet.
const COLORS: usize = 6;

/// An axis with its range and its place.
struct Ruler<'a> {
    axis: &'a Axis,
    from: f64,
    to: f64,
    begin: f64,
    end: f64,
}

impl<'a> Ruler<'a> {
    fn new(axis: &'a Axis, values: impl Iterator<Item = f64> + Clone, place: (f64, f64)) -> Self {
        let most = values.clone().fold(0.0, f64::max);
        // There is no zero on an axis of ratios.
        let least = values.filter(|value| *value > 0.0).fold(most, f64::min);
        let (from, to) = match axis.scale {
            Scale::Linear if is_binary(axis.unit) => (0.0, most.max(1.0).log2().ceil().exp2()),
            Scale::Linear => (0.0, round_up(most)),
            Scale::Logarithmic if 0.0 < least && least < most => (least, most),
            Scale::Logarithmic => (least.max(1.0), 10.0 * least.max(1.0)),
        };
        Self {
            axis,
            from,
            to,
            begin: place.0,
            end: place.1,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let share = match self.axis.scale {
            Scale::Linear => (value - self.from) / (self.to - self.from),
            Scale::Logarithmic => {
                let value = value.max(self.from);
                (value / self.from).ln() / (self.to / self.from).ln()
            }
        };
        self.begin + share * (self.end - self.begin)
    }

    /// Quarters or fifths of a linear axis; powers of two or ten of the other one.
    fn ticks(&self) -> Vec<f64> {
        let (parts, base) = if is_binary(self.axis.unit) {
            (4, 2.0_f64)
        } else {
            (5, 10.0)
        };
        if self.axis.scale == Scale::Linear {
            let tick = |part| self.to * f64::from(part) / f64::from(parts);
            return (0..=parts).map(tick).collect();
        }
        // A little below, so that rounding does not lose the first one.
        let first = (self.from.log(base) - 1e-9).ceil();
        let all: Vec<f64> = std::iter::successors(Some(base.powf(first)), |tick| Some(tick * base))
            .take_while(|tick| *tick <= self.to * (1.0 + 1e-9))
            .take(MOST_POWERS)
            .collect();
        let step = all.len().div_ceil(TICKS).max(1);
        all.into_iter().step_by(step).collect()
    }
}

/// Whether prefixes of the unit are powers of two.
fn is_binary(unit: Unit) -> bool {
    matches!(unit, Unit::Bytes | Unit::BytesPerSecond)
}

/// The next larger of 1, 2, 2.5, 5 and 10 times a power of ten.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10.0_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0];
    let fits = steps.into_iter().find(|step| step * power >= value);
    fits.unwrap_or(10.0) * power
}

/// The chart as SVG with a legend; dashed lines for those of an earlier report.
pub(crate) fn draw(chart: &Chart, before: Option<&Chart>) -> String {
    let earlier = before.map_or(&[][..], |chart| chart.lines.as_slice());
    let points = || {
        let lines = chart.lines.iter().chain(earlier);
        lines.flat_map(|line| line.points.iter().copied())
    };
    let x = Ruler::new(&chart.x, points().map(|(x, _)| x), (LEFT, RIGHT));
    let y = Ruler::new(&chart.y, points().map(|(_, y)| y), (BOTTOM, TOP));
    let mut svg = format!(
        "<figure><svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escape(&chart.title)
    );
    svg += &axes(&x, &y);
    for (number, line) in chart.lines.iter().enumerate() {
        let before = earlier.iter().find(|earlier| earlier.name == line.name);
        if let Some(before) = before {
            svg += &path(before, &x, &y, &format!("before c{}", number % COLORS));
        }
        svg += &path(line, &x, &y, &format!("c{}", number % COLORS));
        svg += &dots(chart, line, &x, &y, number % COLORS);
    }
    svg += "</svg><figcaption>";
    for (number, line) in chart.lines.iter().enumerate() {
        let (color, name) = (number % COLORS, escape(&line.name));
        let _ = write!(svg, "<span class=\"key c{color}\">{name}</span> ");
    }
    svg + "</figcaption></figure>"
}

fn axes(x: &Ruler<'_>, y: &Ruler<'_>) -> String {
    let mut svg = String::new();
    for tick in y.ticks() {
        let (at, text) = (y.at(tick), escape(&y.axis.unit.show(tick)));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{RIGHT}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    for tick in x.ticks() {
        let (at, text) = (x.at(tick), escape(&x.axis.unit.show(tick)));
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{BOTTOM}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{text}</text>",
            BOTTOM + 18.0
        );
    }
    let (middle, upright) = (f64::midpoint(LEFT, RIGHT), f64::midpoint(TOP, BOTTOM));
    let _ = write!(
        svg,
        "<text class=\"label\" x=\"{middle}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
         <text class=\"label\" transform=\"translate(14 {upright}) rotate(-90)\" \
         text-anchor=\"middle\">{}</text>",
        BOTTOM + 44.0,
        escape(&x.axis.label),
        escape(&y.axis.label)
    );
    svg
}

fn path(line: &Line, x: &Ruler<'_>, y: &Ruler<'_>, class: &str) -> String {
    let mut svg = format!("<polyline class=\"{class}\" points=\"");
    for (at, value) in &line.points {
        let _ = write!(svg, "{:.1},{:.1} ", x.at(*at), y.at(*value));
    }
    svg + "\"/>"
}

fn dots(chart: &Chart, line: &Line, x: &Ruler<'_>, y: &Ruler<'_>, color: usize) -> String {
    let mut svg = String::new();
    for (at, value) in &line.points {
        let (across, up) = (chart.x.unit.show(*at), chart.y.unit.show(*value));
        let _ = write!(
            svg,
            "<circle class=\"c{color}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"3.5\"><title>{}: {up} at \
             {across}</title></circle>",
            x.at(*at),
            y.at(*value),
            escape(&line.name)
        );
    }
    svg
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)]) -> Chart {
        let x = Axis::logarithmic("size", Unit::Bytes);
        let y = Axis::linear("speed", Unit::BytesPerSecond);
        let mut chart = Chart::new("a", "Speed <over> size", x, y);
        chart.push("ours", points.to_vec());
        chart
    }

    #[test]
    fn ticks_of_sizes_are_powers_of_two_and_few() {
        let axis = Axis::logarithmic("size", Unit::Bytes);
        let ruler = Ruler::new(&axis, [1024.0, 2_147_483_648.0].into_iter(), (0.0, 1.0));
        let ticks = ruler.ticks();
        assert!((ticks[0] - 1024.0).abs() < 1e-6 && ticks.len() <= TICKS);
        assert!(ruler.at(1024.0).abs() < 1e-9);
        assert!((ruler.at(2_147_483_648.0) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn linear_axes_begin_at_zero_and_end_at_a_round_number() {
        let axis = Axis::linear("time", Unit::Nanoseconds);
        let ruler = Ruler::new(&axis, [130.0, 180.0].into_iter(), (0.0, 100.0));
        assert!((ruler.to - 200.0).abs() < 1e-9 && ruler.from.abs() < 1e-9);
        assert_eq!(ruler.ticks().len(), 6);
    }

    #[test]
    fn every_point_is_drawn_and_texts_are_escaped() {
        let now = chart(&[(1024.0, 1e9), (4096.0, 2e9)]);
        let svg = draw(&now, None);
        assert_eq!(svg.matches("<circle").count(), 2);
        assert!(svg.contains("&lt;over&gt;") && !svg.contains("NaN") && !svg.contains("before"));
        let earlier = chart(&[(1024.0, 0.5e9)]);
        assert!(draw(&now, Some(&earlier)).contains("class=\"before c0\""));
    }

    #[test]
    fn a_single_point_and_no_point_are_drawn_without_dividing_by_zero() {
        for points in [&[(1024.0, 1e9)][..], &[(0.0, 0.0), (1.0, 0.0)], &[]] {
            let svg = draw(&chart(points), None);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
