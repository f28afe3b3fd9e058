//! Tenants' IP packets between TUN devices and the core. Ingress: read, segmented, validated,
//! classified and sent to a peer. Egress: validated, coalesced and written.
//!
//! The control thread opens devices, with their addresses and routes, and replaces lost ones.
//! Windows and queues are the core's.

mod counts;

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, Ipv6Addr},
    ops::Range,
    sync::mpsc,
    thread,
};

use ipnet::IpNet;
use keiro_core::{
    AppId, Endpoint, Event, Instant, IpPacket, PeerId, TenantConfig, TenantId, TenantSnapshot,
};
use keiro_ip::{
    Header,
    classify::{Classifier, Match},
    ecn::{self, Decapsulated, Ecn},
    flow::{FlowKey, FlowSeed},
    fragment, hop,
    icmp::{self, REPLY_BYTES_MAX, Reason, ReplyFrom},
    mss,
    offload::{Coalescer, Segments, VNET_HEADER_BYTES, VnetHeader},
    prefix::PrefixTable,
};
use keiro_linux::{
    epoll::{Epoll, Interest},
    tun::{Offloads, READ_BYTES_MAX, TunFault, TunQueue},
};

pub(crate) use self::counts::Counts;
use super::{
    report::{Report, Reporter},
    token,
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
    pub(crate) peers: BTreeMap<PeerId, PeerSetup>,
}

/// A tenant's part behind one peer.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PeerSetup {
    pub(crate) prefixes: Vec<IpNet>,
    /// Takes what no rule matches.
    pub(crate) app: AppId,
    pub(crate) rules: Vec<(Match, AppId)>,
}

/// A tenant in numbers.
#[derive(Clone, Debug)]
pub(crate) struct TenantFigures {
    pub(crate) id: TenantId,
    /// Its device is there.
    pub(crate) has_device: bool,
    pub(crate) counts: Counts,
    pub(crate) peers: BTreeMap<PeerId, TenantSnapshot>,
}

/// All tenants and their devices.
pub(crate) struct Tunnels {
    devices: HashMap<u64, Device>,
    tenants: BTreeMap<TenantId, Tenant>,
    by_device: HashMap<u64, TenantId>,
    seed: FlowSeed,
    /// One packet as the kernel gave it, and one of a peer's that is changed. Empty as long as there is
    /// no tenant.
    read: Vec<u8>,
    changed: Vec<u8>,
    out: WriteBatch,
    closer: DeviceCloser,
    /// Devices that do not work any more and are still waited on.
    lost: Vec<Device>,
    /// Whose paths have changed, so that packets of another length may fit.
    changed_peers: BTreeSet<PeerId>,
}

/// Closes devices' queues while others go on.
#[derive(Default)]
struct DeviceCloser {
    thread: Option<mpsc::Sender<Vec<TunQueue>>>,
}

struct Device {
    /// At least one; the kernel spreads flows over them.
    queues: Vec<TunQueue>,
    /// Which is read first in the next turn.
    turn: Cell<usize>,
    offloads: Offloads,
}

struct Tenant {
    setup: TenantSetup,
    locations: PrefixTable<Location>,
    peers: BTreeMap<PeerId, Peer>,
    counts: Counts,
    answers: TokenBucket,
    /// Peer, source and destination of the last accepted packet: most that follow are the same.
    last_accepted_flow: Option<(PeerId, IpAddr, IpAddr)>,
}

struct Peer {
    rules: Classifier<AppId>,
    app: AppId,
    /// Longest packet that fits for every application of the tenant: the limit for segment sizes
    /// requested from there.
    max_inner_packet: u16,
}

/// Where an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Location {
    Local,
    Peer(PeerId),
}

/// Limits ICMP errors (RFC 4443 §2.4 (f)).
struct TokenBucket {
    left: u32,
    refilled: Instant,
}

/// Packets that wait to be written within one turn. Large buffers are shared by all tenants:
/// packets of one tenant are coalesced, those of others are deferred.
#[derive(Default)]
struct WriteBatch {
    coalescer: Option<(Offloads, Coalescer)>,
    of: Option<TenantId>,
    bytes: Vec<u8>,
    deferred: Vec<(TenantId, Range<usize>)>,
}

/// Reads from one device before others have their turn; one may give 64 KiB.
const READS_PER_TURN: usize = 64;
/// Bytes likewise: a quarter of a tenant's queue as it is by default.
const BYTES_PER_TURN: usize = 256 << 10;
/// Large packets that are put together at a time.
const COALESCED_MAX: usize = 64;
/// Bytes of packets that wait deferred.
const DEFERRED_BYTES_MAX: usize = 1 << 20;
/// Answers per tenant: so many at once, and per second. Ours.
const ANSWERS_MAX: u32 = 100;
const NANOS_PER_ANSWER: u128 = 1_000_000_000 / ANSWERS_MAX as u128;

impl Tunnels {
    pub(crate) fn new(seed: &[u8; 16]) -> Self {
        Self {
            devices: HashMap::new(),
            tenants: BTreeMap::new(),
            by_device: HashMap::new(),
            seed: FlowSeed::new(seed),
            read: Vec::new(),
            changed: Vec::new(),
            out: WriteBatch::default(),
            closer: DeviceCloser::default(),
            lost: Vec::new(),
            changed_peers: BTreeSet::new(),
        }
    }

    pub(crate) fn add_device(
        &mut self,
        epoll: &Epoll,
        number: u64,
        queues: Vec<TunQueue>,
        offloads: Offloads,
    ) -> io::Result<()> {
        for queue in &queues {
            epoll.add(queue, token::tun(number), Interest::Read)?;
        }
        let device = Device {
            queues,
            turn: Cell::new(0),
            offloads,
        };
        self.devices.insert(number, device);
        self.read.resize(READ_BYTES_MAX, 0);
        self.changed.resize(READ_BYTES_MAX, 0);
        Ok(())
    }

    /// Closes a device in another thread, which takes the kernel some 20 ms each.
    pub(crate) fn remove_device(&mut self, epoll: &Epoll, number: u64) {
        let Some(device) = self.devices.remove(&number) else {
            return;
        };
        self.close(epoll, device);
    }

    /// Closes the devices that failed.
    pub(crate) fn close_lost(&mut self, epoll: &Epoll) {
        while let Some(device) = self.lost.pop() {
            self.close(epoll, device);
        }
    }

    /// In the other thread, because closing waits for a kernel lock on interfaces. Events of the
    /// device are no longer received.
    fn close(&mut self, epoll: &Epoll, device: Device) {
        for queue in &device.queues {
            if let Err(error) = epoll.remove(queue) {
                tracing::debug!(%error, "TUN device");
            }
        }
        self.closer.close(device.queues);
    }

    /// Adds or changes a tenant.
    pub(crate) fn set(&mut self, now: Instant, setup: TenantSetup, endpoint: &mut Endpoint) {
        let id = setup.config.id;
        let before = self.tenants.remove(&id);
        if let Some(before) = &before {
            self.detach_device(before.setup.device, id);
            for peer in before.peers.keys() {
                if !setup.peers.contains_key(peer) {
                    endpoint.remove_tenant(*peer, id);
                }
            }
        }
        for peer in setup.peers.keys() {
            let same = before.as_ref().is_some_and(|before| {
                before.setup.config == setup.config && before.peers.contains_key(peer)
            });
            if !same && let Err(error) = endpoint.set_tenant(now, *peer, setup.config) {
                tracing::error!(tenant = id.0, %error, "a tenant is not taken");
            }
        }
        self.by_device.insert(setup.device, id);
        let counts = before.map(|before| before.counts).unwrap_or_default();
        let mut tenant = Tenant::new(now, setup, counts);
        let peers: Vec<PeerId> = tenant.peers.keys().copied().collect();
        for peer in peers {
            tenant.update_max_inner_packet(endpoint, peer);
        }
        self.tenants.insert(id, tenant);
    }

    /// Notes peers whose paths have changed, for
    /// [`update_max_inner_packets`](Self::update_max_inner_packets).
    pub(crate) fn on_event(&mut self, event: &Event) {
        if let Event::PathUp { peer, .. }
        | Event::PathMoved { peer, .. }
        | Event::MtuChanged { peer, .. }
        | Event::AppMoved { peer, .. } = event
        {
            self.changed_peers.insert(*peer);
        }
    }

    /// Updates the maximum packet length to peers whose paths have changed, before the first packet
    /// is sent: the MSS of a SYN from there has to fit.
    pub(crate) fn update_max_inner_packets(&mut self, endpoint: &Endpoint) {
        for peer in std::mem::take(&mut self.changed_peers) {
            for tenant in self.tenants.values_mut() {
                tenant.update_max_inner_packet(endpoint, peer);
            }
        }
    }

    pub(crate) fn remove(&mut self, id: TenantId, endpoint: &mut Endpoint) {
        if let Some(tenant) = self.tenants.remove(&id) {
            self.detach_device(tenant.setup.device, id);
            for peer in tenant.peers.keys() {
                endpoint.remove_tenant(*peer, id);
            }
        }
    }

    /// A device is a tenant's no more, unless another has taken it over meanwhile.
    fn detach_device(&mut self, number: u64, id: TenantId) {
        if self.by_device.get(&number) == Some(&id) {
            self.by_device.remove(&number);
        }
    }

    /// Takes what waits at device `number` over.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        number: u64,
        endpoint: &mut Endpoint,
        reporter: &mut Reporter,
    ) {
        let Some(device) = self.devices.get(&number) else {
            return;
        };
        let tenant = self.by_device.get(&number);
        let mut tenant = tenant.and_then(|id| self.tenants.get_mut(id));
        let (mut reads, mut bytes) = (0, 0);
        for queue in device.in_turn() {
            loop {
                if reads >= READS_PER_TURN || bytes >= BYTES_PER_TURN {
                    device.turn.set(queue + 1);
                    return;
                }
                let length = match device.queues[queue].read(&mut self.read) {
                    Ok(Some(length)) => length,
                    Ok(None) | Err(TunFault::Down | TunFault::Refused) => break,
                    Err(fault) => {
                        self.on_device_failed(number, &fault, reporter);
                        return;
                    }
                };
                if let Some(tenant) = tenant.as_deref_mut() {
                    let mut context = IngressContext {
                        now,
                        device,
                        seed: &self.seed,
                        endpoint,
                    };
                    tenant.ingress(&mut context, &mut self.read[..length]);
                }
                reads += 1;
                bytes += length;
            }
        }
    }

    /// Takes a packet of a peer; it is written with the next [`flush`](Self::flush).
    pub(crate) fn deliver(
        &mut self,
        (peer, id): (PeerId, TenantId),
        outer: u8,
        packet: &[u8],
        reporter: &mut Reporter,
    ) {
        let Some(tenant) = self.tenants.get_mut(&id) else {
            return;
        };
        let Some(packet) = tenant.filter_from_peer(peer, outer, packet, &mut self.changed) else {
            return;
        };
        let device = tenant.setup.device;
        let Some(device) = self.devices.get(&device) else {
            tenant.counts.device += 1;
            return;
        };
        if self.out.of.is_none() {
            self.out.begin(id, device.offloads);
        }
        if self.out.of == Some(id) {
            if self.out.push(packet) {
                return;
            }
            let packet = packet.to_vec();
            self.write(reporter);
            if let Some(device) = self.devices.get(&self.tenants[&id].setup.device) {
                self.out.begin(id, device.offloads);
                self.out.push(&packet);
            }
            return;
        }
        let start = self.out.bytes.len();
        self.out.bytes.extend_from_slice(packet);
        self.out.deferred.push((id, start..self.out.bytes.len()));
        if self.out.bytes.len() > DEFERRED_BYTES_MAX {
            self.flush(reporter);
        }
    }

    /// Writes what was taken.
    pub(crate) fn flush(&mut self, reporter: &mut Reporter) {
        if self.out.of.is_none() {
            return;
        }
        self.write(reporter);
        if self.out.deferred.is_empty() {
            return;
        }
        let mut deferred = std::mem::take(&mut self.out.deferred);
        let bytes = std::mem::take(&mut self.out.bytes);
        // Packets of one tenant stay in order.
        deferred.sort_by_key(|(id, _)| *id);
        for (id, range) in deferred.drain(..) {
            if self.out.of != Some(id) {
                self.write(reporter);
                let device = self.tenants.get(&id).map(|tenant| tenant.setup.device);
                let Some(device) = device.and_then(|number| self.devices.get(&number)) else {
                    continue;
                };
                self.out.begin(id, device.offloads);
            }
            let packet = &bytes[range];
            if !self.out.push(packet) {
                let offloads = self.out.coalescer.as_ref().map(|(offloads, _)| *offloads);
                self.write(reporter);
                self.out.begin(id, offloads.unwrap_or_default());
                self.out.push(packet);
            }
        }
        self.write(reporter);
        self.out.deferred = deferred;
        self.out.bytes = bytes;
        self.out.bytes.clear();
    }

    /// Every tenant in numbers.
    pub(crate) fn figures(&self, now: Instant, endpoint: &Endpoint) -> Vec<TenantFigures> {
        let figures = |(id, tenant): (&TenantId, &Tenant)| {
            let before = Some(TenantId(id.0.saturating_sub(1)));
            let of_peer = |peer: &PeerId| {
                let found = endpoint.tenants(now, *peer, before, 1).pop()?;
                (found.id == *id).then_some((*peer, found))
            };
            TenantFigures {
                id: *id,
                has_device: self.devices.contains_key(&tenant.setup.device),
                counts: tenant.counts,
                peers: tenant.peers.keys().filter_map(of_peer).collect(),
            }
        };
        self.tenants.iter().map(figures).collect()
    }

    /// Writes the coalesced packets; the batch has no tenant afterwards.
    fn write(&mut self, reporter: &mut Reporter) {
        let (Some(id), Some((_, coalescer))) = (self.out.of.take(), &mut self.out.coalescer) else {
            return;
        };
        let tenant = self.tenants.get_mut(&id);
        let number = tenant.as_ref().map(|tenant| tenant.setup.device);
        let device = number.and_then(|number| self.devices.get(&number));
        let (Some(tenant), Some(number), Some(device)) = (tenant, number, device) else {
            coalescer.drain(|_| {});
            return;
        };
        let skip = match device.offloads.vnet_header {
            true => 0,
            false => VNET_HEADER_BYTES,
        };
        let (mut lost, seed) = (None, &self.seed);
        coalescer.drain(|bytes| {
            let queue = device.queue_of(seed, &bytes[VNET_HEADER_BYTES..]);
            let written = queue.write(&bytes[skip..]);
            match written {
                Ok(true) => {
                    tenant.counts.stats.egress_packets += 1;
                    tenant.counts.stats.egress_bytes += (bytes.len() - VNET_HEADER_BYTES) as u64;
                }
                Ok(false) | Err(TunFault::Down | TunFault::Refused) => tenant.counts.device += 1,
                Err(fault) => {
                    tenant.counts.device += 1;
                    lost = Some(fault);
                }
            }
        });
        if let Some(fault) = lost {
            self.on_device_failed(number, &fault, reporter);
        }
    }

    /// Removes a device that failed and reports it; the control thread opens another.
    fn on_device_failed(&mut self, number: u64, fault: &TunFault, reporter: &mut Reporter) {
        if let Some(device) = self.devices.remove(&number) {
            self.lost.push(device);
            let error = fault.to_string();
            reporter.report(Report::DeviceLost { number, error });
        }
    }
}

/// What a packet that enters is handled with.
struct IngressContext<'a> {
    now: Instant,
    device: &'a Device,
    seed: &'a FlowSeed,
    endpoint: &'a mut Endpoint,
}

impl Tenant {
    fn new(now: Instant, setup: TenantSetup, counts: Counts) -> Self {
        let mut locations = PrefixTable::new();
        let own = setup.own.iter().map(|prefix| (*prefix, Location::Local));
        let theirs = setup.peers.iter().flat_map(|(peer, of)| {
            of.prefixes
                .iter()
                .map(|prefix| (*prefix, Location::Peer(*peer)))
        });
        for (prefix, side) in own.chain(theirs) {
            // The configuration has none twice.
            let _ = locations.insert(prefix, side);
        }
        let peer = |(peer, of): (&PeerId, &PeerSetup)| {
            let rules = Classifier::new(of.rules.clone()).unwrap_or_else(|error| {
                tracing::error!(%error, "a tenant's rules are not taken");
                Classifier::new(Vec::new()).expect("no rules are right")
            });
            // Until a path is known, the device's.
            let (app, max_inner_packet) = (of.app, setup.mtu);
            let peer_state = Peer {
                rules,
                app,
                max_inner_packet,
            };
            (*peer, peer_state)
        };
        let peers = setup.peers.iter().map(peer).collect();
        let answers = TokenBucket {
            left: ANSWERS_MAX,
            refilled: now,
        };
        Self {
            setup,
            locations,
            peers,
            counts,
            answers,
            last_accepted_flow: None,
        }
    }

    fn update_max_inner_packet(&mut self, endpoint: &Endpoint, peer: PeerId) {
        let (id, longest) = (self.setup.config.id, self.setup.mtu);
        let (Some(of), Some(found)) = (self.setup.peers.get(&peer), self.peers.get_mut(&peer))
        else {
            return;
        };
        let apps = of.rules.iter().map(|(_, app)| *app).chain([of.app]);
        let rooms = apps.filter_map(|app| endpoint.packet_room(peer, id, app));
        let room = rooms.min().and_then(|room| u16::try_from(room).ok());
        found.max_inner_packet = room.map_or(longest, |room| room.min(longest));
    }

    /// Handles a packet that was read from the device, large or not. The headers of a large one are
    /// checked once.
    fn ingress(&mut self, with: &mut IngressContext<'_>, bytes: &mut [u8]) {
        let mut vnet = VnetHeader::default();
        let mut packet = bytes;
        if with.device.offloads.vnet_header {
            match VnetHeader::split(packet) {
                Ok((header, _)) => vnet = header,
                Err(_) => {
                    self.counts.malformed += 1;
                    return;
                }
            }
            packet = &mut packet[VNET_HEADER_BYTES..];
        }
        let Ok(header) = Header::parse(packet) else {
            self.counts.malformed += 1;
            return;
        };
        self.counts.stats.ingress_packets += 1;
        self.counts.stats.ingress_bytes += packet.len() as u64;
        if is_link_scope(&header.destination) {
            self.counts.multicast += 1;
            return;
        }
        if header.is_link_local() {
            self.counts.link_local += 1;
            return;
        }
        if !header.is_routable() || header.destination.is_multicast() {
            self.counts.not_routable += 1;
            return;
        }
        if !self
            .locations
            .admits_source(header.source, &Location::Local)
        {
            self.counts.spoofed += 1;
            return;
        }
        let Some(&Location::Peer(to)) = self.locations.longest_match(header.destination) else {
            self.counts.no_route += 1;
            return self.answer(with, packet, &header, Reason::NoRoute);
        };
        if hop::decrement(packet, header.version()).is_err() {
            self.counts.hop_limit += 1;
            return self.answer(with, packet, &header, Reason::HopLimitExceeded);
        }
        let Ok(mut segments) = Segments::new(vnet, packet) else {
            self.counts.malformed += 1;
            return;
        };
        self.counts.stats.ingress_packets += segments.count() as u64 - 1;
        let Some(peer) = self.peers.get_mut(&to) else {
            return;
        };
        let id = self.setup.config.id;
        let app = *peer.rules.application(&header).unwrap_or(&peer.app);
        let Some(room) = with.endpoint.packet_room(to, id, app) else {
            self.counts.no_path += segments.count() as u64;
            return;
        };
        let room = u16::try_from(room).unwrap_or(u16::MAX).min(self.setup.mtu);
        let flow_hash = with.seed.number(&FlowKey::of(&header)) as u32;
        let whole = segments.count() == 1;
        let send = |endpoint: &mut Endpoint, data: Vec<u8>| {
            let ecn = header.traffic_class & 3;
            let sent = IpPacket {
                flow_hash,
                ecn,
                data,
            };
            // Refusals are counted in the core, or the peer is being removed.
            let _ = endpoint.send_packet(with.now, to, id, app, sent);
        };
        let count = segments.count();
        for number in 0..count {
            let mut packet = with.endpoint.spare_buffer(segments.largest());
            let Some(length) = segments.write_next(&mut packet) else {
                break;
            };
            packet.truncate(length);
            if whole {
                mss::clamp(&mut packet, &header, room);
            }
            if length <= room.into() {
                send(with.endpoint, packet);
                continue;
            }
            let cut = fragment::fragment(&packet, &header, room, |part| {
                send(with.endpoint, part.to_vec());
            });
            if cut.is_err() {
                // The remaining segments are as long, except the last, which is useless alone.
                self.counts.too_big += (count - number) as u64;
                self.answer(with, &packet, &header, Reason::TooBig { mtu: room });
                break;
            }
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
        if !self.answers.take(with.now) {
            self.counts.stats.suppressed_icmp_error_packets += 1;
            return;
        }
        let mut bytes = [0; VNET_HEADER_BYTES + REPLY_BYTES_MAX];
        let skip = match with.device.offloads.vnet_header {
            true => VNET_HEADER_BYTES,
            false => 0,
        };
        bytes[skip..skip + reply.len()].copy_from_slice(reply);
        if let Ok(true) = with.device.queues[0].write(&bytes[..skip + reply.len()]) {
            self.counts.stats.icmp_error_packets += 1;
        }
    }

    /// Checks a peer's packet and adapts it for writing, in `scratch` if it changes; `None`: it is
    /// dropped and counted.
    fn filter_from_peer<'a>(
        &mut self,
        from: PeerId,
        outer: u8,
        packet: &'a [u8],
        scratch: &'a mut [u8],
    ) -> Option<&'a [u8]> {
        let counts = &mut self.counts;
        let Ok(header) = Header::parse(packet) else {
            counts.peer_malformed += 1;
            return None;
        };
        let flow = Some((from, header.source, header.destination));
        if self.last_accepted_flow != flow {
            if !header.is_routable()
                || !self
                    .locations
                    .admits_source(header.source, &Location::Peer(from))
            {
                counts.peer_spoofed += 1;
                return None;
            }
            if self.locations.longest_match(header.destination) != Some(&Location::Local) {
                counts.peer_foreign += 1;
                return None;
            }
            self.last_accepted_flow = flow;
        }
        let inner = Ecn::of(header.traffic_class);
        let Decapsulated::Forward(ecn) = inner.decapsulated(Ecn::of(outer)) else {
            counts.congested += 1;
            return None;
        };
        let is_syn = header.protocol == keiro_ip::protocol::TCP
            && header.is_first()
            && packet
                .get(header.transport + 13)
                .is_some_and(|flags| flags & 2 != 0);
        if ecn == inner && !is_syn {
            return Some(packet);
        }
        let changed = scratch.get_mut(..packet.len())?;
        changed.copy_from_slice(packet);
        ecn::set_ecn(changed, header.version(), ecn);
        if let Some(peer) = self.peers.get(&from) {
            mss::clamp(changed, &header, peer.max_inner_packet);
        }
        Some(changed)
    }
}

impl Device {
    /// The numbers of its queues, beginning with the one whose turn it is.
    fn in_turn(&self) -> impl Iterator<Item = usize> + use<> {
        let (count, first) = (self.queues.len(), self.turn.get());
        (first..first + count).map(move |number| number % count)
    }

    /// By which a packet is written: the kernel gives its flow's answers to the same one.
    fn queue_of(&self, seed: &FlowSeed, packet: &[u8]) -> &TunQueue {
        match &self.queues[..] {
            [only] => only,
            queues => {
                let header = Header::parse(packet).ok();
                let flow = header.map_or(0, |header| seed.number(&FlowKey::of(&header)));
                &queues[(flow % queues.len() as u64) as usize]
            }
        }
    }
}

impl TokenBucket {
    fn take(&mut self, now: Instant) -> bool {
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

impl DeviceCloser {
    fn close(&mut self, queues: Vec<TunQueue>) {
        let Some(thread) = self.thread() else {
            return;
        };
        // Where the thread is gone they are closed here.
        let _ = thread.send(queues);
    }

    /// It begins with the first device that is closed, and ends with what holds it.
    fn thread(&mut self) -> Option<&mpsc::Sender<Vec<TunQueue>>> {
        if self.thread.is_none() {
            let (sender, queues) = mpsc::channel::<Vec<TunQueue>>();
            let began = thread::Builder::new()
                .name("devices".to_owned())
                .spawn(move || queues.into_iter().for_each(drop));
            self.thread = began.is_ok().then_some(sender);
        }
        self.thread.as_ref()
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

impl Drop for Tunnels {
    fn drop(&mut self) {
        // The process does not wait for them: when it ends the kernel closes what is left.
        for (_, device) in self.devices.drain() {
            self.closer.close(device.queues);
        }
    }
}

impl WriteBatch {
    /// The next packets are of this tenant.
    fn begin(&mut self, id: TenantId, offloads: Offloads) {
        let same = |(of, _): &(Offloads, Coalescer)| *of == offloads;
        if !self.coalescer.as_ref().is_some_and(same) {
            let coalescer = Coalescer::new(COALESCED_MAX, offloads.tcp, offloads.udp);
            self.coalescer = Some((offloads, coalescer));
        }
        self.of = Some(id);
    }

    /// `false`: there is no room.
    fn push(&mut self, packet: &[u8]) -> bool {
        match &mut self.coalescer {
            Some((_, coalescer)) => coalescer.push(packet).is_ok(),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests;
