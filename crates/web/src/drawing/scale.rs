//! Scales of charts: where an axis ends, and how its values are written.

use crate::text;

/// What a chart's values are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Seconds,
    BitsPerSecond,
    Ratio,
}

impl Unit {
    pub(super) fn text(self, value: f64) -> String {
        match self {
            _ if value == 0.0 => "0".to_owned(),
            Self::Seconds => text::seconds(value),
            Self::BitsPerSecond => text::rate(value),
            Self::Ratio => keiro_control::rounded::percent(value),
        }
    }
}

/// The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below `most`; 1 where nothing is above zero.
pub(super) fn axis_end(most: f64) -> f64 {
    if !most.is_finite() || most <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(most.log10().floor());
    let ends = [1.0, 2.0, 2.5, 5.0, 10.0];
    let end = ends
        .iter()
        .map(|factor| factor * power)
        .find(|end| *end >= most * (1.0 - 1e-9));
    end.unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_at_round_numbers_not_below_the_values() {
        for (most, end) in [
            (0.0, 1.0),
            (0.9, 1.0),
            (1.0, 1.0),
            (1.1, 2.0),
            (0.023, 0.025),
            (4e7, 5e7),
            (7.0, 10.0),
        ] {
            assert!(
                (axis_end(most) - end).abs() < 1e-9 * end,
                "{most}: {}",
                axis_end(most)
            );
        }
        assert_eq!(axis_end(f64::NAN), 1.0);
    }
}
