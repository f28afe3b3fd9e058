//! Which address of which interface a path's socket is bound to.

use std::net::{IpAddr, SocketAddr};

use keiro_control::config::{Family, InterfaceLocal, Local};
use keiro_linux::interface::{Address, Interface};

use super::{Network, Problem};

/// What a socket is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) local: SocketAddr,
    /// The index of the interface that has the address; `None`: none is listed with it.
    pub(crate) owner: Option<u32>,
    /// The interface by which alone packets come and go; `None`: the routes decide.
    pub(crate) device: Option<String>,
}

/// What a socket needs that is bound as [`Binding`] says, to serve for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rebinding {
    /// Nothing.
    None,
    /// It is to be bound to the interface too, which needs no other socket.
    ToDevice,
    /// Another socket.
    Anew,
}

impl Binding {
    /// What this socket needs to be as `wanted`. It depends on its address and on the interface that it is bound
    /// to, by whatever name; on which interface has the address only if it is bound to that one.
    pub(super) fn rebinding(&self, wanted: &Self) -> Rebinding {
        let has_gone = self.owner.is_some() && wanted.owner.is_none();
        match (&self.device, &wanted.device) {
            _ if self.local != wanted.local || has_gone => Rebinding::Anew,
            (None, None) => Rebinding::None,
            (None, Some(_)) => Rebinding::ToDevice,
            (Some(_), Some(_)) if self.owner == wanted.owner => Rebinding::None,
            // Linux lets no one take a socket from its interface without privileges.
            (Some(_), _) => Rebinding::Anew,
        }
    }

    /// It is an address of one machine, and no interface of this one is listed with it.
    pub(super) fn is_unlisted(&self) -> bool {
        let ip = self.local.ip();
        self.owner.is_none() && !ip.is_unspecified() && !ip.is_loopback()
    }

    pub(super) fn has_default_route(&self, network: &Network) -> bool {
        let route = |owner| (owner, Family::of(&self.local));
        self.owner
            .is_some_and(|owner| network.default_routes.contains_key(&route(owner)))
    }
}

/// Where the socket of `local` is to be bound. `present`: where it is bound now. `device`: the interface that
/// it was bound to last.
pub(super) fn choose(
    local: &Local,
    present: Option<&Binding>,
    device: Option<u32>,
    network: &Network,
) -> Result<Binding, Problem> {
    match local {
        Local::Address(address) => fixed(*address, present, device, network),
        Local::Interface(of) => of_interface(of, present, network),
    }
}

/// The interface that a path depends on: the one that is named, or that has the address.
pub(crate) fn interface_of<'a>(local: &Local, all: &'a [Interface]) -> Option<&'a Interface> {
    all.iter().find(|interface| match local {
        Local::Address(address) => address_of(interface, address).is_some(),
        Local::Interface(of) => interface.name == of.interface,
    })
}

/// A socket with a fixed address is bound to the interface that has the address if that interface has a
/// default route. Otherwise the machine's routes decide, as for the address of a loopback device, or of a LAN
/// interface behind which no uplink is, or of a bridge's port, which receives nothing itself.
fn fixed(
    address: SocketAddr,
    present: Option<&Binding>,
    device: Option<u32>,
    network: &Network,
) -> Result<Binding, Problem> {
    let mut binding = Binding {
        local: address,
        owner: None,
        device: None,
    };
    if address.ip().is_unspecified() || address.ip().is_loopback() {
        return Ok(binding);
    }
    // Several interfaces may have it; that of before stays.
    let stays = |interface: &&Interface| {
        let is_owner = present.is_some_and(|present| present.owner == Some(interface.index));
        is_owner && address_of(interface, &address).is_some()
    };
    let local = Local::Address(address);
    let owner = network.interfaces.iter().find(stays);
    // The kernel may have it without listing it (a local route to a prefix).
    let Some(owner) = owner.or_else(|| interface_of(&local, &network.interfaces)) else {
        return Ok(binding);
    };
    binding.owner = Some(owner.index);
    if address_of(owner, &address).is_some_and(|found| !found.ready) {
        return Err(Problem::AddressNotReady { address });
    }
    if !owner.loopback
        && owner.port_of.is_none()
        && (binding.has_default_route(network) || device == Some(owner.index))
    {
        usable(owner)?;
        binding.device = Some(owner.name.clone());
    }
    Ok(binding)
}

fn of_interface(
    of: &InterfaceLocal,
    present: Option<&Binding>,
    network: &Network,
) -> Result<Binding, Problem> {
    let mut all = network.interfaces.iter();
    let Some(interface) = all.find(|interface| interface.name == of.interface) else {
        return Err(Problem::NoInterface {
            interface: of.interface.clone(),
        });
    };
    usable(interface)?;
    if interface.loopback {
        return Err(Problem::Loopback {
            interface: of.interface.clone(),
        });
    }
    if let Some(controller) = &interface.port_of {
        return Err(Problem::IsPort {
            interface: of.interface.clone(),
            controller: controller.clone(),
        });
    }
    let families = match of.family {
        Some(family) => vec![family],
        None => vec![Family::V4, Family::V6],
    };
    let present = present.map(|binding| binding.local.ip());
    let found = families
        .into_iter()
        .find_map(|family| best(&interface.addresses, family, present));
    let Some(ip) = found else {
        return Err(Problem::NoAddress {
            interface: of.interface.clone(),
            family: of.family,
        });
    };
    Ok(Binding {
        local: SocketAddr::new(ip, of.port),
        owner: Some(interface.index),
        device: Some(interface.name.clone()),
    })
}

/// The address in use as long as it stays, else the first; those that pass only if there is no other.
fn best(addresses: &[Address], family: Family, present: Option<IpAddr>) -> Option<IpAddr> {
    let is_of_use = |address: &&Address| {
        let is_of_family = address.ip.is_ipv6() == (family == Family::V6);
        is_of_family && address.ready && is_reached_from_afar(&address.ip)
    };
    let all = addresses.iter().filter(is_of_use);
    let best = all.min_by_key(|address| (address.passing, Some(address.ip) != present));
    best.map(|address| address.ip)
}

fn usable(interface: &Interface) -> Result<(), Problem> {
    let name = || interface.name.clone();
    match (interface.up, interface.carrier) {
        (true, true) => Ok(()),
        (false, _) => Err(Problem::Down { interface: name() }),
        (true, false) => Err(Problem::NoCarrier { interface: name() }),
    }
}

fn address_of<'a>(interface: &'a Interface, wanted: &SocketAddr) -> Option<&'a Address> {
    // A link-local address says of which interface it is.
    if let SocketAddr::V6(v6) = wanted
        && v6.scope_id() != 0
        && v6.scope_id() != interface.index
    {
        return None;
    }
    let mut addresses = interface.addresses.iter();
    addresses.find(|address| address.ip == wanted.ip())
}

/// Private addresses too: peers may be in one network, or behind a NAT.
fn is_reached_from_afar(ip: &IpAddr) -> bool {
    let is_link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(is_link_local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
}
