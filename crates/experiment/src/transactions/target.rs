//! Targets of rows, such as `keiro no load mean 6rt <= 1.08 x tcp-lossless no load mean 6rt`.
//!
//! Values are in the unit of the row that is judged.

use std::collections::BTreeMap;

use crate::setup::nearest;

/// Suffix of a row's name that selects the upper end of its interval.
const HIGH: &str = " high";

/// `ROW <= BOUND` or `ROW >= BOUND`. A bound is `X UNIT`, or `[FACTOR x ]ROW[ high][ + X UNIT]`, where `high`
/// is the upper end of that row's interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The row that is judged.
    pub row: String,
    /// Its text in the plan.
    pub text: String,
    at_most: bool,
    /// A multiple of another row's value, or of the upper end of its interval; `None` for a constant bound.
    share: Option<(f64, String)>,
    /// Constant term, in the row's unit.
    plus: f64,
}

impl Target {
    /// Parses a target; `rows` are all rows, and `unit_of` gives their units.
    ///
    /// # Errors
    /// The part that is wrong, and what to write.
    pub(crate) fn parse(
        text: &str,
        rows: &[String],
        unit_of: impl Fn(&str) -> &'static str,
    ) -> Result<Self, String> {
        let usage = |unit: &str| {
            format!(
                "target `{text}`: write `ROW <= BOUND` or `ROW >= BOUND`, a bound being `X {unit}` \
                 or `[FACTOR x ]ROW[ high][ + X {unit}]`"
            )
        };
        let (row, at_most, bound) = match (text.split_once(" <= "), text.split_once(" >= ")) {
            (Some((row, bound)), None) => (row, true, bound),
            (None, Some((row, bound))) => (row, false, bound),
            _ => return Err(usage("UNIT")),
        };
        let known = |row: &str| match rows.iter().find(|known| *known == row) {
            Some(row) => Ok(row.clone()),
            None => {
                let near = nearest(row, rows.iter().map(String::as_str));
                Err(format!("target `{text}`: there is no row `{row}`{near}"))
            }
        };
        let row = known(row)?;
        let unit = unit_of(&row);
        let quantity = |text: &str| {
            let number = text.strip_suffix(unit)?.strip_suffix(' ')?;
            let number = number.parse::<f64>().ok()?;
            number.is_finite().then_some(number)
        };
        let (share, plus) = match quantity(bound) {
            Some(value) => (None, value),
            None => {
                let (share, plus) = match bound.split_once(" + ") {
                    Some((share, plus)) => (share, quantity(plus).ok_or_else(|| usage(unit))?),
                    None => (bound, 0.0),
                };
                let (factor, other) = match share.split_once(" x ") {
                    Some((factor, other)) => (factor.parse().map_err(|_| usage(unit))?, other),
                    None => (1.0, share),
                };
                let high = match other.strip_suffix(HIGH) {
                    Some(row) => known(row)? + HIGH,
                    None => known(other)?,
                };
                (Some((factor, high)), plus)
            }
        };
        Ok(Self {
            row,
            text: text.to_owned(),
            at_most,
            share,
            plus,
        })
    }

    /// Whether it is met; `None` if a value is missing or void. `values` has the valid values, and the ends
    /// of intervals by [`high_of`].
    pub(crate) fn holds(&self, values: &BTreeMap<String, f64>) -> Option<bool> {
        let value = *values.get(&self.row)?;
        let base = match &self.share {
            Some((factor, other)) => factor * values.get(other)?,
            None => 0.0,
        };
        let bound = base + self.plus;
        Some(if self.at_most {
            value <= bound
        } else {
            value >= bound
        })
    }

    /// Whether it needs the interval of a row that has a value but no interval, because there was one run.
    pub(crate) fn lacks_interval(&self, values: &BTreeMap<String, f64>) -> bool {
        let Some((_, high)) = &self.share else {
            return false;
        };
        let row = high.strip_suffix(HIGH);
        row.is_some_and(|row| values.contains_key(row)) && !values.contains_key(high)
    }

    /// The other row to which the target refers.
    pub(crate) fn other(&self) -> Option<&str> {
        let (_, row) = self.share.as_ref()?;
        Some(row.strip_suffix(HIGH).unwrap_or(row))
    }
}

/// The key under which [`Target::holds`] finds the upper end of a row's interval.
pub(crate) fn high_of(row: &str) -> String {
    format!("{row}{HIGH}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(_: &str) -> &'static str {
        "ms"
    }

    fn rows() -> Vec<String> {
        ["a mean 6rt", "b no load max 6rt"]
            .map(str::to_owned)
            .to_vec()
    }

    #[test]
    fn bounds_are_values_shares_and_sums() {
        let values = BTreeMap::from([
            ("a mean 6rt".to_owned(), 7.0),
            ("b no load max 6rt".to_owned(), 10.0),
            (high_of("b no load max 6rt"), 14.0),
        ]);
        for (text, holds) in [
            ("a mean 6rt <= 7 ms", true),
            ("a mean 6rt <= 6.9 ms", false),
            ("a mean 6rt >= 7.1 ms", false),
            ("a mean 6rt <= b no load max 6rt", true),
            ("a mean 6rt <= 0.7 x b no load max 6rt", true),
            ("a mean 6rt <= 0.69 x b no load max 6rt", false),
            ("b no load max 6rt <= a mean 6rt + 3 ms", true),
            ("b no load max 6rt >= 1.5 x a mean 6rt", false),
            ("b no load max 6rt <= 1.45 x a mean 6rt + 0.1 ms", true),
            ("a mean 6rt <= 0.5 x b no load max 6rt high", true),
            (
                "a mean 6rt <= 0.49 x b no load max 6rt high + 0.1 ms",
                false,
            ),
        ] {
            let target = Target::parse(text, &rows(), ms).unwrap();
            assert_eq!(target.holds(&values), Some(holds), "{text}");
            assert_eq!(target.holds(&BTreeMap::new()), None);
        }
    }

    #[test]
    fn wrong_targets_are_refused() {
        for (text, what) in [
            ("a mean 6rt", "write `ROW <= BOUND`"),
            ("a mean 6rt <= 7 s", "there is no row `7 s`"),
            ("a mean 6rt <= 7ms", "there is no row `7ms`"),
            ("a meen 6rt <= 7 ms", "did you mean `a mean 6rt`"),
            ("a mean 6rt <= 2x b no load max 6rt", "there is no row"),
            ("a mean 6rt <= two x b no load max 6rt", "write"),
            ("a mean 6rt high <= 7 ms", "there is no row"),
            ("a mean 6rt <= c high", "there is no row `c`"),
            ("a mean 6rt <= b no load max 6rt + 3", "write"),
        ] {
            let error = Target::parse(text, &rows(), ms).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
