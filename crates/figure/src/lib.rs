//! Parts that all of Keiro's figures use: a canvas with a title, the palette, labels, dashes, axes, and marks
//! of logarithmic axes.
//!
//! Each crate that draws a figure decides about its content.
#![forbid(unsafe_code)]

mod axes;
mod dash;
mod marks;
mod palette;

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

pub use axes::quiet_axes;
pub use dash::{Dash, SAMPLE_WIDTH, line_sample, line_through};
pub use marks::{LogChart, decades, x_marks};
pub use palette::{BLUE, COLOURS, GRID, INK, MARK, PURPLE, VERMILION, colour};

/// The font of all text: the viewer's default.
pub const FONT: &str = "sans-serif";
/// Height of a title in pixels.
pub const TITLE_SIZE: i32 = 19;
/// Height of other text in pixels.
pub const LABEL_SIZE: i32 = 14;
/// Width of a figure in pixels.
pub const WIDTH: u32 = 860;

/// An area to draw on.
pub type Canvas<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type PlotResult<T> = Result<T, Box<dyn std::error::Error>>;

/// Drawing failed, which is a bug because it draws into memory.
#[derive(Debug, thiserror::Error)]
#[error("figure `{title}` could not be drawn: {reason}")]
pub struct DrawError {
    title: String,
    reason: String,
}

/// An SVG picture, [`WIDTH`] by `height` pixels: white, with title and subtitle in the uppermost 60 pixels.
/// `body` draws the rest and gets the whole area.
///
/// # Errors
/// See [`DrawError`].
pub fn draw(
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
        body(&root)?;
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
///
/// # Errors
/// The text cannot be drawn.
pub fn label(
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
