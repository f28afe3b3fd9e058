//! Devices of which some are hosts.

use keiro_units::Instant;

use super::{
    Host,
    device::{Device, DeviceOutput},
    packet::IpPacket,
};

/// A device that contains a host, so that flows can be added to it and inspected.
pub trait HasHost {
    /// The host; `None` for another device.
    fn host(&self) -> Option<&Host>;
    fn host_mut(&mut self) -> Option<&mut Host>;
}

/// A host or a gateway, of one kind.
#[derive(Debug)]
pub enum Station<G> {
    Host(Host),
    /// Boxed, because gateways are few, and larger than hosts.
    Gateway(Box<G>),
}

impl<G> Station<G> {
    /// The gateway; `None` for a host.
    pub const fn gateway(&self) -> Option<&G> {
        match self {
            Self::Host(_) => None,
            Self::Gateway(gateway) => Some(gateway),
        }
    }

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
        out: &mut DeviceOutput<'_>,
    ) {
        match self {
            Self::Host(host) => host.handle_packet(now, port, packet, out),
            Self::Gateway(gateway) => gateway.handle_packet(now, port, packet, out),
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut DeviceOutput<'_>) {
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
    fn host(&self) -> Option<&Host> {
        match self {
            Self::Host(host) => Some(host),
            Self::Gateway(_) => None,
        }
    }

    fn host_mut(&mut self) -> Option<&mut Host> {
        match self {
            Self::Host(host) => Some(host),
            Self::Gateway(_) => None,
        }
    }
}

impl HasHost for Host {
    fn host(&self) -> Option<&Host> {
        Some(self)
    }

    fn host_mut(&mut self) -> Option<&mut Host> {
        Some(self)
    }
}
