//! Why a file of transfers cannot be read, and what to try.

use std::{fmt, io};

use keiro_model::fit::SampleError;

use super::{FILE_BYTES_MAX, POINTS_MAX};

/// Why a series cannot be read. `Display` gives the fault and its location; [`hint`](Self::hint) says what to
/// try.
#[derive(Debug, thiserror::Error)]
pub enum SeriesError {
    /// The file cannot be opened or read.
    #[error("{file}: cannot be read: {reason}")]
    Read { file: String, reason: io::Error },
    /// The file is too large.
    #[error("{file}: {excess}")]
    TooLarge {
        file: String,
        /// The bound that it exceeds.
        excess: Excess,
    },
    /// An invalid line.
    #[error("{file}:{line}: {problem}")]
    Line {
        file: String,
        /// Line number, from 1.
        line: u64,
        /// The fault.
        problem: LineProblem,
    },
    /// Invalid JSON.
    #[error("{file}: {reason}")]
    Json {
        file: String,
        /// The fault, with line and column if known.
        reason: String,
    },
    /// An object in `samples` that is not a transfer.
    #[error("{file}: samples[{index}]: {problem}")]
    Element {
        file: String,
        /// Index, from 0.
        index: usize,
        /// The fault.
        problem: SampleError,
    },
    /// The file has nothing but comments and a header.
    #[error("{file}: no transfers")]
    Empty { file: String },
}

/// The bound that a file exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// More than [`POINTS_MAX`].
    Points,
    /// More than [`FILE_BYTES_MAX`].
    Bytes,
}

/// Faults of a line of CSV.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LineProblem {
    /// The first line is neither numbers nor a header that names the columns.
    #[error("neither two numbers nor a header with `{missing}`")]
    Header {
        /// The column that was not found.
        missing: &'static str,
    },
    /// Columns are not separated by commas.
    #[error("columns are separated by {name}, where commas are needed")]
    Separator {
        /// Name of the separator.
        name: &'static str,
    },
    /// Two columns have the same name.
    #[error("two columns are named `{column}`")]
    Twice { column: &'static str },
    /// A column is missing.
    #[error("no `{column}`: {fields} where column {position} is needed")]
    Missing {
        column: &'static str,
        /// Its position, from 1.
        position: usize,
        fields: Fields,
    },
    /// More columns than the header has; or, without a header, what may be two parts of a number.
    #[error("column {position} is `{text}`, where {} are known{}", Fields(*.known), decimal_comma(.number.as_deref()))]
    Extra {
        /// Its position, from 1.
        position: usize,
        /// The text, shortened.
        text: String,
        /// The number of columns.
        known: usize,
        /// The number with a decimal comma that this may be a part of.
        number: Option<String>,
    },
    /// Text in place of a number.
    #[error("`{column}` is `{text}`, which is no number")]
    NotANumber {
        column: &'static str,
        /// The text, shortened.
        text: String,
    },
    /// A number of bytes that is negative, fractional or too large to be exact.
    #[error("`bytes` is {text}, which is not a whole number from 1 to 2^53")]
    NotACount {
        /// The text, shortened.
        text: String,
    },
    /// Numbers that are not a transfer.
    #[error("{0}")]
    Sample(SampleError),
    /// Not UTF-8, or broken quotes.
    #[error("{0}")]
    Syntax(String),
}

/// Number of fields in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields(pub usize);

impl SeriesError {
    pub fn hint(&self) -> String {
        match self {
            Self::Read { .. } => "name a file that is there and that you may read".to_owned(),
            Self::TooLarge { .. } => {
                "keep fewer transfers per size; some hundreds of each say as much".to_owned()
            }
            Self::Line { problem, .. } => problem.hint().to_owned(),
            Self::Json { .. } => {
                "write {\"samples\": [{\"bytes\": 1000, \"seconds\": 0.012}, …]}, or CSV".to_owned()
            }
            Self::Element { problem, .. } => problem.hint().to_owned(),
            Self::Empty { .. } => "write one line per transfer: `bytes,seconds`".to_owned(),
        }
    }
}

impl LineProblem {
    pub(super) fn hint(&self) -> &'static str {
        match self {
            Self::Header { .. } => {
                "begin with the line `bytes,seconds`, or with numbers in this order; columns are \
                 separated by commas"
            }
            Self::Separator { .. } => {
                "separate columns by commas, and write numbers with a decimal point"
            }
            Self::Twice { .. } => "keep one of them: it is not clear which is meant",
            Self::Missing { .. } => "separate columns by commas, one transfer per line",
            Self::Extra { .. } => {
                "write numbers with a decimal point, and name every column in a header"
            }
            Self::NotANumber { .. } => {
                "write numbers without unit, with a decimal point; comments begin with #"
            }
            Self::NotACount { .. } => "write sizes in whole bytes",
            Self::Sample(problem) => problem.hint(),
            Self::Syntax(_) => "write the file as plain text in UTF-8",
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Points => write!(f, "more than {POINTS_MAX} transfers"),
            Self::Bytes => write!(f, "larger than {} MB", FILE_BYTES_MAX / 1_000_000),
        }
    }
}

fn decimal_comma(number: Option<&str>) -> String {
    let asked = |number| format!("; is {number} a number with a decimal comma?");
    number.map(asked).unwrap_or_default()
}

impl fmt::Display for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("1 column"),
            n => write!(f, "{n} columns"),
        }
    }
}
