//! Distribution functions of relative errors, side by side.

use keiro_figure::{
    Canvas, Dash, DrawError, GRID, INK, LABEL_SIZE, MARK, PlotResult, SAMPLE_WIDTH, decades, label,
    line_sample,
};
use plotters::{prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, draw, shares::ShareAxes};

/// The share of forecasts with an error within a bound, one panel per statistic.
#[derive(Clone, Debug)]
pub struct ErrorsFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    /// The panels, from left to right.
    pub panels: Vec<ErrorPanel>,
}

#[derive(Clone, Debug)]
pub struct ErrorPanel {
    pub name: String,
    /// The required bound, in percent.
    pub bound_percent: f64,
    pub curves: Vec<ErrorCurve>,
}

#[derive(Clone, Debug)]
pub struct ErrorCurve {
    pub name: String,
    pub colour: RGBColor,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Absolute relative errors in percent, sorted; infinite without a forecast.
    pub errors: Vec<f64>,
}

/// Errors outside this range are drawn at its ends, in percent.
const RANGE: (f64, f64) = (0.1, 1000.0);

impl ErrorCurve {
    fn dash(&self) -> Dash {
        if self.dashed {
            Dash::Dashed
        } else {
            Dash::Solid
        }
    }

    /// The corners of the distribution function.
    fn staircase(&self) -> Vec<(f64, f64)> {
        let (low, high) = RANGE;
        let count = self.errors.len() as f64;
        let mut points = vec![(low, 0.0)];
        let mut share = 0.0;
        for (index, error) in self.errors.iter().enumerate() {
            let at = error.clamp(low, high);
            points.push((at, share));
            // Errors beyond the range never count as reached.
            if *error > high {
                break;
            }
            share = (index + 1) as f64 / count;
            points.push((at, share));
        }
        points.push((high, share));
        points
    }
}

impl ErrorsFigure {
    /// Draws the figure.
    ///
    /// # Errors
    /// See [`DrawError`].
    pub fn draw(&self) -> Result<Drawing, DrawError> {
        let svg = draw(&self.title, &self.subtitle, 520, |canvas| {
            let parts = canvas.split_evenly((1, self.panels.len().max(1)));
            for (part, panel) in parts.iter().zip(&self.panels) {
                panel.draw(part)?;
            }
            Ok(())
        })?;
        Ok(Drawing {
            svg,
            csv: self.csv(),
        })
    }

    fn csv(&self) -> String {
        let mut csv = "statistic,forecast,error_percent,share\n".to_owned();
        for panel in &self.panels {
            for curve in &panel.curves {
                let (panel, curve_name) = (csv_text(&panel.name), csv_text(&curve.name));
                for (index, error) in curve.errors.iter().enumerate() {
                    let share = (index + 1) as f64 / curve.errors.len() as f64;
                    csv.push_str(&format!("{panel},{curve_name},{error},{share}\n"));
                }
            }
        }
        csv
    }
}

impl ErrorPanel {
    fn draw(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let mut chart = ShareAxes {
            values: RANGE,
            // Powers of ten only, for lack of room.
            ticks: decades(RANGE.0, RANGE.1, 0),
            margins: (24, 16),
            left: 56,
            name: "error (% of measured, logarithmic)",
            share: None,
            mark: self.bound_percent,
        }
        .draw(canvas)?;
        for curve in &self.curves {
            let points = curve.staircase();
            let style = curve.colour.stroke_width(2);
            if curve.dashed {
                let (dash, gap) = curve.dash().pattern();
                chart.draw_series(DashedLineSeries::new(points, dash, gap, style))?;
            } else {
                chart.draw_series(LineSeries::new(points, style))?;
            }
        }
        label(canvas, &self.name, (64, 10), LABEL_SIZE, INK, HPos::Left)?;
        self.legend(canvas)
    }

    /// The legend, in the lower right corner, where the curves of good forecasts do not pass.
    fn legend(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let (width, height) = canvas.dim_in_pixel();
        let rows = self.curves.len() as i32 + 1;
        let (left, right) = (width as i32 - 208, width as i32 - 22);
        let (top, bottom) = (height as i32 - 58 - rows * 20 - 8, height as i32 - 58);
        let frame = [(left, top), (right, bottom)];
        canvas.draw(&Rectangle::new(frame, WHITE.filled()))?;
        canvas.draw(&Rectangle::new(frame, GRID.stroke_width(1)))?;
        let bound = format!("asked: {} %", self.bound_percent);
        let lines = self
            .curves
            .iter()
            .map(|c| (c.name.as_str(), c.colour.stroke_width(3), c.dash()))
            .chain([(bound.as_str(), MARK.stroke_width(2), Dash::Dotted)]);
        let mut y = top + 14;
        for (text, style, dash) in lines {
            line_sample(canvas, (left + 8, y), style, dash)?;
            let at = (left + 8 + SAMPLE_WIDTH + 6, y);
            label(canvas, text, at, LABEL_SIZE - 2, INK, HPos::Left)?;
            y += 20;
        }
        Ok(())
    }
}
