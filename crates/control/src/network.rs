//! A network of sites: the registry at its hub, what the sites get of it, and what follows for a gateway's
//! configuration.
//!
//! The registry is a TOML file that only its owner may read, since it holds preshared keys. Every problem in it is
//! reported with its place. [`Registry`] is what it says, [`RegistryEdit`] changes it and keeps comments,
//! [`PublicRegistry`] is the part without keys that branches get, and [`Config::with_network`] adds its sites to a
//! configuration. No clock and no sockets: what time it is, and which addresses the machine has, are arguments.

mod addresses;
mod check;
mod direct;
mod draft;
mod edit;
mod expand;
mod public;
mod read;
mod replica;
mod state;
#[cfg(test)]
mod tests;
mod text;

use std::{
    collections::BTreeMap, fmt, net::IpAddr, ops::Range, path::Path, sync::Arc, time::SystemTime,
};

use ipnet::IpNet;
use zeroize::Zeroizing;

pub use self::{
    check::{PREFIX_BITS_MIN, PrefixRefusal},
    direct::{DIRECT_ENDPOINTS_MAX, DirectSite, NotDirect},
    edit::{EditError, RegistryEdit},
    expand::NetworkView,
    public::{
        NetworkCopy, PUBLIC_BYTES_MAX, PublicError, PublicRegistry, PublishedApp, PublishedHub,
        PublishedSite,
    },
    replica::{REPLICA_BYTES_MAX, Replica, ReplicaError},
    state::NetworkState,
};
use crate::{
    config::{AppNeeds, Config, ConfigError, Name, PeerEndpoint},
    key::{PresharedKey, PublicKey},
};

/// Bytes of a registry; a longer one is refused. Ours: a thousand sites take a third of it.
pub const REGISTRY_BYTES_MAX: u64 = 1 << 20;
/// Sites of one network; more are refused. Ours.
pub const SITES_MAX: usize = 1000;
/// Hubs beside the one that has the registry; more are refused. Ours: packets that one hub sends to the other must not
/// come back.
pub const SECOND_HUBS_MAX: usize = 1;
/// Invitations that are not expired and those that are, until they are removed; more are refused. Ours.
pub const INVITATIONS_MAX: usize = 1000;
/// Applications of one network; more are refused. Ours: every site has each of them.
pub const NETWORK_APPS_MAX: usize = 16;
/// Prefixes of one site; more are refused. Ours.
pub const SITE_PREFIXES_MAX: usize = 64;
/// Bytes of the name of a site or of an application of a network: with `@` between, both are one name.
pub const SITE_NAME_BYTES_MAX: usize = 31;
/// Carries the packets of all sites where the registry has no application of class `datagram`.
pub const DEFAULT_APP: &str = "sites";

/// A registry as its file has it.
#[derive(Clone, Debug)]
pub struct Registry {
    /// The tenant of the gateway's file whose prefixes the sites join.
    pub tenant: Name,
    /// Branches may have sessions with each other.
    pub direct: bool,
    /// In the order of the file. The first of class `datagram` carries what no rule gives to another.
    pub apps: Vec<(Name, AppNeeds)>,
    pub sites: BTreeMap<Name, Site>,
    /// The other hub, which has a copy of the registry.
    pub second_hub: Option<(Name, SecondHub)>,
    pub invitations: BTreeMap<Name, Invitation>,
    origin: Origin,
}

/// A branch of the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    pub public_key: PublicKey,
    pub preshared_key: PresharedKey,
    /// Networks behind it; at least one.
    pub prefixes: Vec<IpNet>,
    /// The name that the numbers of its applications on the wire follow from; `None`: its own. A site that is renamed
    /// keeps them.
    pub wire_name: Option<Name>,
}

/// The hub that sites reach each other through while the first one is away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecondHub {
    /// Its keys, and the networks behind it.
    pub site: Site,
    /// Where branches and the first hub reach it; at least one.
    pub endpoint: Vec<PeerEndpoint>,
}

/// A site that may join.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    pub id: InvitationId,
    /// The provisional key, and the key beside it. Both follow from the token's secret.
    pub public_key: PublicKey,
    pub preshared_key: PresharedKey,
    /// What the site may claim; `None`: whatever is free.
    pub prefixes: Option<Vec<IpNet>>,
    /// Who joins becomes the second hub and is reached there; empty: it becomes a site.
    pub hub_endpoint: Vec<PeerEndpoint>,
    /// By the hub's clock.
    pub expires: SystemTime,
    /// Who has used it.
    pub redeemed: Option<Redemption>,
}

/// The use of an invitation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redemption {
    /// The key of the site.
    pub by: PublicKey,
    pub at: SystemTime,
    /// Where it came from.
    pub from: IpAddr,
}

/// The number of an invitation, in hexadecimal digits in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InvitationId(pub [u8; 8]);

/// The text that a registry was read from, for checks that come later.
#[derive(Clone)]
struct Origin {
    file: String,
    /// Without preshared keys.
    text: String,
    /// With them.
    secret_text: Arc<Zeroizing<String>>,
    tenant: Range<usize>,
    /// Where each site begins, and its prefixes are.
    sites: BTreeMap<Name, SiteSpans>,
    second_hub: Option<SiteSpans>,
}

#[derive(Clone, Debug)]
struct SiteSpans {
    name: Range<usize>,
    public_key: Range<usize>,
    prefixes: Vec<Range<usize>>,
}

impl Registry {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    /// It cannot be read, is a symbolic link or open to others than its owner, is longer than
    /// [`REGISTRY_BYTES_MAX`], or everything that is wrong with its contents.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = text::read(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Checks `text`; `file` is what messages call it.
    ///
    /// # Errors
    /// Everything that is wrong with the text. Preshared keys are not in it.
    pub fn parse(text: &str, file: &str) -> Result<Self, ConfigError> {
        read::registry(text, file)
    }

    /// Refuses what contradicts the hub's own configuration, which is as in its file: a tenant that is not there,
    /// names, keys and prefixes that others have. `own` are the machine's addresses.
    ///
    /// # Errors
    /// One problem for each, with its place in the registry.
    pub fn check_with(&self, config: &Config, own: &[IpAddr]) -> Result<(), ConfigError> {
        check::with_config(self, config, own)
    }

    /// Refuses prefixes that `known` does not have at the same site, and that overlap networks which interfaces of
    /// the hub are connected to, as [`Registry::refuse_connected`] does. What is known is in force, and an interface
    /// that comes later is no reason to refuse it.
    ///
    /// # Errors
    /// One problem for each, with its place in the registry.
    pub fn check_connected(
        &self,
        known: &Self,
        config: &Config,
        networks: &[(String, IpNet)],
    ) -> Result<(), ConfigError> {
        check::with_machine(self, known, config, networks)
    }

    /// Refuses prefixes that a site must not have: those of others, those that contain an address of the hub, and
    /// those that are too large. What the site has now does not count.
    ///
    /// # Errors
    /// The first that is refused; names both owners.
    pub fn refuse_claim(
        &self,
        config: &Config,
        own: &[IpAddr],
        site: &Name,
        prefixes: &[IpNet],
    ) -> Result<(), PrefixRefusal> {
        check::claim(self, config, own, site, prefixes)
    }

    /// The invitation of this number.
    pub fn invitation(&self, id: InvitationId) -> Option<(&Name, &Invitation)> {
        self.invitations
            .iter()
            .find(|(_, invitation)| invitation.id == id)
    }

    /// Whether a site or the second hub has the numbers of applications that follow from this name.
    pub fn has_wire_name(&self, name: &Name) -> bool {
        self.members()
            .any(|(of, site)| site.wire_name.as_ref().unwrap_or(of) == name)
    }

    /// What a new site of this name is to have as its [`Site::wire_name`]: nothing, unless a site that was renamed
    /// has the numbers of that name.
    pub fn free_wire_name(&self, name: &Name) -> Option<Name> {
        let is_free = |name: &Name| !self.has_wire_name(name);
        if is_free(name) {
            return None;
        }
        let stem: String = name
            .as_str()
            .chars()
            .take(SITE_NAME_BYTES_MAX - 5)
            .collect();
        // One more than there may be members.
        let mut numbered =
            (2..=SITES_MAX + 3).filter_map(|n| Name::new(&format!("{stem}-{n}")).ok());
        numbered.find(|other| is_free(other) && !self.sites.contains_key(other))
    }

    /// Sites and the second hub: all with a key and prefixes.
    pub fn members(&self) -> impl Iterator<Item = (&Name, &Site)> {
        let second = self.second_hub.iter();
        self.sites
            .iter()
            .chain(second.map(|(name, hub)| (name, &hub.site)))
    }

    /// Whether the second hub has this name.
    pub fn is_second_hub(&self, name: &Name) -> bool {
        self.second_hub.as_ref().is_some_and(|(of, _)| of == name)
    }

    /// The text that it was read from, with all keys.
    fn secret_text(&self) -> &Zeroizing<String> {
        &self.origin.secret_text
    }

    /// Where a member is in the text.
    fn spans_of(&self, name: &Name) -> Option<&SiteSpans> {
        match self.is_second_hub(name) {
            true => self.origin.second_hub.as_ref(),
            false => self.origin.sites.get(name),
        }
    }

    /// The file's name as given to [`Registry::load`] or [`Registry::parse`].
    pub fn file(&self) -> &str {
        &self.origin.file
    }
}

/// Without the text that has keys.
impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Origin");
        shown.field("file", &self.file).finish_non_exhaustive()
    }
}

/// Two registries are equal if they say the same, however they are written.
impl PartialEq for Registry {
    fn eq(&self, other: &Self) -> bool {
        self.tenant == other.tenant
            && self.direct == other.direct
            && self.apps == other.apps
            && self.sites == other.sites
            && self.second_hub == other.second_hub
            && self.invitations == other.invitations
    }
}

impl fmt::Display for InvitationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl InvitationId {
    /// The number of 16 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u64::from_str_radix(text, 16).ok())??;
        Some(Self(number.to_be_bytes()))
    }
}
