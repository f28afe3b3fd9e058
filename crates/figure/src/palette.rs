//! Colours that are distinguishable with common colour blindness: Okabe and Ito's palette.

use plotters::style::RGBColor;

pub const VERMILION: RGBColor = RGBColor(213, 94, 0);
pub const BLUE: RGBColor = RGBColor(0, 114, 178);
pub const PURPLE: RGBColor = RGBColor(204, 121, 167);

const ORANGE: RGBColor = RGBColor(230, 159, 0);
const GREEN: RGBColor = RGBColor(0, 158, 115);
const SKY_BLUE: RGBColor = RGBColor(86, 180, 233);

/// Number of colours; they repeat for further series.
pub const COLOURS: usize = 6;

/// In an order in which neighbours differ most.
const PALETTE: [RGBColor; COLOURS] = [VERMILION, ORANGE, BLUE, GREEN, PURPLE, SKY_BLUE];

/// The colour of text and axes.
pub const INK: RGBColor = RGBColor(40, 40, 40);
/// The colour of lines that are not a series: targets, floors, frames.
pub const MARK: RGBColor = RGBColor(110, 110, 110);
/// The colour of grid lines.
pub const GRID: RGBColor = RGBColor(226, 226, 226);

/// The colour of the series with this index; repeats after [`COLOURS`].
pub fn colour(index: usize) -> RGBColor {
    PALETTE[index % PALETTE.len()]
}
