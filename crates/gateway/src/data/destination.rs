//! Destinations of forwards. They must not be this machine unless allowed. Addresses come and go,
//! so the kernel is asked whenever a flow begins.

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr},
};

use keiro_control::config::{Network, admits, names_alone, reached_by};
use keiro_linux::{interface, route};

/// The TCP destination of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TcpDestination {
    Server {
        to: SocketAddr,
        allow_local: bool,
    },
    /// The address that each client wanted, if it is in one of these networks.
    Networks {
        networks: Vec<Network>,
        allow_local: bool,
    },
}

impl TcpDestination {
    /// Where a stream goes whose client wanted `target`, by `interface` alone if one is named; `None`: nowhere.
    ///
    /// # Errors
    /// The kernel does not say whether that is this machine, which it must not be.
    pub(super) fn server(
        &self,
        target: Option<SocketAddr>,
        interface: Option<&str>,
    ) -> io::Result<Option<SocketAddr>> {
        let mut unknown = None;
        let mut is_own = |address| {
            is_own(address, interface).unwrap_or_else(|error| {
                unknown = Some(error);
                true
            })
        };
        let server = match self {
            Self::Server { to, allow_local } => (*allow_local || !is_own(to.ip())).then_some(*to),
            Self::Networks {
                networks,
                allow_local,
            } => target.filter(|target| admits(networks, *target, *allow_local, is_own)),
        };
        unknown.map_or(Ok(server), Err)
    }

    /// Whether `server`, to which this led, is known to be this machine by now, and must not be.
    pub(super) fn is_forbidden_by_now(&self, server: SocketAddr, interface: Option<&str>) -> bool {
        let may_be_own = match self {
            Self::Server { allow_local, .. } => *allow_local,
            Self::Networks {
                networks,
                allow_local,
            } => *allow_local && names_alone(networks, server),
        };
        !may_be_own && is_own(server.ip(), interface).unwrap_or(false)
    }
}

impl fmt::Display for TcpDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { to, .. } => write!(f, "{to}"),
            Self::Networks { networks, .. } => {
                let names: Vec<String> = networks.iter().map(Network::to_string).collect();
                f.write_str(&names.join(", "))
            }
        }
    }
}

/// The UDP destination of an application.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdpDestination {
    pub(crate) to: SocketAddr,
    /// May be this machine.
    pub(crate) allow_local: bool,
    /// The only interface to use; a tenant's.
    pub(crate) interface: Option<String>,
}

impl UdpDestination {
    /// Whether datagrams may go there: to another machine, or to this one if allowed.
    ///
    /// # Errors
    /// The kernel does not say whether it leads to this one.
    pub(super) fn is_open(&self) -> io::Result<bool> {
        Ok(self.allow_local || !is_own(self.to.ip(), self.interface.as_deref())?)
    }
}

/// Whether packets for `address`, or for an IPv4 address that it embeds, stay on this machine, on `interface`
/// if one is given.
fn is_own(address: IpAddr, interface: Option<&str>) -> io::Result<bool> {
    // Without the interface nothing is sent at all.
    let by = interface.and_then(interface::index);
    for address in reached_by(address) {
        let at_all = route::is_own(address, None)?;
        if at_all || by.is_some() && route::is_own(address, by)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use ipnet::IpNet;

    use super::*;

    #[test]
    fn what_is_forbidden_by_now_is_asked_of_the_server_that_was_meant() {
        let here: SocketAddr = "127.0.0.1:80".parse().unwrap();
        // From a documentation range, so it is not ours.
        let elsewhere: SocketAddr = "192.0.2.1:80".parse().unwrap();
        let destination = |allow_local| TcpDestination::Server {
            to: here,
            allow_local,
        };
        assert!(destination(false).is_forbidden_by_now(here, None));
        assert!(!destination(true).is_forbidden_by_now(here, None));
        // A reload has given the forward another server; this one is as good as it was.
        assert!(!destination(false).is_forbidden_by_now(elsewhere, None));
        assert_eq!(destination(false).server(None, None).unwrap(), None);
        assert_eq!(destination(true).server(None, None).unwrap(), Some(here));
    }

    #[test]
    fn address_of_this_machine_within_another_one_is_its_own() {
        for own in [
            "::ffff:127.0.0.1",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::127.0.0.1",
            "2002:7f00:1::1",
        ] {
            let to = SocketAddr::new(own.parse().unwrap(), 80);
            let destination = UdpDestination {
                to,
                allow_local: false,
                interface: None,
            };
            assert!(!destination.is_open().unwrap(), "{own}");
        }
    }

    #[test]
    fn by_networks_this_machine_is_reached_only_where_one_names_the_address_alone() {
        let here: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let destination = |network: &str, allow_local| TcpDestination::Networks {
            networks: vec![network.parse::<IpNet>().unwrap().into()],
            allow_local,
        };
        assert!(destination("0.0.0.0/0", true).is_forbidden_by_now(here, None));
        assert!(destination("127.0.0.1/32", false).is_forbidden_by_now(here, None));
        assert!(!destination("127.0.0.1/32", true).is_forbidden_by_now(here, None));
    }
}
