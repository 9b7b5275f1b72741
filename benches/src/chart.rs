//! Lines over a scale.

use serde::{Deserialize, Serialize};

use crate::unit::Unit;

/// Lines over a common scale.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Chart {
    /// Name.
    pub name: String,
    /// Heading.
    pub title: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
}

/// An axis of a [`Chart`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Axis {
    /// What it shows.
    pub label: String,
    /// Unit of its numbers.
    pub unit: Unit,
    /// Distances on it.
    pub scale: Scale,
}

/// Distances on an [`Axis`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scale {
    /// From zero on, equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios.
    Logarithmic,
}

/// Points of a [`Chart`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Line {
    /// What it shows.
    pub name: String,
    /// Pairs of x and y, x rising.
    pub points: Vec<(f64, f64)>,
}

impl Chart {
    /// A chart without lines.
    pub fn new(name: &str, title: &str, x: Axis, y: Axis) -> Self {
        Self {
            name: name.to_owned(),
            title: title.to_owned(),
            x,
            y,
            lines: Vec::new(),
        }
    }

    /// Adds a line.
    pub fn push(&mut self, name: &str, points: Vec<(f64, f64)>) {
        self.lines.push(Line {
            name: name.to_owned(),
            points,
        });
    }
}

impl Axis {
    /// An axis from zero on.
    pub fn linear(label: &str, unit: Unit) -> Self {
        Self::new(label, unit, Scale::Linear)
    }

    /// An axis of ratios.
    pub fn logarithmic(label: &str, unit: Unit) -> Self {
        Self::new(label, unit, Scale::Logarithmic)
    }

    fn new(label: &str, unit: Unit, scale: Scale) -> Self {
        Self {
            label: label.to_owned(),
            unit,
            scale,
        }
    }
}
