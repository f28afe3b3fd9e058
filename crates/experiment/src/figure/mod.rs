//! Figures: SVG for people, and CSV with the same numbers beside it.
//!
//! A figure is a plain value, so that it can be drawn from a stored measurement or in a test.
//! Which figures an experiment has, and where they are written, is left to `plan` and `evaluate`.

mod ecdf;
mod errors;
mod histogram;
mod means;

pub use ecdf::{Curve, EcdfFigure};
pub use errors::{ErrorCurve, ErrorPanel, ErrorsFigure};
pub use histogram::{HistogramFigure, Panel};
pub use means::{Dot, Group, MeansFigure};

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// A drawn figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawing {
    /// The picture.
    pub svg: String,
    /// Its numbers; the first line names the columns with their units.
    pub csv: String,
}

/// Drawing failed; only ever a defect of this module, since it writes to memory.
#[derive(Debug, thiserror::Error)]
#[error("figure `{title}` could not be drawn: {reason}")]
pub struct DrawError {
    title: String,
    reason: String,
}

/// Colours that people with the common colour blindnesses tell apart: Okabe and Ito's palette,
/// in the order in which neighbours differ most.
const PALETTE: [RGBColor; 6] = [
    RGBColor(213, 94, 0),    // vermilion
    RGBColor(230, 159, 0),   // orange
    RGBColor(0, 114, 178),   // blue
    RGBColor(0, 158, 115),   // green
    RGBColor(204, 121, 167), // purple
    RGBColor(86, 180, 233),  // sky blue
];

/// The text colour, and that of the frame.
const INK: RGBColor = RGBColor(40, 40, 40);
/// The colour of demands, floors and other lines that no variant owns.
const MARK: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(226, 226, 226);

const FONT: &str = "sans-serif";
const TITLE_SIZE: i32 = 19;
const LABEL_SIZE: i32 = 14;
const WIDTH: u32 = 860;

/// The colour of the variant with this index in its setup; the same in all figures.
pub fn colour(variant: usize) -> RGBColor {
    PALETTE[variant % PALETTE.len()]
}

type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type PlotResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Draws on a white canvas with the title and its second line, and hands out the rest of it.
fn draw(
    title: &str,
    subtitle: &str,
    height: u32,
    body: impl FnOnce(&Canvas<'_>) -> PlotResult<()>,
) -> Result<String, DrawError> {
    let mut svg = String::new();
    let drawn = (|| {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        label(&root, title, (16, 24), TITLE_SIZE, INK, HPos::Left)?;
        label(&root, subtitle, (16, 48), LABEL_SIZE, MARK, HPos::Left)?;
        body(&root.margin(66, 6, 8, 8))?;
        root.present()?;
        PlotResult::Ok(())
    })();
    match drawn {
        Ok(()) => Ok(svg),
        Err(reason) => Err(DrawError {
            title: title.to_owned(),
            reason: reason.to_string(),
        }),
    }
}

/// Writes `text` with its middle line at `at`, in pixels of `area`.
fn label(
    area: &Canvas<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    colour: RGBColor,
    anchor: HPos,
) -> PlotResult<()> {
    let style = (FONT, size)
        .into_font()
        .color(&colour)
        .pos(Pos::new(anchor, VPos::Center));
    area.draw_text(text, &style, at)?;
    Ok(())
}

/// A sample of a line for a legend: solid, or in dashes.
fn line_sample(
    area: &Canvas<'_>,
    (x, y): (i32, i32),
    style: ShapeStyle,
    dash: Dash,
) -> PlotResult<()> {
    for (from, to) in dash.pieces() {
        area.draw(&PathElement::new([(x + from, y), (x + to, y)], style))?;
    }
    Ok(())
}

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dash {
    Solid,
    Dashed,
    Dotted,
}

impl Dash {
    /// Where a sample of [`SAMPLE_WIDTH`] pixels is drawn.
    fn pieces(self) -> Vec<(i32, i32)> {
        match self {
            Self::Solid => vec![(0, SAMPLE_WIDTH)],
            Self::Dashed => vec![(0, 10), (14, SAMPLE_WIDTH)],
            Self::Dotted => (0..4).map(|i| (i * 7, i * 7 + 3)).collect(),
        }
    }

    /// Draws `points` in a chart: dash and gap in pixels.
    fn pattern(self) -> (i32, i32) {
        match self {
            Self::Solid => (1, 0),
            Self::Dashed => (9, 5),
            Self::Dotted => (2, 4),
        }
    }
}

const SAMPLE_WIDTH: i32 = 24;

/// The marks of a logarithmic axis within `low..high`: 1, 2 and 5 times the powers of ten.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    (-6..9)
        .flat_map(|exponent| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(exponent)))
        .filter(|tick| (low..=high).contains(tick))
        .collect()
}

/// A tick's text without the noise of its binary form.
fn tick_text(ms: f64) -> String {
    if ms >= 1.0 {
        format!("{ms:.0}")
    } else {
        format!("{}", (ms * 1e6).round() / 1e6)
    }
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

/// Milliseconds with as many digits as a reader can use.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
