//! The kernel's reports about TCP and MPTCP connections of any process (`sock_diag`), queried one at a time:
//! an MPTCP connection by its token, a subflow by its ends. [`EndedConnections`] reports those that end.

mod ended;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

pub use self::ended::{Ended, EndedConnections, Live, live};
use crate::{
    mptcp_pm::{Ends, Token},
    netlink::{Attributes, Batch, Message, Refusal, Socket},
};

/// Queries connections of one namespace.
#[derive(Debug)]
pub struct SocketDiag {
    socket: Socket,
}

/// Transfer counters of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carried {
    /// Acknowledged bytes; for a subflow, including bytes that other subflows carry as well.
    pub bytes_acked: u64,
    /// Time with data in flight, in ticks of the kernel (`CONFIG_HZ`).
    pub busy: Duration,
}

/// Why a query failed.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    #[error(
        "this kernel does not report what MPTCP connections carry; Linux 6.5 or newer with mptcp_diag and tcp_diag is \
         needed"
    )]
    Missing,
    /// There is no netlink socket, or it is broken.
    #[error("cannot ask about connections: {0}")]
    Socket(#[from] io::Error),
}

impl SocketDiag {
    /// For the calling thread's network namespace, permanently.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn open() -> Result<Self, DiagError> {
        let socket = Socket::open(libc::NETLINK_SOCK_DIAG)?;
        Ok(Self { socket })
    }

    /// Distinct bytes of an MPTCP connection that the other side has acknowledged; `None` if it is closed.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn acknowledged(&mut self, token: Token) -> Result<Option<u64>, DiagError> {
        let found = self.ask(&Asked::Connection(token), |message| {
            let info = info(message)?;
            Some(u64_at(info, MPTCP_BYTES_ACKED))
        })?;
        match found {
            None => Ok(None),
            Some(None) => Err(DiagError::Missing),
            Some(bytes) => Ok(bytes),
        }
    }

    /// Counters of a connected TCP socket or a subflow; `None` if it is closed or about to be.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn carried(&mut self, ends: Ends) -> Result<Option<Carried>, DiagError> {
        let port = ends.remote.port().to_be_bytes();
        let found = self.ask(&Asked::Subflow(ends), |message| {
            // Without such a connection the kernel returns its listener.
            let of_it = message.body.get(REMOTE_PORT..)?.starts_with(&port);
            let info = info(message).filter(|_| of_it)?;
            Some(Carried {
                bytes_acked: u64_at(info, TCP_BYTES_ACKED)?,
                busy: Duration::from_micros(u64_at(info, TCP_BUSY_TIME)?),
            })
        })?;
        Ok(found)
    }

    /// Whether the kernel has this connection, also one whose handshake it has only begun; not one that waits for late
    /// packets of an ended one (`TIME_WAIT`).
    ///
    /// # Errors
    /// The kernel does not answer.
    pub fn has_connection(&mut self, ends: Ends) -> Result<bool, DiagError> {
        let port = ends.remote.port().to_be_bytes();
        let found = self.ask(&Asked::Subflow(ends), |message| {
            // Without such a connection the kernel returns its listener.
            let of_it = message.body.get(REMOTE_PORT..)?.starts_with(&port);
            Some(of_it && *message.body.get(STATE)? != TIME_WAIT)
        })?;
        Ok(found == Some(true))
    }

    fn ask<T>(
        &mut self,
        asked: &Asked,
        read: impl Fn(&Message<'_>) -> Option<T>,
    ) -> Result<Option<T>, DiagError> {
        let found = self.socket.list(
            BY_FAMILY,
            0,
            |batch| asked.write(batch),
            |found: &mut Option<T>, message| {
                if message.kind == BY_FAMILY {
                    *found = read(&message);
                }
            },
        );
        found.or_else(|refusal| none_of(&refusal).ok_or_else(|| error_of(refusal)))
    }
}

/// The queried socket.
enum Asked {
    Connection(Token),
    Subflow(Ends),
}

impl Asked {
    /// `struct inet_diag_req_v2`, and the protocol number if it does not fit.
    fn write(&self, batch: &mut Batch) {
        let mut id = [0; ID_BYTES];
        let (family, protocol) = match self {
            Self::Connection(token) => {
                // The token alone identifies it.
                id[COOKIE..COOKIE + 4].copy_from_slice(&token.0.to_ne_bytes());
                (libc::AF_INET6, libc::IPPROTO_RAW)
            }
            Self::Subflow(ends) => {
                write_ends(&mut id, ends);
                id[COOKIE..].copy_from_slice(&[0xff; 8]);
                let v4 = ends.local.is_ipv4();
                (
                    if v4 { libc::AF_INET } else { libc::AF_INET6 },
                    libc::IPPROTO_TCP,
                )
            }
        };
        batch.raw(&[family as u8, protocol as u8, INFO_WANTED, 0]);
        batch.raw(&u32::MAX.to_ne_bytes());
        batch.raw(&id);
        if let Self::Connection(_) = self {
            // Its protocol number does not fit into an octet.
            batch.u32(REQUEST_PROTOCOL, libc::IPPROTO_MPTCP as u32);
        }
    }
}

/// `struct inet_diag_sockid`.
fn write_ends(id: &mut [u8; ID_BYTES], ends: &Ends) {
    let mut put = |port: usize, address: usize, end: &SocketAddr| {
        id[port..port + 2].copy_from_slice(&end.port().to_be_bytes());
        match end.ip() {
            IpAddr::V4(ip) => id[address..address + 4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => id[address..address + 16].copy_from_slice(&ip.octets()),
        }
    };
    put(0, 4, &ends.local);
    put(2, 20, &ends.remote);
}

fn info<'a>(message: &Message<'a>) -> Option<&'a [u8]> {
    let (_, mut all): (&[u8; ANSWER_BYTES], Attributes<'a>) = message.split()?;
    all.find_map(|(name, value)| (name == INFO).then_some(value))
}

fn u64_at(info: &[u8], at: usize) -> Option<u64> {
    info.get(at..)?
        .first_chunk()
        .map(|c| u64::from_ne_bytes(*c))
}

/// The answer to a query for a closed socket.
fn none_of<T>(refusal: &Refusal) -> Option<Option<T>> {
    refusal.is(libc::ENOENT).then_some(None)
}

fn error_of(refusal: Refusal) -> DiagError {
    match refusal.error.raw_os_error() {
        Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => DiagError::Missing,
        _ => DiagError::Socket(refusal.into_io()),
    }
}

// `include/uapi/linux/sock_diag.h`, `include/uapi/linux/inet_diag.h`
const BY_FAMILY: u16 = 20;
const ID_BYTES: usize = 48;
const COOKIE: usize = 40;
const ANSWER_BYTES: usize = 72;
/// Offset behind family, state, timer and retransmissions, and the local port.
const REMOTE_PORT: usize = 6;
const STATE: usize = 1;
/// `TCP_TIME_WAIT` (`include/net/tcp_states.h`).
const TIME_WAIT: u8 = 6;
const INFO: u16 = 2;
const INFO_WANTED: u8 = 1 << (INFO - 1);
const REQUEST_PROTOCOL: u16 = 3;
/// Offset in `struct tcp_info` (`include/uapi/linux/tcp.h`).
const TCP_BYTES_ACKED: usize = 120;
const TCP_BUSY_TIME: usize = 168;
/// Offset in `struct mptcp_info` (`include/uapi/linux/mptcp.h`), since Linux 6.5.
const MPTCP_BYTES_ACKED: usize = 72;

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        time::Instant,
    };

    use super::*;

    #[test]
    fn a_connection_reports_its_bytes_until_it_is_closed() {
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let ends = Ends {
            local: near.local_addr().unwrap(),
            remote: near.peer_addr().unwrap(),
        };
        let mut diag = SocketDiag::open().unwrap();
        near.write_all(&[7; 10_000]).unwrap();
        far.read_exact(&mut [0; 10_000]).unwrap();
        far.write_all(b"!").unwrap();
        near.read_exact(&mut [0]).unwrap();
        let carried = match diag.carried(ends) {
            Ok(carried) => carried.expect("it is there"),
            Err(DiagError::Missing) => {
                eprintln!("this kernel has no tcp_diag: left out");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        // The SYN counts as one.
        assert_eq!(carried.bytes_acked, 10_001);
        assert!(diag.has_connection(ends).unwrap());
        drop(near);
        drop(far);
        // On a busy machine the last bytes may still be in flight.
        let deadline = Instant::now() + Duration::from_secs(10);
        while diag.carried(ends).unwrap().is_some() {
            assert!(Instant::now() < deadline, "it never goes");
            std::thread::yield_now();
        }
        // It is not confused with its listener.
        assert_eq!(diag.carried(ends).unwrap(), None);
        assert!(!diag.has_connection(ends).unwrap());
        // No connection has this token.
        assert_eq!(diag.acknowledged(Token(0)).unwrap(), None);
    }

    #[test]
    fn ends_are_encoded_as_the_kernel_expects() {
        let ends = Ends {
            local: "192.0.2.1:80".parse().unwrap(),
            remote: "192.0.2.2:4000".parse().unwrap(),
        };
        let mut batch = Batch::default();
        Asked::Subflow(ends).write(&mut batch);
        let bytes = batch.bytes();
        assert_eq!(bytes.len(), 8 + ID_BYTES);
        assert_eq!(bytes[..4], [2, 6, 2, 0]);
        assert_eq!(bytes[8..16], [0, 80, 15, 160, 192, 0, 2, 1]);
        assert_eq!(bytes[28..32], [192, 0, 2, 2]);
        assert_eq!(bytes[48..], [0xff; 8]);
        let mut batch = Batch::default();
        Asked::Connection(Token(0x0102_0304)).write(&mut batch);
        let bytes = batch.bytes();
        assert_eq!(bytes[..4], [10, 255, 2, 0]);
        assert_eq!(bytes[48..52], 0x0102_0304_u32.to_ne_bytes());
        assert_eq!(bytes[60..], 262_u32.to_ne_bytes());
    }
}
