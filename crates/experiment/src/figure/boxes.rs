//! Box plots: quartiles, the range without outliers, and the outliers.

use keiro_figure::{Canvas, DrawError, GRID, INK, LABEL_SIZE, MARK, PlotResult, label};
use plotters::{element::PathElement, prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, draw, short};
use crate::stats;

/// Boxes in groups, from left to right.
#[derive(Clone, Debug)]
pub struct BoxesFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    /// What the values are, with their unit.
    pub quantity: String,
    /// The groups; a box of one name has one colour in all of them.
    pub groups: Vec<BoxGroup>,
    /// Reference values: dashed lines across all groups.
    pub levels: Vec<(String, f64)>,
}

/// Boxes that are compared with each other.
#[derive(Clone, Debug)]
pub struct BoxGroup {
    /// Label below the group, one line per element.
    pub name: Vec<String>,
    /// Name and values of each box; a box without values is not drawn.
    pub boxes: Vec<(String, Vec<f64>)>,
}

/// Statistics of a box. Quartiles are measured values (nearest rank).
#[derive(Clone, Debug, PartialEq)]
struct Shape {
    quartiles: [f64; 3],
    /// The smallest and the greatest value within 1.5 times the interquartile range of the box.
    whiskers: (f64, f64),
    outliers: Vec<f64>,
    count: usize,
}

const LEFT: i32 = 76;
const RIGHT: i32 = 20;
const TOP: i32 = 34;
const HEIGHT: i32 = 320;
const BOTTOM: i32 = 52;
/// Half of the widest box, in pixels.
const HALF_MAX: i32 = 22;
/// Fraction of a group's width that its boxes take.
const FILLED: f64 = 0.75;
const WHISKER_REACH: f64 = 1.5;
const HEADROOM: f64 = 1.08;

impl Shape {
    fn of(values: &[f64]) -> Option<Self> {
        let sorted = stats::sorted(values.iter().copied());
        let quartile = |share| stats::percentile(&sorted, share);
        let quartiles = [quartile(0.25)?, stats::median(&sorted)?, quartile(0.75)?];
        let reach = (quartiles[2] - quartiles[0]) * WHISKER_REACH;
        let within = quartiles[0] - reach..=quartiles[2] + reach;
        let inside = || sorted.iter().copied().filter(|v| within.contains(v));
        Some(Self {
            quartiles,
            whiskers: (inside().next()?, inside().next_back()?),
            outliers: sorted
                .iter()
                .copied()
                .filter(|v| !within.contains(v))
                .collect(),
            count: sorted.len(),
        })
    }
}

impl BoxesFigure {
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

    /// The distinct names of boxes, in order of first appearance.
    fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in self.groups.iter().flat_map(|group| &group.boxes) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        names
    }

    /// End of the value axis, and the distance of its marks.
    fn axis(&self) -> (f64, f64) {
        let boxes = self.groups.iter().flat_map(|group| &group.boxes);
        let values = boxes.flat_map(|(_, values)| values.iter().copied());
        let levels = self.levels.iter().map(|(_, level)| *level);
        let greatest = values.chain(levels).fold(0.0, f64::max).max(1e-3);
        let decade = 10_f64.powf((greatest / 5.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * decade);
        let step = steps.into_iter().find(|step| step * 5.0 >= greatest);
        let step = step.unwrap_or(steps[3]);
        // Leaves room for the labels above the highest box.
        ((greatest * HEADROOM / step).ceil() * step, step)
    }

    fn body(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let width = canvas.dim_in_pixel().0 as i32 - LEFT - RIGHT;
        let (top_value, step) = self.axis();
        let y = |value: f64| {
            TOP + (f64::from(HEIGHT) * (1.0 - value.clamp(0.0, top_value) / top_value)).round()
                as i32
        };
        let (right, bottom) = (LEFT + width, TOP + HEIGHT);
        for mark in 0..=(top_value / step).round() as i32 {
            let value = f64::from(mark) * step;
            let line = [(LEFT, y(value)), (right, y(value))];
            canvas.draw(&PathElement::new(line, GRID.stroke_width(1)))?;
            let at = (LEFT - 8, y(value));
            let text = format!("{}", (value * 1e6).round() / 1e6);
            label(canvas, &text, at, LABEL_SIZE - 2, INK, HPos::Right)?;
        }
        let frame = [(LEFT, TOP), (LEFT, bottom), (right, bottom)];
        canvas.draw(&PathElement::new(frame, MARK.stroke_width(1)))?;
        for (_, level) in &self.levels {
            for x in (LEFT..right).step_by(10) {
                let dash = [(x, y(*level)), ((x + 5).min(right), y(*level))];
                canvas.draw(&PathElement::new(dash, MARK.stroke_width(1)))?;
            }
        }
        self.legend(canvas)?;
        let names = self.names();
        let of_group = f64::from(width) / self.groups.len().max(1) as f64;
        for (index, group) in self.groups.iter().enumerate() {
            let middle = LEFT + (of_group * (index as f64 + 0.5)).round() as i32;
            for (line, text) in group.name.iter().enumerate() {
                let at = (middle, bottom + 14 + 16 * line as i32);
                label(canvas, text, at, LABEL_SIZE - 2, INK, HPos::Center)?;
            }
            let count = group.boxes.len().max(1) as i32;
            let spacing = (of_group * FILLED / f64::from(count)) as i32;
            for (number, (name, values)) in group.boxes.iter().enumerate() {
                let x = middle + spacing * (2 * number as i32 + 1 - count) / 2;
                let colour = names.iter().position(|known| known == name);
                let colour = super::colour(colour.unwrap_or_default());
                if let Some(shape) = Shape::of(values) {
                    let half = (spacing * 2 / 5).clamp(3, HALF_MAX);
                    shape.draw(canvas, x, half, &y, colour)?;
                }
            }
        }
        Ok(())
    }

    fn legend(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let at = (8, TOP - 14);
        label(canvas, &self.quantity, at, LABEL_SIZE - 1, INK, HPos::Left)?;
        let mut x = LEFT + 150;
        let levels = self.levels.iter().map(|(name, _)| (name.as_str(), MARK));
        let names = self.names().into_iter().enumerate();
        let names = names.map(|(index, name)| (name, super::colour(index)));
        for (name, colour) in names.chain(levels) {
            let sample = [(x, TOP - 19), (x + 12, TOP - 9)];
            canvas.draw(&Rectangle::new(sample, colour.filled()))?;
            let at = (x + 18, TOP - 14);
            label(canvas, name, at, LABEL_SIZE - 1, INK, HPos::Left)?;
            x += 40 + 8 * name.chars().count() as i32;
        }
        Ok(())
    }

    fn csv(&self) -> String {
        let mut csv = "group,box,values,low,quartile1,median,quartile3,high,outliers\n".to_owned();
        for group in &self.groups {
            for (name, values) in &group.boxes {
                let Some(shape) = Shape::of(values) else {
                    continue;
                };
                let [first, median, third] = shape.quartiles;
                let (low, high) = shape.whiskers;
                let outliers: Vec<String> =
                    shape.outliers.iter().map(|v| format!("{v:.6}")).collect();
                csv.push_str(&format!(
                    "{},{},{},{low:.6},{first:.6},{median:.6},{third:.6},{high:.6},{}\n",
                    csv_text(&group.name.join(" ")),
                    csv_text(name),
                    shape.count,
                    outliers.join(" ")
                ));
            }
        }
        for (name, level) in &self.levels {
            csv.push_str(&format!(",{},,,,{level:.6},,,\n", csv_text(name)));
        }
        csv
    }
}

impl Shape {
    /// Draws the box with its centre at `x` and a width of twice `half`, in pixels.
    fn draw(
        &self,
        canvas: &Canvas<'_>,
        x: i32,
        half: i32,
        y: &dyn Fn(f64) -> i32,
        colour: RGBColor,
    ) -> PlotResult<()> {
        let [first, median, third] = self.quartiles;
        let (low, high) = self.whiskers;
        let (thin, thick) = (colour.stroke_width(1), colour.stroke_width(3));
        canvas.draw(&PathElement::new([(x, y(low)), (x, y(first))], thin))?;
        canvas.draw(&PathElement::new([(x, y(third)), (x, y(high))], thin))?;
        for end in [low, high] {
            canvas.draw(&PathElement::new(
                [(x - half / 2, y(end)), (x + half / 2, y(end))],
                thin,
            ))?;
        }
        let corners = [(x - half, y(third)), (x + half, y(first))];
        canvas.draw(&Rectangle::new(corners, colour.mix(0.3).filled()))?;
        canvas.draw(&Rectangle::new(corners, colour.stroke_width(1)))?;
        canvas.draw(&PathElement::new(
            [(x - half, y(median)), (x + half, y(median))],
            thick,
        ))?;
        for outlier in &self.outliers {
            canvas.draw(&Circle::new((x, y(*outlier)), 3, colour.stroke_width(1)))?;
        }
        let highest = self.outliers.iter().copied().fold(high, f64::max);
        let at = (x, y(highest) - 9);
        label(
            canvas,
            &short(median),
            at,
            LABEL_SIZE - 3,
            INK,
            HPos::Center,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_is_quartiles_range_and_outliers() {
        let values = [3.0, 1.0, 2.0, 4.0, 100.0];
        let shape = Shape::of(&values).unwrap();
        let expected = Shape {
            quartiles: [2.0, 3.0, 4.0],
            whiskers: (1.0, 4.0),
            outliers: vec![100.0],
            count: 5,
        };
        assert_eq!(shape, expected);
        assert_eq!(Shape::of(&[7.0]).unwrap().whiskers, (7.0, 7.0));
        assert_eq!(Shape::of(&[]), None);
    }

    #[test]
    fn a_figure_has_its_groups_its_levels_and_its_numbers() {
        let figure = BoxesFigure {
            title: "Changes".to_owned(),
            subtitle: "nowhere".to_owned(),
            quantity: "time (ms)".to_owned(),
            groups: vec![BoxGroup {
                name: vec!["frr".to_owned(), "announced".to_owned()],
                boxes: vec![
                    ("EPE route".to_owned(), vec![180.0, 190.0, 200.0]),
                    ("best path".to_owned(), Vec::new()),
                ],
            }],
            levels: vec![("asked".to_owned(), 310.0)],
        };
        assert_eq!(figure.axis(), (400.0, 100.0));
        let drawing = figure.draw().unwrap();
        for text in [
            "Changes",
            "announced",
            "EPE route",
            "best path",
            "asked",
            "400",
        ] {
            assert!(drawing.svg.contains(text), "{text} is missing");
        }
        let expected = "group,box,values,low,quartile1,median,quartile3,high,outliers\n\
            frr announced,EPE route,3,180.000000,180.000000,190.000000,200.000000,200.000000,\n\
            ,asked,,,,310.000000,,,\n";
        assert_eq!(drawing.csv, expected);
    }
}
