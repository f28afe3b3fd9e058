//! What is asked of a row, as in `keiro no load mean 6rt <= 1.08 x tcp-lossless no load mean 6rt`.

use std::collections::BTreeMap;

use crate::setup::nearest;

/// `ROW <= BOUND` or `ROW >= BOUND`; a bound is `X ms`, or `[FACTOR x ]ROW[ + X ms]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The row that is judged.
    pub row: String,
    /// The text as the plan has it.
    pub text: String,
    at_most: bool,
    /// A part of another row's value; `None` for a bound that is a value.
    share: Option<(f64, String)>,
    /// What is added to it, in ms.
    plus_ms: f64,
}

impl Target {
    /// Reads a target; `rows` are all that there are.
    ///
    /// # Errors
    /// Which part is wrong, and what to write.
    pub(crate) fn parse(text: &str, rows: &[String]) -> Result<Self, String> {
        let usage = || {
            format!(
                "target `{text}`: write `ROW <= BOUND` or `ROW >= BOUND`, a bound being `X ms` or \
                 `[FACTOR x ]ROW[ + X ms]`"
            )
        };
        let (row, at_most, bound) = match (text.split_once(" <= "), text.split_once(" >= ")) {
            (Some((row, bound)), None) => (row, true, bound),
            (None, Some((row, bound))) => (row, false, bound),
            _ => return Err(usage()),
        };
        let known = |row: &str| match rows.iter().find(|known| *known == row) {
            Some(row) => Ok(row.clone()),
            None => {
                let near = nearest(row, rows.iter().map(String::as_str));
                Err(format!("target `{text}`: there is no row `{row}`{near}"))
            }
        };
        let milliseconds = |text: &str| {
            let number = text.strip_suffix(" ms")?.parse::<f64>().ok()?;
            number.is_finite().then_some(number)
        };
        let (share, plus_ms) = match milliseconds(bound) {
            Some(value) => (None, value),
            None => {
                let (share, plus) = match bound.split_once(" + ") {
                    Some((share, plus)) => (share, milliseconds(plus).ok_or_else(usage)?),
                    None => (bound, 0.0),
                };
                let (factor, other) = match share.split_once(" x ") {
                    Some((factor, other)) => (factor.parse().map_err(|_| usage())?, other),
                    None => (1.0, share),
                };
                (Some((factor, known(other)?)), plus)
            }
        };
        Ok(Self {
            row: known(row)?,
            text: text.to_owned(),
            at_most,
            share,
            plus_ms,
        })
    }

    /// Whether it holds; `None` where a value is missing or does not count. `values` has those
    /// that count.
    pub(crate) fn holds(&self, values: &BTreeMap<String, f64>) -> Option<bool> {
        let value = *values.get(&self.row)?;
        let base = match &self.share {
            Some((factor, other)) => factor * values.get(other)?,
            None => 0.0,
        };
        let bound = base + self.plus_ms;
        Some(if self.at_most {
            value <= bound
        } else {
            value >= bound
        })
    }

    /// The other row that the target speaks of.
    pub(crate) fn other(&self) -> Option<&str> {
        self.share.as_ref().map(|(_, row)| row.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        ] {
            let target = Target::parse(text, &rows()).unwrap();
            assert_eq!(target.holds(&values), Some(holds), "{text}");
            assert_eq!(target.holds(&BTreeMap::new()), None);
        }
    }

    #[test]
    fn wrong_targets_are_refused() {
        for (text, what) in [
            ("a mean 6rt", "write `ROW <= BOUND`"),
            ("a mean 6rt <= 7 s", "there is no row `7 s`"),
            ("a meen 6rt <= 7 ms", "did you mean `a mean 6rt`"),
            ("a mean 6rt <= 2x b no load max 6rt", "there is no row"),
            ("a mean 6rt <= two x b no load max 6rt", "write"),
            ("a mean 6rt <= b no load max 6rt + 3", "write"),
        ] {
            let error = Target::parse(text, &rows()).unwrap_err();
            assert!(error.contains(what), "{text}: {error}");
        }
    }
}
