//! Time, residuals and throughput against size, like [latency-bandwidth figs. 2–4].
//!
//! One picture with three panels and a common axis of sizes. The paper's axes are linear; ours are
//! logarithmic, so that overhead and bandwidth are both visible.

use keiro_control::units::three_digits;
use keiro_figure::{
    BLUE as POINT, Canvas, DrawError, GRID, INK, LABEL_SIZE, LogChart, MARK, PURPLE as LEFT_OUT,
    PlotResult, VERMILION as LINE, WIDTH, decades, label, x_marks,
};
use keiro_model::fit::{Break, Fit};
use plotters::{
    coord::{combinators::IntoLogRange, ranged1d::Ranged},
    prelude::*,
    style::text_anchor::HPos,
};

/// A fit as SVG; `title` names the measurement.
///
/// # Errors
/// See [`DrawError`].
pub fn draw(title: &str, fit: &Fit) -> Result<String, DrawError> {
    let picture = Picture::of(fit);
    let height = HEAD + TIME_HEIGHT + RESIDUAL_HEIGHT + RATE_HEIGHT + 8;
    keiro_figure::draw(title, &picture.subtitle(), height as u32, |root| {
        picture.draw(root)
    })
}

const HEAD: i32 = 96;
const TIME_HEIGHT: i32 = 320;
const RESIDUAL_HEIGHT: i32 = 182;
/// Height above the residuals' frame for outliers.
const NOTE: u32 = 18;
const RATE_HEIGHT: i32 = 320;
const LEFT: u32 = 84;
const AXIS: u32 = 48;

/// Up to this many points are drawn individually; of more, an even selection.
const POINTS_MAX: usize = 4000;

/// Points per line; lines are curved on logarithmic axes.
const STEPS: usize = 64;

struct Picture<'a> {
    fit: &'a Fit,
    /// (bytes, seconds, fitted seconds).
    points: Vec<(f64, f64, f64)>,
    sizes: (f64, f64),
}

/// Axes and labels of one panel.
struct Axes {
    values: (f64, f64),
    logarithmic: bool,
    name: &'static str,
    text: fn(f64) -> String,
}

impl<'a> Picture<'a> {
    fn of(fit: &'a Fit) -> Self {
        let stride = fit.samples().len().div_ceil(POINTS_MAX).max(1);
        let points = fit.residuals().step_by(stride).map(|residual| {
            let sample = residual.sample;
            (
                sample.bytes().get() as f64,
                sample.seconds(),
                residual.fitted_seconds,
            )
        });
        let (first, last) = fit.range().into_inner();
        Self {
            fit,
            points: points.collect(),
            sizes: (first.get() as f64 * 0.8, last.get() as f64 * 1.25),
        }
    }

    fn draw(&self, root: &Canvas<'_>) -> PlotResult<()> {
        self.legend(root)?;
        let areas = root.split_by_breakpoints(
            Vec::<i32>::new(),
            [
                HEAD,
                HEAD + TIME_HEIGHT,
                HEAD + TIME_HEIGHT + RESIDUAL_HEIGHT,
            ],
        );
        self.time(&areas[1])?;
        self.residuals(&areas[2])?;
        self.throughput(&areas[3])
    }

    fn subtitle(&self) -> String {
        let lines = self.fit.pieces().len();
        let breaks = match self.fit.breaks() {
            [] => "no break".to_owned(),
            breaks => {
                let sizes = breaks.iter().map(|b| size_text(b.bytes.get() as f64));
                format!("break at {}", sizes.collect::<Vec<_>>().join(", "))
            }
        };
        format!(
            "{} transfers, {lines} line{}, {breaks}",
            self.fit.samples().len(),
            if lines == 1 { "" } else { "s" },
        )
    }

    fn legend(&self, root: &Canvas<'_>) -> PlotResult<()> {
        let y = 74;
        root.draw(&Circle::new((24, y), 3, POINT.mix(0.6).filled()))?;
        label(root, "a transfer", (34, y), LABEL_SIZE, INK, HPos::Left)?;
        root.draw(&PathElement::new(
            [(130, y), (154, y)],
            LINE.stroke_width(2),
        ))?;
        label(
            root,
            "T(n) = 8n/B + oh",
            (162, y),
            LABEL_SIZE,
            INK,
            HPos::Left,
        )?;
        if !self.fit.breaks().is_empty() {
            let band = [(310, y - 7), (334, y + 7)];
            root.draw(&Rectangle::new(band, MARK.mix(0.18).filled()))?;
            label(
                root,
                "95 % interval of a break",
                (342, y),
                LABEL_SIZE,
                INK,
                HPos::Left,
            )?;
        }
        if self.fit.sizes().iter().any(|s| s.left_out) {
            root.draw(&Cross::new((540, y), 4, LEFT_OUT.stroke_width(2)))?;
            label(
                root,
                "size left out of the fit",
                (552, y),
                LABEL_SIZE,
                INK,
                HPos::Left,
            )?;
        }
        Ok(())
    }

    fn time(&self, area: &Canvas<'_>) -> PlotResult<()> {
        let all = || self.points.iter().flat_map(|p| [p.1, p.2]);
        let values = (least(all()) * 0.8, greatest(all()) * 1.25);
        let axes = Axes {
            values,
            logarithmic: true,
            name: "time",
            text: time_text,
        };
        let range = (values.0..values.1).log_scale();
        let mut chart = builder(area, false)
            .build_cartesian_2d((self.sizes.0..self.sizes.1).log_scale(), range)?;
        self.grid(area, &mut chart, &axes, false)?;
        let points = self.points.iter().map(|p| (p.0, p.1));
        chart.draw_series(points.map(|at| Circle::new(at, 2, POINT.mix(0.45).filled())))?;
        for line in self.lines() {
            chart.draw_series(LineSeries::new(line, LINE.stroke_width(2)))?;
        }
        let left_out = self.fit.sizes().iter().filter(|s| s.left_out);
        let left_out = left_out.map(|s| (s.bytes, s.seconds));
        chart.draw_series(left_out.map(|at| Cross::new(at, 5, LEFT_OUT.stroke_width(2))))?;
        Ok(())
    }

    fn residuals(&self, area: &Canvas<'_>) -> PlotResult<()> {
        let ratio = |p: &(f64, f64, f64)| (p.1 / p.2 - 1.0) * 100.0;
        let reach = reach(self.points.iter().map(ratio).collect());
        let axes = Axes {
            values: (-reach, reach),
            logarithmic: false,
            name: "beside the line",
            text: percent_text,
        };
        let mut chart = builder(area, false)
            .margin_top(NOTE)
            .build_cartesian_2d((self.sizes.0..self.sizes.1).log_scale(), -reach..reach)?;
        self.grid(area, &mut chart, &axes, false)?;
        let zero = [(self.sizes.0, 0.0), (self.sizes.1, 0.0)];
        chart.draw_series(LineSeries::new(zero, LINE.stroke_width(2)))?;
        let near = |r: &f64| r.abs() <= reach;
        let points = self.points.iter().map(|p| (p.0, ratio(p)));
        let (inside, outside): (Vec<_>, Vec<_>) = points.partition(|p| near(&p.1));
        let dot = |at| Circle::new(at, 2, POINT.mix(0.45).filled());
        chart.draw_series(inside.into_iter().map(dot))?;
        // Values further off are drawn at the edge.
        let edge = |(x, y): (f64, f64)| (x, y.signum() * reach * 0.97);
        let triangle = |at| TriangleMarker::new(at, 4, LEFT_OUT.filled());
        let count = outside.len();
        chart.draw_series(outside.into_iter().map(edge).map(triangle))?;
        if count > 0 {
            let text = match count {
                1 => "1 transfer is further off".to_owned(),
                _ => format!("{count} transfers are further off"),
            };
            let at = (WIDTH as i32 - 26, 8);
            label(area, &text, at, LABEL_SIZE - 1, LEFT_OUT, HPos::Right)?;
        }
        Ok(())
    }

    fn throughput(&self, area: &Canvas<'_>) -> PlotResult<()> {
        let rate = |bytes: f64, seconds: f64| 8.0 * bytes / seconds;
        let all = || {
            let points = self.points.iter();
            points.flat_map(move |p| [rate(p.0, p.1), rate(p.0, p.2)])
        };
        let values = (least(all()) * 0.8, greatest(all()) * 1.25);
        let axes = Axes {
            values,
            logarithmic: true,
            name: "throughput",
            text: rate_text,
        };
        let range = (values.0..values.1).log_scale();
        let mut chart = builder(area, true)
            .build_cartesian_2d((self.sizes.0..self.sizes.1).log_scale(), range)?;
        self.grid(area, &mut chart, &axes, true)?;
        let points = self.points.iter().map(|p| (p.0, rate(p.0, p.1)));
        chart.draw_series(points.map(|at| Circle::new(at, 2, POINT.mix(0.45).filled())))?;
        for line in self.lines() {
            let line = line.into_iter().map(|(n, t)| (n, rate(n, t)));
            chart.draw_series(LineSeries::new(line, LINE.stroke_width(2)))?;
        }
        Ok(())
    }

    /// Points of every line over its sizes and up to the break.
    fn lines(&self) -> Vec<Vec<(f64, f64)>> {
        let breaks: Vec<f64> = self.fit.breaks().iter().map(middle).collect();
        let (first, last) = self.fit.range().into_inner();
        let mut edges = vec![first.get() as f64];
        edges.extend(breaks);
        edges.push(last.get() as f64);
        let pieces = self.fit.pieces().iter().zip(edges.windows(2));
        pieces
            .map(|(piece, ends)| {
                (0..=STEPS)
                    .map(|i| ends[0] * (ends[1] / ends[0]).powf(i as f64 / STEPS as f64))
                    .map(|n| (n, piece.seconds(n)))
                    // The part of a line below zero cannot be shown on a logarithmic axis.
                    .filter(|at| at.1 > 0.0)
                    .collect()
            })
            .collect()
    }

    /// Frame, marks of both axes, and intervals of breaks.
    fn grid<Y>(
        &self,
        area: &Canvas<'_>,
        chart: &mut LogChart<'_, '_, Y>,
        axes: &Axes,
        is_last: bool,
    ) -> PlotResult<()>
    where
        Y: Ranged<ValueType = f64>,
    {
        let (left, top) = area.get_base_pixel();
        let (x_low, x_high) = self.sizes;
        let (low, high) = axes.values;
        for one in self.fit.breaks() {
            let ends = [one.interval.low, one.interval.high].map(|n| n.get() as f64);
            let band = [(ends[0].max(x_low), low), (ends[1].min(x_high), high)];
            chart.draw_series([Rectangle::new(band, MARK.mix(0.18).filled())])?;
            let at = middle(one);
            chart.draw_series(DashedLineSeries::new(
                [(at, low), (at, high)],
                4,
                4,
                MARK.stroke_width(1),
            ))?;
        }
        let text: Option<&dyn Fn(f64) -> String> = if is_last { Some(&size_text) } else { None };
        let ticks = decades(x_low, x_high, 9);
        x_marks(area, chart, &ticks, low..high, text)?;
        let ticks = match axes.logarithmic {
            true => decades(low, high, 7),
            false => even(low, high),
        };
        for tick in ticks {
            chart.draw_series(LineSeries::new([(x_low, tick), (x_high, tick)], GRID))?;
            let (x, y) = chart.backend_coord(&(x_low, tick));
            let at = (x - left - 8, y - top);
            anchored(area, &(axes.text)(tick), at, HPos::Right)?;
        }
        let frame = [
            (x_low, low),
            (x_low, high),
            (x_high, high),
            (x_high, low),
            (x_low, low),
        ];
        chart.draw_series(LineSeries::new(frame, MARK))?;
        // Neither time nor throughput is high at small sizes, so the legend fits there.
        let (x, y) = chart.backend_coord(&(x_low, high));
        let at = (x - left + 10, y - top + 16);
        anchored(area, axes.name, at, HPos::Left)?;
        if is_last {
            let (x, y) = chart.backend_coord(&((x_low * x_high).sqrt(), low));
            anchored(area, "size", (x - left, y - top + 36), HPos::Center)?;
        }
        Ok(())
    }
}

fn builder<'a, 'b>(area: &'a Canvas<'b>, is_last: bool) -> ChartBuilder<'a, 'b, SVGBackend<'b>> {
    let mut builder = ChartBuilder::on(area);
    builder
        .margin_right(26)
        .margin_top(6)
        .set_label_area_size(LabelAreaPosition::Left, LEFT)
        .set_label_area_size(LabelAreaPosition::Bottom, if is_last { AXIS } else { 8 });
    builder
}

fn middle(one: &Break) -> f64 {
    one.bytes.get() as f64
}

fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.filter(|v| *v > 0.0).fold(f64::INFINITY, f64::min)
}

fn greatest(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, f64::max)
}

/// Range of the residuals' axis, in percent: a few times the typical residual.
fn reach(mut ratios: Vec<f64>) -> f64 {
    ratios.iter_mut().for_each(|r| *r = r.abs());
    ratios.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let rank = (ratios.len().saturating_sub(1)) as f64 * share;
        ratios.get(rank as usize).copied().unwrap_or(0.0)
    };
    let wanted = at(1.0).min(5.0 * at(0.68)).max(0.01);
    let digit = 10f64.powf(wanted.log10().floor());
    let steps = [1.0, 2.0, 3.0, 5.0, 10.0].map(|step| step * digit);
    steps
        .into_iter()
        .find(|s| *s >= wanted * 0.999)
        .unwrap_or(wanted)
}

/// Marks at zero, and in both directions at about half and nearly all of the range.
fn even(low: f64, high: f64) -> Vec<f64> {
    vec![low, low / 2.0, 0.0, high / 2.0, high]
}

fn percent_text(value: f64) -> String {
    match value {
        0.0 => "0 %".to_owned(),
        v => format!(
            "{}{} %",
            if v > 0.0 { "+" } else { "−" },
            three_digits(v.abs())
        ),
    }
}

fn size_text(bytes: f64) -> String {
    scaled(bytes, &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

fn rate_text(bits_per_second: f64) -> String {
    let units = [
        (1e9, "Gbit/s"),
        (1e6, "Mbit/s"),
        (1e3, "kbit/s"),
        (1.0, "bit/s"),
    ];
    scaled(bits_per_second, &units)
}

fn time_text(seconds: f64) -> String {
    scaled(seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")])
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // Removes floating-point noise from a mark.
    let fits = |unit: &&(f64, &str)| value >= unit.0 * 0.9999;
    match units.iter().find(fits).or(units.last()) {
        Some((unit, name)) => format!("{} {name}", three_digits(value / unit)),
        None => three_digits(value),
    }
}

/// A label of an axis.
fn anchored(area: &Canvas<'_>, text: &str, at: (i32, i32), anchor: HPos) -> PlotResult<()> {
    label(area, text, at, LABEL_SIZE - 1, INK, anchor)
}

#[cfg(test)]
mod tests {
    use keiro_model::fit::Sample;
    use keiro_units::ByteCount;

    use super::*;

    fn fit(points: impl IntoIterator<Item = (u64, f64)>) -> Fit {
        let sample = |(bytes, seconds)| Sample::new(ByteCount::new(bytes), seconds).unwrap();
        let samples: Vec<Sample> = points.into_iter().map(sample).collect();
        Fit::of(&samples).unwrap()
    }

    #[test]
    fn every_panel_has_its_name_and_units() {
        let sizes = (0..30).map(|i| (1000.0 * 1.5_f64.powi(i)) as u64);
        let fit = fit(sizes.map(|n| (n, 0.01 + n as f64 * 8e-8)));
        let svg = draw("A <title>", &fit).unwrap();
        for part in [
            "A &lt;title&gt;",
            "30 transfers, 1 line, no break",
            "beside the line",
            "throughput",
            "1 kB",
            "10 MB",
            "Mbit/s",
            "100 ms",
        ] {
            assert!(svg.contains(part), "no `{part}`");
        }
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn breaks_and_outliers_are_shown_and_explained() {
        let sizes = (0..40).map(|i| (1000.0 * 1.3_f64.powi(i)) as u64);
        let jump = |n: u64| if n > 1_000_000 { 0.5 } else { 0.0 };
        let mut points: Vec<(u64, f64)> = sizes
            .map(|n| {
                (
                    n,
                    (0.01 + jump(n) + n as f64 * 8e-8) * (1.0 + (n % 7) as f64 / 1000.0),
                )
            })
            .collect();
        points[10].1 *= 5.0;
        let svg = draw("x", &fit(points)).unwrap();
        for part in [
            "2 lines, break at",
            "95 % interval of a break",
            "left out",
            "further off",
        ] {
            assert!(svg.contains(part), "no `{part}`");
        }
    }

    #[test]
    fn extreme_sizes_and_times_are_drawn() {
        draw("x", &fit([(1, 1e-9), (2, 2e-9), (3, 3e-9), (4, 4e-9)])).unwrap();
        let large = 1_u64 << 53;
        draw(
            "x",
            &fit([(1, 1e-6), (1000, 1e-6), (large / 2, 1e8), (large, 2e8)]),
        )
        .unwrap();
    }

    #[test]
    fn very_many_points_make_no_very_large_picture() {
        let points = (1..100_000_u64).map(|n| (n * 1000, 0.01 + n as f64 * 8e-5));
        assert!(draw("x", &fit(points)).unwrap().len() < 3_000_000);
    }

    #[test]
    fn marks_have_units() {
        assert_eq!(time_text(0.002), "2 ms");
        assert_eq!(time_text(1e-4), "100 µs");
        assert_eq!(size_text(1e8), "100 MB");
        assert_eq!(rate_text(2e9), "2 Gbit/s");
        assert_eq!(percent_text(-2.5), "−2.5 %");
    }
}
