//! Mean delays with their intervals, like [path-selection table 6].

use std::ops::Range;

use keiro_figure::{
    Canvas, Dash, DrawError, GRID, INK, LABEL_SIZE, LogChart, MARK, PlotResult, SAMPLE_WIDTH,
    decades, label, line_sample, x_marks,
};
use plotters::{coord::types::RangedCoordf64, prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, csv_value, draw, short, tick_text};

/// A dot with its interval for every application and variant, with the paper's value and the floor.
#[derive(Clone, Debug)]
pub struct MeansFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    pub groups: Vec<Group>,
}

#[derive(Clone, Debug)]
pub struct Group {
    pub name: String,
    /// The application's latency target.
    pub latency_target_ms: f64,
    pub dots: Vec<Dot>,
}

#[derive(Clone, Debug)]
pub struct Dot {
    pub name: String,
    pub colour: RGBColor,
    /// The measured mean; `None` draws only the paper's value and the floor.
    pub mean_ms: Option<f64>,
    /// The ends of its 95 % interval.
    pub interval_ms: Option<(f64, f64)>,
    pub paper_ms: Option<f64>,
    /// Delay of an idle path.
    pub floor_ms: Option<f64>,
}

const LINE_HEIGHT: f64 = 20.0;
const GROUP_GAP: f64 = 16.0;
const LEFT: u32 = 190;
const RIGHT: u32 = 86;
const BOTTOM: u32 = 76;

impl Group {
    fn height(&self) -> f64 {
        self.dots.len() as f64 * LINE_HEIGHT
    }

    /// Every dot with its vertical position; `first` is that of the first.
    fn positions(&self, first: f64) -> impl Iterator<Item = (&Dot, f64)> {
        self.dots
            .iter()
            .enumerate()
            .map(move |(row, dot)| (dot, first + row as f64 * LINE_HEIGHT))
    }
}

impl Dot {
    /// Draws floor, interval, mean and the paper's value at height `y`; the axis begins at `low`.
    fn draw(
        &self,
        chart: &mut LogChart<'_, '_, RangedCoordf64>,
        y: f64,
        low: f64,
    ) -> PlotResult<()> {
        if let Some(floor) = self.floor_ms {
            let tick = [(floor, y - 7.0), (floor, y + 7.0)];
            chart.draw_series(LineSeries::new(tick, INK.stroke_width(2)))?;
        }
        if let Some((from, to)) = self.interval_ms {
            let whisker = [(from.max(low), y), (to, y)];
            chart.draw_series(LineSeries::new(whisker, self.colour.stroke_width(3)))?;
        }
        if let Some(mean) = self.mean_ms {
            let circle = Circle::new((mean, y), 5, self.colour.filled());
            chart.draw_series(std::iter::once(circle))?;
        }
        if let Some(paper) = self.paper_ms {
            let diamond = EmptyElement::at((paper, y))
                + PathElement::new(DIAMOND.to_vec(), INK.stroke_width(2));
            chart.draw_series(std::iter::once(diamond))?;
        }
        Ok(())
    }
}

/// Marker of the paper's values, in pixels around its centre.
const DIAMOND: [(i32, i32); 5] = [(0, -6), (6, 0), (0, 6), (-6, 0), (0, -6)];

impl MeansFigure {
    /// Draws the figure.
    ///
    /// # Errors
    /// See [`DrawError`].
    pub fn draw(&self) -> Result<Drawing, DrawError> {
        let height = self.plot_height() as u32 + BOTTOM + 80;
        let svg = draw(&self.title, &self.subtitle, height, |canvas| {
            self.body(canvas)
        })?;
        Ok(Drawing {
            svg,
            csv: self.csv(),
        })
    }

    fn body(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let (low, high) = self.range();
        let plot_height = self.plot_height();
        // The vertical axis counts pixels from the top, so that labels beside the plot can be aligned with
        // their dots.
        let mut chart = ChartBuilder::on(canvas)
            .set_label_area_size(LabelAreaPosition::Left, LEFT)
            .set_label_area_size(LabelAreaPosition::Right, RIGHT)
            .set_label_area_size(LabelAreaPosition::Bottom, BOTTOM)
            .build_cartesian_2d((low..high).log_scale(), plot_height..0.0)?;
        chart
            .configure_mesh()
            .disable_mesh()
            .disable_y_axis()
            .axis_style(INK)
            .x_labels(0)
            // plotters labels a mark even when asked for none, so the marks are drawn below.
            .x_label_formatter(&|_| String::new())
            .draw()?;
        let top = canvas.get_base_pixel().1;
        let ticks = decades(low, high, usize::MAX);
        x_marks(
            canvas,
            &mut chart,
            &ticks,
            plot_height..0.0,
            Some(&tick_text),
        )?;
        self.labels(canvas, |y| chart.backend_coord(&(low, y)).1 - top)?;
        for (group, y) in self.positions() {
            self.draw_group(&mut chart, group, y, low..high)?;
        }
        legend(canvas)
    }

    /// Names of groups and variants on the left, means on the right. `pixel` maps vertical positions.
    fn labels(&self, canvas: &Canvas<'_>, pixel: impl Fn(f64) -> i32) -> PlotResult<()> {
        let right = canvas.dim_in_pixel().0 as i32 - RIGHT as i32 + 10;
        for (group, y) in self.positions() {
            let at = (8, pixel(y));
            label(canvas, &group.name, at, LABEL_SIZE, INK, HPos::Left)?;
            for (dot, y) in group.positions(y) {
                let at = (LEFT as i32 - 10, pixel(y));
                label(canvas, &dot.name, at, LABEL_SIZE, dot.colour, HPos::Right)?;
                if let Some(mean) = dot.mean_ms {
                    let text = format!("{} ms", short(mean));
                    let at = (right, pixel(y));
                    label(canvas, &text, at, LABEL_SIZE, INK, HPos::Left)?;
                }
            }
        }
        Ok(())
    }

    /// Draws a group whose first line is at `y`, with a rule above all but the first.
    fn draw_group(
        &self,
        chart: &mut LogChart<'_, '_, RangedCoordf64>,
        group: &Group,
        y: f64,
        range: Range<f64>,
    ) -> PlotResult<()> {
        let above = y - LINE_HEIGHT / 2.0;
        let below = y + group.height() - LINE_HEIGHT / 2.0;
        if above > GROUP_GAP {
            let height = above - GROUP_GAP / 2.0;
            let rule = [(range.start, height), (range.end, height)];
            chart.draw_series(LineSeries::new(rule, GRID.stroke_width(2)))?;
        }
        let target = group.latency_target_ms;
        let line = [(target, above), (target, below)];
        let style = MARK.stroke_width(2);
        chart.draw_series(DashedLineSeries::new(line, 2, 4, style))?;
        for (dot, y) in group.positions(y) {
            dot.draw(chart, y, range.start)?;
        }
        Ok(())
    }

    /// Every group with the vertical position of its first line.
    fn positions(&self) -> impl Iterator<Item = (&Group, f64)> {
        let mut next = GROUP_GAP / 2.0;
        self.groups.iter().map(move |group| {
            let first = next + LINE_HEIGHT / 2.0;
            next += group.height() + GROUP_GAP;
            (group, first)
        })
    }

    fn plot_height(&self) -> f64 {
        self.groups
            .iter()
            .map(|group| group.height() + GROUP_GAP)
            .sum::<f64>()
            .max(LINE_HEIGHT)
    }

    fn range(&self) -> (f64, f64) {
        let mut values: Vec<f64> = Vec::new();
        for group in &self.groups {
            values.push(group.latency_target_ms);
            for dot in &group.dots {
                values.extend(
                    [dot.mean_ms, dot.paper_ms, dot.floor_ms]
                        .into_iter()
                        .flatten(),
                );
                values.extend(dot.interval_ms.map(|(_, high)| high));
            }
        }
        let low = values
            .iter()
            .copied()
            .filter(|v| *v > 0.0)
            .fold(f64::MAX, f64::min);
        let high = values.iter().copied().fold(1.0, f64::max);
        (low.min(high) * 0.8, high * 1.15)
    }

    fn csv(&self) -> String {
        let mut csv =
            "application,variant,mean_ms,low_ms,high_ms,paper_ms,floor_ms,latency_target_ms\n"
                .to_owned();
        for group in &self.groups {
            for dot in &group.dots {
                let values = [
                    dot.mean_ms,
                    dot.interval_ms.map(|i| i.0),
                    dot.interval_ms.map(|i| i.1),
                    dot.paper_ms,
                    dot.floor_ms,
                    Some(group.latency_target_ms),
                ];
                let fields: Vec<String> = [csv_text(&group.name), csv_text(&dot.name)]
                    .into_iter()
                    .chain(values.map(csv_value))
                    .collect();
                csv.push_str(&fields.join(","));
                csv.push('\n');
            }
        }
        csv
    }
}

/// The legend, below the axis.
fn legend(canvas: &Canvas<'_>) -> PlotResult<()> {
    let bottom = canvas.dim_in_pixel().1 as i32;
    let left = LEFT as i32;
    legend_text(canvas, "mean delay (ms, logarithmic)", 0, 42)?;
    let y = bottom - 16;
    canvas.draw(&PathElement::new(
        [(left, y), (left + 20, y)],
        INK.stroke_width(3),
    ))?;
    canvas.draw(&Circle::new((left + 10, y), 5, INK.filled()))?;
    legend_text(canvas, "with 95 % interval", 28, 16)?;
    let diamond = DIAMOND.map(|(dx, dy)| (left + 176 + dx, y + dy));
    canvas.draw(&PathElement::new(diamond.to_vec(), INK.stroke_width(2)))?;
    legend_text(canvas, "paper", 190, 16)?;
    canvas.draw(&PathElement::new(
        [(left + 296, y - 7), (left + 296, y + 7)],
        INK.stroke_width(2),
    ))?;
    legend_text(canvas, "idle path", 306, 16)?;
    line_sample(canvas, (left + 390, y), MARK.stroke_width(2), Dash::Dotted)?;
    legend_text(canvas, "latency target", 390 + SAMPLE_WIDTH + 8, 16)
}

/// Writes `text` at `x` pixels from the plot's left edge and `height` pixels above the bottom.
fn legend_text(canvas: &Canvas<'_>, text: &str, x: i32, height: i32) -> PlotResult<()> {
    let bottom = canvas.dim_in_pixel().1 as i32;
    let at = (LEFT as i32 + x, bottom - height);
    label(canvas, text, at, LABEL_SIZE, INK, HPos::Left)
}
