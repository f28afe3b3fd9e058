//! Marks of logarithmic axes; those of plotters are at uneven numbers.

use std::ops::Range;

use plotters::{
    chart::ChartContext,
    coord::{combinators::LogCoord, ranged1d::Ranged},
    prelude::*,
    style::text_anchor::HPos,
};

use crate::{Canvas, GRID, INK, LABEL_SIZE, PlotResult, label};

/// A chart over a logarithmic axis.
pub type LogChart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, Y>>;

/// Fewer marks do not show an axis's scale. Ours.
const FEW: usize = 3;

/// Enough marks if they are equally spaced. Ours.
const EVEN_MAX: usize = 6;

/// Powers of ten within `low..=high`, both positive, with their multiples by 2 and 5 if that makes at most
/// `most` marks. If these are too few for an axis: equally spaced round numbers.
pub fn decades(low: f64, high: f64, most: usize) -> Vec<f64> {
    let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let marks = |digits: &[f64]| -> Vec<f64> {
        let all = exponents
            .clone()
            .flat_map(|exponent| digits.iter().map(move |digit| digit * 10f64.powi(exponent)));
        all.filter(|tick| (low..=high).contains(tick)).collect()
    };
    let fine = marks(&[1.0, 2.0, 5.0]);
    match fine.len() {
        count if count > most => marks(&[1.0]),
        count if count < FEW && most > 0 && low < high => even(low, high, most.min(EVEN_MAX)),
        _ => fine,
    }
}

/// At most `most` multiples of one, two or five times a power of ten.
fn even(low: f64, high: f64, most: usize) -> Vec<f64> {
    let least = ((high - low) / most as f64).log10().floor() as i32;
    let steps = (least..).flat_map(|exponent| [1.0, 2.0, 5.0].map(|digit| (digit, exponent)));
    let marks = |(digit, exponent): (f64, i32)| -> Vec<f64> {
        // Divided by a power of ten: 13.2, and not 13.200000000000001.
        let (times, per) = match exponent {
            0.. => (digit * 10f64.powi(exponent), 1.0),
            _ => (digit, 10f64.powi(-exponent)),
        };
        let first = (low * per / times).ceil() as i64;
        let last = (high * per / times).floor() as i64;
        (first..=last).map(|n| n as f64 * times / per).collect()
    };
    steps
        .map(marks)
        .find(|marks| marks.len() <= most)
        .unwrap_or_default()
}

/// Draws a line over `height` of the other axis at each of `ticks`, with a label below it if `text` is given.
/// `area` is the canvas of the chart.
///
/// # Errors
/// They cannot be drawn.
pub fn x_marks<Y>(
    area: &Canvas<'_>,
    chart: &mut LogChart<'_, '_, Y>,
    ticks: &[f64],
    height: Range<f64>,
    text: Option<&dyn Fn(f64) -> String>,
) -> PlotResult<()>
where
    Y: Ranged<ValueType = f64>,
{
    let (left, above) = area.get_base_pixel();
    for &tick in ticks {
        chart.draw_series(LineSeries::new(
            [(tick, height.start), (tick, height.end)],
            GRID,
        ))?;
        if let Some(text) = text {
            let (x, y) = chart.backend_coord(&(tick, height.start));
            let at = (x - left, y - above + 14);
            label(area, &text(tick), at, LABEL_SIZE - 1, INK, HPos::Center)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_as_many_as_there_is_room_for() {
        assert_eq!(decades(800.0, 12_000.0, 9), vec![1e3, 2e3, 5e3, 1e4]);
        assert_eq!(decades(800.0, 1.2e8, 9).len(), 6);
        assert_eq!(decades(0.1, 1000.0, 0), vec![0.1, 1.0, 10.0, 100.0, 1e3]);
    }

    #[test]
    fn a_short_axis_has_marks_that_are_evenly_apart() {
        assert_eq!(decades(3.0, 4.0, 9), vec![3.0, 3.2, 3.4, 3.6, 3.8, 4.0]);
        assert_eq!(decades(13.4, 21.0, 9), vec![14.0, 16.0, 18.0, 20.0]);
        assert_eq!(decades(13e6, 31e6, 9), vec![15e6, 20e6, 25e6, 30e6]);
        assert_eq!(decades(3.0, 3.0, 9), Vec::<f64>::new());
        // As many as there is room for, even if that is one.
        assert_eq!(decades(3.0, 4.0, 1).len(), 1);
        assert_eq!(decades(3.0, 4.0, 0), Vec::<f64>::new());
    }
}
