//! A gateway between hosts and routers: the core's endpoint carries the packets of its tenants to the gateway
//! at the other end, within their windows.
//!
//! Handshake, keys, acknowledgements, pacing, controllers and queues are the daemon's. The machine is ideal:
//! no processing time, no loss between the link and the core, and punctual timers.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use keiro_core::{
    AppConfig, AppId, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig,
    IpPacket as Carried, PacketError, PathConfig, PathId, PeerConfig, PeerId, PrivateKey, SocketId,
    TenantConfig, TenantError, TenantId, TenantSnapshot, TransmitBuf,
};
use keiro_units::{Bandwidth, Instant, Probability};

use super::{
    Body, Device, DeviceOutput, Ecn, IpPacket, TCP_HEADER, measure::Bins, packet::IP_HEADER, wire,
};
use crate::seed;

/// The UDP port of all gateways.
const PORT: u16 = 7600;
/// The application of all packets.
const APP: &str = "packets";
/// An arbitrary date in 2023: gateways order their handshakes by it.
const UNIX_TIME_AT_ZERO: Duration = Duration::from_secs(1_700_000_000);
/// A timer that is due at once fires this much later, because time has to pass.
const SOONEST: Duration = Duration::from_micros(1);

/// One gateway. It receives all packets that pass it ([`Mesh::add_gateway`](super::Mesh)): those to a
/// tenant's remote hosts are carried, all others are forwarded unchanged.
#[derive(Debug)]
pub struct Edge {
    endpoint: Endpoint,
    spec: EdgeSpec,
    app: AppId,
    /// By the host at the far end.
    routes: BTreeMap<Ipv4Addr, (PeerId, TenantId)>,
    buffer: TransmitBuf,
    written: Vec<u8>,
    wake_at: Option<Instant>,
    counts: EdgeCounts,
    put_back_bins: BTreeMap<TenantId, Bins>,
    /// Of each path to [`add_spread_remote`](Self::add_spread_remote): the number of its link.
    links: Vec<usize>,
}

/// Identity and access line of a gateway.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeSpec {
    /// Seed of all its keys and random choices; the same at all gateways of a mesh.
    pub seed: u64,
    /// Distinct among gateways with this seed.
    pub number: u64,
    /// Its path rate, in IP bytes; `None`: it is found.
    pub rate: Option<Bandwidth>,
    /// Share of its path rate that trains take.
    pub probe_share: Probability,
    /// Longest IP packet that it tries, in bytes.
    pub mtu: u16,
}

/// A tenant's hosts behind another gateway.
#[derive(Clone, Debug, PartialEq)]
pub struct Remote {
    /// The other gateway's [`EdgeSpec::number`].
    pub number: u64,
    pub address: Ipv4Addr,
    /// The tenant of the hosts, and its configuration towards them.
    pub tenant: TenantConfig,
    pub hosts: Vec<Ipv4Addr>,
}

/// Packet counters of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EdgeCounts {
    pub taken: u64,
    /// Of these, refused because no path was up.
    pub no_path: u64,
    /// Of these, refused because they were too long for the path.
    pub too_long: u64,
    /// Of these, refused for another reason, which is a fault in the construction of the mesh.
    pub refused: u64,
    /// Delivered to hosts.
    pub put_back: u64,
    /// Arrived from the other end with a CE mark although they must not be marked (RFC 6040 §4.2): dropped.
    pub wrongly_marked: u64,
    /// Arrived from the other end but were not packets.
    pub damaged: u64,
}

impl Edge {
    /// A gateway without peers.
    pub fn new(now: Instant, spec: EdgeSpec) -> Self {
        let mut config = EndpointConfig::new(private_key(&spec, spec.number));
        config.unix_time_at_zero = UNIX_TIME_AT_ZERO;
        config.probe_share = spec.probe_share;
        let chance = seed::derive_key(spec.seed, "edge", spec.number);
        let mut edge = Self {
            endpoint: Endpoint::new(now, config, chance),
            spec,
            app: AppId::of_name(APP),
            routes: BTreeMap::new(),
            buffer: TransmitBuf::new(1),
            written: Vec::new(),
            wake_at: None,
            counts: EdgeCounts::default(),
            put_back_bins: BTreeMap::new(),
            links: Vec::new(),
        };
        edge.wake_at = edge.endpoint.poll_timeout();
        edge
    }

    /// Adds a tenant's hosts behind another gateway. Call it on both.
    pub fn add_remote(
        &mut self,
        now: Instant,
        remote: &Remote,
        out: &mut DeviceOutput<'_>,
    ) -> Result<(), TenantError> {
        let paths = vec![self.path(0, remote.address)];
        self.add_peer(now, remote, paths, out)
    }

    /// The same over several links that lead to the other gateway, by their numbers: one path each, over which
    /// packets are spread. For one remote gateway only.
    pub fn add_spread_remote(
        &mut self,
        now: Instant,
        remote: &Remote,
        links: &[usize],
        out: &mut DeviceOutput<'_>,
    ) -> Result<(), TenantError> {
        self.links = links.to_vec();
        let paths = (0..links.len() as u8).map(|path| self.path(path, remote.address));
        let paths = paths.collect();
        self.add_peer(now, remote, paths, out)
    }

    fn path(&self, number: u8, remote: Ipv4Addr) -> PathConfig {
        PathConfig {
            id: PathId(number),
            socket: SocketId(number.into()),
            remote: Some(SocketAddr::from((remote, PORT))),
            rate: self.spec.rate,
            mtu_max: self.spec.mtu,
            probe_limit: None,
            terms: keiro_core::PathTerms::FREE,
        }
    }

    fn add_peer(
        &mut self,
        now: Instant,
        remote: &Remote,
        paths: Vec<PathConfig>,
        out: &mut DeviceOutput<'_>,
    ) -> Result<(), TenantError> {
        let key = private_key(&self.spec, remote.number).public_key();
        let mut config = PeerConfig::new(key);
        config.apps = vec![AppConfig {
            id: self.app,
            class: DeliveryClass::Datagram,
            latency_target: None,
            lifetime: None,
            paths: paths.iter().map(|path| path.id).collect(),
            tenant: TenantId::ZERO,
            is_spread: paths.len() > 1,
        }];
        config.paths = paths;
        let peer = self.endpoint.add_peer(now, config);
        self.endpoint.set_tenant(now, peer, remote.tenant)?;
        let hosts = remote.hosts.iter();
        self.routes
            .extend(hosts.map(|host| (*host, (peer, remote.tenant.id))));
        self.turn(now, out);
        Ok(())
    }

    /// Reconfigures a tenant towards all gateways that have hosts of it.
    pub fn set_tenant(
        &mut self,
        now: Instant,
        tenant: TenantConfig,
        out: &mut DeviceOutput<'_>,
    ) -> Result<(), TenantError> {
        for (peer, id) in self.routes.values() {
            if *id == tenant.id {
                self.endpoint.set_tenant(now, *peer, tenant)?;
            }
        }
        self.turn(now, out);
        Ok(())
    }

    /// Its counters.
    pub const fn counts(&self) -> EdgeCounts {
        self.counts
    }

    /// IP bytes of a tenant that it delivered, by second; `None` if none so far.
    pub fn put_back(&self, tenant: TenantId) -> Option<&Bins> {
        self.put_back_bins.get(&tenant)
    }

    /// Its tenants towards every gateway, in the order of their hosts' addresses.
    pub fn tenants(&self, now: Instant) -> Vec<TenantSnapshot> {
        let mut peers: Vec<PeerId> = self.routes.values().map(|(peer, _)| *peer).collect();
        peers.dedup();
        let tenants = peers.into_iter();
        tenants
            .flat_map(|peer| self.endpoint.tenants(now, peer, None, usize::MAX))
            .collect()
    }

    pub const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    fn take(&mut self, now: Instant, packet: &IpPacket, out: &mut DeviceOutput<'_>) {
        let Some(&(peer, tenant)) = self.routes.get(&packet.destination) else {
            return out.forward(packet);
        };
        let app = self.app;
        let mut packet = *packet;
        // Clamps the MSS of a SYN to what fits, because there are no ICMP errors for long packets.
        if let Body::Tcp(header) = &mut packet.body
            && let Some(mss) = &mut header.mss
            && let Some(room) = self.endpoint.packet_room(peer, tenant, app)
        {
            let most = room.saturating_sub(usize::from(IP_HEADER + TCP_HEADER));
            *mss = (*mss).min(u16::try_from(most).unwrap_or(u16::MAX));
        }
        if !wire::encode(&packet, &mut self.written) {
            return out.forward(&packet);
        }
        self.counts.taken += 1;
        let carried = Carried {
            flow_hash: flow_hash(&packet),
            ecn: ecn_bits(packet.ecn),
            needs_order: matches!(packet.body, Body::Tcp(_)),
            data: self.written.clone(),
        };
        let sent = self.endpoint.send_packet(now, peer, tenant, app, carried);
        match sent {
            Ok(()) => {}
            Err(PacketError::NoPath) => self.counts.no_path += 1,
            Err(PacketError::TooLong { .. }) => self.counts.too_long += 1,
            Err(_) => self.counts.refused += 1,
        }
    }

    /// Drains the endpoint's output and updates the timer.
    fn turn(&mut self, now: Instant, out: &mut DeviceOutput<'_>) {
        while let Some(delivery) = self.endpoint.poll_delivery() {
            let Delivery::Packet {
                tenant, ecn, data, ..
            } = delivery
            else {
                continue;
            };
            let Some(mut inside) = wire::decode(data) else {
                self.counts.damaged += 1;
                continue;
            };
            // Decapsulation according to RFC 6040 §4.2.
            match (inside.ecn, ecn) {
                (Ecn::NotCapable, 3) => {
                    self.counts.wrongly_marked += 1;
                    continue;
                }
                (Ecn::Capable, 3) => inside.ecn = Ecn::Congestion,
                _ => {}
            }
            self.counts.put_back += 1;
            let bins = self.put_back_bins.entry(tenant);
            let bins = bins.or_insert_with(Bins::seconds);
            bins.add(now, inside.ip_len().get());
            out.send(inside);
        }
        while let Some(transmit) = self.endpoint.poll_transmit(now, &mut self.buffer) {
            let SocketAddr::V4(to) = transmit.remote else {
                continue;
            };
            let ecn = match transmit.ecn {
                0 => Ecn::NotCapable,
                3 => Ecn::Congestion,
                _ => Ecn::Capable,
            };
            for datagram in self.buffer.filled().chunks(transmit.segment_size) {
                let ports = (PORT, to.port());
                match self.links.get(usize::from(transmit.socket.0)) {
                    Some(link) => out.send_bytes_on(*link, *to.ip(), ports, ecn, datagram),
                    None => out.send_bytes(*to.ip(), ports, ecn, datagram),
                }
            }
        }
        while self.endpoint.poll_event().is_some() {}
        let next = self.endpoint.poll_timeout();
        self.wake_at = next.map(|at| at.max(now + SOONEST));
    }
}

impl Device for Edge {
    fn handle_packet(
        &mut self,
        now: Instant,
        port: usize,
        packet: &IpPacket,
        out: &mut DeviceOutput<'_>,
    ) {
        match packet.body {
            Body::Bytes(header, id) if packet.destination == out.address() => {
                let path = self.links.iter().position(|link| *link == port);
                let meta = DatagramMeta {
                    socket: SocketId(path.unwrap_or(0) as u16),
                    remote: SocketAddr::from((packet.source, header.source_port)),
                    ecn: ecn_bits(packet.ecn),
                    received_at: now,
                };
                self.endpoint.handle_datagram(now, meta, out.bytes_mut(id));
            }
            _ => self.take(now, packet, out),
        }
        self.turn(now, out);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut DeviceOutput<'_>) {
        self.endpoint.handle_timeout(now);
        self.turn(now, out);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.wake_at
    }
}

fn private_key(spec: &EdgeSpec, number: u64) -> PrivateKey {
    PrivateKey::from_bytes(seed::derive_key(spec.seed, "edge key", number))
}

const fn ecn_bits(ecn: Ecn) -> u8 {
    match ecn {
        Ecn::NotCapable => 0,
        Ecn::Capable => 2,
        Ecn::Congestion => 3,
    }
}

/// Equal for packets of one connection in one direction.
fn flow_hash(packet: &IpPacket) -> u32 {
    let addresses = u64::from(packet.source.to_bits()) << 32;
    let addresses = addresses | u64::from(packet.destination.to_bits());
    let (source, destination) = match packet.body {
        Body::Tcp(header) => (header.source_port, header.destination_port),
        Body::Udp(header) | Body::Bytes(header, _) => (header.source_port, header.destination_port),
    };
    let ports = u64::from(source) << 16 | u64::from(destination);
    seed::mix(seed::mix(addresses) ^ ports) as u32
}
