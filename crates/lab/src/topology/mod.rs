//! What a laboratory consists of: hosts, and links between two of them.
//!
//! Reads a topology file, checks it as a whole, and gives values that [`crate::lab`] can make
//! without asking again. How a file is written is in [`file`]; what is made from it is left to
//! [`crate::lab`].

mod error;
mod file;
mod prefix;

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Read},
    net::IpAddr,
    path::Path,
};

use keiro_link::LinkConfig;

pub use crate::emulator::LINKS_MAX;
pub use error::TopologyError;
pub(crate) use file::LAB_NAME_BYTES_MAX;
pub use prefix::{Prefix, PrefixError};

/// The longest topology file. Ours: hundreds of times what [`HOSTS_MAX`] hosts need.
const FILE_BYTES_MAX: u64 = 1 << 20;

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
    /// With file, line and what to write instead.
    pub fn load(path: &Path) -> Result<Self, TopologyError> {
        let file = path.display().to_string();
        let text = read_bounded(path)
            .map_err(|what| TopologyError::new(&file, None, format!("{what}; name a TOML file")))?;
        Self::parse(&text, &file)
    }

    /// Reads a topology from text; `file` is what errors call it.
    ///
    /// # Errors
    /// With file, line and what to write instead.
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

/// The known name that `name` was most likely meant to be; `None` if none is near.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        // Ours: below 0.75 two short names have little more than letters in common.
        .filter(|(likeness, _)| *likeness >= 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
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

/// The text of a file of at most [`FILE_BYTES_MAX`], or what is wrong with it.
fn read_bounded(path: &Path) -> Result<String, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    // Looked at first: opening a FIFO would wait for its writer.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("is longer than {FILE_BYTES_MAX} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "is not text (UTF-8)".to_owned())
}
