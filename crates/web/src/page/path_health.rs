//! How well a path does, in a word.

use keiro_control::protocol::{PathSnapshot, PathState};
use maud::Markup;

use super::part;

/// A path's state for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Health {
    Bad,
    Warn,
    Good,
    /// It is not wanted now.
    Neither,
}

/// A path that loses more is shown as losing. Ours: voice suffers from here on.
const LOSS_SHOWN: f64 = 0.01;

/// Health and the word for it.
pub(super) fn health(path: &PathSnapshot) -> (Health, &'static str) {
    match path.state {
        _ if path.abandoned => (Health::Neither, "not used"),
        // A peer without an address comes by whichever paths it likes, at a hub often by one of many.
        _ if is_waiting(path) => (Health::Neither, "waits for the peer"),
        PathState::Down => (Health::Bad, "down"),
        PathState::Validating => (Health::Warn, "validating"),
        PathState::Unknown => (Health::Warn, "unknown"),
        PathState::Up if path.problem.is_some() || path.diagnosis.is_some() => {
            (Health::Warn, "up, with a problem")
        }
        PathState::Up if path.stats.loss.is_some_and(|loss| loss.get() >= LOSS_SHOWN) => {
            (Health::Warn, "up, losing")
        }
        PathState::Up if path.trusted_in_seconds.is_some() => (Health::Good, "up, on probation"),
        PathState::Up => (Health::Good, "up"),
    }
}

/// No packet of the peer has come by it, and there is no address to send to first.
pub(super) fn is_waiting(path: &PathSnapshot) -> bool {
    path.state == PathState::Validating && path.remote.is_none()
}

impl Health {
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Bad => "bad",
            Self::Warn => "warn",
            Self::Good => "good",
            Self::Neither => "off",
        }
    }
}

pub(super) fn health_word(path: &PathSnapshot) -> Markup {
    match health(path) {
        (Health::Bad, word) => part::bad(word),
        (Health::Warn, word) => part::warn(word),
        (Health::Good, word) => part::good(word),
        (Health::Neither, word) => maud::html! { (word) },
    }
}
