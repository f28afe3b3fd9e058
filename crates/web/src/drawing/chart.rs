//! Values over time.

use std::time::{Duration, SystemTime};

use keiro_control::protocol::Timestamp;
use maud::{Markup, html};

use super::{Unit, scale::axis_end};

/// A chart; times are seconds since 1970.
#[derive(Debug)]
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) unit: Unit,
    pub(crate) from: f64,
    pub(crate) to: f64,
    /// Values farther apart are not joined.
    pub(crate) row_seconds: f64,
    pub(crate) bands: Vec<Band<'a>>,
    pub(crate) lines: Vec<Line<'a>>,
    /// A level to compare with, as a latency target.
    pub(crate) level: Option<(&'a str, f64)>,
    pub(crate) marks: Vec<Mark>,
}

/// A value over time.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) label: &'a str,
    /// Time and value, by time.
    pub(crate) points: Vec<(f64, f64)>,
}

/// The room between two values over time.
#[derive(Debug)]
pub(crate) struct Band<'a> {
    pub(crate) label: &'a str,
    /// Time, lower and upper value, by time.
    pub(crate) points: Vec<(f64, f64, f64)>,
}

/// Something that happened.
#[derive(Debug)]
pub(crate) struct Mark {
    pub(crate) at: f64,
    pub(crate) label: String,
}

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 100.0;
/// What is greater than this many times the 95th percentile is above the picture. Ours.
const USUAL_FACTOR: f64 = 2.0;
/// Marks of one chart; the newest are drawn. Ours.
const MARKS_MAX: usize = 50;

impl Chart<'_> {
    pub(crate) fn draw(&self) -> Markup {
        let end = axis_end(self.most());
        let is_empty = self.lines.iter().all(|line| line.points.is_empty());
        html! {
            figure class="chart" {
                figcaption { (self.title) }
                @if is_empty {
                    p class="empty" { "Nothing was measured in this time." }
                } @else {
                    div class="plot" {
                        div class="y" aria-hidden="true" {
                            span { (self.unit.text(end)) }
                            span { (self.unit.text(end / 2.0)) }
                            span { "0" }
                        }
                        (self.picture(end))
                        div class="x" aria-hidden="true" {
                            @for part in [0.0, 0.25, 0.5, 0.75, 1.0] {
                                span { (self.time_text(self.from + part * (self.to - self.from))) }
                            }
                        }
                    }
                    (self.legend(end))
                }
            }
        }
    }

    fn picture(&self, end: f64) -> Markup {
        html! {
            svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(self.summary()) {
                path class="grid" vector-effect="non-scaling-stroke" d="M0 0H1000M0 50H1000M0 100H1000M250 0V100M500 0V100M750 0V100" {}
                @for (index, band) in self.bands.iter().enumerate() {
                    path class={ "band s" (index + 1) } d=(self.band_path(band, end)) {}
                }
                @for (index, line) in self.lines.iter().enumerate() {
                    path class={ "line s" (index + 1) } vector-effect="non-scaling-stroke" d=(self.line_path(line, end)) {}
                }
                @if let Some((_, level)) = self.level {
                    @let y = self.y(level, end);
                    path class="level" vector-effect="non-scaling-stroke" d=(format!("M0 {y:.1}H1000")) {}
                }
                @for mark in self.marks.iter().rev().take(MARKS_MAX) {
                    @let x = self.x(mark.at);
                    path class="mark" vector-effect="non-scaling-stroke" d=(format!("M{x:.1} 0V100")) {
                        title { (mark.label) }
                    }
                }
            }
        }
    }

    fn legend(&self, end: f64) -> Markup {
        let greatest = self.values().into_iter().fold(0.0, f64::max);
        html! {
            ul class="legend" {
                @for (index, line) in self.lines.iter().enumerate() {
                    li class={ "s" (index + 1) } { (line.label) ": " (self.range(line)) }
                }
                @for band in &self.bands {
                    li class="band" { (band.label) }
                }
                @if let Some((label, level)) = self.level {
                    li class="level" { (label) ": " (self.unit.text(level)) }
                }
                @if greatest > end {
                    li class="beyond" { "up to " (self.unit.text(greatest)) ", above the picture" }
                }
                @if !self.marks.is_empty() {
                    li class="mark" { (self.marks.len()) " events; their sentences are under Events" }
                }
            }
        }
    }

    /// The picture in words.
    fn summary(&self) -> String {
        let lines = self
            .lines
            .iter()
            .map(|line| format!("{} {}", line.label, self.range(line)));
        let lines: Vec<String> = lines.collect();
        format!("{}: {}", self.title, lines.join("; "))
    }

    /// Least, median and greatest value.
    fn range(&self, line: &Line<'_>) -> String {
        let mut values: Vec<f64> = line.points.iter().map(|(_, value)| *value).collect();
        values.sort_by(f64::total_cmp);
        match (values.first(), values.last()) {
            (Some(least), Some(most)) => format!(
                "{} to {}, median {}",
                self.unit.text(*least),
                self.unit.text(*most),
                self.unit.text(values[values.len() / 2])
            ),
            _ => "not measured".to_owned(),
        }
    }

    /// The greatest value that is drawn: a minute that was worse by far than all others must not flatten these.
    fn most(&self) -> f64 {
        let mut values = self.values();
        values.sort_by(f64::total_cmp);
        let greatest = values.last().copied().unwrap_or_default();
        let usual = values
            .get(values.len() * 19 / 20)
            .copied()
            .unwrap_or_default();
        let level = self.level.map_or(0.0, |(_, level)| level);
        greatest.min(usual * USUAL_FACTOR).max(level)
    }

    /// All values that are finite and above zero.
    fn values(&self) -> Vec<f64> {
        let of_lines = self.lines.iter().flat_map(|line| &line.points);
        let of_lines = of_lines.map(|(_, value)| *value);
        let of_bands = self.bands.iter().flat_map(|band| &band.points);
        let values = of_lines.chain(of_bands.map(|(_, _, value)| *value));
        values
            .filter(|value| value.is_finite() && *value > 0.0)
            .collect()
    }

    fn line_path(&self, line: &Line<'_>, end: f64) -> String {
        let mut path = String::new();
        for run in self.runs(&line.points, |(at, _)| *at) {
            for (index, (at, value)) in run.iter().enumerate() {
                let command = if index == 0 { 'M' } else { 'L' };
                path.push_str(&format!(
                    "{command}{:.1} {:.1}",
                    self.x(*at),
                    self.y(*value, end)
                ));
            }
            // One value alone is as wide as its row.
            if let [(at, _)] = run {
                path.push_str(&format!("H{:.1}", self.x(at + self.row_seconds)));
            }
        }
        path
    }

    fn band_path(&self, band: &Band<'_>, end: f64) -> String {
        let mut path = String::new();
        for run in self.runs(&band.points, |(at, _, _)| *at) {
            let upper = run.iter().map(|(at, _, upper)| (*at, *upper));
            let lower = run.iter().rev().map(|(at, lower, _)| (*at, *lower));
            for (index, (at, value)) in upper.chain(lower).enumerate() {
                let command = if index == 0 { 'M' } else { 'L' };
                path.push_str(&format!(
                    "{command}{:.1} {:.1}",
                    self.x(at),
                    self.y(value, end)
                ));
            }
            path.push('Z');
        }
        path
    }

    /// Stretches without a gap.
    fn runs<'p, T>(
        &self,
        points: &'p [T],
        at: impl Fn(&T) -> f64,
    ) -> impl Iterator<Item = &'p [T]> {
        let gap = self.row_seconds * 1.5;
        points.chunk_by(move |a, b| at(b) - at(a) <= gap)
    }

    fn x(&self, at: f64) -> f64 {
        let part = (at - self.from) / (self.to - self.from).max(1.0);
        part.clamp(0.0, 1.0) * WIDTH
    }

    fn y(&self, value: f64, end: f64) -> f64 {
        let part = value / end;
        HEIGHT - part.clamp(0.0, 1.0) * HEIGHT
    }

    /// `12:40` within two days, else `11-27`; UTC.
    fn time_text(&self, at: f64) -> String {
        let text = timestamp(at).to_string();
        let part = match self.to - self.from <= 2.0 * 86_400.0 {
            true => text.get(11..16),
            false => text.get(5..10),
        };
        part.unwrap_or_default().to_owned()
    }
}

/// Values alone, as wide as a word.
pub(crate) fn sparkline(label: &str, points: &[(f64, f64)], row_seconds: f64) -> Markup {
    let times = (points.first(), points.last());
    let (from, to) = match times {
        (Some((from, _)), Some((to, _))) => (*from, *to),
        _ => (0.0, 0.0),
    };
    let chart = Chart {
        title: label,
        unit: Unit::Seconds,
        from,
        to,
        row_seconds,
        bands: Vec::new(),
        lines: vec![Line {
            label,
            points: points.to_vec(),
        }],
        level: None,
        marks: Vec::new(),
    };
    let end = axis_end(chart.most());
    html! {
        @if !points.is_empty() {
            svg class="spark" viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img" aria-label=(chart.summary()) {
                path class="line s1" vector-effect="non-scaling-stroke" d=(chart.line_path(&chart.lines[0], end)) {}
            }
        }
    }
}

fn timestamp(at: f64) -> Timestamp {
    let since = Duration::try_from_secs_f64(at).unwrap_or_default();
    Timestamp(SystemTime::UNIX_EPOCH + since)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: Vec<(f64, f64)>) -> Chart<'static> {
        Chart {
            title: "Delay",
            unit: Unit::Seconds,
            from: 0.0,
            to: 600.0,
            row_seconds: 60.0,
            bands: Vec::new(),
            lines: vec![Line {
                label: "median",
                points,
            }],
            level: Some(("target", 0.02)),
            marks: Vec::new(),
        }
    }

    #[test]
    fn values_are_joined_except_over_gaps() {
        let chart = chart(vec![(0.0, 0.0), (60.0, 0.01), (300.0, 0.02)]);
        let path = chart.line_path(&chart.lines[0], 0.02);
        assert_eq!(path, "M0.0 100.0L100.0 50.0M500.0 0.0H600.0");
        let drawn = chart.draw().into_string();
        assert!(drawn.contains("0 to 20 ms, median 10 ms"), "{drawn}");
        assert!(drawn.contains("target: 20 ms"), "{drawn}");
        assert!(!drawn.contains("style="), "{drawn}");
    }

    #[test]
    fn one_value_far_above_the_others_does_not_flatten_them() {
        let mut points: Vec<(f64, f64)> = (0..50)
            .map(|minute| (f64::from(minute) * 60.0, 0.03))
            .collect();
        points[25].1 = 3.0;
        let chart = chart(points);
        assert!((chart.most() - 0.06).abs() < 1e-9, "{}", chart.most());
        let drawn = chart.draw().into_string();
        assert!(drawn.contains("up to 3 s, above the picture"), "{drawn}");
    }

    #[test]
    fn without_values_a_chart_says_so() {
        assert!(
            chart(Vec::new())
                .draw()
                .into_string()
                .contains("Nothing was measured")
        );
        let wild = chart(vec![(f64::NAN, f64::INFINITY), (-5.0, f64::NAN)])
            .draw()
            .into_string();
        assert!(!wild.contains("Infinity"), "{wild}");
    }
}
