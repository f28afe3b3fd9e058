//! Axes of distribution functions: shares over values on a logarithmic axis.

use keiro_figure::{Canvas, Dash, LogChart, MARK, PlotResult, quiet_axes, x_marks};
use plotters::{coord::types::RangedCoordf64, prelude::*};

use super::tick_text;

/// Slightly above 1, so that a curve at 1 is fully visible.
const Y_MAX: f64 = 1.02;

/// The parts of the axes that differ between figures.
pub(super) struct ShareAxes<'a> {
    /// Range of the logarithmic axis.
    pub(super) values: (f64, f64),
    /// Where it has marks.
    pub(super) ticks: Vec<f64>,
    /// Margins above and to the right, in pixels.
    pub(super) margins: (u32, u32),
    /// Width of the labels of shares, in pixels.
    pub(super) left: u32,
    /// Name of the logarithmic axis.
    pub(super) name: &'a str,
    /// Name of the vertical axis.
    pub(super) share: Option<&'a str>,
    /// The required value, as a dotted line.
    pub(super) mark: f64,
}

impl ShareAxes<'_> {
    /// Draws the axes and returns the chart for the curves.
    pub(super) fn draw<'a, 'b>(
        &self,
        canvas: &'a Canvas<'b>,
    ) -> PlotResult<LogChart<'a, 'b, RangedCoordf64>> {
        let (low, high) = self.values;
        let mut chart = ChartBuilder::on(canvas)
            .margin_right(self.margins.1)
            .margin_top(self.margins.0)
            .set_label_area_size(LabelAreaPosition::Left, self.left)
            .set_label_area_size(LabelAreaPosition::Bottom, 46)
            .build_cartesian_2d((low..high).log_scale(), 0.0..Y_MAX)?;
        let mut mesh = chart.configure_mesh();
        quiet_axes(&mut mesh)
            .x_labels(0)
            // plotters labels a mark even when asked for none, so the marks are drawn below.
            .x_label_formatter(&|_| String::new())
            .y_labels(11)
            .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
            .x_desc(self.name);
        if let Some(share) = self.share {
            mesh.y_desc(share);
        }
        mesh.draw()?;
        x_marks(
            canvas,
            &mut chart,
            &self.ticks,
            0.0..Y_MAX,
            Some(&tick_text),
        )?;
        let (dash, gap) = Dash::Dotted.pattern();
        let mark = [(self.mark, 0.0), (self.mark, Y_MAX)];
        let style = MARK.stroke_width(2);
        chart.draw_series(DashedLineSeries::new(mark, dash, gap, style))?;
        Ok(chart)
    }
}
