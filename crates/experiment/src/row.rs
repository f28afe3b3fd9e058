//! Rows of a result: names, values, targets and verdicts.
//!
//! A row's name states what it is: `A3 mean keiro`, `A3 p99 keiro sim`, `undelivered tcp`. It is parsed, so
//! that a plan cannot ask for what is not measured. `evaluate` provides the values.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

use crate::setup::{SIMULATED_SUFFIX, Setup, nearest};

/// One line of a result, as `--json` prints it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name, see [`RowName`].
    pub name: String,
    /// The unit of all values of this row.
    pub unit: &'static str,
    /// The paper's value; `None` where the paper has none.
    pub paper: Option<f64>,
    /// The measured or computed value; `None` if nothing could be measured.
    pub measured: Option<f64>,
    /// Lower end of the 95 % interval; `None` for computed values and too few batches.
    pub low: Option<f64>,
    /// The upper end of the 95 % interval.
    pub high: Option<f64>,
    /// Delay of an idle path without headers [path-selection eq. 1].
    pub floor: Option<f64>,
    /// The verdict over all targets of this row.
    pub verdict: Verdict,
}

/// Result of a row's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All targets are met.
    Reached,
    /// At least one target is missed.
    Missed,
    /// The row has no target.
    Reported,
    /// The measurement, or one that it is compared with, is void.
    Void,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Reached => "reached",
            Self::Missed => "missed",
            Self::Reported => "reported",
            Self::Void => "void",
        })
    }
}

/// The paper's values, each of a row that there is.
pub(crate) fn checked_paper(
    paper: BTreeMap<String, f64>,
    rows: &[String],
) -> Result<BTreeMap<String, f64>, String> {
    match paper.keys().find(|name| !rows.contains(name)) {
        None => Ok(paper),
        Some(name) => {
            let near = nearest(name, rows.iter().map(String::as_str));
            Err(format!("[paper]: `{name}` is not among the rows{near}"))
        }
    }
}

/// The quantity of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Quantity {
    /// `mean`: the mean delay of all messages.
    Mean,
    /// `p50`, `p99`, …: a percentile of their delays, 1 to 99.
    Percentile(u8),
    /// `met`: the share of messages that meet their latency target.
    Met,
    /// `reduction`: reduction of the mean relative to the conventional variant's.
    Reduction,
    /// `undelivered`: messages that never arrived, of all applications.
    Undelivered,
    /// `predicted`: the mean by the model of the variant's scheduler.
    Predicted,
    /// `eq3`: the mean by [path-selection eq. 3].
    Eq3,
    /// `path`: the number of the path in the setup, from 1.
    Path,
}

impl Quantity {
    /// The unit of this quantity's values.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Mean | Self::Percentile(_) | Self::Predicted | Self::Eq3 => "ms",
            Self::Met | Self::Reduction => "%",
            Self::Undelivered => "messages",
            Self::Path => "path",
        }
    }

    /// Whether it is computed from the setup alone.
    pub fn is_computed(self) -> bool {
        matches!(self, Self::Predicted | Self::Eq3 | Self::Path)
    }

    /// Whether it belongs to one application, not to a variant as a whole.
    pub fn has_application(self) -> bool {
        self != Self::Undelivered
    }

    fn parse(word: &str) -> Result<Self, String> {
        let percentile = word.strip_prefix('p').and_then(|n| n.parse().ok());
        if let Some(percentile @ 1..=99) = percentile {
            return Ok(Self::Percentile(percentile));
        }
        NAMED_QUANTITIES
            .iter()
            .find(|(name, _)| *name == word)
            .map(|(_, quantity)| *quantity)
            .ok_or_else(|| {
                let names = NAMED_QUANTITIES.map(|(name, _)| name);
                format!(
                    "`{word}` is not a quantity{}; there are {} and p1 to p99",
                    nearest(word, names.into_iter()),
                    names.join(", ")
                )
            })
    }
}

const NAMED_QUANTITIES: [(&str, Quantity); 7] = [
    ("mean", Quantity::Mean),
    ("met", Quantity::Met),
    ("reduction", Quantity::Reduction),
    ("undelivered", Quantity::Undelivered),
    ("predicted", Quantity::Predicted),
    ("eq3", Quantity::Eq3),
    ("path", Quantity::Path),
];

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Percentile(p) = self {
            return write!(f, "p{p}");
        }
        let named = NAMED_QUANTITIES.iter().find(|(_, q)| q == self);
        f.write_str(named.map_or("?", |(name, _)| name))
    }
}

/// Source of a measured value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Real processes in network namespaces.
    Lab,
    /// The simulator, in virtual time.
    Sim,
}

/// A row's name, parsed: `[APPLICATION ]QUANTITY VARIANT[ sim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowName {
    /// Index of the application; `None` for quantities of a whole variant.
    pub application: Option<usize>,
    pub quantity: Quantity,
    /// Index of the variant.
    pub variant: usize,
    /// Laboratory or simulator; computed values have the laboratory.
    pub source: Source,
}

impl RowName {
    /// Reads a name.
    ///
    /// # Errors
    /// The word that is wrong, and the alternatives.
    pub fn parse(text: &str, setup: &Setup) -> Result<Self, String> {
        let mut words: Vec<&str> = text.split_whitespace().collect();
        let source = if words.last() == Some(&SIMULATED_SUFFIX) {
            words.pop();
            Source::Sim
        } else {
            Source::Lab
        };
        let (application, quantity, variant) = match words[..] {
            [application, quantity, variant] => (Some(application), quantity, variant),
            [quantity, variant] => (None, quantity, variant),
            _ => {
                return Err(format!(
                    "`{text}` is not a row's name; write `[APPLICATION] QUANTITY VARIANT [sim]`, as in `A3 mean keiro`"
                ));
            }
        };
        let name = Self {
            application: application
                .map(|a| known_application(a, setup))
                .transpose()?,
            quantity: Quantity::parse(quantity)?,
            variant: known_variant(variant, setup)?,
            source,
        };
        name.check(text, setup)?;
        Ok(name)
    }

    /// The name as text.
    pub fn text(&self, setup: &Setup) -> String {
        let application = self
            .application
            .map(|a| setup.applications[a].name.as_str());
        let source = (self.source == Source::Sim).then_some(SIMULATED_SUFFIX);
        let quantity = self.quantity.to_string();
        let words = [
            application,
            Some(quantity.as_str()),
            Some(setup.variants[self.variant].name.as_str()),
            source,
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    fn check(&self, text: &str, setup: &Setup) -> Result<(), String> {
        let variant = &setup.variants[self.variant];
        if self.application.is_some() != self.quantity.has_application() {
            let (quantity, wants) = (
                self.quantity,
                if self.application.is_some() {
                    "no"
                } else {
                    "an"
                },
            );
            return Err(format!("`{text}`: `{quantity}` takes {wants} application"));
        }
        if self.source == Source::Sim && (self.quantity.is_computed() || !variant.simulated) {
            return Err(format!("`{text}`: the simulator does not give that value"));
        }
        if self.quantity.is_computed() && variant.assignment.is_none() {
            return Err(format!(
                "`{text}`: variant `{}` has no assignment, so nothing can be computed for it",
                variant.name
            ));
        }
        Ok(())
    }
}

/// All names that a template stands for: `{app}` and `{variant}` are replaced by every application and every
/// variant. Combinations that cannot have such a row are left out.
///
/// # Errors
/// The template has a wrong word, or no variant can have such a row.
pub(crate) fn expand(template: &str, setup: &Setup) -> Result<Vec<RowName>, String> {
    let texts = substitute(template, setup);
    if let [text] = &texts[..] {
        return Ok(vec![RowName::parse(text, setup)?]);
    }
    let parsed: Vec<_> = texts
        .iter()
        .map(|text| RowName::parse(text, setup))
        .collect();
    let names: Vec<RowName> = parsed.iter().filter_map(|p| p.clone().ok()).collect();
    match (names.is_empty(), parsed.into_iter().find_map(Result::err)) {
        (true, Some(error)) => Err(error),
        _ => Ok(names),
    }
}

/// A text with `{app}` and `{variant}` replaced by every application and variant.
pub(crate) fn substitute(template: &str, setup: &Setup) -> Vec<String> {
    let applications: Vec<&str> = setup.applications.iter().map(|a| a.name.as_str()).collect();
    let variants: Vec<&str> = setup.variants.iter().map(|v| v.name.as_str()).collect();
    replace_all(&[template.to_owned()], "{app}", &applications)
        .iter()
        .flat_map(|text| replace_all(std::slice::from_ref(text), "{variant}", &variants))
        .collect()
}

fn replace_all(texts: &[String], placeholder: &str, values: &[&str]) -> Vec<String> {
    let mut replaced = Vec::new();
    for text in texts {
        if text.contains(placeholder) {
            replaced.extend(values.iter().map(|v| text.replace(placeholder, v)));
        } else {
            replaced.push(text.clone());
        }
    }
    replaced
}

/// A target, such as `A3 mean keiro <= 11.5 ms`.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The row that is judged.
    pub row: RowName,
    /// Its text in the plan.
    pub text: String,
    relation: Relation,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Relation {
    AtMost,
    AtLeast,
    Equal,
    /// Within this fraction of the bound, or this absolute difference if that is more.
    Within {
        ratio: f64,
        absolute: f64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    Value(f64),
    Paper,
    LatencyTarget,
    Row(RowName),
}

impl Target {
    /// Reads a target.
    ///
    /// The forms are `ROW <= BOUND`, `ROW >= BOUND`, `ROW = BOUND`, `ROW within P % of BOUND` and
    /// `ROW within P % or X UNIT of BOUND`; a bound is a value with its unit, `paper`, `latency_target` or
    /// another row.
    ///
    /// # Errors
    /// The part that is wrong, and what to write.
    pub fn parse(text: &str, setup: &Setup) -> Result<Self, String> {
        let spaced = text.replace('%', " % ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let operator = words
            .iter()
            .position(|w| OPERATORS.contains(w))
            .ok_or_else(|| format!("target `{text}` has none of {}", OPERATORS.join(", ")))?;
        let row = RowName::parse(&words[..operator].join(" "), setup)
            .map_err(|e| format!("target `{text}`: {e}"))?;
        let unit = row.quantity.unit();
        let rest = &words[operator + 1..];
        let (relation, bound) = match words[operator] {
            "<=" => (Relation::AtMost, rest),
            ">=" => (Relation::AtLeast, rest),
            "=" => (Relation::Equal, rest),
            _ => split_within(rest, unit).map_err(|e| format!("target `{text}`: {e}"))?,
        };
        let bound =
            Bound::parse(bound, unit, setup).map_err(|e| format!("target `{text}`: {e}"))?;
        if matches!(bound, Bound::LatencyTarget) && (row.application.is_none() || unit != "ms") {
            return Err(format!(
                "target `{text}`: only an application's delay has a latency target"
            ));
        }
        if let Bound::Row(other) = bound
            && other.quantity.unit() != unit
        {
            return Err(format!(
                "target `{text}` compares {unit} with {}",
                other.quantity.unit()
            ));
        }
        Ok(Self {
            row,
            text: text.to_owned(),
            relation,
            bound,
        })
    }

    /// Whether the target is met; `None` if a value is missing or void.
    ///
    /// `values` has the measured value of every valid row, `paper` the paper's.
    pub fn holds(
        &self,
        values: &BTreeMap<RowName, f64>,
        paper: &BTreeMap<RowName, f64>,
        setup: &Setup,
    ) -> Option<bool> {
        let value = *values.get(&self.row)?;
        let bound = match self.bound {
            Bound::Value(value) => value,
            Bound::Paper => *paper.get(&self.row)?,
            Bound::LatencyTarget => {
                setup.applications[self.row.application?]
                    .latency_target
                    .0
                    .as_secs_f64()
                    * 1e3
            }
            Bound::Row(other) => *values.get(&other)?,
        };
        Some(match self.relation {
            Relation::AtMost => value <= bound,
            Relation::AtLeast => value >= bound,
            Relation::Equal => value == bound,
            Relation::Within { ratio, absolute } => {
                (value - bound).abs() <= (ratio * bound.abs()).max(absolute)
            }
        })
    }

    /// The rows to which the target refers.
    pub(crate) fn rows(&self) -> impl Iterator<Item = RowName> {
        let other = match self.bound {
            Bound::Row(row) => Some(row),
            Bound::Value(_) | Bound::Paper | Bound::LatencyTarget => None,
        };
        std::iter::once(self.row).chain(other)
    }

    /// Whether the target compares with the paper's value.
    pub(crate) fn needs_paper(&self) -> bool {
        self.bound == Bound::Paper
    }
}

const OPERATORS: [&str; 4] = ["<=", ">=", "=", "within"];

impl Bound {
    fn parse(words: &[&str], unit: &str, setup: &Setup) -> Result<Self, String> {
        match words {
            ["paper"] => Ok(Self::Paper),
            ["latency_target"] => Ok(Self::LatencyTarget),
            [first, rest @ ..] if is_number(first) => Ok(Self::Value(value(first, rest, unit)?)),
            [_, _, ..] => RowName::parse(&words.join(" "), setup).map(Self::Row),
            _ => Err(format!(
                "`{}` is not a bound; write a value in {unit}, `paper`, `latency_target` or a row's name",
                words.join(" ")
            )),
        }
    }
}

/// Splits `P % [or X UNIT] of BOUND` into the tolerance and the bound's words.
fn split_within<'a>(words: &'a [&'a str], unit: &str) -> Result<(Relation, &'a [&'a str]), String> {
    let usage = || format!("after `within` write `P % of BOUND` or `P % or X {unit} of BOUND`");
    let of = words.iter().position(|w| *w == "of").ok_or_else(usage)?;
    let (tolerance, bound) = (&words[..of], &words[of + 1..]);
    let (ratio, absolute) = match tolerance {
        [ratio, "%"] => (value(ratio, &["%"], "%")?, 0.0),
        [ratio, "%", "or", absolute, rest @ ..] => {
            (value(ratio, &["%"], "%")?, value(absolute, rest, unit)?)
        }
        [absolute, rest @ ..] => (0.0, value(absolute, rest, unit)?),
        [] => return Err(usage()),
    };
    Ok((
        Relation::Within {
            ratio: ratio / 100.0,
            absolute,
        },
        bound,
    ))
}

fn is_number(word: &str) -> bool {
    word.parse::<f64>().is_ok_and(f64::is_finite)
}

fn value(number: &str, rest: &[&str], unit: &str) -> Result<f64, String> {
    if rest != [unit] {
        return Err(format!(
            "`{number} {}` must be a number and its unit, {unit}",
            rest.join(" ")
        ));
    }
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err(format!("`{number}` is not a number")),
    }
}

fn known_application(name: &str, setup: &Setup) -> Result<usize, String> {
    let known = setup.applications.iter().map(|a| a.name.as_str());
    setup
        .application(name)
        .ok_or_else(|| format!("there is no application `{name}`{}", nearest(name, known)))
}

fn known_variant(name: &str, setup: &Setup) -> Result<usize, String> {
    let known = setup.variants.iter().map(|v| v.name.as_str());
    setup
        .variant(name)
        .ok_or_else(|| format!("there is no variant `{name}`{}", nearest(name, known)))
}
