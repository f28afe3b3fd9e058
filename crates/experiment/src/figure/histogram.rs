//! Histograms like [path-selection figs. 7, 8].

use keiro_figure::{
    Canvas, Dash, DrawError, INK, LABEL_SIZE, MARK, PlotResult, SAMPLE_WIDTH, label, line_sample,
    quiet_axes,
};
use plotters::{prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, draw, short, tick_text};
use crate::stats::Histogram;

/// Histograms of delays, one panel per variant with a common axis.
#[derive(Clone, Debug)]
pub struct HistogramFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    /// The variants; all histograms have the same bin width.
    pub panels: Vec<Panel>,
    /// The application's latency target.
    pub latency_target_ms: f64,
}

#[derive(Clone, Debug)]
pub struct Panel {
    pub name: String,
    pub colour: RGBColor,
    /// Its delays in ms.
    pub histogram: Histogram,
    pub mean_ms: Option<f64>,
    /// The paper's mean for this variant.
    pub paper_mean_ms: Option<f64>,
}

const PANEL_HEIGHT: u32 = 165;
const AXIS_HEIGHT: u32 = 42;

impl HistogramFigure {
    /// Draws the figure.
    ///
    /// # Errors
    /// See [`DrawError`].
    pub fn draw(&self) -> Result<Drawing, DrawError> {
        let height = 76 + PANEL_HEIGHT * self.panels.len().max(1) as u32 + AXIS_HEIGHT;
        let svg = draw(&self.title, &self.subtitle, height, |canvas| {
            self.body(canvas)
        })?;
        Ok(Drawing {
            svg,
            csv: self.csv(),
        })
    }

    fn body(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let count = self.panels.len();
        let last = count.saturating_sub(1);
        let breaks: Vec<i32> = (1..count)
            .map(|i| (i * PANEL_HEIGHT as usize) as i32)
            .collect();
        let areas = canvas.split_by_breakpoints(Vec::<i32>::new(), breaks);
        for (i, (panel, area)) in self.panels.iter().zip(&areas).enumerate() {
            self.panel(panel, area, i == last)?;
        }
        Ok(())
    }

    fn panel(&self, panel: &Panel, area: &Canvas<'_>, is_last: bool) -> PlotResult<()> {
        let width = panel.histogram.bin_width;
        let (x_max, y_max) = (self.x_max(), self.y_max());
        let mut chart = ChartBuilder::on(area)
            .margin_right(26)
            .margin_top(8)
            .set_label_area_size(LabelAreaPosition::Left, 66)
            .set_label_area_size(
                LabelAreaPosition::Bottom,
                if is_last { AXIS_HEIGHT } else { 4 },
            )
            .build_cartesian_2d(0.0..x_max, 0.0..y_max)?;
        let mut mesh = chart.configure_mesh();
        quiet_axes(&mut mesh)
            .x_labels(if is_last { 12 } else { 0 })
            .y_labels(5)
            .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
            .x_label_formatter(&|ms| format!("{ms:.0}"))
            .y_desc("share of messages");
        if is_last {
            mesh.x_desc(format!("delay (ms, in bins of {width} ms)"));
        }
        mesh.draw()?;
        let bars = (0..panel.histogram.counts.len()).map(|bin| {
            let left = bin as f64 * width;
            let corners = [
                (left + width * 0.06, 0.0),
                (left + width * 0.94, panel.histogram.frequency(bin)),
            ];
            Rectangle::new(corners, panel.colour.filled())
        });
        chart.draw_series(bars)?;
        for line in self.lines(panel) {
            let (dash, gap) = line.dash.pattern();
            let points = [(line.ms, 0.0), (line.ms, y_max)];
            if line.dash == Dash::Solid {
                chart.draw_series(LineSeries::new(points, line.style))?;
            } else {
                chart.draw_series(DashedLineSeries::new(points, dash, gap, line.style))?;
            }
        }
        legend(self, panel, area)
    }

    /// The vertical lines of a panel and their labels.
    fn lines(&self, panel: &Panel) -> Vec<Line> {
        let mean = panel.mean_ms.map(|ms| Line {
            ms,
            text: format!("mean {} ms", short(ms)),
            dash: Dash::Solid,
            style: INK.stroke_width(2),
        });
        let paper = panel.paper_mean_ms.map(|ms| Line {
            ms,
            text: format!("paper's mean {} ms", short(ms)),
            dash: Dash::Dashed,
            style: INK.stroke_width(2),
        });
        let latency_target = Line {
            ms: self.latency_target_ms,
            text: format!("latency target {} ms", tick_text(self.latency_target_ms)),
            dash: Dash::Dotted,
            style: MARK.stroke_width(2),
        };
        [mean, paper, Some(latency_target)]
            .into_iter()
            .flatten()
            .collect()
    }

    /// Reaches the last bin that any panel fills, and at least beyond the latency target.
    fn x_max(&self) -> f64 {
        let paper = self
            .panels
            .iter()
            .filter_map(|p| p.paper_mean_ms)
            .fold(0.0, f64::max);
        let filled = self
            .panels
            .iter()
            .map(|p| p.histogram.counts.len() as f64 * p.histogram.bin_width)
            .fold(0.0, f64::max);
        filled.max(paper * 1.15).max(self.latency_target_ms * 1.25)
    }

    fn y_max(&self) -> f64 {
        let highest = self
            .panels
            .iter()
            .flat_map(|p| (0..p.histogram.counts.len()).map(|bin| p.histogram.frequency(bin)))
            .fold(0.0, f64::max);
        (highest * 1.08).max(0.01)
    }

    fn csv(&self) -> String {
        let mut csv = "variant,bin_low_ms,bin_high_ms,messages,frequency\n".to_owned();
        for panel in &self.panels {
            let (name, histogram) = (csv_text(&panel.name), &panel.histogram);
            for (bin, count) in histogram.counts.iter().enumerate() {
                let low = bin as f64 * histogram.bin_width;
                let high = low + histogram.bin_width;
                let frequency = histogram.frequency(bin);
                csv.push_str(&format!("{name},{low},{high},{count},{frequency}\n"));
            }
            if histogram.beyond > 0 {
                let low = histogram.counts.len() as f64 * histogram.bin_width;
                let frequency = histogram.beyond as f64 / histogram.total() as f64;
                csv.push_str(&format!("{name},{low},,{},{frequency}\n", histogram.beyond));
            }
        }
        csv
    }
}

/// The panel's name and legend, in its upper right corner.
fn legend(figure: &HistogramFigure, panel: &Panel, area: &Canvas<'_>) -> PlotResult<()> {
    let left = area.dim_in_pixel().0 as i32 - LEGEND_WIDTH;
    let mut y = 22;
    label(
        area,
        &panel.name,
        (left, y),
        LABEL_SIZE + 2,
        panel.colour,
        HPos::Left,
    )?;
    for line in figure.lines(panel) {
        y += 20;
        line_sample(area, (left, y), line.style, line.dash)?;
        label(
            area,
            &line.text,
            (left + SAMPLE_WIDTH + 8, y),
            LABEL_SIZE - 1,
            INK,
            HPos::Left,
        )?;
    }
    if panel.histogram.beyond > 0 {
        y += 20;
        let text = format!("{} messages further right", panel.histogram.beyond);
        label(area, &text, (left, y), LABEL_SIZE - 1, INK, HPos::Left)?;
    }
    Ok(())
}

/// A vertical line of a panel.
struct Line {
    ms: f64,
    text: String,
    dash: Dash,
    style: ShapeStyle,
}

const LEGEND_WIDTH: i32 = 200;
