//! Problems of a configuration file and where they are.
//!
//! Turns byte offsets into line and column, keeps what a reader needs to see, and prints
//! `file:line:column: what is wrong; what to try` with the source line and a caret. What is a
//! problem is decided elsewhere.

use std::{fmt, ops::Range};

use serde::Serialize;

use crate::{byte_order_mark::without_byte_order_mark, units::split_hint};

/// More problems or warnings of one file are counted, not kept. Ours: more than are read at once.
const PROBLEMS_MAX: usize = 100;
/// Longer source lines are cut around the problem.
const SHOWN_CHARACTERS_MAX: usize = 100;

/// Everything that is wrong with a configuration file; at least one problem.
///
/// `Display` is a report of several lines for a terminal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigError {
    problems: Vec<Problem>,
    /// Problems beyond those kept.
    omitted: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    warnings: Vec<Problem>,
}

/// One problem or warning. `Display` is its one-line form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file as the caller named it.
    pub file: String,
    /// Where in the file; `None`: the file as a whole.
    pub place: Option<Location>,
    pub message: String,
    /// What to try; `None`: the message says it all.
    pub hint: Option<String>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Location {
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// The line's text around the place, control characters replaced.
    pub source: String,
    /// Where in `source` the caret goes, in characters from 0.
    pub caret: usize,
    /// How many characters of `source` are meant, at least 1.
    pub width: usize,
}

/// What is wrong at one place of a text, as `message; what to try`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocatedError {
    at: Range<usize>,
    message: String,
}

impl LocatedError {
    /// A problem at `at`, in bytes of the text.
    pub fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            at,
            message: message.into(),
        }
    }
}

impl ConfigError {
    /// The problems in the order of the file; at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// What is no error and should be changed all the same.
    pub fn warnings(&self) -> &[Problem] {
        &self.warnings
    }

    /// A problem of the file as a whole.
    pub fn of_file(file: &str, message: String, hint: &str) -> Self {
        let problem = Problem {
            file: file.to_owned(),
            place: None,
            message,
            hint: Some(hint.to_owned()),
        };
        Self {
            problems: vec![problem],
            omitted: 0,
            warnings: Vec::new(),
        }
    }
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
            if let Some(place) = &problem.place {
                let number = place.line.to_string();
                write!(f, "\n  {number} | {}", place.source)?;
                let (gutter, indent) = (" ".repeat(number.len()), " ".repeat(place.caret));
                write!(f, "\n  {gutter} | {indent}{}", "^".repeat(place.width))?;
            }
        }
        if self.omitted > 0 {
            write!(f, "\nand {} more problems", self.omitted)?;
        }
        for warning in &self.warnings {
            write!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(place) = &self.place {
            write!(f, ":{}:{}", place.line, place.column)?;
        }
        write!(f, ": {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

/// Collects the problems and warnings of one text.
pub struct Report<'a> {
    file: &'a str,
    text: &'a str,
    /// Byte offset of each line's start.
    line_starts: Vec<usize>,
    /// With the offset, which they are sorted by in the end.
    problems: Vec<(usize, Problem)>,
    omitted: usize,
    warnings: Vec<(usize, Problem)>,
    has_syntax_errors: bool,
}

impl<'a> Report<'a> {
    /// An empty report on `text`; `file` is what messages call it.
    pub fn new(file: &'a str, text: &'a str) -> Self {
        let after_newline = text.match_indices('\n').map(|(at, _)| at + 1);
        // A byte order mark is no part of the first line.
        let marked = text.len() - without_byte_order_mark(text.as_bytes()).len();
        let line_starts = std::iter::once(marked).chain(after_newline).collect();
        Self {
            file,
            text,
            line_starts,
            problems: Vec::new(),
            omitted: 0,
            warnings: Vec::new(),
            has_syntax_errors: false,
        }
    }

    /// What messages call the file.
    pub fn file(&self) -> &'a str {
        self.file
    }

    pub fn text(&self) -> &'a str {
        self.text
    }

    /// Reports a problem at `at`, in bytes of the text. An empty hint is none.
    pub fn add(&mut self, at: &Range<usize>, message: impl Into<String>, hint: &str) {
        if self.is_full() {
            self.omitted += 1;
            return;
        }
        let problem = (at.start, self.problem(at, message.into(), hint));
        // A value that several entries share is read for each.
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// The value, or `None` with its problem in the report.
    pub fn keep<T>(&mut self, read: Result<T, LocatedError>) -> Option<T> {
        read.map_err(|error| {
            let (message, hint) = split_hint(&error.message);
            self.add(&error.at, message, hint);
        })
        .ok()
    }

    /// Warns of something that is no error.
    pub fn warn(&mut self, at: &Range<usize>, message: impl Into<String>, hint: &str) {
        if self.warnings.len() < PROBLEMS_MAX {
            let warning = self.problem(at, message.into(), hint);
            self.warnings.push((at.start, warning));
        }
    }

    fn problem(&self, at: &Range<usize>, message: String, hint: &str) -> Problem {
        Problem {
            file: self.file.to_owned(),
            place: Some(self.location(at)),
            message,
            hint: Some(hint).filter(|h| !h.is_empty()).map(str::to_owned),
        }
    }

    /// The text is not valid TOML: what seems to be missing may only not have been understood.
    pub fn has_syntax_errors(&self) -> bool {
        self.has_syntax_errors
    }

    pub(crate) fn set_has_syntax_errors(&mut self) {
        self.has_syntax_errors = true;
    }

    /// No problem was found; there may be warnings.
    pub fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Further problems are only counted, so their hints need not be looked for.
    pub fn is_full(&self) -> bool {
        self.problems.len() == PROBLEMS_MAX
    }

    /// The source line in which `at` starts, without its end.
    pub fn source_line(&self, at: &Range<usize>) -> &'a str {
        let rest = &self.text[self.line_starts[self.line(at) - 1]..];
        rest.split('\n')
            .next()
            .unwrap_or(rest)
            .trim_end_matches('\r')
    }

    /// The line, from 1, on which `at` begins.
    pub fn line(&self, at: &Range<usize>) -> usize {
        let begun = self.line_starts.partition_point(|start| *start <= at.start);
        // Before the first line is only a byte order mark.
        begun.max(1)
    }

    fn location(&self, at: &Range<usize>) -> Location {
        let line = self.line(at);
        let start = self.line_starts[line - 1];
        let source = self.source_line(at);
        let end_of_line = start + source.len();
        let characters = |from: usize, to: usize| {
            source
                .char_indices()
                .filter(|(i, _)| (from..to).contains(&(start + i)))
                .count()
        };
        let before = characters(start, at.start);
        let width = characters(at.start, at.end.min(end_of_line)).max(1);
        let total = source.chars().count();
        let skipped = match total > SHOWN_CHARACTERS_MAX {
            true => before.saturating_sub(SHOWN_CHARACTERS_MAX / 2),
            false => 0,
        };
        let shown = source.chars().skip(skipped).take(SHOWN_CHARACTERS_MAX);
        let shown: String = shown
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        let caret = before - skipped;
        let width = width.min(shown.chars().count().saturating_sub(caret).max(1));
        Location {
            line,
            column: before + 1,
            source: shown,
            caret,
            width,
        }
    }

    /// The warnings, if there are no problems; both in the order of the file.
    ///
    /// # Errors
    /// Every problem.
    pub fn finish(mut self) -> Result<Vec<Problem>, ConfigError> {
        self.problems.sort_by_key(|(at, _)| *at);
        self.warnings.sort_by_key(|(at, _)| *at);
        let without_places = |found: Vec<(usize, Problem)>| -> Vec<Problem> {
            found.into_iter().map(|(_, problem)| problem).collect()
        };
        let warnings = without_places(self.warnings);
        if self.problems.is_empty() {
            return Ok(warnings);
        }
        Err(ConfigError {
            problems: without_places(self.problems),
            omitted: self.omitted,
            warnings,
        })
    }
}
