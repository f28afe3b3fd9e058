//! Effects of one factor at a time on several quantities: a column per factor, a row per quantity.

use keiro_figure::{Canvas, DrawError, GRID, INK, LABEL_SIZE, MARK, PlotResult, label};
use plotters::{element::PathElement, prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, csv_value, draw, short};

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
    pub colour: RGBColor,
    /// Indexed by column and value; `None` if not measured.
    pub values: Vec<Vec<Option<f64>>>,
}

const LEFT: i32 = 70;
const RIGHT: i32 = 16;
const TOP: i32 = 46;
const BOTTOM: i32 = 32;
const HEIGHT: i32 = 104;
const GAP: (i32, i32) = (26, 44);

impl EffectsFigure {
    /// Draws the figure.
    ///
    /// # Errors
    /// See [`DrawError`].
    pub fn draw(&self) -> Result<Drawing, DrawError> {
        let rows = self.rows.len() as i32;
        let height = 66 + 8 + TOP + rows * (HEIGHT + GAP.1) + BOTTOM;
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
        let mut x = LEFT;
        if let Some(row) = self.rows.first() {
            for line in &row.lines {
                let sample = [(x, 10), (x + 20, 10)];
                canvas.draw(&PathElement::new(sample, line.colour.stroke_width(3)))?;
                let at = (x + 26, 10);
                label(canvas, &line.name, at, LABEL_SIZE, INK, HPos::Left)?;
                x += 26 + 9 * line.name.chars().count() as i32 + 20;
            }
        }
        for (index, row) in (0..).zip(&self.rows) {
            let top = TOP + index * (HEIGHT + GAP.1);
            self.row(canvas, row, top, width)?;
            if index == self.rows.len() as i32 - 1 {
                self.factors(canvas, top + HEIGHT + 32, width)?;
            }
        }
        Ok(())
    }

    fn factors(&self, canvas: &Canvas<'_>, y: i32, width: i32) -> PlotResult<()> {
        for (index, (factor, _)) in (0..).zip(&self.columns) {
            let at = (LEFT + index * (width + GAP.0) + width / 2, y);
            label(canvas, factor, at, LABEL_SIZE - 1, INK, HPos::Center)?;
        }
        Ok(())
    }

    fn row(&self, canvas: &Canvas<'_>, row: &EffectRow, top: i32, width: i32) -> PlotResult<()> {
        let (high, ticks) = axis(row);
        let y = |value: f64| top + (f64::from(HEIGHT) * (1.0 - value / high)).round() as i32;
        let at = (LEFT + 2, top - 10);
        label(canvas, &row.name, at, LABEL_SIZE - 1, INK, HPos::Left)?;
        for (index, (column, (_, marks))) in (0..).zip(self.columns.iter().enumerate()) {
            let left = LEFT + index * (width + GAP.0);
            let slots = marks.len().max(1) as i32;
            let x = |slot: i32| left + width * (2 * slot + 1) / (2 * slots);
            for tick in &ticks {
                let line = [(left, y(*tick)), (left + width, y(*tick))];
                canvas.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
                if index == 0 {
                    let at = (left - 8, y(*tick));
                    label(
                        canvas,
                        &short_tick(*tick),
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
                for point in &points {
                    canvas.draw(&Circle::new(*point, 4, line.colour.filled()))?;
                }
                canvas.draw(&PathElement::new(points, line.colour.stroke_width(2)))?;
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

/// End of a row's axis and its marks; the axis begins at zero.
fn axis(row: &EffectRow) -> (f64, Vec<f64>) {
    let values = row
        .lines
        .iter()
        .flat_map(|line| line.values.iter().flatten());
    let largest = values.flatten().copied().fold(0.0, f64::max);
    let largest = if largest > 0.0 { largest } else { 1.0 };
    let decade = 10f64.powf(largest.log10().floor());
    let steps = [0.2, 0.5, 1.0, 2.0, 5.0].map(|step| step * decade);
    let step = steps.into_iter().find(|step| largest / step <= 4.0);
    let step = step.unwrap_or(decade * 5.0);
    let count = (largest / step).ceil() as i32;
    let ticks = (0..=count).map(|i| f64::from(i) * step).collect();
    (f64::from(count) * step, ticks)
}

fn short_tick(value: f64) -> String {
    if value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        short(value).trim_end_matches('0').to_owned()
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
                    colour: RGBColor(0, 0, 0),
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

    #[test]
    fn axes_end_above_the_largest_value_with_few_marks() {
        let row = |value| EffectRow {
            name: String::new(),
            lines: vec![EffectLine {
                name: String::new(),
                colour: RGBColor(0, 0, 0),
                values: vec![vec![value]],
            }],
        };
        assert_eq!(axis(&row(Some(3.1))), (4.0, vec![0.0, 1.0, 2.0, 3.0, 4.0]));
        assert_eq!(axis(&row(Some(2400.0))).0, 3000.0);
        assert_eq!(axis(&row(None)).0, 1.0);
    }
}
