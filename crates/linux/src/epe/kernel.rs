//! The kernel's side: reading its state, and carrying out changes in batches.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

use super::{
    Change, EpeError, Obstacle, Others, OwnAddress, Owner, Report, ResolvedRoute, RouteKey, State,
    is_vain, pause, state::Effect,
};
use crate::{
    netlink::{
        Batch, CREATE, DUMP, EXCLUSIVE, Message, REPLACE, REQUEST, Refusal, Socket, attributes,
        u8_of, u16_of, u32_of,
    },
    nexthop,
    route::TABLE_MAIN,
    rule::{self, MarkRule, SourceRule},
    seg6::{Sid, octets},
};

/// A batch is sent when it has this many messages.
const BATCH_MESSAGES: usize = 512;

/// Metric of routes: IPv6's default (`IP6_RT_PRIO_USER`).
const METRIC: u32 = 1024;

/// Metric of the unreachable route of a closed table: a default route that the peer has announced takes
/// precedence.
const METRIC_CLOSED: u32 = u32::MAX;

/// The kernel's error for a look-up without a route.
pub(super) const NO_ROUTE: [i32; 4] = [
    libc::ENETUNREACH,
    libc::EHOSTUNREACH,
    libc::EACCES,
    libc::EINVAL,
];

/// `RTPROT_KERNEL`: connected routes and others that the kernel makes in the tables of VRF devices.
const PROTOCOL_KERNEL: u8 = 2;

#[derive(Debug)]
pub(super) struct Kernel {
    socket: Socket,
    batch: Batch,
}

#[derive(Debug, Default)]
pub(super) struct KernelState {
    pub(super) state: State,
    /// Has our protocol number, but is of a kind that we do not make now.
    pub(super) strays: Vec<StrayEntry>,
    /// Entries of others that are in the way.
    pub(super) obstacles: Vec<Obstacle>,
    /// Desired rules that would not be reached.
    pub(super) hidden: BTreeSet<SourceRule>,
    /// Desired rules of marks that others precede.
    pub(super) hidden_marks: BTreeSet<MarkRule>,
    /// Desired entries that exist, but are not ours.
    pub(super) others: Others,
}

/// Has our protocol number, but another kind or metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StrayEntry {
    Nexthop(u32),
    Route {
        key: RouteKey,
        kind: u8,
        metric: u32,
    },
}

/// A route of a list.
#[derive(Clone, Copy, Debug)]
struct ListedRoute<'a> {
    key: RouteKey,
    protocol: u8,
    kind: u8,
    metric: u32,
    nexthop: Option<u32>,
    message: Message<'a>,
}

/// The best route so far for each address: the longest prefix, then the smallest metric.
#[derive(Debug, Default)]
struct LongestRoutes(BTreeMap<IpAddr, (u8, Reverse<u32>, Option<ResolvedRoute>)>);

impl LongestRoutes {
    fn take(&mut self, route: &ListedRoute<'_>, asked: &BTreeSet<IpAddr>) {
        let RouteKey { table, destination } = route.key;
        let header = route.message.body;
        // Routes for one source or type of service (`rtm_src_len`, `rtm_tos`) are not for all packets.
        if table != TABLE_MAIN || header.get(2..4) != Some(&[0, 0]) {
            return;
        }
        let rank = (destination.prefix_len(), Reverse(route.metric));
        for address in asked.range(destination.network()..=destination.broadcast()) {
            let best = self.0.get(address).map(|best| (best.0, best.1));
            if best.is_none_or(|best| best < rank) {
                let way = read_resolved_route(&route.message);
                self.0.insert(*address, (rank.0, rank.1, way));
            }
        }
    }

    fn ways(self) -> BTreeMap<IpAddr, ResolvedRoute> {
        let all = self.0.into_iter();
        all.filter_map(|(address, (_, _, way))| Some((address, way?)))
            .collect()
    }
}

impl Kernel {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self {
            socket: Socket::open(libc::NETLINK_ROUTE)?,
            batch: Batch::default(),
        })
    }

    /// The port number by which the kernel identifies the author of a change.
    pub(super) fn port(&self) -> io::Result<u32> {
        self.socket.port()
    }

    /// Looks up the route of packets to an address.
    pub(super) fn resolve(&mut self, to: IpAddr) -> Result<Option<ResolvedRoute>, Refusal> {
        let (family, bits) = match to {
            IpAddr::V4(_) => (libc::AF_INET, 32),
            IpAddr::V6(_) => (libc::AF_INET6, 128),
        };
        // `struct rtmsg`
        let header = [family as u8, bits, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        self.socket.list(
            GET_ROUTE,
            0,
            |batch| {
                batch.raw(&header);
                match to {
                    IpAddr::V4(to) => batch.attribute(RTA_DST, &to.octets()),
                    IpAddr::V6(to) => batch.attribute(RTA_DST, &to.octets()),
                }
            },
            |found: &mut Option<ResolvedRoute>, message| {
                *found = found.or_else(|| read_resolved_route(&message));
            },
        )
    }

    /// Reads the main table and finds the longest prefix for each address among routes of other protocols.
    pub(super) fn resolve_excluding(
        &mut self,
        protocols: &[u8],
        asked: &BTreeSet<IpAddr>,
        v6: bool,
    ) -> Result<BTreeMap<IpAddr, ResolvedRoute>, Refusal> {
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        // `struct rtmsg`
        let header = [family as u8, 0, 0, 0, TABLE_MAIN as u8, 0, 0, 0, 0, 0, 0, 0];
        let found = self.socket.list(
            GET_ROUTE,
            DUMP,
            |batch| batch.raw(&header),
            |found: &mut LongestRoutes, message| {
                if let Some(route) = read_route(message)
                    && !protocols.contains(&route.protocol)
                {
                    found.take(&route, asked);
                }
            },
        );
        match found {
            Ok(found) => Ok(found.ways()),
            // The namespace never had a route of this family.
            Err(refusal) if refusal.is(libc::ENOENT) => Ok(BTreeMap::new()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Reads the owner's entries, and obstacles of `wanted`.
    pub(super) fn read(&mut self, owner: &Owner, wanted: &State) -> Result<KernelState, EpeError> {
        let mut found = KernelState::default();
        self.read_nexthops(owner, wanted, &mut found)?;
        for v6 in [false, true] {
            self.read_routes(owner, wanted, v6, &mut found)?;
            self.read_rules(owner, wanted, v6, &mut found)?;
        }
        self.read_addresses(owner, wanted, &mut found)?;
        Ok(found)
    }

    fn read_nexthops(
        &mut self,
        owner: &Owner,
        wanted: &State,
        found: &mut KernelState,
    ) -> Result<(), EpeError> {
        let all: Vec<nexthop::Listed> = self.socket.list(
            nexthop::GET,
            DUMP,
            nexthop::write_all,
            |all: &mut Vec<_>, message| all.extend(nexthop::read(&message)),
        )?;
        for listed in all {
            match listed.nexthop {
                _ if listed.protocol != owner.protocol => {
                    if wanted.nexthops.contains_key(&listed.id) {
                        found.others.nexthops.insert(listed.id);
                        found.obstacles.push(Obstacle::Nexthop {
                            id: listed.id,
                            protocol: listed.protocol,
                        });
                    }
                }
                Some(nexthop) => {
                    found.state.nexthops.insert(listed.id, nexthop);
                }
                None => found.strays.push(StrayEntry::Nexthop(listed.id)),
            }
        }
        Ok(())
    }

    fn read_routes(
        &mut self,
        owner: &Owner,
        wanted: &State,
        v6: bool,
        found: &mut KernelState,
    ) -> Result<(), EpeError> {
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        // `struct rtmsg`
        let header = [family as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let (state, strays, obstacles) = self.socket.list(
            GET_ROUTE,
            DUMP,
            |batch| batch.raw(&header),
            |(state, strays, obstacles): &mut (State, Vec<StrayEntry>, Vec<Obstacle>), message| {
                let Some(route) = read_route(message) else {
                    return;
                };
                if route.protocol == owner.protocol {
                    take(&route, state, strays);
                } else if collides(&route, wanted) {
                    obstacles.push(Obstacle::Route {
                        table: route.key.table,
                        destination: route.key.destination,
                        protocol: route.protocol,
                    });
                }
            },
        )?;
        for (number, table) in state.tables {
            let ours = found.state.tables.entry(number).or_default();
            ours.closed |= table.closed;
            ours.closed_ipv4 |= table.closed_ipv4;
            ours.routes.extend(table.routes);
        }
        found.state.sids.extend(state.sids);
        found.strays.extend(strays);
        found.obstacles.extend(obstacles);
        Ok(())
    }

    fn read_rules(
        &mut self,
        owner: &Owner,
        wanted: &State,
        v6: bool,
        found: &mut KernelState,
    ) -> Result<(), EpeError> {
        let all: Vec<rule::Listed> = self.socket.list(
            rule::GET,
            DUMP,
            |batch| rule::write_all(batch, v6),
            |all: &mut Vec<_>, message| all.extend(rule::read(&message)),
        )?;
        for listed in all {
            if listed.protocol == owner.protocol {
                found.state.rules.extend(listed.as_source_rule());
                found.state.drops.extend(listed.as_drop_rule());
                found.state.marks.extend(listed.as_mark_rule());
                continue;
            }
            let drops = wanted.drops.iter();
            for rule in drops.filter(|rule| listed.forestalls(rule)) {
                found.obstacles.push(Obstacle::Rule {
                    description: listed.to_string(),
                    wanted: rule.to_string(),
                });
            }
            let marks = wanted.marks.iter();
            for rule in marks.filter(|rule| listed.precedes(rule)) {
                found.hidden_marks.insert(*rule);
                found.obstacles.push(Obstacle::Rule {
                    description: listed.to_string(),
                    wanted: rule.to_string(),
                });
            }
            let ours = wanted
                .rules
                .iter()
                .filter(|r| r.source.is_ipv6() == listed.v6);
            let ours = ours.filter(|rule| {
                let taken =
                    owner.priorities.contains(&listed.priority) && listed.priority == rule.priority;
                taken || listed.hides(rule)
            });
            for rule in ours {
                found.hidden.insert(*rule);
                found.obstacles.push(Obstacle::Rule {
                    description: listed.to_string(),
                    wanted: rule.to_string(),
                });
            }
        }
        Ok(())
    }

    fn read_addresses(
        &mut self,
        owner: &Owner,
        wanted: &State,
        found: &mut KernelState,
    ) -> Result<(), EpeError> {
        let all: Vec<(OwnAddress, Option<u8>)> = self.socket.list(
            GET_ADDRESS,
            DUMP,
            |batch| batch.raw(&[0; 8]),
            |all: &mut Vec<_>, message| all.extend(read_address(&message)),
        )?;
        for (address, protocol) in all {
            let ours = protocol == Some(owner.protocol);
            if ours || wanted.addresses.contains(&address) {
                found.state.addresses.insert(address);
            }
            // An address that the operator has added is accepted as it is.
            if !ours {
                found.others.addresses.insert(address);
            }
        }
        Ok(())
    }

    pub(super) fn remove_strays(
        &mut self,
        owner: &Owner,
        strays: &[StrayEntry],
        report: &mut Report,
    ) -> Result<(), EpeError> {
        for stray in strays {
            let result = match *stray {
                StrayEntry::Nexthop(id) => self
                    .socket
                    .change(nexthop::DELETE, 0, |batch| nexthop::write_id(batch, id)),
                StrayEntry::Route { key, kind, metric } => {
                    self.socket.change(DELETE_ROUTE, 0, |batch| {
                        write_key(batch, key, kind, metric, owner.protocol);
                    })
                }
            };
            match result {
                Ok(()) => {
                    report.carried_out += 1;
                    report.strays += 1;
                }
                Err(refusal) if is_gone(&refusal) => {}
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Ok(())
    }

    /// Carries out changes of `state`, which is the state of the kernel.
    pub(super) fn carry_out(
        &mut self,
        owner: &Owner,
        state: &mut State,
        others: &mut Others,
        changes: &[Change],
        report: &mut Report,
    ) -> Result<(), EpeError> {
        let mut rest = changes.iter();
        loop {
            let mut sent: Vec<(Change, Effect)> = Vec::new();
            for change in rest.by_ref() {
                let effect = state.carry_out(change);
                if others.concerns(change) {
                    continue;
                }
                if effect == Effect::NoNexthop {
                    report.fail(*change, io::Error::other("there is no such nexthop object"));
                } else if !is_vain(effect) {
                    sent.push((*change, effect));
                }
                if sent.len() == BATCH_MESSAGES {
                    break;
                }
            }
            if sent.is_empty() {
                return Ok(());
            }
            self.carry_out_batch(owner, sent, others, report)?;
        }
    }

    fn carry_out_batch(
        &mut self,
        owner: &Owner,
        mut sent: Vec<(Change, Effect)>,
        others: &mut Others,
        report: &mut Report,
    ) -> Result<(), EpeError> {
        for attempt in 0.. {
            let refused = self.send(owner, &sent)?;
            report.carried_out += sent.len() - refused.len();
            let mut again = Vec::new();
            for (index, refusal) in refused {
                let (change, effect) = sent[index];
                if refusal.is(libc::EPERM) {
                    return Err(EpeError::NotPermitted);
                }
                if refusal.is(libc::ENOMEM) {
                    again.push((sent[index], refusal));
                } else if effect == Effect::Removes && is_gone(&refusal) {
                    // The entry does not exist any more, as desired.
                } else if let Change::SetAddress(own) = change
                    && refusal.is(libc::EEXIST)
                {
                    others.addresses.insert(own);
                } else {
                    if let Change::SetNexthop(id, _) = change
                        && refusal.is(libc::EEXIST)
                    {
                        others.nexthops.insert(id);
                    }
                    report.fail(change, refusal.into_io());
                }
            }
            if again.is_empty() {
                break;
            }
            if !pause(attempt) {
                for ((change, _), refusal) in again {
                    report.fail(change, refusal.into_io());
                }
                break;
            }
            report.tried_again += again.len();
            sent = again.into_iter().map(|(change, _)| change).collect();
        }
        Ok(())
    }

    /// Sends changes as one batch. Returns the refused ones by their index in `sent`.
    fn send(
        &mut self,
        owner: &Owner,
        sent: &[(Change, Effect)],
    ) -> Result<Vec<(usize, Refusal)>, EpeError> {
        let first = self.socket.reserve(sent.len());
        self.batch.clear();
        let mut sequence = first;
        for (change, effect) in sent {
            write(&mut self.batch, change, *effect, owner.protocol, sequence);
            sequence = sequence.wrapping_add(1);
        }
        // Failures are always acknowledged. After the success of the last one, all have been handled.
        self.batch.acknowledge_last();
        self.socket.send(self.batch.bytes())?;
        let mut refused = Vec::new();
        loop {
            for message in self.socket.receive(false)? {
                let index = message.sequence.wrapping_sub(first) as usize;
                let Some(answer) = message.answer().filter(|_| index < sent.len()) else {
                    continue;
                };
                if let Err(refusal) = answer {
                    refused.push((index, refusal));
                }
                if index + 1 == sent.len() {
                    return Ok(refused);
                }
            }
        }
    }
}

/// Adds a listed route of ours to the state.
fn take(route: &ListedRoute<'_>, state: &mut State, strays: &mut Vec<StrayEntry>) {
    let stray = || StrayEntry::Route {
        key: route.key,
        kind: route.kind,
        metric: route.metric,
    };
    let RouteKey { table, destination } = route.key;
    match (route.kind, route.nexthop) {
        (UNICAST, Some(id)) if route.metric == METRIC => {
            let table = state.tables.entry(table).or_default();
            table.routes.insert(destination, id);
        }
        (UNICAST, None) if table == Sid::TABLE && route.metric == METRIC => {
            let sid = match destination {
                IpNet::V6(net) if net.prefix_len() == 128 => {
                    let attributes = route.message.split::<12>();
                    attributes.and_then(|(_, all)| Sid::read(net.addr(), all))
                }
                _ => None,
            };
            match sid {
                Some(sid) => {
                    state.sids.insert(sid.address(), sid);
                }
                None => strays.push(stray()),
            }
        }
        (UNREACHABLE, _) if route.metric == METRIC_CLOSED && destination.prefix_len() == 0 => {
            let table = state.tables.entry(table).or_default();
            match destination {
                IpNet::V4(_) => table.closed_ipv4 = true,
                IpNet::V6(_) => table.closed = true,
            }
        }
        _ => strays.push(stray()),
    }
}

/// Whether another's route would catch our packets: any route in a closed table, which is ours alone, and one
/// with the same prefix in other tables.
fn collides(route: &ListedRoute<'_>, wanted: &State) -> bool {
    if route.protocol == PROTOCOL_KERNEL {
        return false;
    }
    let key = route.key;
    let table = wanted.tables.get(&key.table);
    let same = |metric| route.metric == metric;
    let in_table = table.is_some_and(|table| {
        let closed = match key.destination {
            IpNet::V4(_) => table.closed_ipv4,
            IpNet::V6(_) => table.closed,
        };
        closed || table.routes.contains_key(&key.destination) && same(METRIC)
    });
    let is_sid = key.table == Sid::TABLE
        && same(METRIC)
        && match key.destination {
            IpNet::V6(net) => net.prefix_len() == 128 && wanted.sids.contains_key(&net.addr()),
            IpNet::V4(_) => false,
        };
    in_table || is_sid
}

fn is_gone(refusal: &Refusal) -> bool {
    // The errors of a missing route, rule or nexthop, address, and device.
    const GONE: [i32; 4] = [libc::ESRCH, libc::ENOENT, libc::EADDRNOTAVAIL, libc::ENODEV];
    GONE.iter().any(|&number| refusal.is(number))
}

/// Encodes a change as message.
fn write(batch: &mut Batch, change: &Change, effect: Effect, protocol: u8, sequence: u32) {
    let create = match effect {
        Effect::Replaces => REQUEST | CREATE | REPLACE,
        _ => REQUEST | CREATE | EXCLUSIVE,
    };
    let mut message = |kind, flags, write: &dyn Fn(&mut Batch)| {
        batch.begin(kind, flags, sequence);
        write(batch);
        batch.finish();
    };
    match *change {
        Change::SetNexthop(id, nexthop) => {
            message(nexthop::NEW, create, &|b| nexthop.write(b, id, protocol));
        }
        Change::RemoveNexthop(id) => {
            message(nexthop::DELETE, REQUEST, &|b| nexthop::write_id(b, id));
        }
        Change::SetRoute(key, nexthop) => message(NEW_ROUTE, create, &|b| {
            write_key(b, key, UNICAST, METRIC, protocol);
            b.u32(RTA_NH_ID, nexthop);
        }),
        Change::RemoveRoute(key) => message(DELETE_ROUTE, REQUEST, &|b| {
            write_key(b, key, UNICAST, METRIC, protocol);
        }),
        Change::CloseTable(table) | Change::CloseIpv4(table) => message(NEW_ROUTE, create, &|b| {
            let all = all_of(table, matches!(change, Change::CloseTable(_)));
            write_key(b, all, UNREACHABLE, METRIC_CLOSED, protocol);
        }),
        Change::OpenTable(table) | Change::OpenIpv4(table) => {
            message(DELETE_ROUTE, REQUEST, &|b| {
                let all = all_of(table, matches!(change, Change::OpenTable(_)));
                write_key(b, all, UNREACHABLE, METRIC_CLOSED, protocol);
            });
        }
        Change::SetSid(sid) => message(NEW_ROUTE, create, &|b| {
            write_key(b, key_of(sid.address()), UNICAST, METRIC, protocol);
            sid.write(b);
        }),
        Change::RemoveSid(address) => message(DELETE_ROUTE, REQUEST, &|b| {
            write_key(b, key_of(address), UNICAST, METRIC, protocol);
        }),
        Change::SetRule(rule) => message(rule::NEW, create, &|b| rule.write(b, protocol)),
        Change::RemoveRule(rule) => message(rule::DELETE, REQUEST, &|b| rule.write(b, protocol)),
        Change::SetMark(rule) => message(rule::NEW, create, &|b| rule.write(b, protocol)),
        Change::RemoveMark(rule) => message(rule::DELETE, REQUEST, &|b| rule.write(b, protocol)),
        Change::SetDrop(rule) => message(rule::NEW, create, &|b| rule.write(b, protocol)),
        Change::RemoveDrop(rule) => message(rule::DELETE, REQUEST, &|b| rule.write(b, protocol)),
        Change::SetAddress(own) => {
            message(NEW_ADDRESS, create, &|b| write_address(b, own, protocol));
        }
        Change::RemoveAddress(own) => {
            message(DELETE_ADDRESS, REQUEST, &|b| {
                write_address(b, own, protocol);
            });
        }
    }
}

fn everywhere(v6: bool) -> IpNet {
    let address: IpAddr = match v6 {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    IpNet::new_assert(address, 0)
}

fn all_of(table: u32, v6: bool) -> RouteKey {
    RouteKey {
        table,
        destination: everywhere(v6),
    }
}

fn key_of(sid: Ipv6Addr) -> RouteKey {
    RouteKey {
        table: TABLE_MAIN,
        destination: IpNet::from(IpAddr::from(sid)),
    }
}

/// `struct rtmsg` and the attributes that identify a route.
fn write_key(batch: &mut Batch, key: RouteKey, kind: u8, metric: u32, protocol: u8) {
    let bits = key.destination.prefix_len();
    let family = match key.destination {
        IpNet::V4(_) => libc::AF_INET,
        IpNet::V6(_) => libc::AF_INET6,
    };
    let header = [family as u8, bits, 0, 0, 0, protocol, 0, kind, 0, 0, 0, 0];
    batch.raw(&header);
    match key.destination {
        _ if bits == 0 => {}
        IpNet::V4(net) => batch.attribute(RTA_DST, &net.network().octets()),
        IpNet::V6(net) => batch.attribute(RTA_DST, &net.network().octets()),
    }
    batch.u32(RTA_TABLE, key.table);
    batch.u32(RTA_PRIORITY, metric);
}

fn read_route(message: Message<'_>) -> Option<ListedRoute<'_>> {
    if message.kind != NEW_ROUTE {
        return None;
    }
    let (header, all) = message.split::<12>()?;
    let &[family, bits, _, _, table, protocol, _, kind, ..] = header;
    let v6 = libc::c_int::from(family) == libc::AF_INET6;
    let mut destination = everywhere(v6).addr();
    let (mut table, mut metric, mut nexthop) = (u32::from(table), 0, None);
    for (name, value) in all {
        match name {
            RTA_DST => destination = address(value)?,
            RTA_TABLE => table = u32_of(value)?,
            RTA_PRIORITY => metric = u32_of(value)?,
            RTA_NH_ID => nexthop = u32_of(value),
            _ => {}
        }
    }
    Some(ListedRoute {
        key: RouteKey {
            table,
            destination: IpNet::new(destination, bits).ok()?,
        },
        protocol,
        kind,
        metric,
        nexthop,
        message,
    })
}

/// `None` if the address is local, or its packets are dropped.
fn read_resolved_route(message: &Message<'_>) -> Option<ResolvedRoute> {
    if message.kind != NEW_ROUTE {
        return None;
    }
    let (header, all) = message.split::<12>()?;
    let (mut gateway, mut interface) = (None, None);
    for (name, value) in all {
        match name {
            RTA_OIF => interface = u32_of(value),
            RTA_GATEWAY => gateway = address(value),
            // For an IPv4 route with an IPv6 router: its family, then the address.
            RTA_VIA => gateway = value.get(2..).and_then(address),
            // The first of several routers (`struct rtnexthop`).
            RTA_MULTIPATH => {
                let bytes = usize::from(u16_of(value)?);
                interface = value.get(4..8).and_then(u32_of);
                let mut router = attributes(value.get(8..bytes)?);
                gateway = router.find_map(|(name, value)| match name {
                    RTA_GATEWAY => address(value),
                    RTA_VIA => value.get(2..).and_then(address),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    let way = ResolvedRoute {
        gateway,
        interface: interface?,
        protocol: header[5],
    };
    (header[7] == UNICAST).then_some(way)
}

/// `struct ifaddrmsg` and attributes.
fn write_address(batch: &mut Batch, own: OwnAddress, protocol: u8) {
    let (family, bits) = match own.address {
        IpAddr::V4(_) => (libc::AF_INET, 32),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    // Source address selection for IPv4 does not know deprecated addresses, but leaves out those of this scope.
    let scope = match own.address {
        IpAddr::V4(_) => SCOPE_HOST,
        IpAddr::V6(_) => 0,
    };
    let [a, b, c, d] = own.interface.to_ne_bytes();
    batch.raw(&[family as u8, bits, 0, scope, a, b, c, d]);
    for name in [IFA_LOCAL, IFA_ADDRESS] {
        match own.address {
            IpAddr::V4(address) => batch.attribute(name, &address.octets()),
            IpAddr::V6(address) => batch.attribute(name, &address.octets()),
        }
    }
    // Without duplicate address detection it works at once; without a prefix route.
    batch.u32(IFA_FLAGS, IFA_F_NODAD | IFA_F_NOPREFIXROUTE);
    // Deprecated from the start (`struct ifa_cacheinfo`), so that source address selection never takes it. It
    // would for the outer packets of segments, which would then be led to the peer's table, which has no
    // segments.
    let [preferred, valid] = [0, u32::MAX].map(u32::to_ne_bytes);
    let lifetimes = [preferred, valid, [0; 4], [0; 4]].concat();
    batch.attribute(IFA_CACHEINFO, &lifetimes);
    batch.attribute(IFA_PROTO, &[protocol]);
}

fn read_address(message: &Message<'_>) -> Option<(OwnAddress, Option<u8>)> {
    if message.kind != NEW_ADDRESS {
        return None;
    }
    let (header, all) = message.split::<8>()?;
    let &[_, _, _, _, a, b, c, d] = header;
    let (mut local, mut other, mut protocol) = (None, None, None);
    for (name, value) in all {
        match name {
            IFA_LOCAL => local = address(value),
            IFA_ADDRESS => other = address(value),
            IFA_PROTO => protocol = u8_of(value),
            _ => {}
        }
    }
    let address = OwnAddress {
        address: local.or(other)?,
        interface: u32::from_ne_bytes([a, b, c, d]),
    };
    Some((address, protocol))
}

fn address(value: &[u8]) -> Option<IpAddr> {
    match value.len() {
        4 => Some(Ipv4Addr::from(*value.first_chunk::<4>()?).into()),
        16 => octets(value).map(IpAddr::from),
        _ => None,
    }
}

// `include/uapi/linux/rtnetlink.h`
const NEW_ADDRESS: u16 = 20;
const DELETE_ADDRESS: u16 = 21;
const GET_ADDRESS: u16 = 22;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;
const GET_ROUTE: u16 = 26;
const UNICAST: u8 = 1;
const UNREACHABLE: u8 = 7;
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;
const RTA_VIA: u16 = 18;
const RTA_NH_ID: u16 = 30;
/// `RT_SCOPE_HOST`.
const SCOPE_HOST: u8 = 254;

// `include/uapi/linux/if_addr.h`
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
const IFA_PROTO: u16 = 11;
const IFA_F_NODAD: u32 = 0x02;
const IFA_F_NOPREFIXROUTE: u32 = 0x200;
