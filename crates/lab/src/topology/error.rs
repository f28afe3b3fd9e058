//! What is wrong in a topology file, and where.

use std::{fmt, ops::Range};

use super::nearest;

/// What is wrong in a topology file, where, and what to write instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopologyError {
    file: String,
    line: Option<usize>,
    message: String,
}

impl TopologyError {
    pub(super) fn new(file: &str, line: Option<usize>, message: String) -> Self {
        Self {
            file: file.to_owned(),
            line,
            message,
        }
    }

    /// Turns what the TOML reader says into one line, with the nearest known key where a key is
    /// not known.
    pub(super) fn from_toml(error: &toml::de::Error, text: &str, file: &str) -> Self {
        let line = error.span().map(|span| line_of(text, &span));
        let message = error.message().trim().replace('\n', "; ");
        Self::new(file, line, with_suggestion(message))
    }

    /// The line in the file, from 1; `None` where the whole file is meant.
    pub fn line(&self) -> Option<usize> {
        self.line
    }
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for TopologyError {}

/// The line, from 1, on which `span` begins.
pub(super) fn line_of(text: &str, span: &Range<usize>) -> usize {
    let before = text.get(..span.start).unwrap_or(text);
    1 + before.bytes().filter(|&b| b == b'\n').count()
}

/// Adds the nearest known key to serde's "unknown field `x`, expected one of `y`, `z`".
fn with_suggestion(message: String) -> String {
    let Some(rest) = message.strip_prefix("unknown field ") else {
        return message;
    };
    // Every second piece between backquotes is a name; the first is the unknown one.
    let mut names = rest.split('`').skip(1).step_by(2);
    let unknown = names.next().unwrap_or_default();
    let known: Vec<_> = names.collect();
    let list = known.join("`, `");
    match nearest(unknown, known) {
        Some(near) => format!("unknown key `{unknown}`; did you mean `{near}`?"),
        None => format!("unknown key `{unknown}`; known here: `{list}`"),
    }
}
