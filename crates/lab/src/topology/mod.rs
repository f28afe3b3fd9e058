//! What a laboratory consists of: hosts, and links between two of them.
//!
//! Reads a topology file, checks it as a whole, and gives values that [`crate::lab`] can make
//! without asking again. How a file is written is in [`file`]; what is made from it is left to
//! [`crate::lab`].

mod file;
mod prefix;

use std::{collections::BTreeMap, net::IpAddr, path::Path};

use keiro_config::FileLimits;
use keiro_link::LinkConfig;

pub use crate::emulator::LINKS_MAX;
pub(crate) use file::LAB_NAME_BYTES_MAX;
pub use keiro_config::ConfigError as TopologyError;
pub use prefix::{Prefix, PrefixError};

const FILE_LIMITS: FileLimits = FileLimits {
    // Ours: hundreds of times what `HOSTS_MAX` hosts need.
    bytes_max: 1 << 20,
    missing_hint: "name a topology file",
    too_long_hint: "is this the right file?",
};

/// The most hosts of one laboratory; ours: each is a namespace that must be made and removed.
pub const HOSTS_MAX: usize = 64;

/// A checked topology: every name that it uses exists, every address is its host's alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// The laboratory's name if the caller gives none. `None`: the caller must.
    pub name: Option<String>,
    /// By name.
    pub hosts: BTreeMap<String, HostPlan>,
    /// By name.
    pub links: BTreeMap<String, LinkPlan>,
}

/// One host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPlan {
    /// Beside the routes that its addresses bring.
    pub routes: Vec<Route>,
    /// Values of `/proc/sys` by dotted name; all begin with `net.`, which a namespace has to
    /// itself.
    pub sysctls: BTreeMap<String, String>,
}

/// A static route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where to. A length of zero is the default route.
    pub to: Prefix,
    /// The next hop: an address of the other end of `link`.
    pub via: IpAddr,
    /// The link that leads there.
    pub link: String,
}

/// One link between two hosts. Its network device has the link's name on both of them.
#[derive(Clone, Debug, PartialEq)]
pub struct LinkPlan {
    /// Largest IP packet in bytes, both directions.
    pub mtu: u32,
    /// One end.
    pub a: End,
    /// The other end.
    pub b: End,
    /// What is emulated. `None`: a plain veth pair, as fast as the machine.
    pub emulation: Option<Emulation>,
}

/// The two directions of an emulated link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Emulation {
    /// Packets from end a to end b.
    pub a_to_b: LinkConfig,
    /// Packets from end b to end a.
    pub b_to_a: LinkConfig,
}

/// One end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The host's name.
    pub host: String,
    /// Its addresses on this link, with their prefix lengths.
    pub addresses: Vec<Prefix>,
}

impl Topology {
    /// Reads a topology file.
    ///
    /// # Errors
    /// Everything that is wrong, with file, line, column and what to write instead.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let text = FILE_LIMITS.read(path)?;
        Self::parse(&text, &path.display().to_string())
    }

    /// Reads a topology from text; `file` is what errors call it.
    ///
    /// # Errors
    /// Everything that is wrong, with file, line, column and what to write instead.
    pub fn parse(text: &str, file: &str) -> Result<Self, TopologyError> {
        file::read(text, file)
    }
}

impl LinkPlan {
    /// The end at `host`; `None` if the link does not lead there.
    pub fn end(&self, host: &str) -> Option<&End> {
        [&self.a, &self.b].into_iter().find(|end| end.host == host)
    }

    /// The end that is not at `host`; `None` if the link does not lead there.
    pub fn far_end(&self, host: &str) -> Option<&End> {
        match host {
            _ if self.a.host == host => Some(&self.b),
            _ if self.b.host == host => Some(&self.a),
            _ => None,
        }
    }
}

/// Whether `name` can be a host's, link's or laboratory's: lower-case letters, digits and hyphens,
/// beginning with a letter, at most `length_max` bytes.
pub(crate) fn is_name(name: &str, length_max: usize) -> bool {
    name.len() <= length_max
        && name.starts_with(|c: char| c.is_ascii_lowercase())
        && name
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}
