//! Why a command failed: what is wrong, what caused it, and what to try.

use std::{fmt, io};

use keiro_control::{ConfigError, protocol::ErrorResponse};

/// Why a command failed. Any [`std::error::Error`] becomes one by `?`, with its sources as causes.
#[derive(Debug)]
pub enum Failure {
    /// Standard output cannot be written.
    Output(io::Error),
    /// The command line is wrong in a way that only its parts together show.
    Usage {
        what: String,
        /// What to try.
        hint: String,
    },
    /// Any other failure.
    Failed {
        /// Shown first, as it is: what was found in a file, with its places.
        report: Option<String>,
        what: String,
        /// What caused it, outermost first.
        causes: Vec<String>,
        /// What to try.
        hints: Vec<String>,
    },
}

impl Failure {
    /// A failure of which only its own text is known; see [`because`](Self::because) and
    /// [`hint`](Self::hint).
    pub fn new(what: impl Into<String>) -> Self {
        Self::Failed {
            report: None,
            what: what.into(),
            causes: Vec::new(),
            hints: Vec::new(),
        }
    }

    /// A command line that cannot be meant: what is wrong with it, and what to try.
    pub fn usage(what: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage {
            what: what.into(),
            hint: hint.into(),
        }
    }

    /// Adds what caused it.
    #[must_use]
    pub fn because(mut self, cause: impl fmt::Display) -> Self {
        if let Self::Failed { causes, .. } = &mut self {
            causes.push(cause.to_string());
        }
        self
    }

    /// Adds something to try.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Failed { hints, .. } = &mut self {
            hints.push(hint.into());
        }
        self
    }

    /// An error with its context, outermost first. Problems of a configuration are shown with their
    /// places, a daemon's answer with its hint.
    #[allow(clippy::needless_pass_by_value, reason = "it is passed to map_err")]
    pub fn from_anyhow(error: anyhow::Error) -> Self {
        if let Some(error) = error.downcast_ref::<ConfigError>() {
            return Self::from_config(error);
        }
        if let Some(error) = error.downcast_ref::<ErrorResponse>() {
            return Self::from_response(error);
        }
        Self::Failed {
            report: None,
            what: error.to_string(),
            causes: error.chain().skip(1).map(ToString::to_string).collect(),
            hints: Vec::new(),
        }
    }

    fn from_response(error: &ErrorResponse) -> Self {
        let failure = Self::new(&error.message);
        match &error.hint {
            Some(hint) => failure.hint(hint.trim_start_matches("try: ")),
            None => failure,
        }
    }

    fn from_config(error: &ConfigError) -> Self {
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
                Self::Failed {
                    report: Some(error.to_string()),
                    what: format!("{file}: {count}"),
                    causes: Vec::new(),
                    hints: Vec::new(),
                }
            }
        }
    }

    /// The whole message of `program`, several lines, for standard error.
    pub fn message<'a>(&'a self, program: &'a str) -> impl fmt::Display + 'a {
        Message {
            program,
            failure: self,
        }
    }

    /// The reader of standard output has left early, which is no error.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }
}

struct Message<'a> {
    program: &'a str,
    failure: &'a Failure,
}

impl fmt::Display for Message<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let program = self.program;
        match self.failure {
            Failure::Output(error) => {
                writeln!(f, "{program}: cannot write to standard output: {error}")
            }
            Failure::Usage { what, hint } => {
                write!(f, "{program}: {what}\n  try: {hint}\n")
            }
            Failure::Failed {
                report,
                what,
                causes,
                hints,
            } => {
                if let Some(report) = report {
                    writeln!(f, "{}", Printable(report))?;
                }
                writeln!(f, "{program}: {}", Printable(what))?;
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

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::from_anyhow(error.into())
    }
}

#[cfg(test)]
mod tests {
    use keiro_control::protocol::ErrorCode;

    use super::*;

    #[test]
    fn a_failure_says_what_why_and_what_to_try() {
        let failure = Failure::new("cannot read x")
            .because("no such file")
            .hint("`keiro init`");
        assert_eq!(
            failure.message("keiro").to_string(),
            "keiro: cannot read x\n  because: no such file\n  try: `keiro init`\n"
        );
        assert!(!failure.is_broken_pipe());
    }

    #[test]
    fn what_a_file_holds_does_not_drive_the_terminal() {
        let failure = Failure::new("x.csv:1: `\u{1b}[2Jµ\u{9b}` is no number").hint("a\nb");
        assert_eq!(
            failure.message("keiro").to_string(),
            "keiro: x.csv:1: `\\u{1b}[2Jµ\\u{9b}` is no number\n  try: a\nb\n"
        );
    }

    #[test]
    fn causes_of_an_error_are_kept_in_their_order() {
        let error = anyhow::anyhow!("inner").context("middle").context("outer");
        let shown = Failure::from_anyhow(error).message("keiro").to_string();
        assert_eq!(shown, "keiro: outer\n  because: middle\n  because: inner\n");
    }

    #[test]
    fn the_hint_of_a_daemons_answer_is_kept() {
        let error = ErrorResponse {
            code: ErrorCode::NotFound,
            message: "no application `x`".to_owned(),
            hint: Some("try: one of A1, A2".to_owned()),
        };
        assert_eq!(
            Failure::from(error).message("keiro").to_string(),
            "keiro: no application `x`\n  try: one of A1, A2\n"
        );
    }

    #[test]
    fn only_a_closed_reader_is_a_broken_pipe() {
        assert!(Failure::Output(io::ErrorKind::BrokenPipe.into()).is_broken_pipe());
        assert!(!Failure::Output(io::ErrorKind::StorageFull.into()).is_broken_pipe());
    }
}
