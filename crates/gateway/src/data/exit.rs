//! Where outlets lead, and that they lead to no address of this machine unless they may. Addresses come and go, so
//! the kernel is asked whenever something new is let out.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
};

use keiro_control::config::{Network, admits};
use keiro_linux::{interface, route};

/// Where an application's streams are connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// All to one server.
    Server { to: SocketAddr, allow_local: bool },
    /// Each to where its client wanted, if that is in one of these networks.
    Networks {
        networks: Vec<Network>,
        allow_local: bool,
    },
}

impl Exit {
    /// Where a stream goes whose client wanted `target`, by `interface` alone if one is named; `None`: nowhere.
    pub(super) fn server(
        &self,
        target: Option<SocketAddr>,
        interface: Option<&str>,
    ) -> Option<SocketAddr> {
        // Addresses come and go.
        let is_own = |address: IpAddr| is_own(address.to_canonical(), interface);
        match self {
            Self::Server { to, allow_local } => (*allow_local || !is_own(to.ip())).then_some(*to),
            Self::Networks {
                networks,
                allow_local,
            } => target.filter(|target| admits(networks, *target, *allow_local, is_own)),
        }
    }
}

impl fmt::Display for Exit {
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

/// Where an application's datagrams are let out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UdpExit {
    pub(crate) to: SocketAddr,
    /// This machine itself may be meant.
    pub(crate) allow_local: bool,
    /// By which interface alone; a tenant's.
    pub(crate) interface: Option<String>,
}

impl UdpExit {
    /// It leads to another machine, or may lead to this one. Addresses come and go.
    pub(super) fn is_open(&self) -> bool {
        self.allow_local || !is_own(self.to.ip().to_canonical(), self.interface.as_deref())
    }
}

/// Whether packets for `address` stay on this machine, sent by `interface` alone if one is named. Where the kernel
/// does not say, they do.
fn is_own(address: IpAddr, interface: Option<&str>) -> bool {
    // By an interface that is gone nothing leaves at all.
    let by = interface.and_then(interface::index);
    let asked = [None, by].into_iter().take(1 + usize::from(by.is_some()));
    asked.into_iter().any(|by| {
        route::is_own(address, by).unwrap_or_else(|error| {
            tracing::warn!(%address, %error, "cannot tell whether it is this machine's address");
            true
        })
    })
}
