//! Distribution functions of delays.

use keiro_figure::{
    Canvas, Dash, DrawError, GRID, INK, LABEL_SIZE, MARK, PlotResult, SAMPLE_WIDTH, decades, label,
    line_sample,
};
use plotters::{prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, draw, shares::ShareAxes, tick_text};

/// Distribution functions of delays or other durations, one curve per variant.
#[derive(Clone, Debug)]
pub struct EcdfFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    pub curves: Vec<Curve>,
    /// Label of the vertical axis.
    pub share: String,
    /// A delay to compare with, as a dotted line.
    pub mark: Mark,
}

/// A reference value, as a dotted line.
#[derive(Clone, Debug)]
pub struct Mark {
    /// Its label, such as `latency_target`.
    pub name: String,
    pub ms: f64,
}

#[derive(Clone, Debug)]
pub struct Curve {
    pub name: String,
    pub colour: RGBColor,
    /// Whether the line is dashed.
    pub dashed: bool,
    /// Steps (delay in ms, share of messages within it), rising.
    pub steps: Vec<(f64, f64)>,
}

impl Curve {
    /// Whether the curve with this index is dashed. Neighbours differ, and so do curves of the same
    /// [`colour`](keiro_figure::colour); twelve curves are distinguishable.
    pub fn is_dashed(index: usize) -> bool {
        (index / keiro_figure::COLOURS + index) % 2 == 1
    }

    fn dash(&self) -> Dash {
        if self.dashed {
            Dash::Dashed
        } else {
            Dash::Solid
        }
    }

    fn style(&self, width: u32) -> ShapeStyle {
        self.colour.stroke_width(width)
    }
}

impl EcdfFigure {
    /// Draws the figure.
    ///
    /// # Errors
    /// See [`DrawError`].
    pub fn draw(&self) -> Result<Drawing, DrawError> {
        let svg = draw(&self.title, &self.subtitle, 520, |canvas| self.body(canvas))?;
        Ok(Drawing {
            svg,
            csv: self.csv(),
        })
    }

    fn body(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let (low, high) = self.range();
        let mut chart = ShareAxes {
            values: (low, high),
            ticks: decades(low, high, usize::MAX),
            margins: (6, 26),
            left: 66,
            name: "delay (ms, logarithmic)",
            share: Some(&self.share),
            mark: self.mark.ms,
        }
        .draw(canvas)?;
        for (index, curve) in self.curves.iter().enumerate() {
            let points = staircase(&curve.steps, low, high);
            let (dash, gap) = curve.dash().pattern();
            if curve.dashed {
                let style = curve.style(2);
                chart.draw_series(DashedLineSeries::new(points, dash, gap, style))?;
            } else {
                // Later curves are narrower, so that earlier ones show beneath them.
                let later = self.curves[index + 1..]
                    .iter()
                    .filter(|c| !c.dashed)
                    .count();
                let style = curve.style(2 + later.min(3) as u32);
                chart.draw_series(LineSeries::new(points, style))?;
            }
        }
        self.legend(canvas)
    }

    /// The legend, in the lower right corner, where few curves pass.
    fn legend(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let (width, height) = canvas.dim_in_pixel();
        let rows = self.curves.len() as i32 + 1;
        let (left, right) = (width as i32 - 220, width as i32 - 34);
        let (top, bottom) = (height as i32 - 66 - rows * 21 - 10, height as i32 - 66);
        let frame = [(left, top), (right, bottom)];
        canvas.draw(&Rectangle::new(frame, WHITE.filled()))?;
        canvas.draw(&Rectangle::new(frame, GRID.stroke_width(1)))?;
        let mark = format!("{} {} ms", self.mark.name, tick_text(self.mark.ms));
        let lines = self
            .curves
            .iter()
            .map(|c| (c.name.as_str(), c.style(3), c.dash()))
            .chain([(mark.as_str(), MARK.stroke_width(2), Dash::Dotted)]);
        let mut y = top + 16;
        for (text, style, dash) in lines {
            line_sample(canvas, (left + 12, y), style, dash)?;
            label(
                canvas,
                text,
                (left + 12 + SAMPLE_WIDTH + 10, y),
                LABEL_SIZE,
                INK,
                HPos::Left,
            )?;
            y += 21;
        }
        Ok(())
    }

    fn range(&self) -> (f64, f64) {
        let values = || self.curves.iter().flat_map(|c| c.steps.iter().map(|s| s.0));
        let low = values().fold(self.mark.ms, f64::min).max(LOWEST_MS);
        let high = values().fold(self.mark.ms, f64::max);
        (low * 0.9, high * 1.1)
    }

    fn csv(&self) -> String {
        let mut csv = "variant,delay_ms,share\n".to_owned();
        for curve in &self.curves {
            let name = csv_text(&curve.name);
            for (delay, share) in &curve.steps {
                csv.push_str(&format!("{name},{delay},{share}\n"));
            }
        }
        csv
    }
}

/// Greatest start of the logarithmic axis; no path of any experiment is faster.
const LOWEST_MS: f64 = 0.01;

/// The corners of the step function between `low` and `high`.
fn staircase(steps: &[(f64, f64)], low: f64, high: f64) -> Vec<(f64, f64)> {
    let mut points = vec![(low, 0.0)];
    let mut share = 0.0;
    for &(delay, next) in steps {
        points.push((delay, share));
        points.push((delay, next));
        share = next;
    }
    points.push((high, share));
    points
}
