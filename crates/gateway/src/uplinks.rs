//! Which local address each path's socket has, as the machine's interfaces and addresses change.
//!
//! [`Uplinks`] decides: it takes what the machine has ([`Network`]) and says what is to be bound, bound
//! elsewhere or given up. [`NetworkWatch`] looks at the machine, and [`crate::track_uplinks`] opens the
//! sockets and passes them to the data thread.

mod auto;
mod choice;
mod connected_networks;
mod problem;
mod routes;
#[cfg(test)]
mod tests;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use keiro_control::config::{Family, Local};
use keiro_linux::interface::Interface;

use self::choice::Rebinding;

pub(crate) use self::{
    auto::found_interfaces,
    choice::{Binding, interface_of},
    connected_networks::{connected, connected_networks, withheld},
    problem::Problem,
    routes::{UplinkRoutes, free_table_sets},
    watch::NetworkWatch,
};

/// What uplinks depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    pub(crate) interfaces: Vec<Interface>,
    /// Interfaces, by index, that have a default route, and its router.
    pub(crate) default_routes: BTreeMap<(u32, Family), Option<IpAddr>>,
    /// Interfaces, by index, of which the kernel drops packets from far hosts, because it would reach these by
    /// another interface.
    pub(crate) filtered: BTreeSet<u32>,
    /// Other machines that this one asks for names.
    pub(crate) resolvers: Vec<IpAddr>,
}

/// Where each path leaves, and why it does not.
#[derive(Debug, Default)]
pub(crate) struct Uplinks {
    uplinks: BTreeMap<Local, Uplink>,
}

#[derive(Debug)]
struct Uplink {
    state: State,
    /// The interface that the socket was bound to last. It remains so while the interface has no default
    /// route for a moment, as when its lease is renewed.
    device: Option<u32>,
    has_default_route: bool,
}

/// Whether a path has a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Bound(Binding),
    Missing(Problem),
}

/// What has to be done for a path's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UplinkChange {
    pub(crate) local: Local,
    pub(crate) action: SocketAction,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SocketAction {
    /// A socket is to be opened here; [`Uplinks::on_bound`] or [`Uplinks::on_missing`] follows.
    Bind(Binding),
    /// The socket is to be bound to this interface too: its packets are to leave by it from now on, and peers may
    /// be reached that were not before. [`Uplinks::on_bound`] follows.
    BindToDevice(Binding),
    /// There is nothing to bind it to.
    Unbind(Problem),
    /// There is a default route again: peers may be reached now that were not before.
    Challenge,
    /// The default route is gone; peers on the same network may still be reached.
    Report,
}

impl Uplinks {
    /// What is to be bound for `local`, which is new, on a machine like this.
    pub(crate) fn first(local: &Local, network: &Network) -> Result<Binding, Problem> {
        choice::choose(local, None, None, network)
    }

    /// What a machine like this lacks for `local`; `None`: nothing is known to.
    pub(crate) fn problem_of(local: &Local, network: &Network) -> Option<Problem> {
        let mut uplinks = Self::default();
        match Self::first(local, network) {
            // An address that no interface has may still be the kernel's, but that is rare.
            Ok(binding) if binding.is_unlisted() => Some(Problem::AddressNotHere {
                address: binding.local,
            }),
            Ok(binding) => {
                uplinks.on_bound(local, binding, network);
                uplinks.problem(local)
            }
            Err(problem) => Some(problem),
        }
    }

    /// Forgets uplinks that `locals` does not name.
    pub(crate) fn retain(&mut self, locals: &BTreeSet<&Local>) {
        self.uplinks.retain(|local, _| locals.contains(local));
    }

    /// Takes what the machine has now, and returns what has to change.
    pub(crate) fn on_network(&mut self, network: &Network) -> Vec<UplinkChange> {
        let mut changes = Vec::new();
        for (local, uplink) in &mut self.uplinks {
            let action = uplink.on_network(local, network);
            changes.extend(action.map(|action| UplinkChange {
                local: local.clone(),
                action,
            }));
        }
        self.check_invariants();
        changes
    }

    /// The socket of `local` is open.
    pub(crate) fn on_bound(&mut self, local: &Local, binding: Binding, network: &Network) {
        let has_default_route = binding.has_default_route(network);
        let uplink = Uplink {
            device: binding.device.as_ref().and(binding.owner),
            has_default_route,
            state: State::Bound(binding),
        };
        self.uplinks.insert(local.clone(), uplink);
        self.check_invariants();
    }

    /// `local` has no socket.
    pub(crate) fn on_missing(&mut self, local: &Local, problem: Problem) {
        let uplink = self.uplinks.entry(local.clone()).or_insert_with(|| Uplink {
            state: State::Missing(problem.clone()),
            device: None,
            has_default_route: false,
        });
        uplink.state = State::Missing(problem);
        uplink.has_default_route = false;
        self.check_invariants();
    }

    /// Something failed that may succeed although nothing changes at the machine.
    pub(crate) fn may_retry(&self) -> bool {
        let mut all = self.uplinks.values();
        all.any(|uplink| matches!(uplink.state, State::Missing(Problem::CannotBind { .. })))
    }

    /// Where a path leaves now; `None`: nowhere.
    pub(crate) fn binding(&self, local: &Local) -> Option<&Binding> {
        match &self.uplinks.get(local)?.state {
            State::Bound(binding) => Some(binding),
            State::Missing(_) => None,
        }
    }

    /// Where the paths leave now.
    pub(crate) fn bindings(&self) -> impl Iterator<Item = &Binding> {
        self.uplinks
            .values()
            .filter_map(|uplink| match &uplink.state {
                State::Bound(binding) => Some(binding),
                State::Missing(_) => None,
            })
    }

    /// What keeps a path from use at this machine, and what to try; `None`: nothing is known to.
    pub(crate) fn problem(&self, local: &Local) -> Option<Problem> {
        let uplink = self.uplinks.get(local)?;
        match (&uplink.state, local) {
            (State::Missing(problem), _) => Some(problem.clone()),
            (State::Bound(_), Local::Interface(of)) if !uplink.has_default_route => {
                Some(Problem::NoDefaultRoute {
                    interface: of.interface.clone(),
                })
            }
            _ => None,
        }
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        for (local, uplink) in &self.uplinks {
            let State::Bound(binding) = &uplink.state else {
                assert!(
                    !uplink.has_default_route,
                    "an uplink without a socket has no route"
                );
                continue;
            };
            match local {
                Local::Address(address) => {
                    assert_eq!(binding.local, *address, "a fixed address is fixed");
                }
                Local::Interface(of) => {
                    let family = Family::of(&binding.local);
                    assert!(
                        of.family.is_none_or(|wanted| wanted == family),
                        "the version of an address is the configured one"
                    );
                    assert!(
                        binding.device.is_some(),
                        "the socket of an interface path is bound to the interface"
                    );
                }
            }
        }
    }
}

impl Uplink {
    fn on_network(&mut self, local: &Local, network: &Network) -> Option<SocketAction> {
        let present = match &self.state {
            State::Bound(binding) => Some(binding),
            State::Missing(_) => None,
        };
        let chosen = choice::choose(local, present, self.device, network);
        let rebinding = match (present, &chosen) {
            (Some(present), Ok(binding)) => present.rebinding(binding),
            _ => Rebinding::Anew,
        };
        match chosen {
            Ok(binding) if rebinding == Rebinding::ToDevice => {
                Some(SocketAction::BindToDevice(binding))
            }
            Ok(binding) if rebinding == Rebinding::None => {
                let had = self.has_default_route;
                self.has_default_route = binding.has_default_route(network);
                self.state = State::Bound(binding);
                match (had, self.has_default_route) {
                    (false, true) => Some(SocketAction::Challenge),
                    (true, false) if matches!(local, Local::Interface(_)) => {
                        Some(SocketAction::Report)
                    }
                    _ => None,
                }
            }
            Ok(binding) => Some(SocketAction::Bind(binding)),
            Err(problem) if self.state == State::Missing(problem.clone()) => None,
            Err(problem) => Some(SocketAction::Unbind(problem)),
        }
    }
}
