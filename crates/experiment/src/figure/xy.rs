//! Points and fitted lines over linear axes that begin at zero, several series in one figure.

use keiro_figure::{
    Canvas, Dash, DrawError, GRID, INK, LABEL_SIZE, MARK, PlotResult, label, line_through,
};
use plotters::{element::PathElement, prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, draw, tick_text};

#[derive(Clone, Debug)]
pub struct XyFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    /// Name of the horizontal axis.
    pub across: String,
    /// Name of the vertical axis.
    pub down: String,
    pub series: Vec<XySeries>,
}

#[derive(Clone, Debug)]
pub struct XySeries {
    pub name: String,
    pub colour: RGBColor,
    /// Whether points are rings and lines are dashed, as for a second series of the same colour.
    pub hollow: bool,
    /// Measured values, by rising x.
    pub points: Vec<(f64, f64)>,
    pub lines: Vec<Vec<(f64, f64)>>,
}

const LEFT: i32 = 84;
const RIGHT: i32 = 150;
const TOP: i32 = 30;
const HEIGHT: i32 = 340;
const BOTTOM: i32 = 48;
/// About that many marks on an axis.
const MARKS: f64 = 6.0;

/// Where values are on the canvas.
#[derive(Clone, Copy)]
struct Scale {
    /// Pixels.
    width: i32,
    /// The values at the ends of the axes.
    ends: (f64, f64),
}

impl Scale {
    fn at(self, point: (f64, f64)) -> (i32, i32) {
        let (x, y) = point;
        let (x_end, y_end) = self.ends;
        let across = (f64::from(self.width) * (x / x_end).clamp(0.0, 1.0)).round() as i32;
        let up = (f64::from(HEIGHT) * (y / y_end).clamp(0.0, 1.0)).round() as i32;
        (LEFT + across, TOP + HEIGHT - up)
    }
}

impl XyFigure {
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

    /// Ends of the axes: the largest values of points and lines.
    fn ends(&self) -> (f64, f64) {
        let all = self.series.iter().flat_map(|series| {
            let lines = series.lines.iter().flatten();
            series.points.iter().chain(lines)
        });
        let (x, y) = all.fold((0.0_f64, 0.0_f64), |(x, y), point| {
            (x.max(point.0), y.max(point.1))
        });
        (x.max(f64::MIN_POSITIVE), y.max(f64::MIN_POSITIVE) * 1.05)
    }

    fn body(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let scale = Scale {
            width: canvas.dim_in_pixel().0 as i32 - LEFT - RIGHT,
            ends: self.ends(),
        };
        self.draw_axes(canvas, scale)?;
        self.draw_series(canvas, scale)?;
        self.draw_names(canvas, scale)
    }

    fn draw_axes(&self, canvas: &Canvas<'_>, scale: Scale) -> PlotResult<()> {
        let (width, bottom) = (scale.width, TOP + HEIGHT);
        let (x_end, y_end) = scale.ends;
        for y in marks(y_end) {
            let (_, down) = scale.at((0.0, y));
            let line = [(LEFT, down), (LEFT + width, down)];
            canvas.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
            let place = (LEFT - 8, down);
            let text = tick_text(y);
            label(canvas, &text, place, LABEL_SIZE - 2, INK, HPos::Right)?;
        }
        for x in marks(x_end) {
            let (across, _) = scale.at((x, 0.0));
            let place = (across, bottom + 14);
            let text = tick_text(x);
            label(canvas, &text, place, LABEL_SIZE - 2, INK, HPos::Center)?;
        }
        let frame = [(LEFT, TOP), (LEFT, bottom), (LEFT + width, bottom)];
        canvas.draw(&PathElement::new(frame, MARK.stroke_width(1)))?;
        let size = LABEL_SIZE - 1;
        let place = (LEFT, TOP - 14);
        label(canvas, &self.down, place, size, INK, HPos::Center)?;
        let place = (LEFT + width / 2, bottom + 34);
        label(canvas, &self.across, place, size, INK, HPos::Center)
    }

    fn draw_series(&self, canvas: &Canvas<'_>, scale: Scale) -> PlotResult<()> {
        for series in &self.series {
            for line in &series.lines {
                let line: Vec<(i32, i32)> = line.iter().map(|point| scale.at(*point)).collect();
                let dash = match series.hollow {
                    true => Dash::Dashed,
                    false => Dash::Solid,
                };
                line_through(canvas, &line, series.colour.stroke_width(2), dash)?;
            }
            for point in &series.points {
                let (radius, style) = match series.hollow {
                    true => (5, series.colour.stroke_width(1)),
                    false => (3, series.colour.filled()),
                };
                canvas.draw(&Circle::new(scale.at(*point), radius, style))?;
            }
        }
        Ok(())
    }

    /// Names beside the plot are moved apart where they would overlap, upwards from the axis.
    fn draw_names(&self, canvas: &Canvas<'_>, scale: Scale) -> PlotResult<()> {
        let named = self.series.iter().filter_map(|series| {
            let last = series.points.last()?;
            Some((scale.at(*last).1, series))
        });
        let mut names: Vec<_> = named.collect();
        names.sort_by_key(|(y, _)| std::cmp::Reverse(*y));
        let mut free = TOP + HEIGHT;
        for (y, series) in names {
            let y = y.min(free);
            free = y - 17;
            let place = (LEFT + scale.width + 8, y);
            let (size, colour) = (LABEL_SIZE - 1, series.colour);
            label(canvas, &series.name, place, size, colour, HPos::Left)?;
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut csv = "series,kind,x,y\n".to_owned();
        for series in &self.series {
            let name = csv_text(&series.name);
            for (x, y) in &series.points {
                csv.push_str(&format!("{name},measured,{x},{y:.9}\n"));
            }
            // A straight line is its ends.
            for line in &series.lines {
                for (x, y) in line.first().into_iter().chain(line.last()) {
                    csv.push_str(&format!("{name},fitted,{x},{y:.9}\n"));
                }
            }
        }
        csv
    }
}

/// Round values from zero to `end`.
fn marks(end: f64) -> Vec<f64> {
    let about = end / MARKS;
    let decade = 10_f64.powf(about.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|of| of * decade)
        .find(|step| *step >= about);
    let step = step.unwrap_or(decade * 10.0);
    (0..)
        .map(|mark| f64::from(mark) * step)
        .take_while(|mark| *mark <= end)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        for (end, step, count) in [
            (1.0, 0.2, 6),
            (53.0, 10.0, 6),
            (0.003, 0.0005, 7),
            (380.0, 100.0, 4),
        ] {
            let marks = marks(end);
            assert_eq!(marks.len(), count, "{end}: {marks:?}");
            assert!((marks[1] - step).abs() < 1e-12, "{end}: {marks:?}");
        }
    }

    #[test]
    fn a_figure_has_its_series_and_their_numbers() {
        let series = |name: &str, slope: f64| XySeries {
            name: name.to_owned(),
            colour: RGBColor(0, 0, 0),
            hollow: slope < 1.0,
            points: vec![(1.0, slope), (10.0, 10.0 * slope)],
            lines: vec![vec![(1.0, slope), (5.0, 5.0 * slope), (10.0, 10.0 * slope)]],
        };
        let figure = XyFigure {
            title: "Time".to_owned(),
            subtitle: "nowhere".to_owned(),
            across: "size".to_owned(),
            down: "time".to_owned(),
            series: vec![series("near", 0.1), series("far", 1.0)],
        };
        let drawing = figure.draw().expect("it can be drawn");
        for text in ["near", "far", "size", "time", "nowhere"] {
            assert!(drawing.svg.contains(text), "{text} is missing");
        }
        assert!(
            drawing
                .csv
                .contains("near,measured,10,1.000000000\nnear,fitted,1,0.1"),
            "{}",
            drawing.csv
        );
        let empty = XyFigure {
            series: Vec::new(),
            ..figure
        };
        assert!(empty.draw().is_ok());
    }
}
