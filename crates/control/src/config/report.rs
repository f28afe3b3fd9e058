//! Problems of a configuration file and where they are.
//!
//! Turns byte offsets into line and column, keeps what a reader needs to see, and prints
//! `file:line:column: what is wrong; what to try` with the source line and a caret. What is a
//! problem is decided elsewhere.

use std::{fmt, fs::File, io::Read, ops::Range, path::Path};

use serde::Serialize;

use super::CONFIG_BYTES_MAX;

/// More problems of one file are counted, not kept. Ours: more than anybody reads at once.
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
}

/// One problem. `Display` is its one-line form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file as the caller named it.
    pub file: String,
    /// Where in the file; `None`: the file as a whole.
    pub place: Option<Place>,
    /// What is wrong.
    pub message: String,
    /// What to try; `None`: the message says it all.
    pub hint: Option<String>,
}

/// A place in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
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

impl ConfigError {
    /// The problems in the order of the file; at least one.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    pub(super) fn of_file(file: &str, message: String, hint: &str) -> Self {
        let problem = Problem {
            file: file.to_owned(),
            place: None,
            message,
            hint: Some(hint.to_owned()),
        };
        Self {
            problems: vec![problem],
            omitted: 0,
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

/// The text a configuration was read from, for checks that come later.
#[derive(Clone, Debug)]
pub(super) struct Origin {
    file: String,
    text: String,
    /// Where each application's name is.
    pub(super) apps: Vec<Range<usize>>,
    /// Where each forward's destination is.
    pub(super) forwards: Vec<Range<usize>>,
}

impl Origin {
    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// A new report on the same text.
    pub(super) fn report(&self) -> Report<'_> {
        Report::new(&self.file, &self.text)
    }
}

/// Collects the problems of one text.
pub(super) struct Report<'a> {
    file: &'a str,
    text: &'a str,
    /// Byte offset of each line's start.
    line_starts: Vec<usize>,
    /// With the offset, which they are sorted by in the end.
    problems: Vec<(usize, Problem)>,
    omitted: usize,
}

impl<'a> Report<'a> {
    pub(super) fn new(file: &'a str, text: &'a str) -> Self {
        let after_newline = text.match_indices('\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(after_newline).collect();
        Self {
            file,
            text,
            line_starts,
            problems: Vec::new(),
            omitted: 0,
        }
    }

    pub(super) fn add(&mut self, at: &Range<usize>, message: impl Into<String>, hint: &str) {
        let hint = Some(hint).filter(|h| !h.is_empty()).map(str::to_owned);
        if self.is_full() {
            self.omitted += 1;
            return;
        }
        let place = Some(self.place(at));
        let problem = Problem {
            file: self.file.to_owned(),
            place,
            message: message.into(),
            hint,
        };
        self.problems.push((at.start, problem));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.problems.is_empty()
    }

    /// Further problems are only counted, so their hints need not be looked for.
    pub(super) fn is_full(&self) -> bool {
        self.problems.len() == PROBLEMS_MAX
    }

    /// The source line in which `at` starts, without its end.
    pub(super) fn source_line(&self, at: &Range<usize>) -> &'a str {
        let rest = &self.text[self.line_starts[self.line(at) - 1]..];
        rest.split('\n')
            .next()
            .unwrap_or(rest)
            .trim_end_matches('\r')
    }

    pub(super) fn line(&self, at: &Range<usize>) -> usize {
        self.line_starts.partition_point(|start| *start <= at.start)
    }

    fn place(&self, at: &Range<usize>) -> Place {
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
        Place {
            line,
            column: before + 1,
            source: shown,
            caret,
            width,
        }
    }

    /// The problems found, in the order of the file, if there are any.
    pub(super) fn finish(mut self) -> Result<(), ConfigError> {
        if self.problems.is_empty() {
            return Ok(());
        }
        self.problems.sort_by_key(|(at, _)| *at);
        let problems = self
            .problems
            .into_iter()
            .map(|(_, problem)| problem)
            .collect();
        Err(ConfigError {
            problems,
            omitted: self.omitted,
        })
    }

    /// As [`Report::finish`], and keeps what later checks need.
    pub(super) fn finish_with_origin(
        self,
        apps: Vec<Range<usize>>,
        forwards: Vec<Range<usize>>,
    ) -> Result<Origin, ConfigError> {
        let (file, text) = (self.file.to_owned(), self.text.to_owned());
        self.finish()?;
        Ok(Origin {
            file,
            text,
            apps,
            forwards,
        })
    }
}

/// The text of a file of at most [`CONFIG_BYTES_MAX`].
pub(super) fn read_bounded(path: &Path) -> Result<String, ConfigError> {
    let name = path.display().to_string();
    let unreadable = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => ConfigError::of_file(
            &name,
            "no such file".to_owned(),
            "`keiro init` writes a commented one",
        ),
        _ => ConfigError::of_file(
            &name,
            format!("cannot be read: {e}"),
            "name a file that the user keiro runs as can read",
        ),
    };
    // Looked at first: opening a FIFO would wait for its writer.
    let metadata = std::fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(ConfigError::of_file(
            &name,
            "not a regular file".to_owned(),
            "name a TOML file",
        ));
    }
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(unreadable)?;
    file.take(CONFIG_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > CONFIG_BYTES_MAX {
        return Err(too_long(&name));
    }
    String::from_utf8(bytes).map_err(|e| {
        let valid = &e.as_bytes()[..e.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|b| **b == b'\n').count() + 1;
        ConfigError::of_file(
            &name,
            format!("line {line} is not UTF-8"),
            "save the file as UTF-8 text",
        )
    })
}

pub(super) fn too_long(file: &str) -> ConfigError {
    let message = format!("longer than {CONFIG_BYTES_MAX} bytes");
    let hint = "is this the right file? if it is, share the load between several gateways";
    ConfigError::of_file(file, message, hint)
}
