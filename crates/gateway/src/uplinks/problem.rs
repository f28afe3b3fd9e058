//! What keeps an uplink from use, in words.

use std::{fmt, net::SocketAddr};

use keiro_control::config::Family;

/// Why a path has no socket, or one that reaches only its own link. `Display` says what to try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    NoInterface {
        interface: String,
    },
    Down {
        interface: String,
    },
    NoCarrier {
        interface: String,
    },
    NoAddress {
        interface: String,
        family: Option<Family>,
    },
    /// Nothing leaves the machine by it.
    Loopback {
        interface: String,
    },
    /// Another interface receives what comes in by it.
    IsPort {
        interface: String,
        controller: String,
    },
    NoDefaultRoute {
        interface: String,
    },
    AddressNotHere {
        address: SocketAddr,
    },
    AddressNotReady {
        address: SocketAddr,
    },
    /// The system refuses the address; `why` says what to try.
    CannotBind {
        why: String,
    },
    /// The machine's interfaces are not known.
    NotKnown {
        why: String,
    },
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoInterface { interface } => write!(
                f,
                "interface {interface} does not exist; the path is used when it appears (`ip link` lists the others)"
            ),
            Self::Down { interface } => write!(
                f,
                "interface {interface} is down; set it up with `ip link set {interface} up`"
            ),
            Self::NoCarrier { interface } => write!(
                f,
                "interface {interface} has no carrier; check its cable, modem or signal"
            ),
            Self::NoAddress { interface, family } => {
                let version = family.map_or("", Family::as_str);
                let space = if version.is_empty() { "" } else { " " };
                write!(
                    f,
                    "interface {interface} has no {version}{space}address; is its DHCP client, PPP daemon or modem \
                     manager running?"
                )
            }
            Self::Loopback { interface } => write!(
                f,
                "interface {interface} is the loopback interface, by which no peer is reached; name an interface \
                 that leads to one, or write local = \"ADDRESS:PORT\" for a peer on this machine"
            ),
            Self::IsPort {
                interface,
                controller,
            } => write!(
                f,
                "interface {interface} is a port of {controller}, which receives its packets; write interface = \
                 \"{controller}\""
            ),
            Self::NoDefaultRoute { interface } => write!(
                f,
                "interface {interface} has no default route, so only hosts on its own link are reached; give it \
                 one with a metric of its own (`ip route add default via GATEWAY dev {interface} metric 200`)"
            ),
            Self::AddressNotHere { address } => write!(
                f,
                "no interface has the address {}; the path is used when one has it, or write interface instead of \
                 local if the address changes",
                address.ip()
            ),
            Self::AddressNotReady { address } => write!(
                f,
                "the address {} is still being checked for duplicates",
                address.ip()
            ),
            Self::CannotBind { why } => f.write_str(why),
            Self::NotKnown { why } => {
                write!(f, "the machine's interfaces cannot be listed: {why}")
            }
        }
    }
}
