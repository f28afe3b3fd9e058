//! Figures: SVG, and CSV with the same numbers.
//!
//! A figure is a plain value, so that it can be drawn from a stored measurement or in a test. `plan` and
//! `evaluate` decide which figures an experiment has and where they are written.

mod boxes;
mod ecdf;
mod effects;
mod errors;
mod histogram;
mod lines;
mod means;
mod over_time;
mod shares;
mod xy;

pub use boxes::{BoxGroup, BoxesFigure};
pub use ecdf::{Curve, EcdfFigure, Mark};
pub use effects::{EffectLine, EffectRow, EffectsFigure};
pub use errors::{ErrorCurve, ErrorPanel, ErrorsFigure};
pub use histogram::{HistogramFigure, Panel};
pub use lines::{Level, LinesFigure, ValueLine};
pub use means::{Dot, Group, MeansFigure};
pub use over_time::{TimeFigure, TimeLine, TimePanel};
pub use xy::{XyFigure, XySeries};

use keiro_figure::{Canvas, PlotResult};
pub use keiro_figure::{DrawError, colour};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    pub svg: String,
    /// Its numbers as CSV; the header names the columns with their units.
    pub csv: String,
}

/// Draws title and subtitle on a white canvas and returns the remaining area.
fn draw(
    title: &str,
    subtitle: &str,
    height: u32,
    body: impl FnOnce(&Canvas<'_>) -> PlotResult<()>,
) -> Result<String, DrawError> {
    keiro_figure::draw(title, subtitle, height, |root| {
        body(&root.margin(66, 6, 8, 8))
    })
}

/// The colour's index of the series with this index: of a few series, those whose colours differ most.
pub(crate) fn place(index: usize) -> usize {
    const FIRST: [usize; keiro_figure::COLOURS] = [0, 2, 3, 4, 5, 1];
    FIRST.get(index).copied().unwrap_or(index)
}

/// Formats a tick without floating-point noise.
fn tick_text(ms: f64) -> String {
    format!("{}", (ms * 1e6).round() / 1e6)
}

/// `value` as CSV: shortest exact form, empty for `None`.
fn csv_value(value: Option<f64>) -> String {
    value.map(|v| v.to_string()).unwrap_or_default()
}

/// `text` as one CSV field (RFC 4180).
pub(crate) fn csv_text(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

/// Formats milliseconds with a sensible number of digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
