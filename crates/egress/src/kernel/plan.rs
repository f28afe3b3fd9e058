//! The part of the configuration that concerns the kernel, and the state that does not depend on
//! routes.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv6Addr},
    ops::RangeInclusive,
};

use ipnet::Ipv6Net;
use keiro_linux::{
    epe::{Change, OwnAddress, Owner, Reconciler, State},
    interface,
    nexthop::Nexthop,
    rule::{DropRule, InterfaceName, MarkRule, SourceRule},
    seg6::Behaviour,
    vrf::Vrf,
};

use super::{KernelError, MAIN};
use crate::{
    config::{self, EgressPeer, EndpointPeer, EpeAddresses, Mptcp, TABLES_MAX},
    forwarding::PeerIndex,
};

#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) owner: Owner,
    pub(super) nexthop_ids: RangeInclusive<u32>,
    pub(super) peers: BTreeMap<PeerIndex, Peer>,
    /// `None`: a border router.
    pub(super) server: Option<Server>,
    /// `None`: a server.
    pub(super) guard: Option<Guard>,
}

/// A border router's segments, which egress peers must not reach (RFC 8754 §5.1).
#[derive(Clone, Debug)]
pub(super) struct Guard {
    pub(super) locator: Ipv6Net,
    pub(super) priority: u32,
    /// Servers may be behind the same interfaces as these.
    pub(super) reflectors: Vec<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) name: String,
    pub(super) table: u32,
    /// Border router only.
    pub(super) interface: Option<String>,
    /// Border router only: the peer's address, and whether its next hops must be on-link.
    pub(super) address: Option<IpAddr>,
    pub(super) on_link: bool,
    /// The address of an End.DX6 segment, which has no table.
    pub(super) direct: Option<Ipv6Addr>,
    /// Border router only: the segment of IPv4 packets.
    pub(super) ipv4_sid: Option<Ipv6Addr>,
    /// Server only: the EPE addresses.
    pub(super) own: Option<EpeAddresses>,
    /// Server only: the VRF device of the table.
    pub(super) vrf: Option<Vrf>,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) interface: Option<String>,
    pub(super) reflector: Option<IpAddr>,
    pub(super) priority: u32,
    pub(super) mptcp: Mptcp,
    pub(super) steering: Option<Marks>,
}

/// The first mark of steered connections and the first table of steered prefixes, one for each
/// egress peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marks {
    pub(super) first_mark: u32,
    pub(super) first_table: u32,
}

impl Plan {
    /// The part of an earlier run's state to keep: routes in tables that are still in use.
    pub(super) fn kept(&self, present: &State) -> State {
        let tables = self.peers.values().map(|peer| peer.table);
        let tables: BTreeSet<u32> = tables.chain([MAIN]).collect();
        let mut kept = State::default();
        for (&number, table) in &present.tables {
            if tables.contains(&number) {
                kept.tables.entry(number).or_default().routes = table.routes.clone();
            }
        }
        let used = kept.tables.values().flat_map(|table| table.routes.values());
        let used: BTreeSet<u32> = used.copied().collect();
        let nexthops = present.nexthops.iter();
        let nexthops = nexthops.filter(|(id, _)| used.contains(id));
        kept.nexthops = nexthops.map(|(id, nexthop)| (*id, *nexthop)).collect();
        let known = &kept.nexthops;
        for table in kept.tables.values_mut() {
            table.routes.retain(|_, id| known.contains_key(id));
        }
        kept
    }

    /// The egress peer whose table a change concerns; `None`: it is of no one peer.
    pub(super) fn whose(&self, change: &Change) -> Option<&str> {
        let table = match change {
            Change::SetRoute(key, _) | Change::RemoveRoute(key) => key.table,
            Change::CloseTable(table) | Change::OpenTable(table) => *table,
            Change::CloseIpv4(table) | Change::OpenIpv4(table) => *table,
            Change::SetSid(sid) => match sid.behaviour() {
                Behaviour::EndDt6 { table } => table,
                Behaviour::EndDx6 { .. } => return None,
                Behaviour::EndDx4 => {
                    let mut peers = self.peers.values();
                    let peer = peers.find(|peer| peer.ipv4_sid == Some(sid.address()));
                    return peer.map(|peer| peer.name.as_str());
                }
            },
            Change::SetRule(rule) | Change::RemoveRule(rule) => rule.table,
            _ => return None,
        };
        let mut peers = self.peers.values();
        let peer = peers.find(|peer| peer.table == table)?;
        Some(&peer.name)
    }

    /// Rules that drop packets from egress peers to segments, for the current interfaces. An
    /// interface with a reflector behind it gets none, since servers may be behind it too.
    pub(super) fn drops(
        &self,
        reconciler: &mut Reconciler,
        before: &BTreeSet<DropRule>,
    ) -> BTreeSet<DropRule> {
        let Some(guard) = &self.guard else {
            return BTreeSet::new();
        };
        let ways = guard.reflectors.iter();
        let ways = ways.filter_map(|reflector| reconciler.resolve(*reflector).ok().flatten());
        let inside: BTreeSet<_> = ways
            .filter_map(|way| InterfaceName::new(&interface::name(way.interface)?))
            .collect();
        let of_peers = self.peers.values().filter_map(|peer| {
            let name = match &peer.interface {
                Some(name) => name.clone(),
                None => interface::name(peer.at(reconciler).ok()?)?,
            };
            Some(DropRule {
                priority: guard.priority,
                interface: InterfaceName::new(&name)?,
                destination: guard.locator,
            })
        });
        let mut all: BTreeSet<DropRule> = of_peers.collect();
        all.extend(before);
        all.retain(|rule| !inside.contains(&rule.interface));
        all
    }

    /// The rule from the mark of packets for a border router's segment for IPv4 to the peer's table; `None`: it has
    /// no such segment.
    pub(super) fn segment_rule(&self, peer: PeerIndex) -> Option<MarkRule> {
        let of = self.peers.get(&peer)?;
        of.ipv4_sid?;
        Some(MarkRule {
            priority: self.guard.as_ref()?.priority,
            mark: segment_mark(peer)?,
            table: of.table,
            ipv6: false,
        })
    }

    /// A server's rules from marks of connections to the tables of steered prefixes.
    pub(super) fn mark_rules(&self) -> BTreeSet<MarkRule> {
        let server = self.server.as_ref();
        let Some((server, steered)) = server.and_then(|one| Some((one, one.steering?))) else {
            return BTreeSet::new();
        };
        let rule = |peer: &PeerIndex, ipv6| {
            Some(MarkRule {
                priority: server.priority,
                mark: of_peer(steered.first_mark, *peer)?,
                table: of_peer(steered.first_table, *peer)?,
                ipv6,
            })
        };
        let peers = self.peers.keys();
        let rules = peers.flat_map(|peer| [rule(peer, true), rule(peer, false)]);
        rules.flatten().collect()
    }

    /// A server's state that does not depend on routes: closed tables, addresses and rules.
    pub(super) fn furnish(&self, state: &mut State, interface: Option<u32>) {
        let (Some(server), Some(interface)) = (&self.server, interface) else {
            return;
        };
        state.marks = self.mark_rules();
        for peer in self.peers.values() {
            let table = state.tables.entry(peer.table).or_default();
            (table.closed, table.closed_ipv4) = (true, true);
            for address in peer.own_addresses() {
                state.rules.insert(SourceRule {
                    priority: server.priority,
                    source: address,
                    table: peer.table,
                });
                state.addresses.insert(OwnAddress { address, interface });
            }
        }
    }
}

impl Server {
    pub(super) fn interface(&self, reconciler: &mut Reconciler) -> Result<u32, KernelError> {
        if let Some(name) = &self.interface {
            return interface::index(name).ok_or_else(|| KernelError::NoInterface(name.clone()));
        }
        let Some(reflector) = self.reflector else {
            return Err(KernelError::NoRoute("a reflector".to_owned()));
        };
        let way = reconciler.resolve(reflector)?;
        way.map(|way| way.interface)
            .ok_or_else(|| KernelError::NoRoute(reflector.to_string()))
    }
}

impl Peer {
    pub(super) fn of_asbr(peer: &EgressPeer) -> Self {
        Self {
            name: peer.neighbour.name.clone(),
            table: peer.table,
            interface: peer.interface.clone(),
            address: Some(peer.neighbour.address),
            on_link: peer.neighbour.one_hop,
            direct: match (peer.behaviour, peer.neighbour.address) {
                (config::Behaviour::Neighbour, IpAddr::V6(address)) => Some(address),
                _ => None,
            },
            ipv4_sid: peer.ipv4_sid,
            own: None,
            vrf: None,
        }
    }

    pub(super) fn of_endpoint(peer: &EndpointPeer) -> Self {
        Self {
            name: peer.name.clone(),
            table: peer.table,
            interface: None,
            address: None,
            on_link: false,
            direct: None,
            ipv4_sid: None,
            own: Some(peer.addresses()),
            vrf: peer.vrf.map(|name| Vrf {
                name,
                table: peer.table,
            }),
        }
    }

    /// A server's EPE addresses.
    pub(super) fn own_addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        self.own.into_iter().flat_map(EpeAddresses::all)
    }

    /// Whether its table has IPv4 routes.
    pub(super) fn has_ipv4_table(&self) -> bool {
        self.own.is_some() || self.ipv4_sid.is_some()
    }

    /// The behaviour of its segment for IPv6.
    pub(super) fn behaviour(&self) -> Behaviour {
        match self.direct {
            Some(neighbour) => Behaviour::EndDx6 { neighbour },
            None => Behaviour::EndDt6 { table: self.table },
        }
    }

    /// The index of the interface to an egress peer.
    pub(super) fn at(&self, reconciler: &mut Reconciler) -> Result<u32, String> {
        if let Some(name) = &self.interface {
            return interface::index(name).ok_or_else(|| {
                format!("there is no interface `{name}`; `interface` of the peer names it")
            });
        }
        let Some(address) = self.address else {
            return Err("it is no peer of a border router".to_owned());
        };
        let way = reconciler.resolve(address);
        let way = way.map_err(|error| error.to_string())?;
        way.map(|way| way.interface)
            .ok_or_else(|| format!("no route leads to {address}; say `interface` of the peer"))
    }
}

/// The changes that move a server's next hops and addresses to another interface.
pub(super) fn moved(state: &State, interface: u32) -> Vec<Change> {
    let nexthops = state.nexthops.iter();
    let nexthops = nexthops.filter_map(|(&id, nexthop)| match *nexthop {
        Nexthop::Segment { sid, mode, .. } => {
            let nexthop = Nexthop::Segment {
                sid,
                mode,
                interface,
            };
            Some(Change::SetNexthop(id, nexthop))
        }
        Nexthop::Gateway { .. } | Nexthop::Blackhole { .. } => None,
    });
    let addresses = state.addresses.iter().flat_map(|own| {
        let new = OwnAddress { interface, ..*own };
        [Change::RemoveAddress(*own), Change::SetAddress(new)]
    });
    nexthops.chain(addresses).collect()
}

/// The mark of packets for a border router's segment for IPv4; `None`: there are too many peers.
pub(super) fn segment_mark(peer: PeerIndex) -> Option<u32> {
    let place = u16::try_from(peer.0).ok()?;
    Some(FIRST_SEGMENT_MARK + u32::from(place))
}

/// The first of 65,536 marks; no other program may use them. Ours.
const FIRST_SEGMENT_MARK: u32 = 0x4b66_0000;

/// The mark or table of a peer; `None`: there are too many peers.
pub(super) fn of_peer(first: u32, peer: PeerIndex) -> Option<u32> {
    let place = u32::try_from(peer.0).ok()?;
    (place < TABLES_MAX).then(|| first + place)
}
