//! TCP for a proxy: listeners (also transparent), non-blocking connects, and resets.

use std::{
    fmt, io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use crate::{
    interface::{self, AddressList, InterfaceAddress},
    limit,
};

/// Backlog: all clients of a site may reconnect at once. The kernel limits it to `net.core.somaxconn`.
const BACKLOG: i32 = 4096;
/// Answers to a SYN that a transparent listener of a tenant repeats: a handshake is given up after [`HANDSHAKE_MAX`].
const ANSWERS_REPEATED: libc::c_int = 3;
/// How long the kernel keeps a handshake of a listener with [`Listener::limit_handshakes`]: the first answer waits one
/// second for the client, and each repeated one twice as long as the one before (RFC 6298).
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(1 + 2 + 4 + 8);
/// A vanished peer is detected after 60 s + 4 · 15 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// Which connections a listener accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Those to its own address.
    Plain,
    /// Also those to other addresses that a firewall rule (`TPROXY`) redirects to it.
    Transparent,
}

#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    local: SocketAddr,
}

/// Why a TCP listener could not be opened. `Display` says what to try.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
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
    #[error("{address}: the TCP port is in use; `ss -tlpn sport = :{}` shows the program; stop it, or use another port", address.port())]
    InUse { address: SocketAddr },
    /// The port or transparent mode needs a privilege.
    #[error(
        "{address}: no permission to listen there; a port below 1024 needs CAP_NET_BIND_SERVICE, a transparent listener CAP_NET_ADMIN"
    )]
    NotPermitted { address: SocketAddr },
    #[error("{address}: cannot listen: {source}")]
    System {
        address: SocketAddr,
        source: io::Error,
    },
}

/// A socket that may be bound to an address of another machine (`IP_TRANSPARENT`). To make one takes a privilege, to
/// use it none.
#[derive(Debug)]
pub struct TransparentSocket(Socket);

/// Progress of a connect.
#[derive(Debug)]
pub enum Progress {
    Connected,
    /// Wait until it is writable and check again.
    Waits,
}

impl Listener {
    /// Listens at `address`.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind(address: SocketAddr, mode: Mode) -> Result<Self, ListenError> {
        Self::bind_on(address, mode, None)
    }

    /// The same for connections that come in by an interface; answers leave by it.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind_on(
        address: SocketAddr,
        mode: Mode,
        interface: Option<&str>,
    ) -> Result<Self, ListenError> {
        let socket = listen(address, mode, interface).map_err(|source| match source.kind() {
            io::ErrorKind::AddrNotAvailable => ListenError::NotHere {
                address,
                here: interface::addresses().unwrap_or_default(),
            },
            io::ErrorKind::AddrInUse => ListenError::InUse { address },
            io::ErrorKind::PermissionDenied => ListenError::NotPermitted { address },
            _ => ListenError::System { address, source },
        })?;
        let local = socket.local_addr().unwrap_or(address);
        Ok(Self { socket, local })
    }

    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Whether a connection from this machine to `target` would reach this listener: it has the port, and the
    /// address is the listener's or another local one. Asks the kernel each time, because addresses change.
    pub fn is_reached_at(&self, target: SocketAddr) -> bool {
        let of_machine = || {
            let here = interface::addresses().unwrap_or_default();
            here.iter().any(|entry| entry.address == target.ip())
        };
        target.port() == self.local.port()
            && (target == self.local || target.ip().is_loopback() || of_machine())
    }

    /// Gives handshakes up after [`HANDSHAKE_MAX`], a quarter of the kernel's default time.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn limit_handshakes(&self) -> io::Result<()> {
        set_int(
            &self.socket,
            libc::IPPROTO_TCP,
            libc::TCP_SYNCNT,
            ANSWERS_REPEATED,
        )
    }

    /// Accepts the next connection: non-blocking, with TCP_NODELAY, and reset by any end other than
    /// [`close`]. Returns its source address, too.
    ///
    /// # Errors
    /// `WouldBlock` if there is none. Others: that connection failed, or descriptors have run out.
    pub fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, remote) = self.socket.accept()?;
        let stream = limit::outside_reserve(stream)?;
        prepare(&SockRef::from(&stream))?;
        Ok((stream, remote))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "tcp",
            Self::Transparent => "tproxy",
        })
    }
}

/// Connects to `to`, over `interface` if given; non-blocking, with TCP_NODELAY, and reset by any end other
/// than [`close`].
///
/// # Errors
/// Errors that are known at once: no route, no port, no descriptor, no such interface.
pub fn connect(to: SocketAddr, interface: Option<&str>) -> io::Result<(TcpStream, Progress)> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    let socket = limit::outside_reserve(socket)?;
    prepare(&socket)?;
    interface::bind_to(&socket, interface)?;
    begin(socket, to)
}

impl TransparentSocket {
    /// For IPv6 or IPv4; needs CAP_NET_ADMIN.
    ///
    /// # Errors
    /// The capability is missing, the machine lacks the IP version, or descriptors have run out.
    pub fn new(is_v6: bool) -> io::Result<Self> {
        let domain = if is_v6 { Domain::IPV6 } else { Domain::IPV4 };
        let socket = limit::outside_reserve(Socket::new(domain, Type::STREAM, None)?)?;
        match is_v6 {
            true => set_ipv6_transparent(&socket)?,
            false => setsockopt(&socket, sockopt::IpTransparent, &true)?,
        }
        Ok(Self(socket))
    }

    /// Connects to `to` as if from `from`, which packets of the server have to be led here for; otherwise as
    /// [`connect`].
    ///
    /// # Errors
    /// As [`connect`]; the address is in use, or its port is below 1024 and CAP_NET_BIND_SERVICE is missing.
    pub fn connect(self, from: SocketAddr, to: SocketAddr) -> io::Result<(TcpStream, Progress)> {
        let Self(socket) = self;
        prepare(&socket)?;
        // The client may have connections to other servers from the same port.
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        begin(socket, to)
    }
}

fn begin(socket: Socket, to: SocketAddr) -> io::Result<(TcpStream, Progress)> {
    let progress = match socket.connect(&to.into()) {
        Ok(()) => Progress::Connected,
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Progress::Waits,
        Err(error) => return Err(error),
    };
    Ok((socket.into(), progress))
}

/// Closes a connection so that its other end sees a reset, not an end.
pub fn reset(stream: TcpStream) {
    // On failure it is closed as configured before.
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    drop(stream);
}

/// Closes a connection that has ended in both directions; written data still arrives.
pub fn close(stream: TcpStream) {
    // On failure it is reset although it was complete, which is better than the opposite.
    let _ = SockRef::from(&stream).set_linger(None);
    drop(stream);
}

/// Bytes written to a connection that its other end has not acknowledged (`SIOCOUTQ`, tcp(7)).
///
/// # Errors
/// `EINVAL` if it does not exist any more.
pub fn unacknowledged(stream: &TcpStream) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SIOCOUTQ has TIOCOUTQ's number.
    // SAFETY: the descriptor is open, and the kernel writes one integer to where it is live.
    let result = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    match result {
        0 => Ok(usize::try_from(bytes).unwrap_or(0)),
        _ => Err(io::Error::last_os_error()),
    }
}

fn listen(address: SocketAddr, mode: Mode, interface: Option<&str>) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    // A gateway that restarts can bind its port although old connections linger.
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    if mode == Mode::Transparent {
        match address {
            SocketAddr::V4(_) => setsockopt(&socket, sockopt::IpTransparent, &true)?,
            SocketAddr::V6(_) => set_ipv6_transparent(&socket)?,
        }
    }
    interface::bind_to(&socket, interface)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn prepare(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    // Every byte leaves at once, because the overlay does its own aggregation.
    socket.set_tcp_nodelay(true)?;
    // If this process dies, the receiver must not take partial data for complete, so only `close` ends in
    // order.
    socket.set_linger(Some(Duration::ZERO))?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)
}

/// Handshakes that each listener here may have at once before the kernel drops some or sends SYN cookies; `Err`:
/// why no listener has handshakes of its own in this network namespace.
///
/// # Errors
/// The kernel sends a cookie for every SYN.
pub fn handshakes_max() -> Result<usize, &'static str> {
    let setting = |name: &str| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default();
        text.trim().parse::<usize>().ok()
    };
    handshakes_of(
        setting("core/somaxconn"),
        setting("ipv4/tcp_syncookies"),
        setting("ipv4/tcp_max_syn_backlog"),
    )
}

fn handshakes_of(
    somaxconn: Option<usize>,
    syncookies: Option<usize>,
    max_syn_backlog: Option<usize>,
) -> Result<usize, &'static str> {
    // The kernel's defaults where it does not say (`Documentation/networking/ip-sysctl.rst`).
    let backlog = somaxconn.unwrap_or(128).min(BACKLOG as usize);
    match syncookies {
        Some(2..) => Err("net.ipv4.tcp_syncookies = 2: the kernel keeps no handshakes"),
        // Without cookies the last quarter is for hosts that were connected before (`tcp_conn_request`).
        Some(0) => Ok(backlog.min(max_syn_backlog.unwrap_or(128) / 4 * 3)),
        _ => Ok(backlog),
    }
}

/// `IPV6_TRANSPARENT`, which the libraries lack.
fn set_ipv6_transparent(socket: &Socket) -> io::Result<()> {
    set_int(socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1)
}

fn set_int(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the option is an int that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    const LOOPBACK: SocketAddr =
        SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn accept(listener: &Listener) -> TcpStream {
        let end = std::time::Instant::now() + Duration::from_secs(10);
        loop {
            match listener.accept() {
                Ok((stream, _)) => return stream,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            assert!(std::time::Instant::now() < end, "no connection");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_reset_is_distinguished_from_an_end() {
        let listener = Listener::bind(LOOPBACK, Mode::Plain).unwrap();
        let (mut client, _) = connect(listener.local(), None).unwrap();
        client.set_nonblocking(false).unwrap();
        reset(accept(&listener));
        let seen = client.read(&mut [0; 1]).map_err(|error| error.kind());
        assert_eq!(seen, Err(io::ErrorKind::ConnectionReset));
    }

    #[test]
    fn handshakes_have_the_room_that_the_kernel_gives_them() {
        assert_eq!(handshakes_of(Some(4096), Some(1), Some(256)), Ok(4096));
        assert_eq!(handshakes_of(Some(65_535), Some(1), Some(256)), Ok(4096));
        assert_eq!(handshakes_of(Some(4096), Some(0), Some(256)), Ok(192));
        assert_eq!(handshakes_of(Some(16), Some(0), Some(256)), Ok(16));
        assert!(handshakes_of(Some(4096), Some(2), Some(256)).is_err());
        let listener = Listener::bind(LOOPBACK, Mode::Plain).unwrap();
        listener.limit_handshakes().unwrap();
    }

    #[test]
    fn small_writes_are_sent_at_once_at_both_ends() {
        let listener = Listener::bind(LOOPBACK, Mode::Plain).unwrap();
        let (made, _) = connect(listener.local(), None).unwrap();
        assert!(made.nodelay().unwrap());
        assert!(accept(&listener).nodelay().unwrap());
    }

    #[test]
    fn only_an_orderly_close_ends_in_order() {
        let listener = Listener::bind(LOOPBACK, Mode::Plain).unwrap();
        for in_order in [true, false] {
            let (mut client, _) = connect(listener.local(), None).unwrap();
            client.set_nonblocking(false).unwrap();
            let mut served = accept(&listener);
            served.write_all(b"all").unwrap();
            match in_order {
                true => close(served),
                // As the kernel does if the process is killed.
                false => drop(served),
            }
            let mut seen = Vec::new();
            let end = client.read_to_end(&mut seen).map_err(|error| error.kind());
            match in_order {
                true => assert_eq!((end, &seen[..]), (Ok(3), &b"all"[..])),
                false => assert_eq!(end, Err(io::ErrorKind::ConnectionReset)),
            }
        }
    }

    #[test]
    fn a_listener_at_all_addresses_is_reached_at_each_of_them() {
        let open = Listener::bind("0.0.0.0:0".parse().unwrap(), Mode::Plain).unwrap();
        let port = open.local().port();
        let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), port);
        for entry in interface::addresses().unwrap() {
            let own = SocketAddr::new(entry.address, port);
            assert!(open.is_reached_at(own), "{own}");
            assert!(!open.is_reached_at(SocketAddr::new(entry.address, port ^ 1)));
        }
        assert!(open.is_reached_at(at("127.9.9.9")));
        // Another program's socket, to which a firewall rule has redirected a client.
        assert!(!open.is_reached_at(at("192.0.2.77")));
    }

    #[test]
    fn a_port_in_use_and_a_strange_address_say_what_to_try() {
        let first = Listener::bind(LOOPBACK, Mode::Plain).unwrap();
        let second = Listener::bind(first.local(), Mode::Plain).unwrap_err();
        assert!(second.to_string().contains("in use; `ss -tlpn"), "{second}");
        let strange = Listener::bind("192.0.2.77:5000".parse().unwrap(), Mode::Plain);
        let strange = strange.unwrap_err().to_string();
        assert!(strange.contains("does not have that address"), "{strange}");
    }
}
