//! Where a path leaves this gateway: from a fixed address, or by an interface with whatever address
//! that has.

use std::{fmt, net::SocketAddr};

use keiro_config::{Located, TableReader, ValueError, choice};
use toml::de::DeValue;

use super::{
    PathIndex, Peer,
    draft::Draft,
    entries::Reader,
    tenant::{device, integer},
    values::local_address,
};

/// Default of `port`.
pub const DEFAULT_PATH_PORT: u16 = 7600;

/// Where a path leaves this gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Local {
    /// This UDP address; never port 0.
    Address(SocketAddr),
    /// An interface, whose addresses are followed.
    Interface(InterfaceLocal),
}

/// An interface of which one address at a time is used.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InterfaceLocal {
    pub interface: String,
    /// The UDP port; never 0.
    pub port: u16,
    /// The version of the address. `None`: IPv4 while the interface has such an address, else IPv6.
    pub family: Option<Family>,
}

/// A version of IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    V4,
    V6,
}

const FAMILIES: &[(&str, Family)] = &[("ipv4", Family::V4), ("ipv6", Family::V6)];

impl Family {
    pub fn of(address: &SocketAddr) -> Self {
        match address.is_ipv4() {
            true => Self::V4,
            false => Self::V6,
        }
    }

    /// As documents write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl Local {
    /// An interface with the default port, and whatever address it has.
    pub fn of_interface(interface: &str) -> Self {
        Self::Interface(InterfaceLocal {
            interface: interface.to_owned(),
            port: DEFAULT_PATH_PORT,
            family: None,
        })
    }

    /// The fixed address; `None`: it is an interface's.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Interface(_) => None,
        }
    }

    /// The interface whose addresses are followed; `None`: the address is fixed.
    pub fn interface(&self) -> Option<&str> {
        match self {
            Self::Address(_) => None,
            Self::Interface(local) => Some(&local.interface),
        }
    }

    /// `None`: it depends on the interface's addresses.
    pub fn family(&self) -> Option<Family> {
        match self {
            Self::Address(address) => Some(Family::of(address)),
            Self::Interface(local) => local.family,
        }
    }

    pub(super) fn port(&self) -> u16 {
        match self {
            Self::Address(address) => address.port(),
            Self::Interface(local) => local.port,
        }
    }

    /// Both are one interface's, with one port and maybe one address.
    pub(super) fn is_same_interface(&self, other: &Self) -> bool {
        let (Self::Interface(a), Self::Interface(b)) = (self, other) else {
            return false;
        };
        let one_family = a.family.is_none() || b.family.is_none() || a.family == b.family;
        (&a.interface, a.port) == (&b.interface, b.port) && one_family
    }
}

impl fmt::Display for Local {
    /// An address and port, or an interface and port: `wwan0:7600`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => write!(f, "{address}"),
            Self::Interface(local) => write!(f, "{}:{}", local.interface, local.port),
        }
    }
}

impl Reader<'_> {
    /// `local`, or `interface` with `port` and `family`.
    pub(super) fn local(&mut self, fields: &mut TableReader<'_, '_>) -> Option<Located<Local>> {
        let is_one = self.one_of(fields, &["interface", "local"], "\"eth0\"");
        let r = &mut self.report;
        let address = fields.optional(r, "local", local_address);
        let interface = fields.optional(r, "interface", device);
        let (port_at, family_at) = (fields.span_of("port"), fields.span_of("family"));
        let (has_port, has_family) = (fields.has("port"), fields.has("family"));
        let port = fields.optional(r, "port", port);
        let family = fields.optional(r, "family", |value| choice(value, FAMILIES));
        if !is_one {
            return None;
        }
        if let Some(address) = address {
            for (key, at, has) in [
                ("port", port_at, has_port),
                ("family", family_at, has_family),
            ] {
                if has {
                    let message = format!("{key}: it is part of `local` already");
                    r.add(
                        &at,
                        message,
                        "remove it, or write interface instead of local",
                    );
                }
            }
            return Some(Located {
                value: Local::Address(address.value),
                at: address.at,
            });
        }
        let interface = interface?;
        if (has_port && port.is_none()) || (has_family && family.is_none()) {
            return None;
        }
        let local = InterfaceLocal {
            interface: interface.value,
            port: port.map_or(DEFAULT_PATH_PORT, |port| port.value),
            family: family.map(|family| family.value),
        };
        Some(Located {
            value: Local::Interface(local),
            at: interface.at,
        })
    }
}

pub(super) fn port(value: &DeValue<'_>) -> Result<u16, ValueError> {
    let number = integer(value)?;
    let found = u16::try_from(number).ok().filter(|port| *port > 0);
    found.ok_or_else(|| {
        ValueError::new(
            format!("{number} is no UDP port"),
            "write 1 to 65535, as in port = 7600",
        )
    })
}

/// Gives paths of interfaces without `family` that of their peers' endpoints. Whether these agree is
/// checked later.
pub(super) fn follow_endpoints(draft: &mut Draft) {
    for (number, (path, _)) in draft.paths.iter_mut().enumerate() {
        if let Local::Interface(local) = &mut path.local
            && local.family.is_none()
        {
            let index = PathIndex(number);
            let mut peers = draft.peers.iter().map(|(peer, _)| peer);
            local.family = peers.find_map(|peer: &Peer| peer.endpoints.get(&index).map(Family::of));
        }
    }
}
