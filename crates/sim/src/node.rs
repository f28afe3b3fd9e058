//! Nodes of a network: hosts and middleboxes, under one trait.
//!
//! A node is a state machine like the core: it takes packets and the time, writes packets to an [`Outbox`],
//! and names the time of its timer. Gateways, traffic sources, address translators and attackers are nodes.

use std::net::SocketAddr;

use keiro_units::Instant;

use crate::packet::{Packet, Slab, Slot};

/// Takes part in a [`Network`](crate::Network).
pub trait Node {
    /// A packet arrived on interface number `interface`. Its payload may be overwritten.
    fn handle_packet(
        &mut self,
        now: Instant,
        interface: usize,
        packet: &mut Packet,
        out: &mut Outbox<'_>,
    );

    /// The time of [`poll_timeout`](Self::poll_timeout) has come.
    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox<'_>);

    /// When the node's timer fires; a time in the past means at once. Polled after every call.
    fn poll_timeout(&self) -> Option<Instant>;
}

/// When a run may end.
pub trait Goal<N> {
    /// Asked before the first and after every event.
    fn is_reached(&mut self, now: Instant, nodes: &[N]) -> bool;
}

impl<N, F: FnMut(Instant, &[N]) -> bool> Goal<N> for F {
    fn is_reached(&mut self, now: Instant, nodes: &[N]) -> bool {
        self(now, nodes)
    }
}

/// Runs until the time limit.
#[derive(Clone, Copy, Debug)]
pub struct Never;

impl<N> Goal<N> for Never {
    fn is_reached(&mut self, _: Instant, _: &[N]) -> bool {
        false
    }
}

/// An interface of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// Of a host: receives packets to this address only.
    Host(SocketAddr),
    /// Of a middlebox: receives all packets.
    Transparent,
}

/// Output of a node.
#[derive(Debug)]
pub struct Outbox<'a> {
    pub(crate) slab: &'a mut Slab,
    pub(crate) interfaces: &'a [Interface],
    pub(crate) sent: &'a mut Vec<(usize, Slot)>,
}

impl Outbox<'_> {
    /// Sends a datagram from the address of the interface.
    ///
    /// # Panics
    ///
    /// If there is no such interface, or it is [`Interface::Transparent`].
    pub fn send(&mut self, interface: usize, destination: SocketAddr, ecn: u8, payload: &[u8]) {
        let Interface::Host(source) = self.interfaces[interface] else {
            panic!("a transparent interface has no address to send from");
        };
        self.send_from(interface, source, destination, ecn, payload);
    }

    /// Sends a datagram with any source address.
    pub fn send_from(
        &mut self,
        interface: usize,
        source: SocketAddr,
        destination: SocketAddr,
        ecn: u8,
        payload: &[u8],
    ) {
        let slot = self.slab.insert(source, destination, ecn, payload);
        self.sent.push((interface, slot));
    }

    /// Forwards a packet unchanged.
    pub fn forward(&mut self, interface: usize, packet: &Packet) {
        self.send_from(
            interface,
            packet.source,
            packet.destination,
            packet.ecn,
            &packet.payload,
        );
    }
}
