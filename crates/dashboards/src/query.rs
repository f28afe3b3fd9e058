//! Queries of Prometheus, held to the declared metrics and labels.

use std::fmt;

use crate::catalogue::{self, Kind, Metric};

/// Labels that Prometheus adds, and that of histograms' buckets.
const LABELS_OF_PROMETHEUS: [&str; 3] = ["instance", "job", "le"];
/// What Prometheus adds to the name of a histogram.
const HISTOGRAM_SUFFIXES: [&str; 3] = ["_bucket", "_sum", "_count"];
/// Of Prometheus itself: whether a target could be read.
const UP: &str = "up";

/// A query that names only what is declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    text: String,
    /// The first one that it names.
    metric: Option<&'static Metric>,
}

/// Why a query is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// No metric of this name is declared.
    UnknownMetric(String),
    /// No metric of the query has this label.
    UnknownLabel(String),
    /// It names no metric.
    NoMetric,
}

impl Query {
    /// Checks a query.
    ///
    /// # Errors
    /// It names a metric or a label that is not declared, or no metric at all.
    pub fn new(text: impl Into<String>) -> Result<Self, QueryError> {
        let text = text.into();
        let plain = without_texts(&text);
        let mut metrics: Vec<&'static Metric> = Vec::new();
        let mut has_up = false;
        for word in words(&plain) {
            has_up |= word == UP;
            if word.starts_with("keiro_") {
                let found = find(word).ok_or_else(|| QueryError::UnknownMetric(word.to_owned()))?;
                metrics.push(found);
            }
        }
        if metrics.is_empty() && !has_up {
            return Err(QueryError::NoMetric);
        }
        for label in labels(&plain) {
            let is_declared = metrics.iter().any(|metric| metric.labels.contains(&label));
            if !is_declared && !LABELS_OF_PROMETHEUS.contains(&label) && !label.starts_with("__") {
                return Err(QueryError::UnknownLabel(label.to_owned()));
            }
        }
        Ok(Self {
            text,
            metric: metrics.first().copied(),
        })
    }

    /// A query of this program's own.
    ///
    /// # Panics
    /// If it is refused: the program is wrong then.
    #[track_caller]
    pub fn own(text: impl Into<String>) -> Self {
        let text = text.into();
        Self::new(text.clone()).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// The first declared metric that it names; `None`: it is one of Prometheus alone.
    pub fn metric(&self) -> Option<&'static Metric> {
        self.metric
    }

    /// The query with values in the places of Grafana's variables.
    pub fn with(&self, variables: &[(&str, &str)]) -> String {
        let mut text = self.text.clone();
        for (variable, value) in variables {
            text = text.replace(&format!("${variable}"), value);
        }
        text
    }
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownMetric(name) => write!(f, "no metric {name} is declared"),
            Self::UnknownLabel(name) => write!(f, "no metric of the query has a label {name}"),
            Self::NoMetric => write!(f, "it names no metric"),
        }
    }
}

impl std::error::Error for QueryError {}

/// A declared metric, or a part of a declared histogram.
fn find(name: &str) -> Option<&'static Metric> {
    let part = || {
        let mut suffixes = HISTOGRAM_SUFFIXES.iter();
        let whole = suffixes.find_map(|suffix| name.strip_suffix(suffix))?;
        catalogue::find(whole).filter(|metric| metric.kind == Kind::Histogram)
    };
    catalogue::find(name).or_else(part)
}

/// The query with nothing in its strings.
fn without_texts(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut is_inside = false;
    for c in text.chars() {
        if c == '"' {
            is_inside = !is_inside;
            plain.push(c);
        } else if !is_inside {
            plain.push(c);
        }
    }
    plain
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c| !is_of_word(c));
    words.filter(|word| !word.is_empty())
}

/// Labels in selectors, and after `by`, `without`, `on`, `ignoring` and `group_left`.
fn labels(plain: &str) -> Vec<&str> {
    let mut labels = Vec::new();
    for selector in plain.split('{').skip(1) {
        let selector = selector.split('}').next().unwrap_or_default();
        let names = selector
            .split(',')
            .filter_map(|matcher| words(matcher).next());
        labels.extend(names);
    }
    for keyword in ["by", "without", "on", "ignoring", "group_left"] {
        let mut rest = plain;
        while let Some(at) = rest.find(keyword) {
            let is_word = !rest[..at].ends_with(is_of_word);
            rest = &rest[at + keyword.len()..];
            if let (true, Some(list)) = (is_word, rest.trim_start().strip_prefix('(')) {
                labels.extend(words(list.split(')').next().unwrap_or_default()));
            }
        }
    }
    labels
}
