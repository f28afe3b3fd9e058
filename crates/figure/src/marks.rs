//! Marks of logarithmic axes. plotters' own are at uneven numbers.

use plotters::{
    chart::ChartContext,
    coord::{combinators::LogCoord, ranged1d::Ranged},
    prelude::*,
    style::text_anchor::HPos,
};

use crate::{Canvas, GRID, INK, LABEL_SIZE, PlotResult, label};

/// A chart over a logarithmic axis.
pub type LogChart<'a, 'b, Y> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, Y>>;

/// Powers of ten within `low..=high`, both above zero, with their 2 and 5 times if that makes
/// `most` marks at most.
pub fn decades(low: f64, high: f64, most: usize) -> Vec<f64> {
    let exponents = low.log10().floor() as i32..=high.log10().ceil() as i32;
    let marks = |digits: &[f64]| -> Vec<f64> {
        let all = exponents
            .clone()
            .flat_map(|exponent| digits.iter().map(move |digit| digit * 10f64.powi(exponent)));
        all.filter(|tick| (low..=high).contains(tick)).collect()
    };
    let fine = marks(&[1.0, 2.0, 5.0]);
    match fine.len() <= most {
        true => fine,
        false => marks(&[1.0]),
    }
}

/// A line over the whole height, from `bottom` to `top` of the other axis, at each of `ticks`, and
/// with `text` a label below it. `area` is what the chart was built on.
///
/// # Errors
/// They cannot be drawn.
pub fn x_marks<Y>(
    area: &Canvas<'_>,
    chart: &mut LogChart<'_, '_, Y>,
    ticks: &[f64],
    (bottom, top): (f64, f64),
    text: Option<&dyn Fn(f64) -> String>,
) -> PlotResult<()>
where
    Y: Ranged<ValueType = f64>,
{
    let (left, above) = area.get_base_pixel();
    for &tick in ticks {
        chart.draw_series(LineSeries::new([(tick, bottom), (tick, top)], GRID))?;
        if let Some(text) = text {
            let (x, y) = chart.backend_coord(&(tick, bottom));
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
        assert_eq!(decades(3.0, 4.0, 9), Vec::<f64>::new());
    }
}
