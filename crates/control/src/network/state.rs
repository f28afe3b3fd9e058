//! What a gateway knows of its network, read from its files.

use keiro_config::Problem;

use super::{NetworkView, PublicError, PublicRegistry, Registry, Replica, ReplicaError};
use crate::config::{Config, ConfigError, Membership};

/// What the files of a gateway say of its network.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NetworkState {
    /// It has none, or is a branch or a second hub that has heard nothing yet.
    #[default]
    Nothing,
    Hub(Box<Registry>),
    Branch(Box<PublicRegistry>),
    SecondHub(Box<Replica>),
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
            Some(Membership::Branch { hub }) => {
                let directory = &config.gateway.state_directory;
                let kept = PublicRegistry::load(directory, config[*hub].public_key);
                Ok(kept.ok().flatten().into())
            }
            Some(Membership::SecondHub { .. }) => {
                let kept = Replica::load(&config.gateway.state_directory);
                // `problem` says why there is none.
                let kept = kept.ok().flatten().map(|(replica, _)| Box::new(replica));
                let kept = kept.filter(|replica| replica.check_with(config, &[]).is_ok());
                Ok(kept.map_or(Self::Nothing, Self::SecondHub))
            }
            None => Ok(Self::Nothing),
        }
    }

    /// Why a branch's or a second hub's copy is not taken; `None`: it is, or there is none.
    pub fn problem(config: &Config) -> Option<Problem> {
        let directory = &config.gateway.state_directory;
        let (file, message) = match &config.network {
            Some(Membership::Branch { hub }) => {
                let hub = config[*hub].public_key;
                let error: PublicError = PublicRegistry::load(directory, hub).err()?;
                (super::public::FILE, error.to_string())
            }
            Some(Membership::SecondHub { .. }) => {
                let kept = Replica::load(directory).map(|kept| kept.map(|(replica, _)| replica));
                let error: ReplicaError = match kept {
                    Ok(kept) => kept?.check_with(config, &[]).err()?.into(),
                    Err(error) => error,
                };
                (super::replica::FILE, error.to_string())
            }
            Some(Membership::Hub(_)) | None => return None,
        };
        Some(Problem {
            file: directory.join(file).display().to_string(),
            place: None,
            message,
            hint: Some("the other sites are known again when the hub is reached".to_owned()),
        })
    }

    /// A configuration, which is as in its file, with the sites of the network and the built-in classes.
    #[must_use]
    pub fn applied_to(&self, config: &Config) -> Config {
        let with_sites = match self {
            Self::Nothing => config.clone(),
            Self::Hub(registry) => config.with_network(&NetworkView::Hub(registry)),
            Self::Branch(registry) => config.with_network(&NetworkView::Branch(registry)),
            Self::SecondHub(replica) => config.with_network(&NetworkView::SecondHub(replica)),
        };
        with_sites.with_classes()
    }
}

impl From<Option<PublicRegistry>> for NetworkState {
    fn from(kept: Option<PublicRegistry>) -> Self {
        kept.map_or(Self::Nothing, |kept| Self::Branch(Box::new(kept)))
    }
}
