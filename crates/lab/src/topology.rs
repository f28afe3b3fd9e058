//! Topologies: hosts, and links between two of them.
//!
//! Reads a topology file and checks it as a whole, so that [`crate::lab`] can make it without further checks.
//! [`file`] describes the format.

mod file;
mod prefix;

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use keiro_config::FileLimits;
use keiro_link::{LinkConfig, Trace};

pub use crate::emulator::LINKS_MAX;
pub(crate) use file::LAB_NAME_BYTES_MAX;
pub use keiro_config::ConfigError as TopologyError;
pub use prefix::{Prefix, PrefixError};

/// Suffix of the name of the namespace that holds emulated links' outer ends; no host has it.
pub(crate) const WIRE: &str = "wire";

const FILE_LIMITS: FileLimits = FileLimits {
    // Ours: hundreds of times the need of `HOSTS_MAX` hosts.
    bytes_max: 1 << 20,
    missing_hint: "name a topology file",
    too_long_hint: "is this the right file?",
};

/// Maximum of hosts of one laboratory; ours: each is a namespace that must be made and removed.
pub const HOSTS_MAX: usize = 64;

/// A checked topology: every name that it uses exists, and no address is used twice.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// The laboratory's default name; `None` if the caller must give one.
    pub name: Option<String>,
    /// Keyed by name.
    pub hosts: BTreeMap<String, HostPlan>,
    /// Keyed by name.
    pub links: BTreeMap<String, LinkPlan>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPlan {
    /// In addition to the routes of its addresses.
    pub routes: Vec<Route>,
    /// Values of `/proc/sys` by dotted name; all begin with `net.`, which is per namespace.
    pub sysctls: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The destination. A length of zero is the default route.
    pub to: Prefix,
    /// The next hop: an address of the other end of `link`.
    pub via: IpAddr,
    /// The link of the next hop.
    pub link: String,
}

/// One link between two hosts. Its network device has the link's name on both of them.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkPlan {
    /// Largest IP packet in bytes, both directions.
    pub mtu: u32,
    pub a: End,
    pub b: End,
    /// The emulation; `None` for a plain veth pair, as fast as the machine.
    pub emulation: Option<Emulation>,
}

/// The two directions of an emulated link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Emulation {
    /// Packets from end a to end b.
    pub a_to_b: LinkConfig,
    /// Packets from end b to end a.
    pub b_to_a: LinkConfig,
    /// Recordings that the two directions are sent by instead of a rate, in this order.
    pub recordings: [Option<Trace>; 2],
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    pub host: String,
    /// Its addresses on this link, with their prefix lengths.
    pub addresses: Vec<Prefix>,
}

impl Topology {
    /// Reads a topology file.
    ///
    /// # Errors
    /// All faults, with file, line, column and a suggestion.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let text = FILE_LIMITS.read(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a topology from text; `file` is what errors call it, and recordings are beside it.
    ///
    /// # Errors
    /// All faults, with file, line, column and a suggestion.
    pub fn parse(text: &str, file: &str) -> Result<Self, TopologyError> {
        file::read(text, file)
    }
}

impl LinkPlan {
    /// The end at `host`; `None` if the link does not connect it.
    pub fn end(&self, host: &str) -> Option<&End> {
        [&self.a, &self.b].into_iter().find(|end| end.host == host)
    }

    /// The end that is not at `host`; `None` if the link does not connect it.
    pub fn far_end(&self, host: &str) -> Option<&End> {
        match host {
            _ if self.a.host == host => Some(&self.b),
            _ if self.b.host == host => Some(&self.a),
            _ => None,
        }
    }
}

/// Whether `name` is valid for a host, link or laboratory: lower-case letters, digits and hyphens, beginning
/// with a letter, at most `length_max` bytes.
pub(crate) fn is_name(name: &str, length_max: usize) -> bool {
    name.len() <= length_max
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
