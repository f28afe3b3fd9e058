//! Standard output: text, tables and JSON, written so that a reader who leaves early does no harm.
//!
//! What nobody reads any more is given up with status 0, unless the command's status tells a result:
//! that stays ([`whoever_reads`]).

pub(crate) mod human;
pub(crate) mod table;

use std::{
    fmt,
    io::{self, IsTerminal, Write},
};

use serde::Serialize;

use crate::failure::Failure;

/// Says something to people, on standard error. Where nobody can hear it, nothing is lost.
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
pub(crate) use tell;

/// Writes `text` as it is.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn text(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

/// Writes `value` as JSON for reading, one document.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let document = serde_json::to_string_pretty(value).map_err(not_json)?;
    text(format_args!("{document}\n"))
}

/// Writes `value` as one line of JSON.
///
/// # Errors
/// Standard output cannot be written.
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(value).map_err(not_json)?;
    text(format_args!("{line}\n"))
}

/// What was written for a command whose exit status says more than that: a reader that has gone
/// changes nothing of it. Elsewhere it ends the command.
///
/// # Errors
/// Standard output cannot be written for another reason.
pub(crate) fn whoever_reads(written: Result<(), Failure>) -> Result<(), Failure> {
    match written {
        Err(failure) if failure.is_broken_pipe() => Ok(()),
        written => written,
    }
}

fn not_json(error: serde_json::Error) -> Failure {
    Failure::new("the answer cannot be written as JSON").because(error)
}

/// How words may be marked on standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Not at all.
    Plain,
    /// With colours, which only repeat what the words say.
    Colour,
}

impl Style {
    /// Colour on a terminal, unless NO_COLOR is set (no-color.org) or the terminal knows none.
    pub(crate) fn of_stdout() -> Self {
        Self::of(io::stdout().is_terminal())
    }

    /// The same for standard error.
    pub(crate) fn of_stderr() -> Self {
        Self::of(io::stderr().is_terminal())
    }

    fn of(terminal: bool) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        match terminal && !set("NO_COLOR") && !dumb {
            true => Self::Colour,
            false => Self::Plain,
        }
    }

    /// A word that tells something good.
    pub(crate) fn good(self, word: &str) -> String {
        self.mark(word, "32")
    }

    /// A word that tells something bad.
    pub(crate) fn bad(self, word: &str) -> String {
        self.mark(word, "31")
    }

    /// A word that stands out.
    pub(crate) fn strong(self, word: &str) -> String {
        self.mark(word, "1")
    }

    fn mark(self, word: &str, code: &str) -> String {
        match self {
            Self::Plain => word.to_owned(),
            Self::Colour => format!("\x1b[{code}m{word}\x1b[0m"),
        }
    }
}
