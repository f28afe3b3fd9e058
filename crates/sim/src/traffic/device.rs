//! What stands at the ends of a mesh's links and is not a router.
//!
//! A device is a state machine: it takes packets and the time, sends packets through
//! [`Outgoing`], and says when it wants to be woken. A host is one. A gateway is another: added
//! with [`Mesh::add_gateway`](super::Mesh::add_gateway) it stands between hosts and routers and is
//! given every packet on its way through, which it forwards, or carries as bytes
//! ([`wire::encode`](super::wire::encode)) inside datagrams of its own
//! ([`Outgoing::send_bytes`]) to a gateway that puts it back ([`wire::decode`](super::wire::decode)).

use std::net::Ipv4Addr;

use keiro_units::Instant;

use super::packet::{Body, BufferId, Buffers, Ecn, IpPacket, Packets, Slot, UdpHeader};

/// Takes part in a [`Mesh`](super::Mesh).
pub trait Device {
    /// A packet came in on the device's link number `port`. A host is given what is addressed to
    /// it; a gateway everything.
    fn handle_packet(
        &mut self,
        now: Instant,
        port: usize,
        packet: &IpPacket,
        out: &mut Outgoing<'_>,
    );

    /// The instant of [`poll_timeout`](Self::poll_timeout) has come.
    fn handle_timeout(&mut self, _now: Instant, _out: &mut Outgoing<'_>) {}

    /// When the device wants to be woken if nothing arrives; an instant that has passed means at
    /// once. Asked again after every call.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// A device with a host in it, so that flows can be added to it and looked at.
pub trait HasHost {
    /// The host; `None` if this is something else.
    fn host(&self) -> Option<&super::Host>;
    /// As [`host`](Self::host).
    fn host_mut(&mut self) -> Option<&mut super::Host>;
}

/// A host or a gateway, of one kind.
#[derive(Debug)]
pub enum Station<G> {
    /// A host.
    Host(super::Host),
    /// A gateway; behind a pointer, because there are few, and larger than hosts.
    Gateway(Box<G>),
}

impl<G> Station<G> {
    /// The gateway; `None`: it is a host.
    pub const fn gateway(&self) -> Option<&G> {
        match self {
            Self::Host(_) => None,
            Self::Gateway(gateway) => Some(gateway),
        }
    }

    /// As [`gateway`](Self::gateway).
    pub const fn gateway_mut(&mut self) -> Option<&mut G> {
        match self {
            Self::Host(_) => None,
            Self::Gateway(gateway) => Some(gateway),
        }
    }
}

impl<G: Device> Device for Station<G> {
    fn handle_packet(
        &mut self,
        now: Instant,
        port: usize,
        packet: &IpPacket,
        out: &mut Outgoing<'_>,
    ) {
        match self {
            Self::Host(host) => host.handle_packet(now, port, packet, out),
            Self::Gateway(gateway) => gateway.handle_packet(now, port, packet, out),
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outgoing<'_>) {
        match self {
            Self::Host(host) => host.handle_timeout(now, out),
            Self::Gateway(gateway) => gateway.handle_timeout(now, out),
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Host(host) => host.poll_timeout(),
            Self::Gateway(gateway) => gateway.poll_timeout(),
        }
    }
}

impl<G> HasHost for Station<G> {
    fn host(&self) -> Option<&super::Host> {
        match self {
            Self::Host(host) => Some(host),
            Self::Gateway(_) => None,
        }
    }

    fn host_mut(&mut self) -> Option<&mut super::Host> {
        match self {
            Self::Host(host) => Some(host),
            Self::Gateway(_) => None,
        }
    }
}

/// Where a device puts the packets that it sends.
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub(super) address: Ipv4Addr,
    pub(super) buffers: &'a mut Buffers,
    pub(super) packets: &'a mut Packets,
    pub(super) sent: &'a mut Vec<(PathDirection, Slot)>,
}

/// Which link a packet leaves by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PathDirection {
    /// The one towards its destination.
    Routed,
    /// This one.
    Port(usize),
}

impl Outgoing<'_> {
    /// The device's own address.
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Sends a packet towards its destination. Not for packets with real bytes that were
    /// received: [`send_bytes`](Self::send_bytes) copies those.
    pub fn send(&mut self, packet: IpPacket) {
        debug_assert!(!matches!(packet.body, Body::Bytes(..)));
        self.push(PathDirection::Routed, packet);
    }

    /// Sends a packet out of link number `port`, whatever its destination.
    pub fn send_on(&mut self, port: usize, packet: IpPacket) {
        debug_assert!(!matches!(packet.body, Body::Bytes(..)));
        self.push(PathDirection::Port(port), packet);
    }

    /// Sends a UDP datagram with real bytes from the device's own address.
    ///
    /// At most [`PAYLOAD_MAX`] bytes are sent; longer ones fit no IP packet and are cut.
    pub fn send_bytes(&mut self, to: Ipv4Addr, ports: (u16, u16), ecn: Ecn, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(PAYLOAD_MAX)];
        let header = UdpHeader {
            source_port: ports.0,
            destination_port: ports.1,
            payload: bytes.len() as u16,
        };
        let packet = IpPacket {
            source: self.address,
            destination: to,
            ecn,
            body: Body::Bytes(header, self.buffers.insert(bytes)),
        };
        self.push(PathDirection::Routed, packet);
    }

    /// Sends a received packet on as it is, towards its destination.
    pub fn forward(&mut self, packet: &IpPacket) {
        let mut packet = *packet;
        if let Body::Bytes(header, id) = packet.body {
            packet.body = Body::Bytes(header, self.buffers.duplicate(id));
        }
        self.push(PathDirection::Routed, packet);
    }

    /// The bytes of the packet being handled, to be scribbled on; gone when the call returns.
    pub fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        self.buffers.bytes_mut(id)
    }

    fn push(&mut self, way: PathDirection, packet: IpPacket) {
        let slot = self.packets.insert(packet);
        self.sent.push((way, slot));
    }
}

/// The most bytes of UDP payload that an IPv4 packet takes.
pub const PAYLOAD_MAX: usize = 65_507;
