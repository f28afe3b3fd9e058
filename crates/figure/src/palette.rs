//! Colours that people with the common colour blindnesses can distinguish: Okabe and Ito's palette.

use plotters::style::RGBColor;

/// Vermilion.
pub const VERMILION: RGBColor = RGBColor(213, 94, 0);
/// Blue.
pub const BLUE: RGBColor = RGBColor(0, 114, 178);
/// Reddish purple.
pub const PURPLE: RGBColor = RGBColor(204, 121, 167);

const ORANGE: RGBColor = RGBColor(230, 159, 0);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const SKY_BLUE: RGBColor = RGBColor(86, 180, 233);

/// After so many series colours come again.
pub const COLOURS: usize = 6;

/// In the order in which neighbours differ most.
const PALETTE: [RGBColor; COLOURS] = [VERMILION, ORANGE, BLUE, GREEN, PURPLE, SKY_BLUE];

/// The colour of text and of axes.
pub const INK: RGBColor = RGBColor(40, 40, 40);
/// The colour of lines that belong to no series: demands, floors, frames.
pub const MARK: RGBColor = RGBColor(110, 110, 110);
/// The colour of the lines behind everything.
pub const GRID: RGBColor = RGBColor(226, 226, 226);

/// The colour of the series with this index; after [`COLOURS`] they come again.
pub fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}
