//! Values at a few categories, one line per series, with intervals and reference levels.

use keiro_figure::{Canvas, DrawError, GRID, INK, LABEL_SIZE, MARK, PlotResult, label};
use plotters::{element::PathElement, prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, draw};

/// Lines over categories at equal distances.
#[derive(Clone, Debug)]
pub struct LinesFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    /// Name of the horizontal axis.
    pub across: String,
    /// Names of the categories, from left to right.
    pub categories: Vec<String>,
    /// Range of the axis; values outside are drawn at its ends.
    pub range: (f64, f64),
    /// Distance of the axis marks.
    pub step: f64,
    pub lines: Vec<ValueLine>,
    /// Reference values: dashed lines across.
    pub levels: Vec<Level>,
}

/// A reference value.
#[derive(Clone, Debug)]
pub struct Level {
    /// Its label, followed by the value.
    pub name: String,
    pub colour: RGBColor,
    pub value: f64,
}

#[derive(Clone, Debug)]
pub struct ValueLine {
    pub name: String,
    pub colour: RGBColor,
    /// Value and interval in each category; `None` if there is none.
    pub values: Vec<Option<(f64, (f64, f64))>>,
}

const LEFT: i32 = 76;
const RIGHT: i32 = 200;
const TOP: i32 = 14;
const HEIGHT: i32 = 300;
const BOTTOM: i32 = 48;
const DASH: i32 = 6;

impl LinesFigure {
    /// Draws the figure.
    ///
    /// # Errors
    /// See [`DrawError`].
    pub fn draw(&self) -> Result<Drawing, DrawError> {
        let height = (66 + 8 + TOP + HEIGHT + BOTTOM) as u32;
        let svg = draw(&self.title, &self.subtitle, height, |canvas| {
            self.body(canvas)
        })?;
        Ok(Drawing {
            svg,
            csv: self.csv(),
        })
    }

    fn y(&self, value: f64) -> i32 {
        let (low, high) = self.range;
        let share = (value.clamp(low, high) - low) / (high - low);
        TOP + (f64::from(HEIGHT) * (1.0 - share)).round() as i32
    }

    fn body(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let width = canvas.dim_in_pixel().0 as i32 - LEFT - RIGHT;
        let x = |category: usize| {
            LEFT + width * (2 * category as i32 + 1) / (2 * self.categories.len().max(1) as i32)
        };
        self.axes(canvas, width, &x)?;
        // Labels beside the plot are moved apart where they would overlap.
        let mut names: Vec<(i32, String, RGBColor)> = Vec::new();
        for level in &self.levels {
            let y = self.y(level.value);
            for from in (LEFT..LEFT + width).step_by(2 * DASH as usize) {
                let line = [(from, y), ((from + DASH).min(LEFT + width), y)];
                canvas.draw(&PathElement::new(line, level.colour.stroke_width(2)))?;
            }
            names.push((
                y,
                format!("{} {:.3}", level.name, level.value),
                level.colour,
            ));
        }
        for line in &self.lines {
            let points = line.values.iter().enumerate();
            let points: Vec<(i32, i32)> = points
                .filter_map(|(category, value)| Some((x(category), self.y(value.as_ref()?.0))))
                .collect();
            for (category, value) in line.values.iter().enumerate() {
                if let Some((_, (low, high))) = value {
                    let bar = [(x(category), self.y(*low)), (x(category), self.y(*high))];
                    canvas.draw(&PathElement::new(bar, line.colour.stroke_width(1)))?;
                }
            }
            for point in &points {
                canvas.draw(&Circle::new(*point, 4, line.colour.filled()))?;
            }
            if let Some(last) = points.last() {
                names.push((last.1, line.name.clone(), line.colour));
            }
            canvas.draw(&PathElement::new(points, line.colour.stroke_width(2)))?;
        }
        names.sort_by_key(|(y, ..)| *y);
        let mut free = TOP;
        for (y, name, colour) in names {
            let y = y.max(free);
            free = y + 17;
            let at = (LEFT + width + 8, y);
            label(canvas, &name, at, LABEL_SIZE - 1, colour, HPos::Left)?;
        }
        Ok(())
    }

    fn axes(&self, canvas: &Canvas<'_>, width: i32, x: &dyn Fn(usize) -> i32) -> PlotResult<()> {
        let (low, high) = self.range;
        let right = LEFT + width;
        let marks = ((high - low) / self.step).round() as i32;
        for mark in 0..=marks {
            let value = low + f64::from(mark) * self.step;
            let y = self.y(value);
            let line = [(LEFT, y), (right, y)];
            canvas.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
            let text = format!("{value:.2}");
            let at = (LEFT - 8, y);
            label(canvas, &text, at, LABEL_SIZE - 2, INK, HPos::Right)?;
        }
        let bottom = TOP + HEIGHT;
        let frame = [(LEFT, TOP), (LEFT, bottom), (right, bottom)];
        canvas.draw(&PathElement::new(frame, MARK.stroke_width(1)))?;
        for (category, name) in self.categories.iter().enumerate() {
            let at = (x(category), bottom + 14);
            label(canvas, name, at, LABEL_SIZE - 2, INK, HPos::Center)?;
        }
        let at = (LEFT + width / 2, bottom + 34);
        label(canvas, &self.across, at, LABEL_SIZE - 1, INK, HPos::Center)
    }

    fn csv(&self) -> String {
        let mut csv = "series,place,value,low,high\n".to_owned();
        for line in &self.lines {
            for (category, value) in self.categories.iter().zip(&line.values) {
                if let Some((value, (low, high))) = value {
                    let (series, category) = (csv_text(&line.name), csv_text(category));
                    csv.push_str(&format!(
                        "{series},{category},{value:.6},{low:.6},{high:.6}\n"
                    ));
                }
            }
        }
        for Level { name, value, .. } in &self.levels {
            csv.push_str(&format!("{},,{value:.6},,\n", csv_text(name)));
        }
        csv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_has_its_series_its_levels_and_its_numbers() {
        let figure = LinesFigure {
            title: "Inside".to_owned(),
            subtitle: "nowhere".to_owned(),
            across: "b".to_owned(),
            categories: vec!["0.1".to_owned(), "0.5".to_owned()],
            range: (0.5, 1.0),
            step: 0.1,
            lines: vec![ValueLine {
                name: "a = 1".to_owned(),
                colour: RGBColor(0, 0, 0),
                values: vec![Some((0.9, (0.8, 1.2))), None],
            }],
            levels: vec![Level {
                name: "none".to_owned(),
                colour: MARK,
                value: 0.6,
            }],
        };
        // Values outside the range are drawn at its end.
        assert_eq!(figure.y(1.2), TOP);
        let drawing = figure.draw().expect("it can be drawn");
        for text in ["Inside", "a = 1", "none 0.600", "0.5"] {
            assert!(drawing.svg.contains(text), "{text} is missing");
        }
        let expected = "series,place,value,low,high\na = 1,0.1,0.900000,0.800000,1.200000\n\
                        none,,0.600000,,\n";
        assert_eq!(drawing.csv, expected);
    }
}
