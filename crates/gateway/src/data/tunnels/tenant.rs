//! One tenant's packets: which pass from its device to its peers, and from its peers to its device.

mod split;

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use ipnet::IpNet;
use keiro_control::config::DEFAULT_PREFIXES;
use keiro_core::{AppConfig, AppId, Endpoint, Instant, IpPacket, PeerId, TenantConfig, TenantId};
use keiro_ip::{
    Header,
    builtin_classes::{BuiltInClass, Classification, Sorting},
    ecn::{self, Decapsulated, Ecn},
    flow::{FlowKey, FlowSeed},
    fragment,
    icmp::{self, REPLY_BYTES_MAX, Reason, ReplyFrom},
    mss,
    offload::{Segments, VNET_HEADER_BYTES, VnetHeader},
    prefix::PrefixTable,
    protocol,
    rules::{Classifier, Match},
    ttl,
};

use super::{
    super::split::SplitFlows,
    counts::{Counts, ReceivedPackets},
    destinations::Destinations,
    device::Device,
    flow_classifier::TenantFlowClassifier,
    held_syns::{HeldSyns, begun_by, flow_of},
    next_hops::{DIRECT_SETTLE_TIME, NextHop, NextHops},
    prefix_faults::{PrefixFault, PrefixFaults},
};

/// What a tenant is, in plain values that can be compared.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TenantSetup {
    pub(crate) config: TenantConfig,
    /// The number of its device.
    pub(crate) device: u64,
    /// Of the device, bytes.
    pub(crate) mtu: u16,
    /// Where answers come from in IPv6; `None`: from where the packet was going.
    pub(crate) icmp_source_v6: Option<Ipv6Addr>,
    /// Networks behind this gateway.
    pub(crate) own: Vec<IpNet>,
    /// What is nowhere else is behind this gateway too.
    pub(crate) exit: Option<ExitSetup>,
    /// Destinations of its packets are reported.
    pub(crate) notes_destinations: bool,
    /// TCP connections are split: the rules are in place that lead them to this machine.
    pub(crate) splits_tcp: bool,
    /// By which classes and names its packets are sorted.
    pub(crate) sorting: Sorting,
    pub(crate) peers: BTreeMap<PeerId, PeerSetup>,
}

/// Where an exit to the Internet leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExitSetup {
    /// Whether there is a default route of IPv4.
    pub(crate) v4: bool,
    /// And of IPv6.
    pub(crate) v6: bool,
    /// Networks and addresses that are not the Internet's, unless they are behind this gateway or a peer.
    pub(crate) refused: Vec<IpNet>,
}

/// A tenant's part behind one peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeerSetup {
    pub(crate) prefixes: Vec<IpNet>,
    /// Behind another peer, and behind this one too while that one is away.
    pub(crate) backup_prefixes: Vec<IpNet>,
    /// It is taken before others with the same `prefixes`.
    pub(crate) is_direct: bool,
    /// It and others with this flag reach each other through this gateway.
    pub(crate) transit: bool,
    /// Takes what no rule matches.
    pub(crate) app: AppId,
    pub(crate) rules: Vec<(Match, AppId)>,
    /// The applications of built-in classes; empty: the tenant has none.
    pub(crate) classes: Vec<(BuiltInClass, AppId)>,
    /// Carries split TCP connections; `None`: none are.
    pub(crate) split_app: Option<AppConfig>,
}

/// A tenant's IP packet that a peer has sent.
#[derive(Clone, Copy)]
pub(crate) struct PacketFromPeer<'a> {
    pub(crate) now: Instant,
    pub(crate) peer: PeerId,
    pub(crate) tenant: TenantId,
    /// The ECN bits of the outer header.
    pub(crate) ecn: u8,
    pub(crate) data: &'a [u8],
}

pub(super) struct Tenant {
    pub(super) setup: TenantSetup,
    locations: PrefixTable<Location>,
    /// Peers that lead to the same prefixes, best first; each list once.
    routes: Vec<Vec<PeerId>>,
    pub(super) peers: BTreeMap<PeerId, Peer>,
    pub(super) counts: Counts,
    pub(super) faults: PrefixFaults,
    pub(super) answers: IcmpLimits,
    pub(super) destinations: Destinations,
    /// `None`: it has no classes, and no rules for names.
    pub(super) flows: Option<TenantFlowClassifier>,
    /// That of the last accepted packet: most that follow are the same.
    last_accepted_flow: Option<AcceptedFlow>,
}

/// Addresses that packets of a peer may have, and where they go.
#[derive(Clone, Copy)]
struct AcceptedFlow {
    from: PeerId,
    source: IpAddr,
    destination: IpAddr,
    to: Location,
    /// It comes from the Internet, by way of the peer.
    is_from_internet: bool,
}

/// What becomes of a packet of a peer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PeerPacketAction<'a> {
    /// It is written to the device as it is here.
    Deliver(&'a [u8]),
    /// It goes on to another peer.
    Transit(TransitPacket),
    /// It was counted.
    Dropped,
}

/// A packet on its way from one peer to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransitPacket {
    pub(super) from: PeerId,
    pub(super) to: TransitTarget,
    pub(super) header: Header,
    /// The ECN field that it goes on with.
    pub(super) ecn: Ecn,
    pub(super) sorted: Classification,
}

/// Where a packet of a peer goes that the device does not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransitTarget {
    Peer(RouteId),
    /// Back to its sender, as an ICMP error: the exit does not lead there.
    Refused(Reason),
}

pub(super) struct Peer {
    rules: Classifier<AppId>,
    classes: [Option<AppId>; BuiltInClass::ALL.len()],
    app: AppId,
    transit: bool,
    /// Longest packet that fits for every application of the tenant: the limit for segment sizes
    /// requested from there.
    pub(super) max_inner_packet: u16,
    /// Of ICMP errors about its packets that are on their way to another peer: it takes none of others' errors.
    pub(super) answers: IcmpLimits,
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Local,
    /// In the Internet, where this gateway's exit leads.
    Exit,
    /// Where the exit does not lead, and why.
    Refused(Reason),
    Peers {
        route: RouteId,
        /// By the prefix of all addresses: they are in the Internet.
        is_default: bool,
    },
}

/// The place of a list of peers in [`Tenant::routes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouteId(usize);

/// Limits ICMP errors (RFC 4443 §2.4 (f)), each kind for itself: packets to a peer that is down, however many, keep
/// no sender from learning the size that fits.
pub(super) struct IcmpLimits {
    too_big: TokenBucket,
    hop_limit: TokenBucket,
    no_route: TokenBucket,
    unreachable: TokenBucket,
}

pub(super) struct TokenBucket {
    left: u32,
    refilled: Instant,
}

/// What a packet that enters is handled with.
pub(super) struct IngressContext<'a> {
    pub(super) now: Instant,
    pub(super) device: &'a Device,
    pub(super) seed: &'a FlowSeed,
    pub(super) next_hops: &'a NextHops,
    pub(super) held_syns: &'a mut HeldSyns,
    pub(super) split_flows: &'a SplitFlows,
    /// Connections whose servers cannot be reached.
    pub(super) unreachable: &'a mut Vec<u64>,
    pub(super) endpoint: &'a mut Endpoint,
}

/// Answers of one kind per tenant: so many at once, and per second. Ours.
pub(super) const ANSWERS_MAX: u32 = 100;
const NANOS_PER_ANSWER: u128 = 1_000_000_000 / ANSWERS_MAX as u128;

impl Tenant {
    pub(super) fn new(now: Instant, setup: TenantSetup, counts: Counts) -> Self {
        let (locations, routes) = locations(&setup);
        let peer = |(peer, of): (&PeerId, &PeerSetup)| {
            let rules = Classifier::new(of.rules.clone()).unwrap_or_else(|error| {
                tracing::error!(%error, "a tenant's rules are not taken");
                Classifier::new(Vec::new()).expect("no rules are right")
            });
            // Until a path is known, the device's.
            let (app, max_inner_packet) = (of.app, setup.mtu);
            let mut classes = [None; BuiltInClass::ALL.len()];
            for (class, app) in &of.classes {
                classes[*class as usize] = Some(*app);
            }
            let peer_state = Peer {
                rules,
                classes,
                app,
                transit: of.transit,
                max_inner_packet,
                answers: IcmpLimits::new(now),
            };
            (*peer, peer_state)
        };
        let peers = setup.peers.iter().map(peer).collect();
        Self {
            setup,
            locations,
            routes,
            peers,
            counts,
            faults: PrefixFaults::default(),
            answers: IcmpLimits::new(now),
            destinations: Destinations::default(),
            flows: None,
            last_accepted_flow: None,
        }
    }

    pub(super) fn update_max_inner_packet(&mut self, endpoint: &Endpoint, peer: PeerId) {
        let (id, longest) = (self.setup.config.id, self.setup.mtu);
        let (Some(of), Some(found)) = (self.setup.peers.get(&peer), self.peers.get_mut(&peer))
        else {
            return;
        };
        let apps = of.rules.iter().map(|(_, app)| *app).chain([of.app]);
        let apps = apps.chain(of.classes.iter().map(|(_, app)| *app));
        let rooms = apps.filter_map(|app| endpoint.packet_room(peer, id, app));
        let room = rooms.min().and_then(|room| u16::try_from(room).ok());
        found.max_inner_packet = room.map_or(longest, |room| room.min(longest));
    }

    /// Handles a packet that was read from the device, large or not. The headers of a large one are
    /// checked once.
    pub(super) fn ingress(&mut self, with: &mut IngressContext<'_>, bytes: &mut [u8]) {
        let mut vnet = VnetHeader::default();
        let mut packet = bytes;
        if with.device.offloads.vnet_header {
            match VnetHeader::split(packet) {
                Ok((header, _)) => vnet = header,
                Err(_) => {
                    self.counts.drops.malformed += 1;
                    return;
                }
            }
            packet = &mut packet[VNET_HEADER_BYTES..];
        }
        let Ok(header) = Header::parse(packet) else {
            self.counts.drops.malformed += 1;
            return;
        };
        self.counts.stats.ingress_packets += 1;
        self.counts.stats.ingress_bytes += packet.len() as u64;
        let length = packet.len() as u64;
        if self.setup.splits_tcp && Self::is_error_of_split(with, packet, &header) {
            return;
        }
        if !self.admit(&header, packet.len()) {
            return;
        }
        let Some(hop) = self.next_hop(with.now, with.next_hops, header.destination) else {
            self.counts.drops.no_route += 1;
            self.faults.note(PrefixFault::NoPeer, header.destination);
            return self.answer(with, packet, &header, Reason::NoRoute);
        };
        if ttl::decrement(packet, header.version()).is_err() {
            self.counts.drops.hop_limit += 1;
            return self.answer(with, packet, &header, Reason::HopLimitExceeded);
        }
        let Ok(segments) = Segments::new(vnet, packet) else {
            self.counts.drops.malformed += 1;
            return;
        };
        self.counts.stats.ingress_packets += segments.count() as u64 - 1;
        let sorted = self.sort(with.now, &header, packet, segments.count() as u64);
        if self.setup.notes_destinations {
            self.destinations.note(with.now, header.destination);
        }
        if hop.is_backup {
            self.counts.stats.backup_packets += segments.count() as u64;
        }
        if hop.is_default {
            self.counts.stats.to_internet_packets += segments.count() as u64;
            self.counts.stats.to_internet_bytes += length;
        }
        if !self.setup.splits_tcp || header.protocol != protocol::TCP {
            return self.send_segments(with, &header, hop.peer, sorted, segments);
        }
        if flow_of(&header).is_some_and(|flow| with.split_flows.contains_key(&flow)) {
            self.counts.drops.not_diverted += segments.count() as u64;
            return;
        }
        match begun_by(&header, packet).filter(|_| segments.count() == 1) {
            Some(flow) => self.begin_connection(with, flow, &header, &hop, sorted, segments),
            None => self.send_segments(with, &header, hop.peer, sorted, segments),
        }
    }

    /// What the flow of a packet of either direction is.
    fn sort(
        &mut self,
        now: Instant,
        header: &Header,
        packet: &[u8],
        packets: u64,
    ) -> Classification {
        match &mut self.flows {
            Some(flows) => flows.on_packet(now, header, packet, packets),
            None => Classification::default(),
        }
    }

    /// The peer of a destination; `None`: it is behind none.
    pub(super) fn next_hop(
        &self,
        now: Instant,
        next_hops: &NextHops,
        destination: IpAddr,
    ) -> Option<NextHop> {
        let (route, is_default) = match self.locations.longest_match(destination)? {
            Location::Local | Location::Exit | Location::Refused(_) => return None,
            Location::Peers { route, is_default } => (&self.routes[route.0], *is_default),
        };
        let mut hop = next_hops.choose(now, route, |_| true)?;
        hop.is_default = is_default;
        // The first hub is no backup of a direct session.
        let is_direct = |peer: &&PeerId| self.setup.peers.get(peer).is_some_and(|of| of.is_direct);
        let is_first_hub = || route.iter().find(|peer| !is_direct(peer)) == Some(&hop.peer);
        hop.is_backup = hop.is_backup && !is_first_hub();
        Some(hop)
    }

    /// How long a peer must be up before packets take it rather than another one.
    pub(super) fn settle_time(&self, peer: PeerId) -> Duration {
        match self.setup.peers.get(&peer) {
            Some(of) if of.is_direct => DIRECT_SETTLE_TIME,
            Some(_) | None => Duration::ZERO,
        }
    }

    /// Where a packet goes on that passes; `None`: its peers are going.
    pub(super) fn next_hop_of(
        &self,
        now: Instant,
        next_hops: &NextHops,
        transit_packet: &TransitPacket,
    ) -> Option<NextHop> {
        let TransitTarget::Peer(route) = transit_packet.to else {
            return None;
        };
        let route = self.routes.get(route.0)?;
        next_hops.choose(now, route, |to| self.passes(transit_packet.from, to))
    }

    /// Whether packets of one peer go on to another.
    fn passes(&self, from: PeerId, to: PeerId) -> bool {
        let has_transit = |peer| self.peers.get(peer).is_some_and(|of| of.transit);
        to != from && [&from, &to].into_iter().all(has_transit)
    }

    /// Whether a packet from the device may be forwarded; otherwise it is counted.
    fn admit(&mut self, header: &Header, length: usize) -> bool {
        let Counts {
            drops,
            not_forwarded,
            ..
        } = &mut self.counts;
        if is_link_scope(&header.destination) {
            not_forwarded.multicast += 1;
        } else if header.is_link_local() {
            not_forwarded.link_local += 1;
        } else if !header.is_routable() || header.destination.is_multicast() {
            drops.not_routable += 1;
        } else if self
            .locations
            .admits_source(header.source, &Location::Local)
        {
            return true;
        } else if self.locations.admits_source(header.source, &Location::Exit) {
            self.counts.stats.from_internet_packets += 1;
            self.counts.stats.from_internet_bytes += length as u64;
            return true;
        } else {
            drops.spoofed += 1;
            self.faults.note(PrefixFault::LocalSource, header.source);
        }
        false
    }

    /// Sends the segments of a packet to a peer, in fragments where they are longer than its path
    /// has room for.
    fn send_segments(
        &mut self,
        with: &mut IngressContext<'_>,
        header: &Header,
        to: PeerId,
        sorted: Classification,
        mut segments: Segments<'_>,
    ) {
        let Some(peer) = self.peers.get(&to) else {
            return;
        };
        let id = self.setup.config.id;
        let app = peer.app_of(header, sorted);
        let Some(room) = with.endpoint.packet_room(to, id, app) else {
            self.counts.drops.no_path += segments.count() as u64;
            return self.answer_unreachable(with, header, to, segments);
        };
        let room = u16::try_from(room).unwrap_or(u16::MAX).min(self.setup.mtu);
        // Longer ones leave in parts; the sender should not make them where it can do otherwise.
        let longest = with.endpoint.packet_max(to, id, app).unwrap_or(0);
        let longest = longest.min(self.setup.mtu.into());
        let flow_hash = with.seed.number(&FlowKey::of(header)) as u32;
        let ecn = header.traffic_class & 3;
        let needs_order = header.needs_order();
        let count = segments.count();
        for number in 0..count {
            let mut packet = with.endpoint.spare_buffer(segments.largest());
            let Some(length) = segments.write_next(&mut packet) else {
                break;
            };
            packet.truncate(length);
            if count == 1 {
                mss::clamp(&mut packet, header, room);
            }
            let mut send = |data: Vec<u8>| {
                let packet = IpPacket {
                    flow_hash,
                    ecn,
                    needs_order,
                    data,
                };
                // Refusals are counted in the core, or the peer is being removed.
                let _ = with.endpoint.send_packet(with.now, to, id, app, packet);
            };
            if length <= longest {
                send(packet);
                continue;
            }
            let cut = fragment::fragment(&packet, header, room, |part| send(part.to_vec()));
            if cut.is_err() {
                // The remaining segments are as long, except the last, which is useless alone.
                self.counts.drops.too_big += (count - number) as u64;
                self.answer(with, &packet, header, Reason::TooBig { mtu: room });
                break;
            }
        }
    }

    /// Applications fail at once where the peer is down, instead of waiting for what cannot come. One that is up has
    /// a path for them in a moment.
    fn answer_unreachable(
        &mut self,
        with: &IngressContext<'_>,
        header: &Header,
        to: PeerId,
        mut segments: Segments<'_>,
    ) {
        if with.endpoint.is_up(to) {
            return;
        }
        let mut packet = vec![0; segments.largest()];
        if let Some(length) = segments.write_next(&mut packet) {
            packet.truncate(length);
            self.answer(with, &packet, header, Reason::HostUnreachable);
        }
    }

    /// Sends an ICMP error to the sender. IPv4 drops packets from outside whose source is the
    /// machine's own, so errors carry the address that the packet was sent to.
    fn answer(
        &mut self,
        with: &IngressContext<'_>,
        packet: &[u8],
        header: &Header,
        reason: Reason,
    ) {
        let from = match header.destination {
            IpAddr::V4(v4) => ReplyFrom {
                v4: Some(v4),
                v6: None,
            },
            IpAddr::V6(v6) => ReplyFrom {
                v4: None,
                v6: Some(self.setup.icmp_source_v6.unwrap_or(v6)),
            },
        };
        let mut out = [0; REPLY_BYTES_MAX];
        let Ok(reply) = icmp::reply(packet, header, reason, from, &mut out) else {
            return;
        };
        if !self.answers.of(reason).take(with.now) {
            self.counts.stats.suppressed_icmp_error_packets += 1;
            return;
        }
        if with.device.write_one(reply) {
            self.counts.stats.icmp_error_packets += 1;
        }
    }

    /// Checks a peer's packet and adapts it for writing, in `scratch` if it changes.
    pub(super) fn filter_from_peer<'a>(
        &mut self,
        from_peer: &PacketFromPeer<'a>,
        scratch: &'a mut [u8],
    ) -> PeerPacketAction<'a> {
        let PacketFromPeer {
            peer: from,
            data: packet,
            ..
        } = *from_peer;
        let counts = &mut self.counts;
        let Ok(header) = Header::parse(packet) else {
            counts.drops.peer_malformed += 1;
            return PeerPacketAction::Dropped;
        };
        let Some(location) = self.location_of(from, &header, packet.len()) else {
            return PeerPacketAction::Dropped;
        };
        let counts = &mut self.counts;
        let inner = Ecn::of(header.traffic_class);
        let Decapsulated::Forward(ecn) = inner.decapsulated(Ecn::of(from_peer.ecn)) else {
            counts.drops.congested += 1;
            return PeerPacketAction::Dropped;
        };
        let sorted = self.sort(from_peer.now, &header, packet, 1);
        let counts = &mut self.counts;
        if let Some(peer) = self.peers.get(&from) {
            let app = peer.app_of(&header, sorted);
            let received = counts.received.entry(app).or_default();
            received.add(ReceivedPackets {
                packets: 1,
                bytes: packet.len() as u64,
            });
        }
        let onward = match location {
            Location::Peers { route, .. } => Some(TransitTarget::Peer(route)),
            Location::Refused(why) => Some(TransitTarget::Refused(why)),
            Location::Local => None,
            Location::Exit => {
                counts.stats.to_internet_packets += 1;
                counts.stats.to_internet_bytes += packet.len() as u64;
                None
            }
        };
        if let Some(to) = onward {
            return PeerPacketAction::Transit(TransitPacket {
                from,
                to,
                header,
                ecn,
                sorted,
            });
        }
        let is_syn = header.protocol == protocol::TCP
            && header.is_first()
            && packet
                .get(header.transport + 13)
                .is_some_and(|flags| flags & 2 != 0);
        if ecn == inner && !is_syn {
            return PeerPacketAction::Deliver(packet);
        }
        let Some(changed) = scratch.get_mut(..packet.len()) else {
            return PeerPacketAction::Dropped;
        };
        changed.copy_from_slice(packet);
        ecn::set_ecn(changed, header.version(), ecn);
        if let Some(peer) = self.peers.get(&from) {
            mss::clamp(changed, &header, peer.max_inner_packet);
        }
        PeerPacketAction::Deliver(changed)
    }

    /// Where a packet of a peer goes; `None`: its addresses are not what the peer may send, which is counted.
    fn location_of(&mut self, from: PeerId, header: &Header, length: usize) -> Option<Location> {
        let (source, destination) = (header.source, header.destination);
        if let Some(last) = &self.last_accepted_flow
            && (last.from, last.source, last.destination) == (from, source, destination)
        {
            let last = *last;
            self.count_from_internet(&last, length);
            return Some(last.to);
        }
        let is_behind = |location: &Location| match location {
            Location::Local | Location::Exit | Location::Refused(_) => false,
            Location::Peers { route, .. } => self.routes[route.0].contains(&from),
        };
        let of_source = self.locations.longest_match(source);
        let is_default =
            matches!(of_source, Some(Location::Peers { is_default, .. }) if *is_default);
        if !header.is_routable() || !of_source.is_some_and(is_behind) {
            self.counts.drops.peer_spoofed += 1;
            self.faults.note(PrefixFault::PeerSource(from), source);
            return None;
        }
        let passes = |route: &RouteId| {
            let mut peers = self.routes[route.0].iter();
            peers.any(|to| self.passes(from, *to))
        };
        let to = match self.locations.longest_match(destination) {
            Some(here @ (Location::Local | Location::Exit | Location::Refused(_))) => *here,
            Some(there @ Location::Peers { route, .. }) if passes(route) => *there,
            _ => {
                self.counts.drops.peer_foreign += 1;
                self.faults
                    .note(PrefixFault::PeerDestination(from), destination);
                return None;
            }
        };
        let accepted = AcceptedFlow {
            from,
            source,
            destination,
            to,
            is_from_internet: is_default,
        };
        self.last_accepted_flow = Some(accepted);
        self.count_from_internet(&accepted, length);
        Some(to)
    }

    fn count_from_internet(&mut self, flow: &AcceptedFlow, length: usize) {
        if flow.is_from_internet {
            self.counts.stats.from_internet_packets += 1;
            self.counts.stats.from_internet_bytes += length as u64;
        }
    }
}

/// Where the prefixes of a tenant are, and the lists of peers that lead to them.
fn locations(setup: &TenantSetup) -> (PrefixTable<Location>, Vec<Vec<PeerId>>) {
    let mut by_prefix: BTreeMap<IpNet, Vec<PeerId>> = BTreeMap::new();
    let of = |is_direct: bool| {
        let peers = setup.peers.iter();
        let peers = peers.filter(move |(_, of)| of.is_direct == is_direct);
        peers.map(|(peer, of)| (peer, &of.prefixes))
    };
    let backup = setup.peers.iter();
    let backup = backup.map(|(peer, of)| (peer, &of.backup_prefixes));
    for (peer, prefixes) in of(true).chain(of(false)).chain(backup) {
        for prefix in prefixes {
            let peers = by_prefix.entry(*prefix).or_default();
            if !peers.contains(peer) {
                peers.push(*peer);
            }
        }
    }
    let (mut locations, mut routes) = (PrefixTable::new(), Vec::new());
    let mut known: BTreeMap<Vec<PeerId>, RouteId> = BTreeMap::new();
    // An own prefix stays the gateway's: `insert` refuses the same one of a peer.
    for prefix in &setup.own {
        let _ = locations.insert(*prefix, Location::Local);
    }
    // Before those of peers, which may have another exit.
    let everything = setup
        .exit
        .iter()
        .flat_map(|exit| [exit.v4, exit.v6].into_iter().zip(DEFAULT_PREFIXES));
    for (is_led, prefix) in everything {
        let location = match is_led {
            true => Location::Exit,
            false => Location::Refused(Reason::NoRoute),
        };
        let _ = locations.insert(prefix, location);
    }
    for (prefix, peers) in by_prefix {
        let route = *known.entry(peers).or_insert_with_key(|peers| {
            routes.push(peers.clone());
            RouteId(routes.len() - 1)
        });
        let is_default = prefix.prefix_len() == 0;
        let _ = locations.insert(prefix, Location::Peers { route, is_default });
    }
    // What is behind this gateway or a peer is there, private or not.
    for prefix in setup.exit.iter().flat_map(|exit| &exit.refused) {
        let _ = locations.insert(*prefix, Location::Refused(Reason::Prohibited));
    }
    (locations, routes)
}

impl IcmpLimits {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            too_big: TokenBucket::new(now),
            hop_limit: TokenBucket::new(now),
            no_route: TokenBucket::new(now),
            unreachable: TokenBucket::new(now),
        }
    }

    pub(super) fn of(&mut self, reason: Reason) -> &mut TokenBucket {
        match reason {
            Reason::TooBig { .. } => &mut self.too_big,
            Reason::HopLimitExceeded => &mut self.hop_limit,
            Reason::NoRoute | Reason::Prohibited => &mut self.no_route,
            Reason::HostUnreachable => &mut self.unreachable,
        }
    }
}

impl Peer {
    /// The application of a packet to it; of one that it sends, if its rules are the same.
    pub(super) fn app_of(&self, header: &Header, sorted: Classification) -> AppId {
        let of_class = || sorted.class.and_then(|class| self.classes[class as usize]);
        let app = self.app_by_rule(header, sorted).or_else(of_class);
        app.unwrap_or(self.app)
    }

    /// The application that a rule gives a packet.
    fn app_by_rule(&self, header: &Header, sorted: Classification) -> Option<AppId> {
        self.rules.application(header, sorted.name).copied()
    }
}

impl TokenBucket {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            left: ANSWERS_MAX,
            refilled: now,
        }
    }

    pub(super) fn take(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.refilled).as_nanos();
        let new = u32::try_from(since / NANOS_PER_ANSWER).unwrap_or(u32::MAX);
        if new > 0 {
            self.left = self.left.saturating_add(new).min(ANSWERS_MAX);
            self.refilled = now;
        }
        self.left
            .checked_sub(1)
            .map(|left| self.left = left)
            .is_some()
    }
}

/// Groups of one link: of IPv4 the block for local control (RFC 5771 §4), of IPv6 those whose scope says
/// so (RFC 4291 §2.7).
fn is_link_scope(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => matches!(v4.octets(), [224, 0, 0, _]),
        IpAddr::V6(v6) => v6.is_multicast() && v6.segments()[0] & 0xf <= 2,
    }
}
