//! UDP sockets for BFD over one hop (RFC 5881): source ports, and the TTL of what is sent and received.

use std::{
    io::{self, IoSliceMut},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    ops::RangeInclusive,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::{
    cmsg_space,
    sys::socket::{
        ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt,
        sockopt::{Ipv4PacketInfo, Ipv4RecvTtl, Ipv6RecvHopLimit, Ipv6RecvPacketInfo, RcvBufForce},
    },
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use crate::interface;

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum IpVersion {
    V4,
    V6,
}

/// Receives the packets of all neighbours of one address family. Never blocks.
#[derive(Debug)]
pub struct Receiver {
    socket: UdpSocket,
}

/// A received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Its length; what the buffer has no room for is lost.
    pub length: usize,
    pub from: IpAddr,
    /// Its TTL or hop limit; `None`: the kernel did not report it.
    pub ttl: Option<u8>,
    /// Index of the interface that it came by; `None`: the kernel did not report it.
    pub interface: Option<u32>,
}

/// Where packets to one neighbour go, and from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub address: IpAddr,
    pub port: u16,
    /// The source address; `None`: the kernel's choice for each packet.
    pub local: Option<IpAddr>,
    /// The interface; `None`: that of the route.
    pub interface: Option<String>,
}

/// Sends the packets to one neighbour, always from the same port, with TTL or hop limit 255. Never blocks.
#[derive(Debug)]
pub struct Sender {
    socket: UdpSocket,
    to: SocketAddr,
}

impl IpVersion {
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl Receiver {
    /// Opens the port at all addresses of a family. The kernel drops most packets of another TTL than 255
    /// before they are queued, so that a flood of them displaces no others.
    ///
    /// # Errors
    /// Another program has the port.
    pub fn open(version: IpVersion, port: u16) -> io::Result<Self> {
        let any: IpAddr = match version {
            IpVersion::V4 => Ipv4Addr::UNSPECIFIED.into(),
            IpVersion::V6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        let address = SocketAddr::new(any, port);
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        socket.set_nonblocking(true)?;
        match version {
            IpVersion::V4 => {
                setsockopt(&socket, Ipv4RecvTtl, &true)?;
                setsockopt(&socket, Ipv4PacketInfo, &true)?;
            }
            IpVersion::V6 => {
                socket.set_only_v6(true)?;
                setsockopt(&socket, Ipv6RecvHopLimit, &true)?;
                setsockopt(&socket, Ipv6RecvPacketInfo, &true)?;
            }
        }
        if setsockopt(&socket, RcvBufForce, &RECEIVE_BUFFER_BYTES).is_err() {
            // Up to `rmem_max`; a small buffer works too.
            let _ = socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES);
        }
        socket.attach_filter(&only_from_this_link(version))?;
        socket.bind(&address.into())?;
        Ok(Self {
            socket: socket.into(),
        })
    }

    /// The next datagram; `None`: none waits.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<Received>> {
        let mut parts = [IoSliceMut::new(buffer)];
        let mut space = cmsg_space!(libc::c_int, libc::in6_pktinfo);
        let descriptor = self.socket.as_raw_fd();
        let message = loop {
            let flags = MsgFlags::MSG_DONTWAIT;
            match recvmsg::<SockaddrStorage>(descriptor, &mut parts, Some(&mut space), flags) {
                Ok(message) => break message,
                Err(nix::errno::Errno::EAGAIN) => return Ok(None),
                Err(nix::errno::Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        // Without control messages that can be read it is not known.
        let (mut ttl, mut interface) = (None, None);
        for part in message.cmsgs().into_iter().flatten() {
            match part {
                ControlMessageOwned::Ipv4Ttl(found) | ControlMessageOwned::Ipv6HopLimit(found) => {
                    ttl = u8::try_from(found).ok();
                }
                ControlMessageOwned::Ipv4PacketInfo(found) => {
                    interface = u32::try_from(found.ipi_ifindex).ok();
                }
                ControlMessageOwned::Ipv6PacketInfo(found) => {
                    interface = Some(found.ipi6_ifindex);
                }
                _ => {}
            }
        }
        let from = message.address.and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|it| it.ip().into());
            v4.or_else(|| address.as_sockaddr_in6().map(|it| it.ip().into()))
        });
        Ok(Some(Received {
            length: message.bytes,
            // A datagram has a source.
            from: from.unwrap_or(Ipv4Addr::UNSPECIFIED.into()),
            ttl,
            interface,
        }))
    }
}

impl AsFd for Receiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Sender {
    /// Opens a socket at a free port of `ports`; `start` says at which to look first.
    ///
    /// # Errors
    /// No such local address or interface, or none of [`PORTS_TRIED`] ports is free.
    pub fn open(target: &Target, ports: RangeInclusive<u16>, start: u16) -> io::Result<Self> {
        let to = SocketAddr::new(target.address, target.port);
        let any: IpAddr = match target.address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        match target.address {
            IpAddr::V4(_) => {
                socket.set_ttl_v4(HOPS)?;
                socket.set_tos_v4(NETWORK_CONTROL)?;
            }
            IpAddr::V6(_) => {
                socket.set_only_v6(true)?;
                socket.set_unicast_hops_v6(HOPS)?;
                socket.set_tclass_v6(NETWORK_CONTROL)?;
            }
        }
        interface::bind_to(&socket, target.interface.as_deref())?;
        // Nothing is read from it.
        socket.set_recv_buffer_size(0)?;
        let width = u32::from(ports.end() - ports.start()) + 1;
        let local = target.local.unwrap_or(any);
        let mut last = None;
        for number in 0..PORTS_TRIED.min(width) {
            let offset = (u32::from(start) + number) % width;
            let port = ports.start() + offset as u16;
            match socket.bind(&SocketAddr::new(local, port).into()) {
                Ok(()) => {
                    let socket = socket.into();
                    return Ok(Self { socket, to });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = Some(error),
                Err(error) => return Err(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::AddrInUse.into()))
    }

    /// Sends a packet. What the kernel has no room for is dropped.
    ///
    /// # Errors
    /// No route to the neighbour, or its link is down.
    pub fn send(&self, payload: &[u8]) -> io::Result<()> {
        match self.socket.send_to(payload, self.to) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The port that it sends from.
    ///
    /// # Errors
    /// None is known.
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.socket.local_addr()?.port())
    }
}

/// Accepts a datagram with TTL or hop limit 255, and a random sample of the others, which shows that
/// there are some.
fn only_from_this_link(version: IpVersion) -> [SockFilter; 6] {
    let ttl_offset = match version {
        IpVersion::V4 => 8,
        IpVersion::V6 => 7,
    };
    let load = |size: u32, at: i32| {
        let code = libc::BPF_LD | size | libc::BPF_ABS;
        SockFilter::new(code as u16, 0, 0, at as u32)
    };
    let jump = |test: u32, value: u32, if_true: u8| {
        let code = libc::BPF_JMP | test | libc::BPF_K;
        SockFilter::new(code as u16, if_true, 0, value)
    };
    let accept = |octets: u32| SockFilter::new(libc::BPF_RET as u16, 0, 0, octets);
    [
        load(libc::BPF_B, libc::SKF_NET_OFF + ttl_offset),
        jump(libc::BPF_JEQ, HOPS, 2),
        load(libc::BPF_W, libc::SKF_AD_OFF + libc::SKF_AD_RANDOM),
        jump(libc::BPF_JGE, u32::MAX / SAMPLED, 1),
        accept(u32::MAX),
        accept(0),
    ]
}

/// One in this number of packets with another TTL is received. Ours.
pub const SAMPLED: u32 = 256;
/// All sessions' packets of about 80 ms at 10 ms each, with what the kernel counts for one. Ours.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;
/// Ports tried before a socket is given up. Ours.
pub const PORTS_TRIED: u32 = 64;
/// Maximum TTL (RFC 5881 §5).
const HOPS: u32 = 255;
/// DSCP CS6, network control (RFC 4594 §3.1).
const NETWORK_CONTROL: u32 = 0xc0;

#[cfg(test)]
mod tests {
    use keiro_testing::eventually;

    use super::*;

    #[test]
    fn datagrams_arrive_with_their_ttl_and_from_a_port_of_the_range() {
        for (version, loopback) in [(IpVersion::V4, "127.0.0.1"), (IpVersion::V6, "::1")] {
            let receiver = Receiver::open(version, 0).unwrap();
            let port = receiver.socket.local_addr().unwrap().port();
            let address: IpAddr = loopback.parse().unwrap();
            let target = Target {
                address,
                port,
                local: Some(address),
                interface: None,
            };
            let sender = Sender::open(&target, 49_152..=65_535, 12_345).unwrap();
            let second = Sender::open(&target, 49_152..=65_535, 12_345).unwrap();
            assert!(sender.port().unwrap() >= 49_152);
            assert_ne!(sender.port().unwrap(), second.port().unwrap());
            sender.send(b"hello").unwrap();
            let mut buffer = [0; 3];
            let received = eventually("a datagram", || receiver.receive(&mut buffer).unwrap());
            assert_eq!((received.from, received.ttl), (address, Some(255)));
            assert_eq!(received.interface, interface::index("lo"));
            // What there is no room for is lost.
            assert_eq!((received.length, &buffer), (3, b"hel"));
            assert_eq!(receiver.receive(&mut buffer).unwrap(), None);
        }
    }

    #[test]
    fn few_datagrams_of_other_routers_reach_the_queue() {
        for (version, loopback) in [(IpVersion::V4, "127.0.0.1"), (IpVersion::V6, "::1")] {
            let receiver = Receiver::open(version, 0).unwrap();
            let port = receiver.socket.local_addr().unwrap().port();
            let address: IpAddr = loopback.parse().unwrap();
            let other = UdpSocket::bind((address, 0)).unwrap();
            let mut buffer = [0; 1];
            let sampled = eventually("one of them", || {
                other.send_to(b"x", (address, port)).unwrap();
                receiver.receive(&mut buffer).unwrap()
            });
            assert_eq!(sampled.ttl, Some(64));
            for _ in 0..10 * SAMPLED {
                other.send_to(b"x", (address, port)).unwrap();
            }
            let mut count = 0;
            while let Some(received) = receiver.receive(&mut buffer).unwrap() {
                assert_eq!(received.ttl, Some(64));
                count += 1;
            }
            assert!(count < SAMPLED, "{count}");
        }
    }
}
