//! `keiro top`: a gateway in a terminal, as it changes.
//!
//! What is shown is a pure function of the gateway's answers ([`data`]) and of what was typed ([`view`]); [`draw`]
//! puts it into a buffer. [`source`] asks the control socket from threads of its own, so that a gateway that is slow
//! or away never blocks the keyboard, and [`terminal`] enters and leaves the terminal's modes.
#![forbid(unsafe_code)]

mod columns;
mod data;
mod detail;
mod draw;
mod rows;
mod run;
mod source;
mod table;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::{io, path::PathBuf, time::Duration};

pub use run::run;
pub use terminal::Screen;

/// What is shown, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The gateway's control socket.
    pub socket: PathBuf,
    /// How often the gateway is asked.
    pub interval: Duration,
    /// Colours repeat what the words say.
    pub colour: bool,
}

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// Standard input or output is none.
    #[error("{0} is not a terminal")]
    NotATerminal(&'static str),
    /// It cannot be read, written or put into the modes that are needed.
    #[error("the terminal failed: {0}")]
    Terminal(#[source] io::Error),
    /// Signals cannot be watched.
    #[error("cannot watch for signals: {0}")]
    Signals(#[source] io::Error),
}
