//! Several quantities over time, one panel below the other, with shaded and named phases.

use keiro_figure::{Canvas, DrawError, GRID, INK, LABEL_SIZE, MARK, PlotResult, label};
use plotters::{element::PathElement, prelude::*, style::text_anchor::HPos};

use super::{Drawing, csv_text, draw};

/// Panels with a common time axis.
#[derive(Clone, Debug)]
pub struct TimeFigure {
    /// What the figure is.
    pub title: String,
    /// Where and how it was measured.
    pub subtitle: String,
    /// End of the time axis, in s; it begins at zero.
    pub to_s: f64,
    /// Shaded phases: from, to, name.
    pub spans: Vec<(f64, f64, String)>,
    /// From top to bottom.
    pub panels: Vec<TimePanel>,
}

/// One quantity, or several with the same unit.
#[derive(Clone, Debug)]
pub struct TimePanel {
    /// What it shows, with its unit.
    pub name: String,
    pub height: i32,
    /// Range of the axis; values outside are drawn at its ends.
    pub range: (f64, f64),
    /// Whether the axis is logarithmic; if so, the range must be positive.
    pub logarithmic: bool,
    /// Axis marks with their labels.
    pub ticks: Vec<(f64, String)>,
    /// The lines; later ones are drawn on top.
    pub lines: Vec<TimeLine>,
}

/// A line of a panel.
#[derive(Clone, Debug)]
pub struct TimeLine {
    /// Label beside the panel, in the line's colour; empty if the panel's name is enough.
    pub name: String,
    pub colour: RGBColor,
    /// Steps: each value holds from its instant, in s, to the next; `None` leaves a gap.
    pub steps: Vec<(f64, Option<f64>)>,
}

const LEFT: i32 = 76;
const RIGHT: i32 = 108;
/// Height above the first panel for the names of the phases, in two lines.
const TOP: i32 = 44;
const GAP: i32 = 24;
const BOTTOM: i32 = 44;
const SHADE: RGBColor = RGBColor(244, 238, 226);

/// Pixel area of a panel and the ranges that it maps.
struct Plot<'a> {
    panel: &'a TimePanel,
    top: i32,
    width: i32,
    to_s: f64,
}

impl Plot<'_> {
    fn x(&self, at_s: f64) -> i32 {
        LEFT + (at_s / self.to_s * f64::from(self.width)).round() as i32
    }

    fn y(&self, value: f64) -> i32 {
        let (low, high) = self.panel.range;
        let value = value.clamp(low, high);
        let share = if self.panel.logarithmic {
            (value / low).ln() / (high / low).ln()
        } else {
            (value - low) / (high - low)
        };
        let height = f64::from(self.panel.height);
        self.top + (height * (1.0 - share)).round() as i32
    }
}

impl TimeFigure {
    /// Draws the figure.
    ///
    /// # Errors
    /// See [`DrawError`].
    pub fn draw(&self) -> Result<Drawing, DrawError> {
        let panels: i32 = self.panels.iter().map(|panel| panel.height + GAP).sum();
        let height = 66 + 8 + TOP + panels + BOTTOM;
        let svg = draw(&self.title, &self.subtitle, height as u32, |canvas| {
            self.body(canvas)
        })?;
        Ok(Drawing {
            svg,
            csv: self.csv(),
        })
    }

    fn body(&self, canvas: &Canvas<'_>) -> PlotResult<()> {
        let width = canvas.dim_in_pixel().0 as i32 - LEFT - RIGHT;
        let mut top = TOP;
        for panel in &self.panels {
            let plot = Plot {
                panel,
                top,
                width,
                to_s: self.to_s,
            };
            self.panel(canvas, &plot)?;
            top += panel.height + GAP;
        }
        self.names(canvas, width)?;
        self.time(canvas, width, top - GAP)
    }

    /// The names of the phases, alternating between two lines so that neighbours do not overlap.
    fn names(&self, canvas: &Canvas<'_>, width: i32) -> PlotResult<()> {
        for (index, (from, to, name)) in self.spans.iter().enumerate() {
            let middle = (from + to) / 2.0 / self.to_s;
            let x = LEFT + (middle * f64::from(width)).round() as i32;
            let y = if index % 2 == 0 { 10 } else { 27 };
            label(canvas, name, (x, y), LABEL_SIZE - 2, INK, HPos::Center)?;
        }
        Ok(())
    }

    fn panel(&self, canvas: &Canvas<'_>, plot: &Plot<'_>) -> PlotResult<()> {
        let (top, bottom) = (plot.top, plot.top + plot.panel.height);
        let right = LEFT + plot.width;
        for (from, to, _) in &self.spans {
            let corners = [(plot.x(*from), top), (plot.x(*to), bottom)];
            canvas.draw(&Rectangle::new(corners, SHADE.filled()))?;
        }
        for (value, text) in &plot.panel.ticks {
            let y = plot.y(*value);
            canvas.draw(&PathElement::new(
                [(LEFT, y), (right, y)],
                GRID.stroke_width(1),
            ))?;
            let at = (LEFT - 8, y);
            label(canvas, text, at, LABEL_SIZE - 2, INK, HPos::Right)?;
        }
        let frame = [(LEFT, top), (LEFT, bottom), (right, bottom)];
        canvas.draw(&PathElement::new(frame, MARK.stroke_width(1)))?;
        let at = (LEFT + 2, top - 9);
        label(
            canvas,
            &plot.panel.name,
            at,
            LABEL_SIZE - 1,
            INK,
            HPos::Left,
        )?;
        for (index, line) in plot.panel.lines.iter().enumerate() {
            for piece in pieces(plot, &line.steps) {
                canvas.draw(&PathElement::new(piece, line.colour.stroke_width(2)))?;
            }
            let y = top + 8 + 17 * index as i32;
            let at = (right + 8, y);
            label(
                canvas,
                &line.name,
                at,
                LABEL_SIZE - 1,
                line.colour,
                HPos::Left,
            )?;
        }
        Ok(())
    }

    fn time(&self, canvas: &Canvas<'_>, width: i32, y: i32) -> PlotResult<()> {
        let mut step = 1.0;
        for candidate in [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0] {
            step = candidate;
            if self.to_s / step <= 12.0 {
                break;
            }
        }
        for index in 0..=(self.to_s / step) as i32 {
            let at_s = f64::from(index) * step;
            let x = LEFT + (at_s / self.to_s * f64::from(width)).round() as i32;
            canvas.draw(&PathElement::new(
                [(x, y), (x, y + 4)],
                MARK.stroke_width(1),
            ))?;
            let text = format!("{at_s}");
            label(
                canvas,
                &text,
                (x, y + 14),
                LABEL_SIZE - 2,
                INK,
                HPos::Center,
            )?;
        }
        let at = (LEFT + width / 2, y + 32);
        label(canvas, "time (s)", at, LABEL_SIZE - 1, INK, HPos::Center)
    }

    fn csv(&self) -> String {
        let mut csv = "panel,line,from_s,value\n".to_owned();
        for panel in &self.panels {
            for line in &panel.lines {
                for (at_s, value) in &line.steps {
                    let value = value.map(|v| format!("{v:.6}")).unwrap_or_default();
                    let (panel, line) = (csv_text(&panel.name), csv_text(&line.name));
                    csv.push_str(&format!("{panel},{line},{at_s:.3},{value}\n"));
                }
            }
        }
        csv
    }
}

/// The steps of a line, interrupted where there is no value.
fn pieces(plot: &Plot<'_>, steps: &[(f64, Option<f64>)]) -> Vec<Vec<(i32, i32)>> {
    let mut pieces = Vec::new();
    let mut piece: Vec<(i32, i32)> = Vec::new();
    for (index, (from, value)) in steps.iter().enumerate() {
        let to = steps.get(index + 1).map_or(plot.to_s, |next| next.0);
        match value {
            Some(value) => {
                let y = plot.y(*value);
                piece.extend([(plot.x(*from), y), (plot.x(to), y)]);
            }
            None => pieces.push(std::mem::take(&mut piece)),
        }
    }
    pieces.push(piece);
    pieces.retain(|piece| piece.len() > 1);
    for piece in &mut pieces {
        piece.dedup();
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure() -> TimeFigure {
        TimeFigure {
            title: "A controller".to_owned(),
            subtitle: "nowhere".to_owned(),
            to_s: 10.0,
            spans: vec![(2.0, 4.0, "loss".to_owned())],
            panels: vec![TimePanel {
                name: "loss (%)".to_owned(),
                height: 100,
                range: (0.01, 100.0),
                logarithmic: true,
                ticks: vec![(1.0, "1".to_owned())],
                lines: vec![TimeLine {
                    name: "copies".to_owned(),
                    colour: RGBColor(0, 0, 0),
                    steps: vec![(0.0, Some(0.0)), (1.0, None), (5.0, Some(10.0))],
                }],
            }],
        }
    }

    #[test]
    fn values_beyond_an_axis_are_drawn_at_its_end_and_gaps_are_left() {
        let figure = figure();
        let plot = Plot {
            panel: &figure.panels[0],
            top: 50,
            width: 1000,
            to_s: 10.0,
        };
        assert_eq!(plot.y(0.0), 150);
        assert_eq!(plot.y(1.0), 100);
        let drawn = pieces(&plot, &figure.panels[0].lines[0].steps);
        let x = |at: i32| LEFT + at * 100;
        assert_eq!(
            drawn,
            vec![
                vec![(x(0), 150), (x(1), 150)],
                vec![(x(5), 75), (x(10), 75)]
            ]
        );
    }

    #[test]
    fn a_figure_has_its_phases_and_its_numbers() {
        let drawing = figure().draw().unwrap();
        for text in ["loss (%)", "copies", "time (s)", "A controller"] {
            assert!(drawing.svg.contains(text), "{text} is missing");
        }
        assert!(drawing.csv.contains("loss (%),copies,5.000,10.000000"));
        assert!(drawing.csv.contains("loss (%),copies,1.000,\n"));
    }
}
