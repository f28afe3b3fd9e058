//! Pictures of pages, as SVG that scales in width while its text is HTML: charts over time, and lines of a diagram.

mod chart;
mod scale;

use maud::{Markup, html};

pub(crate) use self::chart::{Band, Chart, Line, Mark, sparkline};
pub(crate) use self::scale::Unit;

/// The width of a line that carries `bits_per_second`, 1.5 to 8 pixels: each tenfold is a pixel more, from 1 kbit/s.
pub(crate) fn traffic_width(bits_per_second: f64) -> f64 {
    let tenfolds = (bits_per_second / 1e3).max(1.0).log10();
    (1.5 + tenfolds).clamp(1.5, 8.0)
}

/// A horizontal line as wide as its column. `class` gives its colour; a line without traffic is dashed by it.
pub(crate) fn traffic_line(class: &str, width: f64) -> Markup {
    html! {
        svg class={ "link " (class) } viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true" focusable="false" {
            line x1="0" y1="5" x2="100" y2="5" vector-effect="non-scaling-stroke" stroke-width=(format!("{width:.1}")) {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_wider_the_more_they_carry_within_bounds() {
        let widths = [0.0, 1e3, 1e6, 1e9, f64::INFINITY].map(traffic_width);
        assert_eq!(widths, [1.5, 1.5, 4.5, 7.5, 8.0]);
        assert_eq!(traffic_width(f64::NAN), 1.5);
    }
}
