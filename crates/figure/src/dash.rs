//! Dashed lines, and samples of them for legends.

use plotters::{
    element::{DashedPathElement, PathElement},
    style::ShapeStyle,
};

use crate::{COLOURS, Canvas, PlotResult};

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dash {
    Solid,
    Dashed,
    Dotted,
}

/// Length in pixels of a line's sample in a legend.
pub const SAMPLE_WIDTH: i32 = 24;

impl Dash {
    /// Of the series with this index: as many solid lines as there are colours, then dashed and dotted ones.
    pub fn of_series(index: usize) -> Self {
        match index / COLOURS % 3 {
            0 => Self::Solid,
            1 => Self::Dashed,
            _ => Self::Dotted,
        }
    }

    /// The length of a piece and of a gap in a chart, in pixels.
    pub const fn pattern(self) -> (i32, i32) {
        match self {
            Self::Solid => (1, 0),
            Self::Dashed => (9, 5),
            Self::Dotted => (2, 4),
        }
    }

    /// Ranges of a sample's pieces, in pixels.
    fn pieces(self) -> Vec<(i32, i32)> {
        match self {
            Self::Solid => vec![(0, SAMPLE_WIDTH)],
            Self::Dashed => vec![(0, 10), (14, SAMPLE_WIDTH)],
            Self::Dotted => (0..4).map(|i| (i * 7, i * 7 + 3)).collect(),
        }
    }
}

/// Draws a line through `points`, in pixels of `area`.
///
/// # Errors
/// It cannot be drawn.
pub fn line_through(
    area: &Canvas<'_>,
    points: &[(i32, i32)],
    style: ShapeStyle,
    dash: Dash,
) -> PlotResult<()> {
    let (piece, gap) = dash.pattern();
    match dash {
        Dash::Solid => area.draw(&PathElement::new(points.to_vec(), style))?,
        Dash::Dashed | Dash::Dotted => {
            let points = points.iter().copied();
            area.draw(&DashedPathElement::new(points, piece, gap, style))?;
        }
    }
    Ok(())
}

/// A sample of a line for a legend, from the pixel `at` to the right.
///
/// # Errors
/// It cannot be drawn.
pub fn line_sample(
    area: &Canvas<'_>,
    at: (i32, i32),
    style: ShapeStyle,
    dash: Dash,
) -> PlotResult<()> {
    let (x, y) = at;
    for (from, to) in dash.pieces() {
        area.draw(&PathElement::new([(x + from, y), (x + to, y)], style))?;
    }
    Ok(())
}
