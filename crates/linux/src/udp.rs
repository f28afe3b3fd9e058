//! UDP in batches: GSO and GRO, ECN, receive time stamps, large buffers, and drops of the socket.
//!
//! The system calls are quinn-udp's. This module adds bind errors that say what to try, a fallback without
//! GSO if a device refuses it, time stamps on the monotonic clock, and `SO_MEMINFO`.

use std::{
    fmt,
    io::{self, IoSliceMut},
    net::{IpAddr, SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::{
    clock::ClockPair,
    interface::{self, AddressList, InterfaceAddress},
    limit,
};

/// A non-blocking UDP socket that is connected to `to`, over `interface` if given.
///
/// # Errors
/// No route, no port, no descriptor outside the reserve of [`limit`], no such interface.
pub fn connected(to: SocketAddr, interface: Option<&str>) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, Some(Protocol::UDP))?;
    let socket = limit::outside_reserve(socket)?;
    socket.set_nonblocking(true)?;
    interface::bind_to(&socket, interface)?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

/// A bound, non-blocking UDP socket.
#[derive(Debug)]
pub struct BatchSocket {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    gso: bool,
    gso_refusals: u64,
    receive_buffer_bytes: usize,
}

/// Purpose of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Our own packets over a WAN: never fragmented, not even below the kernel's estimate of the path's MTU
    /// (so that it can be probed); with ECN; without the local address of received datagrams.
    Path,
    /// Datagrams of users: the kernel may fragment them; without ECN; with the local address.
    Application,
}

/// Buffers for one batch of received datagrams; shared by all sockets of a thread.
pub struct ReceiveBuffers {
    bytes: Vec<u8>,
    metas: [RecvMeta; BUFFERS],
}

/// One datagram or, with GRO, several of equal size from one sender.
#[derive(Debug)]
pub struct Received<'a> {
    pub remote: SocketAddr,
    /// Their destination address; `None` on a [`Purpose::Path`] socket.
    pub local: Option<IpAddr>,
    /// The two ECN bits.
    pub ecn: u8,
    /// When the kernel received them, CLOCK_MONOTONIC in nanoseconds.
    pub received_at_nanos: u64,
    /// When they were read from the socket, never before the kernel received them; the same clock.
    pub read_at_nanos: u64,
    /// Their bytes; every `stride` bytes are a datagram.
    pub data: &'a mut [u8],
    /// Length of each datagram but the last, at least 1.
    pub stride: usize,
}

/// Datagrams for one destination.
#[derive(Clone, Copy, Debug)]
pub struct DatagramBatch<'a> {
    pub remote: SocketAddr,
    /// Source address; `None` leaves it to the kernel.
    pub source: Option<IpAddr>,
    /// The two ECN bits.
    pub ecn: u8,
    /// Their bytes; every `segment_size` bytes are a datagram.
    pub data: &'a [u8],
    /// Length of each datagram but the last; zero means one datagram.
    pub segment_size: usize,
}

/// Result of sending a [`DatagramBatch`].
#[derive(Debug)]
pub enum Sent {
    /// The kernel took all of it.
    All,
    /// The socket's send buffer is full; the rest is dropped.
    BufferFull,
    /// Larger than the interface's MTU, which is normal for an MTU probe.
    TooLarge,
    /// Other errors, for example no route.
    Failed(io::Error),
}

/// Why a UDP socket could not be bound. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// No interface has the address.
    #[error(
        "{address}: this machine does not have that address; it has {}; correct the address, or bring the interface up first",
        AddressList(here)
    )]
    NotHere {
        address: SocketAddr,
        here: Vec<InterfaceAddress>,
    },
    /// Another socket has the port.
    #[error("{address}: the UDP port is in use; `ss -ulpn sport = :{}` shows the program; stop it, or use another port", address.port())]
    InUse { address: SocketAddr },
    /// The port needs a privilege.
    #[error(
        "{address}: no permission to use this port; use one from 1024 up, or give keiro CAP_NET_BIND_SERVICE"
    )]
    NotPermitted { address: SocketAddr },
    /// There is no such interface.
    #[error("{address}: there is no interface {interface}; `ip link` lists those that exist")]
    NoInterface {
        address: SocketAddr,
        interface: String,
    },
    #[error("{address}: cannot open a UDP socket: {source}")]
    System {
        address: SocketAddr,
        source: io::Error,
    },
}

/// Maximum of parts per receive call; fewer mean that nothing more waits. With GRO each has up to 64
/// datagrams.
pub const RECEIVE_PARTS_MAX: usize = 8;
const BUFFERS: usize = RECEIVE_PARTS_MAX;
/// A GRO buffer is limited by an IP packet's length field.
const BUFFER_BYTES: usize = 1 << 16;
/// Requested size of the kernel's socket buffers: 40 ms at 1 Gbit/s, with the kernel's own overhead of about
/// a factor of two. Ours.
const SOCKET_BUFFER_BYTES: usize = 10 << 20;

impl BatchSocket {
    /// Binds to `address`.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(address: SocketAddr, purpose: Purpose) -> Result<Self, BindError> {
        Self::bind_on(address, purpose, None)
    }

    /// The same for datagrams that come in by an interface; sent datagrams leave by it.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind_on(
        address: SocketAddr,
        purpose: Purpose,
        interface: Option<&str>,
    ) -> Result<Self, BindError> {
        let socket = Self::open(address, purpose, interface);
        let gone = interface.filter(|name| interface::index(name).is_none());
        socket.map_err(|source| match source.raw_os_error() {
            _ if gone.is_some() => BindError::NoInterface {
                address,
                interface: gone.unwrap_or_default().to_owned(),
            },
            Some(libc::EADDRNOTAVAIL) => BindError::NotHere {
                address,
                here: interface::addresses().unwrap_or_default(),
            },
            Some(libc::EADDRINUSE) => BindError::InUse { address },
            Some(libc::EACCES | libc::EPERM) => BindError::NotPermitted { address },
            _ => BindError::System { address, source },
        })
    }

    fn open(address: SocketAddr, purpose: Purpose, interface: Option<&str>) -> io::Result<Self> {
        let socket = Socket::new(
            Domain::for_address(address),
            Type::DGRAM,
            Some(Protocol::UDP),
        )?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        enlarge_buffers(&socket);
        interface::bind_to(&socket, interface)?;
        socket.bind(&address.into())?;
        let socket = UdpSocket::from(socket);
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        // quinn-udp 0.6 has room for three of time stamp, GRO size, local address and ECN per datagram, and
        // the kernel cuts off the last ones. Disable those that are not needed.
        match purpose {
            Purpose::Path => report_local_address(&socket, address, false)?,
            Purpose::Application => {
                report_ecn(&socket, address, false)?;
                allow_fragments(&socket, address)?;
            }
        }
        Ok(Self {
            local: socket.local_addr()?,
            gso: state.max_gso_segments() > 1,
            gso_refusals: 0,
            receive_buffer_bytes: state
                .recv_buffer_size(UdpSockRef::from(&socket))
                .unwrap_or(0),
            socket,
            state,
        })
    }

    /// From now on datagrams leave by this interface, and only those that come in by it are received. Linux
    /// requires no privilege for a socket that is not bound to an interface yet.
    ///
    /// # Errors
    /// There is no such interface, or the socket is bound to another one.
    pub fn bind_to_device(&self, interface: &str) -> io::Result<()> {
        interface::bind_to(&SockRef::from(&self.socket), Some(interface))
    }

    /// The bound address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Number of batches that the kernel refused and that were then sent one by one.
    pub fn gso_refusals(&self) -> u64 {
        self.gso_refusals
    }

    /// The granted receive buffer, with the kernel's own overhead.
    pub fn receive_buffer_bytes(&self) -> usize {
        self.receive_buffer_bytes
    }

    /// Datagrams (with GRO: buffers) dropped because the receive buffer was full, since the bind;
    /// wraps around.
    ///
    /// # Errors
    /// None is known.
    pub fn receive_drops(&self) -> io::Result<u32> {
        // SK_MEMINFO_DROPS of linux/sock_diag.h; nine values since Linux 4.12.
        const DROPS: usize = 8;
        let mut values = [0u32; DROPS + 1];
        let mut bytes = size_of_val(&values) as libc::socklen_t;
        // SAFETY: the buffer is valid for `bytes` bytes.
        let result = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                values.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        match result {
            0 => Ok(values[DROPS]),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Receives at most one batch and passes each part of it to `take`. Returns the number of parts; zero if
    /// nothing waits.
    ///
    /// # Errors
    /// Those of `recvmmsg(2)` except `EAGAIN`.
    pub fn receive(
        &self,
        buffers: &mut ReceiveBuffers,
        mut take: impl FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let ReceiveBuffers { bytes, metas } = buffers;
        let count = {
            let mut slots = bytes.chunks_exact_mut(BUFFER_BYTES);
            let mut slices: [IoSliceMut<'_>; BUFFERS] =
                std::array::from_fn(|_| IoSliceMut::new(slots.next().unwrap_or_default()));
            let socket = UdpSockRef::from(&self.socket);
            match self.state.recv(socket, &mut slices, metas) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            }
        };
        if count == 0 {
            return Ok(0);
        }
        let clocks = ClockPair::now();
        for (slot, meta) in bytes.chunks_exact_mut(BUFFER_BYTES).zip(&metas[..count]) {
            take(Received {
                remote: meta.addr,
                local: meta.dst_ip,
                ecn: meta.ecn.map_or(0, |ecn| ecn as u8),
                read_at_nanos: clocks.monotonic_nanos,
                received_at_nanos: meta
                    .timestamp
                    .map_or(clocks.monotonic_nanos, |stamp| clocks.monotonic_of(stamp)),
                data: &mut slot[..meta.len.min(BUFFER_BYTES)],
                stride: meta.stride.max(1),
            });
        }
        Ok(count)
    }

    /// Sends a batch. If a device refuses GSO, datagrams are sent one by one, now and from now on.
    pub fn send(&mut self, outgoing: &DatagramBatch<'_>) -> Sent {
        let whole = outgoing.segment_size == 0 || outgoing.segment_size >= outgoing.data.len();
        if whole {
            return outcome(self.send_part(outgoing, outgoing.data, None));
        }
        if self.gso {
            let sent = self.send_part(outgoing, outgoing.data, Some(outgoing.segment_size));
            match &sent {
                Err(e) if matches!(e.raw_os_error(), Some(libc::EIO | libc::EINVAL)) => {
                    self.gso = false;
                    self.gso_refusals += 1;
                }
                // Segments exceed the interface's MTU; single datagrams are handled below.
                Err(e) if e.raw_os_error() == Some(libc::EMSGSIZE) => {}
                _ => return outcome(sent),
            }
        }
        let mut last = Sent::All;
        for part in outgoing.data.chunks(outgoing.segment_size) {
            match outcome(self.send_part(outgoing, part, None)) {
                Sent::All => {}
                other => last = other,
            }
        }
        last
    }

    fn send_part(
        &self,
        outgoing: &DatagramBatch<'_>,
        contents: &[u8],
        segment_size: Option<usize>,
    ) -> io::Result<()> {
        let transmit = Transmit {
            destination: outgoing.remote,
            ecn: EcnCodepoint::from_bits(outgoing.ecn),
            contents,
            segment_size,
            src_ip: outgoing.source,
        };
        self.state
            .try_send(UdpSockRef::from(&self.socket), &transmit)
    }
}

impl AsFd for BatchSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl ReceiveBuffers {
    /// Room for 512 KiB.
    pub fn new() -> Self {
        Self {
            bytes: vec![0; BUFFERS * BUFFER_BYTES],
            metas: [RecvMeta::default(); BUFFERS],
        }
    }
}

impl Default for ReceiveBuffers {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ReceiveBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReceiveBuffers")
    }
}

fn outcome(result: io::Result<()>) -> Sent {
    match result {
        Ok(()) => Sent::All,
        Err(error) => match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOBUFS) => Sent::BufferFull,
            Some(libc::EMSGSIZE) => Sent::TooLarge,
            _ => Sent::Failed(error),
        },
    }
}

/// Beyond `rmem_max` if CAP_NET_ADMIN permits it, otherwise up to it. Small buffers work too.
fn enlarge_buffers(socket: &Socket) {
    for (forced, ordinary) in [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
    ] {
        let bytes = SOCKET_BUFFER_BYTES as libc::c_int;
        if set_option(socket, libc::SOL_SOCKET, forced, bytes).is_err() {
            let _ = set_option(socket, libc::SOL_SOCKET, ordinary, bytes);
        }
    }
}

fn report_local_address(socket: &UdpSocket, address: SocketAddr, on: bool) -> io::Result<()> {
    let (level, name) = match address.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_PKTINFO),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
    };
    set_option(socket, level, name, libc::c_int::from(on))
}

fn report_ecn(socket: &UdpSocket, address: SocketAddr, on: bool) -> io::Result<()> {
    let (level, name) = match address.is_ipv4() {
        true => (libc::IPPROTO_IP, libc::IP_RECVTOS),
        false => (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    };
    set_option(socket, level, name, libc::c_int::from(on))
}

fn allow_fragments(socket: &UdpSocket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv4() {
        return set_option(
            socket,
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DONT,
        );
    }
    set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_DONTFRAG, 0)?;
    set_option(
        socket,
        libc::IPPROTO_IPV6,
        libc::IPV6_MTU_DISCOVER,
        libc::IPV6_PMTUDISC_DONT,
    )
}

fn set_option(
    socket: &impl AsFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the value is live and its size is given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of_val(&value) as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::epoll::{Epoll, Interest, ReadyList};

    fn bind(address: &str) -> BatchSocket {
        BatchSocket::bind(address.parse().unwrap(), Purpose::Path).unwrap()
    }

    /// Receives until `bytes` have arrived or ten seconds have passed.
    fn receive_bytes(socket: &BatchSocket, bytes: usize) -> Vec<(Vec<u8>, usize, u8)> {
        let epoll = Epoll::new().unwrap();
        epoll.add(socket, 0, Interest::Read).unwrap();
        let mut buffers = ReceiveBuffers::new();
        let mut parts = Vec::new();
        let mut total = 0;
        let deadline = Instant::now() + Duration::from_secs(10);
        while total < bytes {
            assert!(Instant::now() < deadline, "{total} of {bytes} bytes came");
            epoll
                .wait(&mut ReadyList::new(1), Some(Duration::from_secs(1)))
                .unwrap();
            socket
                .receive(&mut buffers, |received| {
                    assert!(received.received_at_nanos <= received.read_at_nanos);
                    assert!(received.read_at_nanos <= ClockPair::now().monotonic_nanos);
                    total += received.data.len();
                    parts.push((received.data.to_vec(), received.stride, received.ecn));
                })
                .unwrap();
        }
        parts
    }

    #[test]
    fn a_batch_arrives_with_its_boundaries_and_ecn() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut from, to) = (bind(address), bind(address));
            let data: Vec<u8> = (0..2500u32).map(|i| i as u8).collect();
            let outgoing = DatagramBatch {
                remote: to.local(),
                source: None,
                ecn: 0b10,
                data: &data,
                segment_size: 1000,
            };
            assert!(matches!(from.send(&outgoing), Sent::All));
            let parts = receive_bytes(&to, data.len());
            let datagrams: Vec<Vec<u8>> = parts
                .iter()
                .flat_map(|(bytes, stride, _)| bytes.chunks(*stride).map(<[u8]>::to_vec))
                .collect();
            assert_eq!(
                datagrams.iter().map(Vec::len).collect::<Vec<_>>(),
                [1000, 1000, 500]
            );
            assert_eq!(datagrams.concat(), data);
            let ecn: Vec<u8> = parts.iter().map(|(_, _, ecn)| *ecn).collect();
            assert!(ecn.iter().all(|ecn| *ecn == 0b10), "{address}: {ecn:?}");
            assert_eq!(to.receive_drops().unwrap(), 0);
        }
    }

    #[test]
    fn an_application_socket_reports_the_local_address() {
        for (wildcard, local) in [("0.0.0.0:0", "127.0.0.3"), ("[::]:0", "::1")] {
            let to = BatchSocket::bind(wildcard.parse().unwrap(), Purpose::Application).unwrap();
            let local: IpAddr = local.parse().unwrap();
            let from = UdpSocket::bind((local, 0)).unwrap();
            // 20 kB: fragmented on most interfaces.
            let data = vec![9; 20_000];
            from.send_to(&data, (local, to.local().port())).unwrap();
            let mut buffers = ReceiveBuffers::new();
            let deadline = Instant::now() + Duration::from_secs(10);
            let mut seen = None;
            while seen.is_none() {
                assert!(Instant::now() < deadline, "nothing came");
                let take =
                    |received: Received<'_>| seen = Some((received.local, received.data.len()));
                to.receive(&mut buffers, take).unwrap();
            }
            assert_eq!(seen, Some((Some(local), data.len())));
        }
    }

    #[test]
    fn bind_errors_say_what_is_wrong() {
        let fail =
            |address: &str| BatchSocket::bind(address.parse().unwrap(), Purpose::Path).unwrap_err();
        let error = fail("203.0.113.250:4000");
        assert!(matches!(error, BindError::NotHere { .. }), "{error}");
        assert!(error.to_string().contains("127.0.0.1"), "{error}");
        let taken = bind("127.0.0.1:0");
        let error = fail(&taken.local().to_string());
        assert!(matches!(error, BindError::InUse { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains(&taken.local().port().to_string())
        );
    }

    #[test]
    fn too_large_datagrams_are_distinguished_from_other_errors() {
        let (mut from, to) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
        let data = vec![0; 65_530];
        let outgoing = DatagramBatch {
            remote: to.local(),
            source: None,
            ecn: 0,
            data: &data,
            segment_size: 0,
        };
        assert!(matches!(from.send(&outgoing), Sent::TooLarge));
    }

    #[test]
    fn drops_of_a_full_receive_buffer_are_counted() {
        let to = bind("127.0.0.1:0");
        set_option(&to, libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
        let mut from = bind("127.0.0.1:0");
        let outgoing = DatagramBatch {
            remote: to.local(),
            source: None,
            ecn: 0,
            data: &[0; 1000],
            segment_size: 0,
        };
        for _ in 0..100 {
            assert!(matches!(from.send(&outgoing), Sent::All));
        }
        // On a busy machine the kernel may still be delivering them.
        let deadline = Instant::now() + Duration::from_secs(10);
        while to.receive_drops().unwrap() == 0 {
            assert!(Instant::now() < deadline, "nothing was dropped");
            std::thread::yield_now();
        }
    }
}
