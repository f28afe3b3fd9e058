//! The copy of a registry that the first hub sends to the second, and that the second serves sites from.
//!
//! The first hub alone accepts changes, so a copy is replaced as a whole and never merged.

use std::{fmt, io, net::IpAddr, path::Path, time::SystemTime};

use ipnet::IpNet;
use keiro_config::regular_file;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::{
    PublicError, Registry,
    public::{NetworkCopy, as_text, keep, refuse_prefixes},
};
use crate::config::{Config, ConfigError, Name, Tenant};

/// Bytes of it in JSON; more are refused. A registry of [`REGISTRY_BYTES_MAX`](super::REGISTRY_BYTES_MAX) needs less,
/// whatever is in it: JSON takes two bytes for a quote or the end of a line.
pub const REPLICA_BYTES_MAX: usize = (2 << 20) + (64 << 10);
/// The file's name in the state directory of the second hub.
pub(super) const FILE: &str = "registry-copy.json";

/// The registry of the first hub, with what only that one's own file has.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct Replica {
    /// Another one for each run of the first hub, which counts its revisions anew.
    pub incarnation: u64,
    pub revision: u64,
    /// As the first hub calls itself.
    pub first_hub: Name,
    /// The number of the tenant, at all gateways.
    pub tenant_id: u32,
    /// Behind the first hub.
    #[serde(with = "as_text")]
    pub hub_prefixes: Vec<IpNet>,
    /// The registry's text, with the sites' preshared keys.
    #[serde(with = "secret")]
    text: Zeroizing<String>,
    /// What the text says; `None` before [`Replica::check`].
    #[serde(skip)]
    registry: Option<Registry>,
}

/// Why what came from the first hub, or was kept, is not taken.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    #[error("it has {0} bytes, and {REPLICA_BYTES_MAX} are the most")]
    TooLong(usize),
    #[error("it is not understood: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error(transparent)]
    Prefix(#[from] PublicError),
    #[error(transparent)]
    Registry(#[from] ConfigError),
    #[error("it does not name this gateway as the second hub")]
    NotForThisGateway,
    #[error("cannot be read or written: {0}")]
    File(#[from] io::Error),
}

impl Replica {
    /// The copy of `registry` for the second hub. `config` is the first hub's; `None`: it has no
    /// such tenant.
    pub fn new(
        registry: &Registry,
        config: &Config,
        [incarnation, revision]: [u64; 2],
    ) -> Option<Self> {
        let tenant = config.tenant_named(registry.tenant.as_str())?;
        Some(Self {
            incarnation,
            revision,
            first_hub: config.gateway.name.clone(),
            tenant_id: tenant.id,
            hub_prefixes: tenant.offered_prefixes(),
            text: registry.secret_text().clone(),
            registry: Some(registry.clone()),
        })
    }

    /// Reads what a first hub has sent or this gateway has kept.
    ///
    /// # Errors
    /// It is too long, not understood, or the registry in it is wrong.
    pub fn parse(json: &[u8]) -> Result<Self, ReplicaError> {
        if json.len() > REPLICA_BYTES_MAX {
            return Err(ReplicaError::TooLong(json.len()));
        }
        let found: Self = serde_json::from_slice(json)?;
        found.check()
    }

    /// Reads the registry's text, if that was not done yet.
    ///
    /// # Errors
    /// The registry, or the prefixes of the first hub, are wrong.
    pub fn check(mut self) -> Result<Self, ReplicaError> {
        refuse_prefixes(&self.hub_prefixes, [0, 0])?;
        let file = format!("the registry of {}", self.first_hub);
        let registry = Registry::parse(&self.text, &file)?;
        if registry.second_hub.is_none() {
            return Err(ReplicaError::NotForThisGateway);
        }
        self.registry = Some(registry);
        Ok(self)
    }

    /// In JSON.
    pub fn to_json(&self) -> Zeroizing<Vec<u8>> {
        // Names, numbers and texts have a form in JSON.
        Zeroizing::new(serde_json::to_vec(self).unwrap_or_default())
    }

    /// What it says; `None` before [`Replica::check`].
    pub fn registry(&self) -> Option<&Registry> {
        self.registry.as_ref()
    }

    /// What sites get of it.
    pub fn network_copy(&self) -> NetworkCopy<'_> {
        NetworkCopy {
            number: [self.incarnation, self.revision],
            tenant_id: self.tenant_id,
            hub_prefixes: &self.hub_prefixes,
        }
    }

    /// The tenant of the second hub's configuration that the sites join.
    pub fn tenant_of<'a>(&self, config: &'a Config) -> Option<&'a Tenant> {
        let mut tenants = config.tenants.iter();
        tenants.find(|tenant| tenant.id == self.tenant_id)
    }

    /// Refuses what contradicts the second hub's own configuration, as [`Registry::check_with`].
    ///
    /// # Errors
    /// One problem for each.
    pub fn check_with(&self, config: &Config, own: &[IpAddr]) -> Result<(), ConfigError> {
        let Some(tenant) = self.tenant_of(config) else {
            let message = format!("no tenant has the number {}", self.tenant_id);
            let hint = format!("write [tenant.office] with id = {}", self.tenant_id);
            return Err(ConfigError::of_file(config.file(), message, &hint));
        };
        let Some(mut registry) = self.registry.clone() else {
            return Ok(());
        };
        registry.tenant = tenant.name.clone();
        // That is this gateway.
        registry.second_hub = None;
        registry.check_with(config, own)
    }

    /// Whether both say the same of the network.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let is_same = |of: &Self| (of.first_hub.clone(), of.tenant_id, of.hub_prefixes.clone());
        is_same(self) == is_same(other) && self.text == other.text
    }

    /// What an earlier run has kept in the state directory, with when; `None`: nothing.
    ///
    /// # Errors
    /// As [`Replica::parse`], or it cannot be read.
    pub fn load(state_directory: &Path) -> Result<Option<(Self, SystemTime)>, ReplicaError> {
        let file = state_directory.join(FILE);
        let read = regular_file::read(&file, REPLICA_BYTES_MAX as u64);
        match read.map(Zeroizing::new) {
            Ok(json) => {
                let kept = file.metadata()?.modified()?;
                Ok(Some((Self::parse(&json)?, kept)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps it in the state directory, for this user's eyes alone.
    ///
    /// # Errors
    /// It cannot be written; what was kept before is still there.
    pub fn keep(&self, state_directory: &Path) -> io::Result<()> {
        keep(state_directory, FILE, &self.to_json())
    }
}

/// Without the keys.
impl fmt::Debug for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replica")
            .field("incarnation", &self.incarnation)
            .field("revision", &self.revision)
            .field("first_hub", &self.first_hub)
            .finish_non_exhaustive()
    }
}

/// A text with keys in it.
mod secret {
    use serde::{Deserialize, Deserializer, Serializer};
    use zeroize::Zeroizing;

    pub(super) fn serialize<S: Serializer>(
        text: &Zeroizing<String>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Zeroizing<String>, D::Error> {
        String::deserialize(deserializer).map(Zeroizing::new)
    }
}
