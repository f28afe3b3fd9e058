//! What a gateway knows of its network, read from its files.

use keiro_config::Problem;

use super::{NetworkView, PublicError, PublicRegistry, Registry};
use crate::config::{Config, ConfigError, Membership};

/// What the files of a gateway say of its network.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NetworkState {
    /// It has none, or is a branch that has heard nothing yet.
    #[default]
    Nothing,
    Hub(Box<Registry>),
    Branch(Box<PublicRegistry>),
}

impl NetworkState {
    /// Reads the registry of a hub, or what a branch has kept, for a configuration that is as in its file.
    ///
    /// # Errors
    /// The registry is wrong or contradicts the configuration. A branch's copy that is wrong is the same as none.
    pub fn load(config: &Config) -> Result<Self, ConfigError> {
        match &config.network {
            Some(Membership::Hub(hub)) => {
                let registry = Registry::load(&hub.registry)?;
                registry.check_with(config, &[])?;
                Ok(Self::Hub(Box::new(registry)))
            }
            Some(Membership::Branch { .. }) => {
                let kept = PublicRegistry::load(&config.gateway.state_directory);
                Ok(kept.ok().flatten().into())
            }
            None => Ok(Self::Nothing),
        }
    }

    /// Why a branch's copy is not taken; `None`: it is, or there is none.
    pub fn problem(config: &Config) -> Option<Problem> {
        let Some(Membership::Branch { .. }) = &config.network else {
            return None;
        };
        let directory = &config.gateway.state_directory;
        let error: PublicError = PublicRegistry::load(directory).err()?;
        Some(Problem {
            file: directory.join(super::public::FILE).display().to_string(),
            place: None,
            message: error.to_string(),
            hint: Some("the other sites are known again when the hub is reached".to_owned()),
        })
    }

    /// A configuration, which is as in its file, with the sites of the network.
    #[must_use]
    pub fn applied_to(&self, config: &Config) -> Config {
        match self {
            Self::Nothing => config.clone(),
            Self::Hub(registry) => config.with_network(&NetworkView::Hub(registry)),
            Self::Branch(registry) => config.with_network(&NetworkView::Branch(registry)),
        }
    }
}

impl From<Option<PublicRegistry>> for NetworkState {
    fn from(kept: Option<PublicRegistry>) -> Self {
        kept.map_or(Self::Nothing, |kept| Self::Branch(Box::new(kept)))
    }
}
