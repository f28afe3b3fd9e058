//! Why a command failed: what is wrong, what caused it, and what to try.

use std::{fmt, io};

use keiro_control::ConfigError;

/// Why a command failed. `Display` is the whole message, several lines, for standard error.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Standard output cannot be written.
    Output(io::Error),
    /// The command line is wrong in a way that only its parts together show.
    Usage {
        /// What is wrong.
        what: String,
        /// What to try.
        hint: String,
    },
    /// Everything else.
    Said {
        /// Shown first, as it is: what was found in a file, with its places.
        report: Option<String>,
        /// What is wrong.
        what: String,
        /// What caused it, outermost first.
        causes: Vec<String>,
        /// What to try.
        hints: Vec<String>,
    },
}

impl Failure {
    /// A failure that says what is wrong.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self::Said {
            report: None,
            what: what.into(),
            causes: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// A command line that cannot be meant: what is wrong with it, and what to try.
    pub(crate) fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage {
            what: what.into(),
            hint: hint.into(),
        }
    }

    /// Adds what caused it.
    #[must_use]
    pub(crate) fn because(mut self, cause: impl fmt::Display) -> Self {
        if let Self::Said { causes, .. } = &mut self {
            causes.push(cause.to_string());
        }
        self
    }

    /// Adds something to try.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Said { hints, .. } = &mut self {
            hints.push(hint.into());
        }
        self
    }

    /// The reader of standard output has gone, which is its right.
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output(error) => {
                writeln!(f, "keiro: cannot write to standard output: {error}")
            }
            Self::Usage { what, hint } => {
                write!(f, "keiro: {what}\n  try: {hint}\n")
            }
            Self::Said {
                report,
                what,
                causes,
                hints,
            } => {
                if let Some(report) = report {
                    writeln!(f, "{}", Printable(report))?;
                }
                writeln!(f, "keiro: {}", Printable(what))?;
                for cause in causes {
                    writeln!(f, "  because: {}", Printable(cause))?;
                }
                for hint in hints {
                    writeln!(f, "  try: {}", Printable(hint))?;
                }
                Ok(())
            }
        }
    }
}

/// A text that may quote a file or a peer: what would drive the terminal is shown, not done.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '\n' | '\t' => write!(f, "{c}"),
            c if c.is_control() => write!(f, "{}", c.escape_default()),
            c => write!(f, "{c}"),
        })
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<ConfigError>() {
            Ok(error) => Self::from(error),
            Err(error) => Self::Said {
                report: None,
                what: error.to_string(),
                causes: error.chain().skip(1).map(ToString::to_string).collect(),
                hints: Vec::new(),
            },
        }
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        match error.problems() {
            [problem] if problem.place.is_none() => {
                let failure = Self::new(format!("{}: {}", problem.file, problem.message));
                match &problem.hint {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                }
            }
            problems => {
                let file = problems.first().map_or("", |problem| &problem.file);
                let count = match problems.len() {
                    1 => "1 problem".to_owned(),
                    n => format!("{n} problems"),
                };
                Self::Said {
                    report: Some(error.to_string()),
                    what: format!("{file}: {count}"),
                    causes: Vec::new(),
                    hints: Vec::new(),
                }
            }
        }
    }
}

impl From<keiro_control::protocol::ErrorResponse> for Failure {
    fn from(error: keiro_control::protocol::ErrorResponse) -> Self {
        let failure = Self::new(error.message);
        match error.hint {
            Some(hint) => failure.hint(hint.trim_start_matches("try: ")),
            None => failure,
        }
    }
}

impl From<keiro_measure::series::SeriesError> for Failure {
    fn from(error: keiro_measure::series::SeriesError) -> Self {
        Self::new(error.to_string()).hint(error.hint())
    }
}

/// For errors whose own text says what is wrong and what to try.
macro_rules! from_error {
    ($($error:ty),* $(,)?) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::from(anyhow::Error::from(error))
            }
        })*
    };
}

from_error!(
    keiro_experiment::error::PlanError,
    keiro_control::key::KeyFileError,
    keiro_lab::LabError,
    keiro_lab::TopologyError,
    keiro_measure::net::NetError
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_why_and_what_to_try() {
        let failure = Failure::new("cannot read x")
            .because("no such file")
            .hint("`keiro init`");
        assert_eq!(
            failure.to_string(),
            "keiro: cannot read x\n  because: no such file\n  try: `keiro init`\n"
        );
        assert!(!failure.is_broken_pipe());
    }

    #[test]
    fn what_a_file_holds_does_not_drive_the_terminal() {
        let failure = Failure::new("x.csv:1: `\u{1b}[2Jµ\u{9b}` is no number").hint("a\nb");
        assert_eq!(
            failure.to_string(),
            "keiro: x.csv:1: `\\u{1b}[2Jµ\\u{9b}` is no number\n  try: a\nb\n"
        );
    }

    #[test]
    fn causes_of_an_error_are_kept_in_their_order() {
        let error = anyhow::anyhow!("inner").context("middle").context("outer");
        let shown = Failure::from(error).to_string();
        assert_eq!(shown, "keiro: outer\n  because: middle\n  because: inner\n");
    }

    #[test]
    fn only_a_closed_reader_is_a_broken_pipe() {
        assert!(Failure::Output(io::ErrorKind::BrokenPipe.into()).is_broken_pipe());
        assert!(!Failure::Output(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }
}
