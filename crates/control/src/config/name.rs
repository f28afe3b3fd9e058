//! Names of gateways, paths, peers, applications and tenants.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::NAME_BYTES_MAX;

/// 1 to 64 bytes of `A-Z a-z 0-9 . _ -`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(pub(super) String);

/// Why a text is not a [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// No characters.
    #[error("a name must not be empty")]
    Empty,
    /// More than [`NAME_BYTES_MAX`].
    #[error("a name has at most {NAME_BYTES_MAX} bytes, this one has {0}")]
    TooLong(usize),
    /// Another character than those allowed.
    #[error("{0:?} must not occur in a name; use A-Z a-z 0-9 . _ -")]
    Character(char),
}

impl Name {
    /// A name, if `text` is one.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn new(text: &str) -> Result<Self, NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > NAME_BYTES_MAX {
            return Err(NameError::TooLong(text.len()));
        }
        let allowed = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        match text.chars().find(|c| !allowed(c)) {
            Some(c) => Err(NameError::Character(c)),
            None => Ok(Self(text.to_owned())),
        }
    }

    /// The name of what a gateway has, if `text` may be one: those that it makes of others have an `@`.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn in_use(text: &str) -> Result<Self, NameError> {
        Self::new(&text.replace('@', "-")).map(|_| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// `what@whose`, which no name of a file is; the two names together must have less than [`NAME_BYTES_MAX`]
    /// bytes.
    pub(crate) fn of(what: &str, whose: &str) -> Self {
        debug_assert!(what.len() + whose.len() < NAME_BYTES_MAX);
        Self(format!("{what}@{whose}"))
    }

    /// `class@whose`, which no name of a file is; `None`: it is too long.
    pub(crate) fn of_class(class: &str, whose: &str) -> Option<Self> {
        let name = format!("{class}@{whose}");
        (name.len() <= NAME_BYTES_MAX).then_some(Self(name))
    }

    /// `what@one@two`, which no name of a file is; `None`: it has more than [`NAME_BYTES_MAX`] bytes.
    pub(crate) fn of_pair(what: &str, one: &str, two: &str) -> Option<Self> {
        let name = format!("{what}@{one}@{two}");
        (name.len() <= NAME_BYTES_MAX).then_some(Self(name))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}
