//! The part of a registry that its sites get: names, public keys, prefixes and applications, and no secrets.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use ipnet::IpNet;
use keiro_config::regular_file;
use keiro_units::{ByteCount, Probability};
use serde::{Deserialize, Serialize};

use super::{
    NETWORK_APPS_MAX, PREFIX_BITS_MIN, Registry, SECOND_HUBS_MAX, SITE_NAME_BYTES_MAX,
    SITE_PREFIXES_MAX, SITES_MAX,
};
use crate::{
    config::{
        AppNeeds, Class, Config, Name, PEER_ENDPOINTS_MAX, PathUse, PeerEndpoint, is_forwarded,
    },
    key::PublicKey,
    units::Text,
};

/// Bytes of it in JSON; more are refused. A registry of [`REGISTRY_BYTES_MAX`](super::REGISTRY_BYTES_MAX) needs less.
pub const PUBLIC_BYTES_MAX: usize = 1 << 20;
/// The file's name in the state directory of a branch.
pub(super) const FILE: &str = "network.json";

/// What a branch keeps: the public key of the hub that has sent it, and what it has sent.
#[derive(Serialize, Deserialize)]
struct Kept<T> {
    hub: String,
    registry: T,
}

/// What a kept registry has more in bytes, at most.
const KEPT_BYTES_MORE: usize = 128;

/// What one site gets of the registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublicRegistry {
    /// Another one for each run of the hub, which counts its revisions anew.
    pub incarnation: u64,
    /// It grows with each change.
    pub revision: u64,
    /// The name of the site that gets it.
    pub site: Name,
    /// The number of the tenant, at the hub and at the site.
    pub tenant_id: u32,
    /// Behind the hub itself.
    #[serde(with = "as_text")]
    pub hub_prefixes: Vec<IpNet>,
    /// All sites, with this one.
    pub sites: Vec<PublishedSite>,
    pub apps: Vec<PublishedApp>,
    /// Further hubs, through which the same networks are reached. A hub of 0.1.0 sends none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hubs: Vec<PublishedHub>,
    /// Sites may have sessions with each other. A hub of 0.1.0 does not say so, and helps with none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
}

/// A hub beside the one whose key is in the branch's own file. The branch shares the same preshared key with both.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedHub {
    pub name: Name,
    #[serde(with = "as_text::one")]
    pub public_key: PublicKey,
    #[serde(with = "as_text")]
    pub endpoint: Vec<PeerEndpoint>,
    #[serde(with = "as_text")]
    pub prefixes: Vec<IpNet>,
}

/// What sites get beside the registry itself.
#[derive(Clone, Copy, Debug)]
pub struct NetworkCopy<'a> {
    /// Incarnation and revision.
    pub number: [u64; 2],
    pub tenant_id: u32,
    /// Behind the first hub.
    pub hub_prefixes: &'a [IpNet],
}

/// A site and what is behind it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedSite {
    pub name: Name,
    /// A hub of 0.1.0 sends none.
    #[serde(
        default,
        with = "as_text::optional",
        skip_serializing_if = "Option::is_none"
    )]
    pub public_key: Option<PublicKey>,
    #[serde(with = "as_text")]
    pub prefixes: Vec<IpNet>,
    /// See [`Site::wire_name`](super::Site::wire_name).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire_name: Option<Name>,
}

impl PublishedSite {
    /// The name that the numbers of its applications on the wire follow from.
    pub fn wire_name(&self) -> &Name {
        self.wire_name.as_ref().unwrap_or(&self.name)
    }
}

/// An application and its needs, as [`AppNeeds`] has them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PublishedApp {
    name: Name,
    class: Class,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    latency_target: Option<Text<Duration>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    lifetime: Option<Text<Duration>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    loss: Option<Text<Probability>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    length: Option<Text<ByteCount>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    interval: Option<Text<Duration>>,
    #[serde(default, skip_serializing_if = "PathUse::is_one")]
    paths: PathUse,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    essential: Option<bool>,
}

/// Why what came from a hub, or was kept, is not taken.
#[derive(Debug, thiserror::Error)]
pub enum PublicError {
    #[error("it has {0} bytes, and {PUBLIC_BYTES_MAX} are the most")]
    TooLong(usize),
    #[error("it is not understood: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("it has too many {0}")]
    TooMany(&'static str),
    #[error("the hub `{0}` has no endpoint, or too many")]
    Endpoint(Name),
    #[error("the name `{0}` is too long, or there twice")]
    Name(Name),
    #[error("`{0}` is not a network that hosts have addresses of")]
    Prefix(IpNet),
    #[error("the needs of the application `{0}` are out of range")]
    App(Name),
    #[error("cannot be read or written: {0}")]
    File(#[from] io::Error),
}

impl PublicRegistry {
    /// The part of `registry` for one of its sites; `config` is the hub's. `None`: there is no such site, or no
    /// such tenant.
    pub fn of_site(
        registry: &Registry,
        config: &Config,
        site: &Name,
        number: [u64; 2],
    ) -> Option<Self> {
        let tenant = config.tenant_named(registry.tenant.as_str())?;
        let offered = tenant.offered_prefixes();
        let copy = NetworkCopy {
            number,
            tenant_id: tenant.id,
            hub_prefixes: &offered,
        };
        Self::of_site_in(registry, &copy, site)
    }

    /// As [`PublicRegistry::of_site`], where the configuration is another gateway's.
    pub fn of_site_in(registry: &Registry, copy: &NetworkCopy<'_>, site: &Name) -> Option<Self> {
        let [incarnation, revision] = copy.number;
        registry.sites.get(site)?;
        let hubs = registry.second_hub.iter().map(|(name, hub)| PublishedHub {
            name: name.clone(),
            public_key: hub.site.public_key,
            endpoint: hub.endpoint.clone(),
            prefixes: hub.site.prefixes.clone(),
        });
        let sites = registry.sites.iter().map(|(name, site)| PublishedSite {
            name: name.clone(),
            public_key: Some(site.public_key),
            prefixes: site.prefixes.clone(),
            wire_name: site.wire_name.clone(),
        });
        let apps = registry.apps.iter();
        Some(Self {
            incarnation,
            revision,
            site: site.clone(),
            tenant_id: copy.tenant_id,
            hub_prefixes: copy.hub_prefixes.to_vec(),
            hubs: hubs.collect(),
            direct: registry.direct,
            sites: sites.collect(),
            apps: apps
                .map(|(name, needs)| PublishedApp::new(name, needs))
                .collect(),
        })
    }

    /// Reads what a hub has sent.
    ///
    /// # Errors
    /// It is too long, not understood, or has names, prefixes or numbers of entries that no registry has.
    pub fn parse(json: &[u8]) -> Result<Self, PublicError> {
        if json.len() > PUBLIC_BYTES_MAX {
            return Err(PublicError::TooLong(json.len()));
        }
        let found: Self = serde_json::from_slice(json)?;
        found.check()?;
        Ok(found)
    }

    /// In JSON.
    pub fn to_json(&self) -> Vec<u8> {
        // Names, numbers and texts have a form in JSON.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The applications, as the registry has them.
    pub fn apps(&self) -> Vec<(Name, AppNeeds)> {
        self.apps.iter().map(PublishedApp::needs).collect()
    }

    /// What the branch's own applications are named after on the wire.
    pub fn own_wire_name(&self) -> &Name {
        let own = self.sites.iter().find(|site| site.name == self.site);
        own.map_or(&self.site, PublishedSite::wire_name)
    }

    /// Whether it is to be taken in the place of `known`: it is of another run of the hub, or newer.
    pub fn follows(&self, known: Option<&Self>) -> bool {
        known.is_none_or(|known| {
            known.incarnation != self.incarnation || known.revision < self.revision
        })
    }

    /// As [`PublicRegistry::follows`], of the second hub's copy: it may be older than what is known, also of an earlier
    /// run of the first hub.
    pub fn copy_follows(&self, known: Option<&Self>) -> bool {
        let number = |of: &Self| (of.incarnation, of.revision);
        known.is_none_or(|known| number(known) < number(self))
    }

    /// Whether both say the same of the network.
    pub fn says_the_same(&self, other: &Self) -> bool {
        let known = Self {
            incarnation: self.incarnation,
            revision: self.revision,
            ..other.clone()
        };
        *self == known
    }

    /// What an earlier run has kept in the state directory of what this hub has sent; `None`: nothing. What another hub
    /// has sent is not taken.
    ///
    /// # Errors
    /// As [`PublicRegistry::parse`], or it cannot be read.
    pub fn load(state_directory: &Path, hub: PublicKey) -> Result<Option<Self>, PublicError> {
        let bytes_max = PUBLIC_BYTES_MAX + KEPT_BYTES_MORE;
        let read = regular_file::read(&state_directory.join(FILE), bytes_max as u64);
        let json = match read {
            Ok(json) => json,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let kept: Kept<Self> = serde_json::from_slice(&json)?;
        kept.registry.check()?;
        Ok((kept.hub == hub.to_string()).then_some(kept.registry))
    }

    /// Keeps what this hub has sent in the state directory.
    ///
    /// # Errors
    /// It cannot be written; what was kept before is still there.
    pub fn keep(&self, state_directory: &Path, hub: PublicKey) -> Result<(), PublicError> {
        let kept = serde_json::to_vec(&Kept {
            hub: hub.to_string(),
            registry: self,
        })?;
        Ok(keep(state_directory, FILE, &kept)?)
    }

    /// Forgets what is kept in the state directory.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn forget(state_directory: &Path) -> io::Result<()> {
        match fs::remove_file(state_directory.join(FILE)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Refuses what no registry has.
    ///
    /// # Errors
    /// As [`PublicRegistry::parse`].
    pub fn check(&self) -> Result<(), PublicError> {
        if self.sites.len() > SITES_MAX {
            return Err(PublicError::TooMany("sites"));
        }
        if self.apps.len() > NETWORK_APPS_MAX {
            return Err(PublicError::TooMany("applications"));
        }
        let mut seen = BTreeMap::new();
        for site in &self.sites {
            let names = [&site.name, site.wire_name()];
            let is_long = names
                .iter()
                .any(|name| name.as_str().len() > SITE_NAME_BYTES_MAX);
            if is_long || seen.insert(&site.name, ()).is_some() {
                return Err(PublicError::Name(site.name.clone()));
            }
            if site.prefixes.len() > SITE_PREFIXES_MAX {
                return Err(PublicError::TooMany("prefixes"));
            }
            refuse_prefixes(&site.prefixes, PREFIX_BITS_MIN)?;
        }
        if self.site.as_str().len() > SITE_NAME_BYTES_MAX {
            return Err(PublicError::Name(self.site.clone()));
        }
        // A hub may lead to the Internet.
        refuse_prefixes(&self.hub_prefixes, [0, 0])?;
        if self.hubs.len() > SECOND_HUBS_MAX {
            return Err(PublicError::TooMany("hubs"));
        }
        for hub in &self.hubs {
            if hub.name.as_str().len() > SITE_NAME_BYTES_MAX || seen.contains_key(&hub.name) {
                return Err(PublicError::Name(hub.name.clone()));
            }
            if !(1..=PEER_ENDPOINTS_MAX).contains(&hub.endpoint.len()) {
                return Err(PublicError::Endpoint(hub.name.clone()));
            }
            if hub.prefixes.len() > SITE_PREFIXES_MAX {
                return Err(PublicError::TooMany("prefixes"));
            }
            refuse_prefixes(&hub.prefixes, PREFIX_BITS_MIN)?;
        }
        let mut seen = BTreeMap::new();
        for app in &self.apps {
            let is_long = app.name.as_str().len() > SITE_NAME_BYTES_MAX;
            if is_long || seen.insert(&app.name, ()).is_some() {
                return Err(PublicError::Name(app.name.clone()));
            }
            if !app.needs().1.are_sound() {
                return Err(PublicError::App(app.name.clone()));
            }
        }
        Ok(())
    }
}

pub(super) fn refuse_prefixes(prefixes: &[IpNet], bits_min: [u8; 2]) -> Result<(), PublicError> {
    let is_right = |prefix: &&IpNet| {
        let min = match prefix {
            IpNet::V4(_) => bits_min[0],
            IpNet::V6(_) => bits_min[1],
        };
        prefix.trunc() == **prefix && prefix.prefix_len() >= min && is_forwarded(prefix)
    };
    match prefixes.iter().find(|prefix| !is_right(prefix)) {
        Some(prefix) => Err(PublicError::Prefix(*prefix)),
        None => Ok(()),
    }
}

impl PublishedApp {
    fn new(name: &Name, needs: &AppNeeds) -> Self {
        Self {
            name: name.clone(),
            class: needs.class,
            latency_target: needs.latency_target.map(Text),
            lifetime: needs.lifetime.map(Text),
            loss: needs.loss.map(Text),
            length: needs.length.map(Text),
            interval: needs.interval.map(Text),
            paths: needs.paths,
            essential: needs.essential,
        }
    }

    fn needs(&self) -> (Name, AppNeeds) {
        let needs = AppNeeds {
            class: self.class,
            latency_target: self.latency_target.map(|text| text.0),
            lifetime: self.lifetime.map(|text| text.0),
            loss: self.loss.map(|text| text.0),
            length: self.length.map(|text| text.0),
            interval: self.interval.map(|text| text.0),
            paths: self.paths,
            essential: self.essential,
        };
        (self.name.clone(), needs)
    }
}

/// Writes a file of the state directory, in the place of the one of before.
///
/// # Errors
/// It cannot be written; the one of before is still there.
pub(super) fn keep(state_directory: &Path, name: &str, contents: &[u8]) -> io::Result<()> {
    let beside = state_directory.join(format!("{name}.new"));
    // Of a gateway that was killed. A link is not followed.
    let _ = fs::remove_file(&beside);
    let mut options = OpenOptions::new();
    let options = options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(&beside)?;
    file.write_all(contents)?;
    file.sync_all()?;
    fs::rename(&beside, state_directory.join(name))?;
    File::open(state_directory)?.sync_all()
}

/// Prefixes, endpoints and keys as texts.
pub(super) mod as_text {
    use std::{fmt::Display, str::FromStr};

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in super::super) fn serialize<T: Display, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(in super::super) fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let values = texts.iter().map(|text| text.parse());
        values.collect::<Result<_, _>>().map_err(D::Error::custom)
    }

    pub(in super::super) mod one {
        use super::{Deserialize, Deserializer, Display, Error, FromStr, Serializer};

        pub(in super::super::super) fn serialize<T: Display, S: Serializer>(
            value: &T,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            serializer.collect_str(value)
        }

        pub(in super::super::super) fn deserialize<'de, T, D>(
            deserializer: D,
        ) -> Result<T, D::Error>
        where
            T: FromStr<Err: Display>,
            D: Deserializer<'de>,
        {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(D::Error::custom)
        }
    }

    pub(in super::super) mod optional {
        use super::{Deserialize, Deserializer, Display, Error, FromStr, Serializer};

        pub(in super::super::super) fn serialize<T: Display, S: Serializer>(
            value: &Option<T>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match value {
                Some(value) => serializer.collect_str(value),
                None => serializer.serialize_none(),
            }
        }

        pub(in super::super::super) fn deserialize<'de, T, D>(
            deserializer: D,
        ) -> Result<Option<T>, D::Error>
        where
            T: FromStr<Err: Display>,
            D: Deserializer<'de>,
        {
            let text = Option::<String>::deserialize(deserializer)?;
            let value = text.map(|text| text.parse());
            value.transpose().map_err(D::Error::custom)
        }
    }
}
