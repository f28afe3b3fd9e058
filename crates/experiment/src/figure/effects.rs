//! Effects of one factor at a time on several quantities: a column per factor, a row per quantity.

use keiro_figure::{
    Canvas, Dash, DrawError, GRID, INK, LABEL_SIZE, MARK, PlotResult, SAMPLE_WIDTH, colour, label,
    line_sample, line_through,
};
use plotters::{element::PathElement, prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, csv_value, draw, tick_text};

/// Small plots side by side; plots of one row share an axis.
#[derive(Clone, Debug)]
pub struct EffectsFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    /// The factors, each with its values in rising order.
    pub columns: Vec<(String, Vec<String>)>,
    pub rows: Vec<EffectRow>,
}

#[derive(Clone, Debug)]
pub struct EffectRow {
    /// Its name with its unit.
    pub name: String,
    pub lines: Vec<EffectLine>,
}

/// One condition's values of a quantity.
#[derive(Clone, Debug)]
pub struct EffectLine {
    pub name: String,
    /// Its place among the lines, which decides about colour and dash.
    pub place: usize,
    /// Indexed by column and value; `None` if not measured.
    pub values: Vec<Vec<Option<f64>>>,
}

const LEFT: i32 = 70;
const RIGHT: i32 = 16;
const TOP: i32 = 46;
const BOTTOM: i32 = 32;
const HEIGHT: i32 = 104;
const GAP: (i32, i32) = (26, 44);
/// Height of a line of the legend.
const LEGEND: i32 = 20;
/// About the width of a letter. Ours: text is drawn by the viewer.
const LETTER: i32 = 8;

/// An axis is logarithmic if its values differ by more than this factor. Ours: two decades.
const LINEAR_MAX: f64 = 100.0;

impl EffectsFigure {
    /// Draws the figure.
    ///
    /// # Errors
    /// See [`DrawError`].
    pub fn draw(&self) -> Result<Drawing, DrawError> {
        let rows = self.rows.len() as i32;
        let legend = self
            .legend_places()
            .last()
            .map_or(0, |(_, line)| line * LEGEND);
        let height = 66 + 8 + TOP + legend + rows * (HEIGHT + GAP.1) + BOTTOM;
        let svg = draw(&self.title, &self.subtitle, height as u32, |canvas| {
            self.body(canvas)
        })?;
        Ok(Drawing {
            svg,
            csv: self.csv(),
        })
    }

    fn body(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let columns = self.columns.len().max(1) as i32;
        let all = canvas.dim_in_pixel().0 as i32 - LEFT - RIGHT;
        let width = (all - (columns - 1) * GAP.0) / columns;
        let places = self.legend_places();
        for (line, (x, down)) in self.lines().iter().zip(&places) {
            let y = 10 + down * LEGEND;
            let (style, dash) = line.stroke(3);
            line_sample(canvas, (*x, y), style, dash)?;
            let at = (x + SAMPLE_WIDTH + 6, y);
            label(canvas, &line.name, at, LABEL_SIZE, INK, HPos::Left)?;
        }
        let top = TOP + places.last().map_or(0, |(_, down)| down * LEGEND);
        for (index, row) in (0..).zip(&self.rows) {
            let top = top + index * (HEIGHT + GAP.1);
            self.row(canvas, row, top, width)?;
            if index == self.rows.len() as i32 - 1 {
                self.factors(canvas, top + HEIGHT + 32, width)?;
            }
        }
        Ok(())
    }

    /// The lines, which all rows have.
    fn lines(&self) -> &[EffectLine] {
        self.rows.first().map_or(&[], |row| &row.lines)
    }

    /// Where each line's entry in the legend begins: across, in pixels, and in which of its lines.
    fn legend_places(&self) -> Vec<(i32, i32)> {
        let end = keiro_figure::WIDTH as i32 - RIGHT - 16;
        let (mut x, mut down) = (LEFT, 0);
        let place = |line: &EffectLine| {
            let width = SAMPLE_WIDTH + 6 + LETTER * line.name.chars().count() as i32;
            if x + width > end && x > LEFT {
                (x, down) = (LEFT, down + 1);
            }
            let at = (x, down);
            x += width + 18;
            at
        };
        self.lines().iter().map(place).collect()
    }

    fn factors(&self, canvas: &Canvas<'_>, y: i32, width: i32) -> PlotResult<()> {
        for (index, (factor, _)) in (0..).zip(&self.columns) {
            let at = (LEFT + index * (width + GAP.0) + width / 2, y);
            label(canvas, factor, at, LABEL_SIZE - 1, INK, HPos::Center)?;
        }
        Ok(())
    }

    fn row(&self, canvas: &Canvas<'_>, row: &EffectRow, top: i32, width: i32) -> PlotResult<()> {
        let axis = Axis::of(row);
        let y = |value: f64| top + (f64::from(HEIGHT) * (1.0 - axis.share(value))).round() as i32;
        let at = (LEFT + 2, top - 10);
        let name = match axis.low {
            Some(_) if axis.has_zeros => format!("{}, logarithmic; 0 at the bottom", row.name),
            Some(_) => format!("{}, logarithmic", row.name),
            None => row.name.clone(),
        };
        label(canvas, &name, at, LABEL_SIZE - 1, INK, HPos::Left)?;
        for (index, (column, (_, marks))) in (0..).zip(self.columns.iter().enumerate()) {
            let left = LEFT + index * (width + GAP.0);
            let slots = marks.len().max(1) as i32;
            let x = |slot: i32| left + width * (2 * slot + 1) / (2 * slots);
            for tick in &axis.ticks {
                let line = [(left, y(*tick)), (left + width, y(*tick))];
                canvas.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
                if index == 0 {
                    let at = (left - 8, y(*tick));
                    label(
                        canvas,
                        &tick_text(*tick),
                        at,
                        LABEL_SIZE - 2,
                        INK,
                        HPos::Right,
                    )?;
                }
            }
            let frame = [
                (left, top),
                (left, top + HEIGHT),
                (left + width, top + HEIGHT),
            ];
            canvas.draw(&PathElement::new(frame, MARK.stroke_width(1)))?;
            for (slot, mark) in (0..).zip(marks) {
                let at = (x(slot), top + HEIGHT + 12);
                label(canvas, mark, at, LABEL_SIZE - 2, INK, HPos::Center)?;
            }
            for line in &row.lines {
                let points: Vec<(i32, i32)> = (0..)
                    .zip(&line.values[column])
                    .filter_map(|(slot, value)| Some((x(slot), y((*value)?))))
                    .collect();
                let (style, dash) = line.stroke(2);
                for point in &points {
                    canvas.draw(&Circle::new(*point, 4, colour(line.place).filled()))?;
                }
                line_through(canvas, &points, style, dash)?;
            }
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut csv = "quantity,condition,factor,value,measured\n".to_owned();
        for row in &self.rows {
            for line in &row.lines {
                for ((factor, marks), values) in self.columns.iter().zip(&line.values) {
                    for (mark, value) in marks.iter().zip(values) {
                        let fields = [&row.name, &line.name, factor, mark];
                        let fields = fields.map(|field| csv_text(field)).join(",");
                        csv.push_str(&format!("{fields},{}\n", csv_value(*value)));
                    }
                }
            }
        }
        csv
    }
}

impl EffectLine {
    fn stroke(&self, width: u32) -> (ShapeStyle, Dash) {
        let style = colour(self.place).stroke_width(width);
        (style, Dash::of_series(self.place))
    }
}

/// The axis of a row.
#[derive(Debug, PartialEq)]
struct Axis {
    /// Where a logarithmic axis begins, and smaller values are drawn; `None` for one that begins at zero.
    low: Option<f64>,
    high: f64,
    ticks: Vec<f64>,
    has_zeros: bool,
}

impl Axis {
    fn of(row: &EffectRow) -> Self {
        let values = row
            .lines
            .iter()
            .flat_map(|line| line.values.iter().flatten());
        let values: Vec<f64> = values.flatten().copied().collect();
        let has_zeros = values.contains(&0.0);
        let values: Vec<f64> = values.into_iter().filter(|v| *v > 0.0).collect();
        let largest = values.iter().copied().reduce(f64::max).unwrap_or(1.0);
        let least = values.iter().copied().reduce(f64::min).unwrap_or(1.0);
        if largest > least * LINEAR_MAX {
            let (from, to) = (least.log10().floor(), largest.log10().ceil());
            let ticks = (from as i32..=to as i32).map(|exponent| 10f64.powi(exponent));
            return Self {
                low: Some(10f64.powf(from)),
                high: 10f64.powf(to),
                ticks: ticks.collect(),
                has_zeros,
            };
        }
        let decade = 10f64.powf(largest.log10().floor());
        let steps = [0.2, 0.5, 1.0, 2.0, 5.0].map(|step| step * decade);
        let step = steps.into_iter().find(|step| largest / step <= 4.0);
        let step = step.unwrap_or(decade * 5.0);
        let count = (largest / step).ceil() as i32;
        let ticks = (0..=count).map(|i| f64::from(i) * step).collect();
        Self {
            low: None,
            high: f64::from(count) * step,
            ticks,
            has_zeros,
        }
    }

    /// How far up a value is, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        match self.low {
            Some(low) => (value.max(low) / low).ln() / (self.high / low).ln(),
            None => value / self.high,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_factors_quantities_and_conditions() {
        let figure = EffectsFigure {
            title: "Effects".to_owned(),
            subtitle: "nowhere".to_owned(),
            columns: vec![("I".to_owned(), vec!["1 ms".to_owned(), "2 ms".to_owned()])],
            rows: vec![EffectRow {
                name: "mean delay (ms)".to_owned(),
                lines: vec![EffectLine {
                    name: "line loss".to_owned(),
                    place: 0,
                    values: vec![vec![Some(1.5), None]],
                }],
            }],
        };
        let drawing = figure.draw().unwrap();
        for text in ["I", "1 ms", "2 ms", "mean delay (ms)", "line loss"] {
            assert!(drawing.svg.contains(text), "{text} is missing");
        }
        assert!(drawing.csv.contains("mean delay (ms),line loss,I,1 ms,1.5"));
    }

    fn row(values: Vec<Option<f64>>) -> EffectRow {
        EffectRow {
            name: String::new(),
            lines: vec![EffectLine {
                name: String::new(),
                place: 0,
                values: vec![values],
            }],
        }
    }

    #[test]
    fn axes_end_above_the_largest_value_with_few_marks() {
        let axis = Axis::of(&row(vec![Some(3.1)]));
        assert_eq!(axis.ticks, vec![0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!((axis.low, axis.high), (None, 4.0));
        assert_eq!(Axis::of(&row(vec![Some(2400.0)])).high, 3000.0);
        assert_eq!(Axis::of(&row(vec![None])).high, 1.0);
    }

    #[test]
    fn values_of_several_decades_have_a_logarithmic_axis() {
        let axis = Axis::of(&row(vec![Some(0.9), None, Some(0.0), Some(5000.0)]));
        assert_eq!((axis.low, axis.high), (Some(0.1), 10_000.0));
        assert_eq!(axis.ticks.len(), 6);
        // Zero is drawn at its end, and the axis says so.
        assert!(axis.has_zeros);
        assert!(!Axis::of(&row(vec![Some(0.9), Some(5000.0)])).has_zeros);
        assert_eq!(axis.share(0.0), 0.0);
        assert!((axis.share(10_000.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_legend_has_as_many_lines_as_its_entries_need() {
        let mut figure = EffectsFigure {
            title: String::new(),
            subtitle: String::new(),
            columns: Vec::new(),
            rows: vec![row(vec![None])],
        };
        let line = figure.rows[0].lines[0].clone();
        figure.rows[0].lines = (0..9)
            .map(|place| EffectLine {
                name: format!("{place} Mbit/s, loaded"),
                place,
                ..line.clone()
            })
            .collect();
        let places = figure.legend_places();
        assert_eq!(places[0], (LEFT, 0));
        assert!(places.iter().all(|(x, _)| *x < 700), "{places:?}");
        assert!(places[8].1 > 0);
        let styles: Vec<_> = figure.lines().iter().map(|line| line.stroke(2)).collect();
        assert_eq!(styles[0].0.color, styles[6].0.color);
        assert_ne!(
            styles[0].1, styles[6].1,
            "seven lines differ by their dashes"
        );
    }
}
