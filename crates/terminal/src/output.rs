//! Standard output: text, tables and JSON.
//!
//! A reader that leaves early ends a command with status 0. A command whose exit status is a result
//! keeps it: it writes through [`allow_closed_reader`].

pub mod human;
pub mod table;

use std::{
    fmt,
    io::{self, IsTerminal, Write},
};

use serde::Serialize;

use crate::failure::Failure;

/// Writes a line to standard error. A standard error that cannot be written changes nothing.
#[macro_export]
macro_rules! message {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}
pub use crate::message;

/// Writes `text` as it is.
///
/// # Errors
/// Standard output cannot be written.
pub fn text(text: impl fmt::Display) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(Failure::Output)
}

/// Writes `value` as JSON for reading, one document.
///
/// # Errors
/// Standard output cannot be written.
pub fn json(value: &impl Serialize) -> Result<(), Failure> {
    let document = serde_json::to_string_pretty(value).map_err(not_json)?;
    text(format_args!("{document}\n"))
}

/// Writes `value` as one line of JSON.
///
/// # Errors
/// Standard output cannot be written.
pub fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let line = serde_json::to_string(value).map_err(not_json)?;
    text(format_args!("{line}\n"))
}

/// Writes `value` as one record of a JSON text sequence (RFC 7464), as qlog has it.
///
/// # Errors
/// Standard output cannot be written.
pub fn qlog_record(value: &impl Serialize) -> Result<(), Failure> {
    let record = serde_json::to_string(value).map_err(not_json)?;
    text(format_args!("\x1e{record}\n"))
}

/// Lets a command go on after its reader has left: its exit status is a result of its own.
///
/// # Errors
/// Standard output cannot be written for another reason.
pub fn allow_closed_reader(written: Result<(), Failure>) -> Result<(), Failure> {
    match written {
        Err(failure) if failure.is_broken_pipe() => Ok(()),
        written => written,
    }
}

fn not_json(error: serde_json::Error) -> Failure {
    Failure::new("the answer cannot be written as JSON").because(error)
}

/// Whether text may be coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    /// Colours only repeat what the words say.
    Colour,
}

impl Style {
    /// Colour on a terminal, unless NO_COLOR is set (no-color.org) or the terminal knows none.
    pub fn of_stdout() -> Self {
        Self::of(io::stdout().is_terminal())
    }

    /// The same for standard error.
    pub fn of_stderr() -> Self {
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

    /// A good state: green.
    pub fn good(self, word: &str) -> String {
        self.mark(word, "32")
    }

    /// A bad state: red.
    pub fn bad(self, word: &str) -> String {
        self.mark(word, "31")
    }

    /// Bold.
    pub fn strong(self, word: &str) -> String {
        self.mark(word, "1")
    }

    fn mark(self, word: &str, code: &str) -> String {
        match self {
            Self::Plain => word.to_owned(),
            Self::Colour => format!("\x1b[{code}m{word}\x1b[0m"),
        }
    }
}
