//! TCP sockets for BGP: TCP-MD5 keys (RFC 2385), GTSM (RFC 5082), and a time limit for data that the peer
//! does not acknowledge (RFC 9687).

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsRawFd,
    time::Duration,
};

use socket2::{Domain, SockAddr, Socket, Type};

use crate::tcp::Progress;

/// Options of a connection.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The TCP-MD5 key of both ends; `None` for no signatures.
    pub md5: Option<Md5Key>,
    /// Packets from more than one hop away are dropped (GTSM), which requires a neighbour on the link.
    pub one_hop: bool,
    /// Our address; `None` leaves it to the kernel.
    pub local: Option<IpAddr>,
    /// The connection breaks if nothing is acknowledged for this long (TCP_USER_TIMEOUT); `None` is the
    /// kernel's default of about 15 minutes.
    pub unsent_max: Option<Duration>,
}

/// A key of 1 to 80 octets. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Md5Key(Box<[u8]>);

impl Md5Key {
    /// The key; `None` if it is empty or longer than the kernel's 80 octets.
    pub fn new(key: &[u8]) -> Option<Self> {
        (1..=libc::TCP_MD5SIG_MAXKEYLEN)
            .contains(&key.len())
            .then(|| Self(key.into()))
    }
}

impl std::fmt::Debug for Md5Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Md5Key(..)")
    }
}

/// A non-blocking listener. Connections from the addresses in `keys` must be signed.
///
/// # Errors
/// The address is not local or in use, the port needs a privilege, or the kernel has no TCP-MD5.
pub fn listen(address: SocketAddr, keys: &[(IpAddr, Md5Key)]) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    for (peer, key) in keys {
        if peer.is_ipv6() == address.is_ipv6() {
            set_key(&socket, *peer, key)?;
        }
    }
    // The answer to a SYN must already pass the other end's check of the hop limit.
    send_from_afar(&socket, address.ip())?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Replaces or removes the key with which connections from `peer` to a listener must be signed. Does nothing
/// if the listener is of the other address family.
///
/// # Errors
/// The kernel has no TCP-MD5.
pub fn set_listener_key(
    listener: &TcpListener,
    peer: IpAddr,
    key: Option<&Md5Key>,
) -> io::Result<()> {
    if listener.local_addr()?.is_ipv6() != peer.is_ipv6() {
        return Ok(());
    }
    let socket = socket2::SockRef::from(listener);
    let octets = key.map_or(&[][..], |key| &key.0);
    match set_octets(&socket, peer, octets) {
        // The peer had no key.
        Err(error) if key.is_none() && error.raw_os_error() == Some(libc::ENOENT) => Ok(()),
        Err(error) if key.is_none() && error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        result => result,
    }
}

/// Prepares a connection that a listener has accepted.
///
/// # Errors
/// Those of `setsockopt(2)`.
pub fn prepare_accepted(stream: &TcpStream, options: &Options) -> io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    let remote = stream.peer_addr()?.ip();
    prepare(&socket, remote, options)
}

/// Begins a connection.
///
/// # Errors
/// Errors that are known at once: no route, no such local address, no TCP-MD5.
pub fn connect(to: SocketAddr, options: &Options) -> io::Result<(TcpStream, Progress)> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    prepare(&socket, to.ip(), options)?;
    if let Some(key) = &options.md5 {
        set_key(&socket, to.ip(), key)?;
    }
    if let Some(local) = options.local {
        socket.bind(&SocketAddr::new(local, 0).into())?;
    }
    let progress = match socket.connect(&to.into()) {
        Ok(()) => Progress::Connected,
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Progress::Waits,
        Err(error) => return Err(error),
    };
    Ok((socket.into(), progress))
}

fn prepare(socket: &Socket, remote: IpAddr, options: &Options) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_user_timeout(options.unsent_max)?;
    if options.one_hop {
        send_from_afar(socket, remote)?;
        let (level, option) = match remote {
            IpAddr::V4(_) => (libc::SOL_IP, libc::IP_MINTTL),
            IpAddr::V6(_) => (libc::SOL_IPV6, libc::IPV6_MINHOPCOUNT),
        };
        set_int(socket, level, option, HOPS_MAX)?;
    }
    Ok(())
}

/// Sends packets with the maximum hop limit (RFC 5082 §3).
fn send_from_afar(socket: &Socket, family: IpAddr) -> io::Result<()> {
    match family {
        IpAddr::V4(_) => socket.set_ttl_v4(HOPS_MAX as u32),
        IpAddr::V6(_) => socket.set_unicast_hops_v6(HOPS_MAX as u32),
    }
}

/// The kernel's `struct tcp_md5sig` (`linux/tcp.h`).
#[repr(C)]
struct TcpMd5Sig {
    address: libc::sockaddr_storage,
    flags: u8,
    prefix_length: u8,
    key_length: u16,
    interface: libc::c_int,
    key: [u8; libc::TCP_MD5SIG_MAXKEYLEN],
}

fn set_key(socket: &Socket, peer: IpAddr, key: &Md5Key) -> io::Result<()> {
    set_octets(socket, peer, &key.0)
}

/// An empty key removes that of the peer.
fn set_octets(socket: &Socket, peer: IpAddr, key: &[u8]) -> io::Result<()> {
    let address = SockAddr::from(SocketAddr::new(peer, 0));
    let mut value = TcpMd5Sig {
        // SAFETY: every pattern of bits is a sockaddr_storage, zeros among them.
        address: unsafe { std::mem::zeroed() },
        flags: 0,
        prefix_length: 0,
        key_length: key.len() as u16,
        interface: 0,
        key: [0; libc::TCP_MD5SIG_MAXKEYLEN],
    };
    value.key[..key.len()].copy_from_slice(key);
    // SAFETY: both ends hold at least `len` octets, which an address has initialised, and they do
    // not overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(
            address.as_ptr().cast::<u8>(),
            (&raw mut value.address).cast::<u8>(),
            address.len() as usize,
        );
    }
    // SAFETY: the option is the structure that the kernel expects, and outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_TCP,
            libc::TCP_MD5SIG,
            (&raw const value).cast(),
            size_of::<TcpMd5Sig>() as libc::socklen_t,
        )
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(crate) fn set_int(
    socket: &Socket,
    level: i32,
    option: i32,
    value: libc::c_int,
) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the option is an int that outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
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

/// Maximum hop limit of a packet.
const HOPS_MAX: libc::c_int = 255;
/// Backlog for neighbours that connect at once. Ours.
const BACKLOG: i32 = 128;

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        thread,
        time::Instant,
    };

    use super::*;

    fn accept(listener: &TcpListener, limit: Duration) -> Option<TcpStream> {
        let end = Instant::now() + limit;
        loop {
            match listener.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            if Instant::now() > end {
                return None;
            }
            thread::yield_now();
        }
    }

    fn key(text: &str) -> Md5Key {
        Md5Key::new(text.as_bytes()).unwrap()
    }

    /// Whether data passes between a listener and a connection to it; `None` without TCP-MD5.
    fn passes(at_listener: Option<&str>, at_client: Option<&str>, limit: Duration) -> Option<bool> {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let keys: Vec<_> = at_listener
            .map(|k| (loopback, key(k)))
            .into_iter()
            .collect();
        let listener = match listen(SocketAddr::new(loopback, 0), &keys) {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => return None,
            listener => listener.unwrap(),
        };
        Some(reaches(&listener, at_client, limit))
    }

    fn reaches(listener: &TcpListener, at_client: Option<&str>, limit: Duration) -> bool {
        let options = Options {
            md5: at_client.map(key),
            one_hop: true,
            local: Some(IpAddr::from([127, 0, 0, 1])),
            unsent_max: Some(Duration::from_secs(10)),
        };
        let (mut client, _) = connect(listener.local_addr().unwrap(), &options).unwrap();
        let Some(mut server) = accept(listener, limit) else {
            return false;
        };
        prepare_accepted(&server, &options).unwrap();
        server.set_nonblocking(false).unwrap();
        client.set_nonblocking(false).unwrap();
        client.write_all(b"x").unwrap();
        let mut octet = [0];
        server.read_exact(&mut octet).unwrap();
        octet == *b"x"
    }

    #[test]
    fn tcp_md5_key_must_match() {
        let long = Duration::from_secs(10);
        assert_eq!(passes(None, None, long), Some(true));
        if passes(Some("secret"), Some("secret"), long) == Some(true) {
            let short = Duration::from_millis(200);
            assert_eq!(passes(Some("secret"), Some("other"), short), Some(false));
            assert_eq!(passes(Some("secret"), None, short), Some(false));
        }
    }

    #[test]
    fn a_listener_has_another_key_or_none_while_it_listens() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let listener = listen(SocketAddr::new(loopback, 0), &[]).unwrap();
        let set = |key: Option<&str>| {
            let key = key.map(self::key);
            set_listener_key(&listener, loopback, key.as_ref())
        };
        set(None).unwrap();
        match set(Some("secret")) {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => return,
            done => done.unwrap(),
        }
        let (long, short) = (Duration::from_secs(10), Duration::from_millis(200));
        assert!(reaches(&listener, Some("secret"), long));
        assert!(!reaches(&listener, None, short));
        set(Some("other")).unwrap();
        assert!(reaches(&listener, Some("other"), long));
        set(None).unwrap();
        set(None).unwrap();
        assert!(reaches(&listener, None, long));
        // Of the other address family, so there is nothing to do.
        let other = IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1u16]);
        set_listener_key(&listener, other, Some(&key("secret"))).unwrap();
    }

    #[test]
    fn invalid_keys_are_refused() {
        assert_eq!(Md5Key::new(b""), None);
        assert_eq!(Md5Key::new(&[b'x'; 81]), None);
        assert!(!format!("{:?}", key("secret")).contains("secret"));
    }
}
