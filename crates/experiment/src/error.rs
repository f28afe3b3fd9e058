//! Errors of plans.

use keiro_config::ConfigError;

/// A plan or setup that cannot be used. Names the file, the fault and what to try.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Not TOML, unknown or missing keys, or values of the wrong form. Lists all, with their locations.
    #[error(transparent)]
    Form(#[from] ConfigError),
    /// Well-formed, but inconsistent or with a reference to something that does not exist.
    #[error("{file}: {what}")]
    Meaning { file: String, what: String },
    /// There is no experiment of this name.
    #[error("there is no experiment `{id}`{suggestion} (`keiro-lab experiment list` shows all)")]
    Unknown {
        /// The name as given.
        id: String,
        /// `; did you mean ...?`, or empty.
        suggestion: String,
    },
    /// Settings of the command line that the plan cannot have.
    #[error("{id}: --set {}: {what}", settings.join(" --set "))]
    Setting {
        /// The experiment.
        id: String,
        /// As given, `KEY=VALUE`.
        settings: Vec<String>,
        what: String,
    },
    /// The source tree has another plan than this program.
    #[error("{file} differs from what this keiro-lab was built with; {hint}")]
    Edited {
        file: String,
        /// What to try.
        hint: String,
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
