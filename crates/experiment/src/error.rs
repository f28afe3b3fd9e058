//! What can be wrong with a plan.

use keiro_config::ConfigError;

/// A plan or setup that cannot be used. Names the file, says what is wrong and what to try.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, unknown or missing keys, or values of the wrong form: all of them, with their places.
    #[error(transparent)]
    Form(#[from] ConfigError),
    /// Well-formed, but it contradicts itself or names what is not there.
    #[error("{file}: {what}")]
    Meaning {
        /// The plan's file.
        file: String,
        /// What is wrong.
        what: String,
    },
    /// No experiment of this name.
    #[error("there is no experiment `{id}`{suggestion} (`keiro-lab experiment list` shows all)")]
    Unknown {
        /// The name as given.
        id: String,
        /// `; did you mean ...?`, or empty.
        suggestion: String,
    },
}

impl PlanError {
    pub(crate) fn meaning(file: &str, what: String) -> Self {
        Self::Meaning {
            file: file.to_owned(),
            what,
        }
    }
}
