//! Devices at the ends of a mesh's links: all nodes that are not routers.
//!
//! A device is a state machine: it takes packets and the time, sends packets through [`DeviceOutput`], and names
//! the time of its timer. Hosts and gateways are devices. A gateway, added with
//! [`Mesh::add_gateway`](super::Mesh::add_gateway), stands between hosts and routers and receives every
//! packet on its path. It forwards the packet, or carries it as bytes ([`wire::encode`](super::wire::encode))
//! inside its own datagrams ([`DeviceOutput::send_bytes`]) to a gateway that decapsulates it
//! ([`wire::decode`](super::wire::decode)).

use std::net::Ipv4Addr;

use keiro_units::Instant;

use super::packet::{Body, BufferId, Buffers, Ecn, IpPacket, Packets, Slot, UdpHeader};

/// Takes part in a [`Mesh`](super::Mesh).
pub trait Device {
    /// A packet arrived on the device's link number `port`. A host receives packets addressed to it; a
    /// gateway all.
    fn handle_packet(
        &mut self,
        now: Instant,
        port: usize,
        packet: &IpPacket,
        out: &mut DeviceOutput<'_>,
    );

    /// The time of [`poll_timeout`](Self::poll_timeout) has come.
    fn handle_timeout(&mut self, _now: Instant, _out: &mut DeviceOutput<'_>) {}

    /// When the device's timer fires; a time in the past means at once. Polled after every call.
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

#[derive(Debug)]
pub struct DeviceOutput<'a> {
    pub(super) address: Ipv4Addr,
    pub(super) buffers: &'a mut Buffers,
    pub(super) packets: &'a mut Packets,
    pub(super) sent: &'a mut Vec<(OutputPort, Slot)>,
}

/// The link by which a packet leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputPort {
    /// The one towards its destination.
    Routed,
    Port(usize),
}

impl DeviceOutput<'_> {
    /// The device's own address.
    pub const fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Sends a packet towards its destination. Not for received packets with real bytes:
    /// [`send_bytes`](Self::send_bytes) copies those.
    pub fn send(&mut self, packet: IpPacket) {
        debug_assert!(!matches!(packet.body, Body::Bytes(..)));
        self.push(OutputPort::Routed, packet);
    }

    /// Sends a packet out of link number `port`, regardless of its destination.
    pub fn send_on(&mut self, port: usize, packet: IpPacket) {
        debug_assert!(!matches!(packet.body, Body::Bytes(..)));
        self.push(OutputPort::Port(port), packet);
    }

    /// Sends a UDP datagram with real bytes from the device's own address.
    ///
    /// At most [`PAYLOAD_MAX`] bytes are sent; longer datagrams are truncated.
    pub fn send_bytes(&mut self, to: Ipv4Addr, ports: (u16, u16), ecn: Ecn, bytes: &[u8]) {
        self.push_bytes(OutputPort::Routed, to, ports, ecn, bytes);
    }

    /// The same out of link number `port`, regardless of the destination.
    pub fn send_bytes_on(
        &mut self,
        port: usize,
        to: Ipv4Addr,
        ports: (u16, u16),
        ecn: Ecn,
        bytes: &[u8],
    ) {
        self.push_bytes(OutputPort::Port(port), to, ports, ecn, bytes);
    }

    fn push_bytes(
        &mut self,
        output: OutputPort,
        to: Ipv4Addr,
        ports: (u16, u16),
        ecn: Ecn,
        bytes: &[u8],
    ) {
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
        self.push(output, packet);
    }

    /// Forwards a received packet unchanged, towards its destination.
    pub fn forward(&mut self, packet: &IpPacket) {
        let mut packet = *packet;
        if let Body::Bytes(header, id) = packet.body {
            packet.body = Body::Bytes(header, self.buffers.duplicate(id));
        }
        self.push(OutputPort::Routed, packet);
    }

    /// The bytes of the packet being handled, which may be overwritten; gone when the call returns.
    pub fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        self.buffers.bytes_mut(id)
    }

    fn push(&mut self, output: OutputPort, packet: IpPacket) {
        let slot = self.packets.insert(packet);
        self.sent.push((output, slot));
    }
}

/// Maximum UDP payload of an IPv4 packet.
pub const PAYLOAD_MAX: usize = 65_507;
