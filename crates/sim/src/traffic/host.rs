//! A host: any number of TCP senders and receivers, UDP sources and sinks, each on a port.

use std::net::Ipv4Addr;

use keiro_units::Instant;

use super::{
    activity::Activity,
    device::{Device, DeviceOutput},
    measure::Bins,
    packet::{Body, Ecn, IpPacket, TcpHeader},
    tcp::{TcpConfig, TcpReceiver, TcpSender},
    udp::{UdpSource, UdpSpec},
};
use crate::queue::{EventQueue, Source};

/// The first port assigned. Ours: above the ports of services.
const FIRST_PORT: u16 = 10_000;
/// Maximum of ports of a host.
pub const PORTS_MAX: usize = (u16::MAX - FIRST_PORT) as usize;

/// A host with its applications.
#[derive(Debug)]
pub struct Host {
    /// By port, from [`FIRST_PORT`] on.
    sockets: Vec<Socket>,
    /// The sockets' timers; a source has its socket's index.
    timers: EventQueue,
    sources: Vec<Source>,
    unknown: u64,
}

/// Parameters of a TCP sender.
#[derive(Clone, Debug, PartialEq)]
pub struct TcpSpec {
    /// Address and port of the receiver.
    pub to: (Ipv4Addr, u16),
    pub config: TcpConfig,
    /// Number of bytes to send; `None` for endless.
    pub length: Option<u64>,
    /// When it has data to send. The connection opens when this begins.
    pub activity: Activity,
    /// Initial sequence number.
    pub first_sequence: u32,
}

/// The socket on a port.
#[derive(Debug)]
enum Socket {
    Sender {
        to: Ipv4Addr,
        tcp: Box<TcpSender>,
    },
    Receiver {
        peer: Option<Ipv4Addr>,
        tcp: Box<TcpReceiver>,
        bins: Bins,
    },
    Source(Box<UdpSource>),
    Sink {
        packets: u64,
        bins: Bins,
    },
}

impl Host {
    /// A host without applications.
    pub fn new() -> Self {
        Self {
            sockets: Vec::new(),
            timers: EventQueue::new(),
            sources: Vec::new(),
            unknown: 0,
        }
    }

    /// Adds a TCP sender; returns its port.
    pub fn add_tcp_sender(&mut self, spec: TcpSpec) -> u16 {
        let ports = (self.next_port(), spec.to.1);
        let tcp = TcpSender::new(
            spec.config,
            ports,
            spec.first_sequence,
            spec.length,
            spec.activity,
        );
        self.add(Socket::Sender {
            to: spec.to.0,
            tcp: Box::new(tcp),
        })
    }

    /// Adds a TCP receiver for one connection; returns its port.
    pub fn add_tcp_receiver(&mut self, config: TcpConfig) -> u16 {
        let tcp = TcpReceiver::new(config, self.next_port());
        self.add(Socket::Receiver {
            peer: None,
            tcp: Box::new(tcp),
            bins: Bins::seconds(),
        })
    }

    /// Adds a UDP source; returns its port.
    pub fn add_udp_source(&mut self, spec: UdpSpec) -> u16 {
        let source = UdpSource::new(spec, self.next_port());
        self.add(Socket::Source(Box::new(source)))
    }

    /// Adds a sink of UDP datagrams; returns its port.
    pub fn add_udp_sink(&mut self) -> u16 {
        self.add(Socket::Sink {
            packets: 0,
            bins: Bins::seconds(),
        })
    }

    /// The TCP sender on a port; `None` if there is none.
    pub fn tcp_sender(&self, port: u16) -> Option<&TcpSender> {
        match self.socket(port)? {
            Socket::Sender { tcp, .. } => Some(tcp),
            _ => None,
        }
    }

    /// The TCP receiver on a port; `None` if there is none.
    pub fn tcp_receiver(&self, port: u16) -> Option<&TcpReceiver> {
        match self.socket(port)? {
            Socket::Receiver { tcp, .. } => Some(tcp),
            _ => None,
        }
    }

    /// Bytes that the application on a port received, over time: of a TCP stream in order, or UDP payload.
    /// `None` if nothing there receives.
    pub fn received(&self, port: u16) -> Option<&Bins> {
        match self.socket(port)? {
            Socket::Receiver { bins, .. } | Socket::Sink { bins, .. } => Some(bins),
            Socket::Sender { .. } | Socket::Source(_) => None,
        }
    }

    /// Packets that the UDP source on a port sent, or the sink there received.
    pub fn udp_packets(&self, port: u16) -> Option<u64> {
        match self.socket(port)? {
            Socket::Source(source) => Some(source.sent()),
            Socket::Sink { packets, .. } => Some(*packets),
            Socket::Sender { .. } | Socket::Receiver { .. } => None,
        }
    }

    /// Packets for a port without a socket.
    pub const fn unknown_packets(&self) -> u64 {
        self.unknown
    }

    /// Ports of TCP senders that will never send again although they have data to send, which is a bug.
    pub fn stuck(&self, now: Instant) -> impl Iterator<Item = u16> + '_ {
        let sockets = (FIRST_PORT..).zip(&self.sockets);
        sockets.filter_map(move |(port, socket)| match socket {
            Socket::Sender { tcp, .. } if tcp.is_stuck(now) => Some(port),
            _ => None,
        })
    }

    fn add(&mut self, socket: Socket) -> u16 {
        let port = self.next_port();
        assert!(self.sockets.len() < PORTS_MAX, "at most {PORTS_MAX} ports");
        self.sources.push(self.timers.add_source());
        self.sockets.push(socket);
        self.rearm(self.sockets.len() - 1);
        port
    }

    const fn next_port(&self) -> u16 {
        FIRST_PORT + self.sockets.len() as u16
    }

    fn socket(&self, port: u16) -> Option<&Socket> {
        self.sockets.get(index_of(port)?)
    }

    fn rearm(&mut self, index: usize) {
        let at = match &self.sockets[index] {
            Socket::Sender { tcp, .. } => tcp.poll_timeout(),
            Socket::Receiver { tcp, .. } => tcp.poll_timeout(),
            Socket::Source(source) => source.poll_timeout(),
            Socket::Sink { .. } => None,
        };
        self.timers.set(self.sources[index], at);
    }

    /// Sends what a socket has to send now.
    fn transmit(&mut self, index: usize, now: Instant, out: &mut DeviceOutput<'_>) {
        let source = out.address();
        match &mut self.sockets[index] {
            Socket::Sender { to, tcp } => {
                while let Some((header, ecn)) = tcp.poll_segment(now) {
                    out.send(tcp_packet(source, *to, header, ecn));
                }
            }
            Socket::Receiver { peer, tcp, .. } => {
                while let (Some(peer), Some(header)) = (*peer, tcp.poll_segment(now)) {
                    out.send(tcp_packet(source, peer, header, Ecn::NotCapable));
                }
            }
            Socket::Source(udp) => {
                while let Some(packet) = udp.poll_packet(now, source) {
                    out.send(packet);
                }
            }
            Socket::Sink { .. } => {}
        }
        self.rearm(index);
    }

    /// Passes a packet to the socket on its port; returns whether that accepted it.
    fn take(&mut self, index: usize, now: Instant, packet: &IpPacket) -> bool {
        match (self.sockets.get_mut(index), &packet.body) {
            (Some(Socket::Sender { to, tcp }), Body::Tcp(header)) if *to == packet.source => {
                tcp.handle_segment(now, header);
            }
            (Some(Socket::Receiver { peer, tcp, bins }), Body::Tcp(header)) => {
                if *peer.get_or_insert(packet.source) != packet.source {
                    return false;
                }
                if let Some(delivered) = tcp.handle_segment(now, header, packet.ecn) {
                    bins.add(now, delivered.to - delivered.from);
                }
            }
            (Some(Socket::Sink { packets, bins }), Body::Udp(header)) => {
                *packets += 1;
                bins.add(now, u64::from(header.payload));
            }
            _ => return false,
        }
        true
    }
}

impl Device for Host {
    fn handle_packet(
        &mut self,
        now: Instant,
        _: usize,
        packet: &IpPacket,
        out: &mut DeviceOutput<'_>,
    ) {
        let port = match &packet.body {
            Body::Tcp(header) => header.destination_port,
            Body::Udp(header) | Body::Bytes(header, _) => header.destination_port,
        };
        match index_of(port) {
            Some(index) if self.take(index, now, packet) => self.transmit(index, now, out),
            _ => self.unknown += 1,
        }
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut DeviceOutput<'_>) {
        while let Some((_, timer)) = self.timers.pop_until(now) {
            let index = timer.index();
            match &mut self.sockets[index] {
                Socket::Sender { tcp, .. } => tcp.handle_timeout(now),
                Socket::Receiver { tcp, .. } => tcp.handle_timeout(now),
                Socket::Source(_) | Socket::Sink { .. } => {}
            }
            self.transmit(index, now, out);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next_at()
    }
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

fn index_of(port: u16) -> Option<usize> {
    port.checked_sub(FIRST_PORT).map(usize::from)
}

const fn tcp_packet(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    header: TcpHeader,
    ecn: Ecn,
) -> IpPacket {
    IpPacket {
        source,
        destination,
        ecn,
        body: Body::Tcp(header),
    }
}
