//! What can be wrong with a plan.

/// A plan or setup that cannot be used. Names the file, says what is wrong and what to try.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, an unknown or missing key, or a value of the wrong form.
    #[error("{file}: {what}")]
    Syntax {
        /// The plan's file.
        file: String,
        /// Line, column and what was expected there.
        what: String,
    },
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
    pub(crate) fn syntax(file: &str, error: &toml::de::Error) -> Self {
        Self::Syntax {
            file: file.to_owned(),
            what: error.to_string().trim_end().to_owned(),
        }
    }

    pub(crate) fn meaning(file: &str, what: String) -> Self {
        Self::Meaning {
            file: file.to_owned(),
            what,
        }
    }
}
