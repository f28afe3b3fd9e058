//! Notices of ended TCP connections with their counters, and the connections that exist.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use super::{
    ANSWER_BYTES, BY_FAMILY, COOKIE, DiagError, ID_BYTES, INFO, TCP_BUSY_TIME, TCP_BYTES_ACKED,
    error_of, u64_at,
};
use crate::{
    mptcp_pm::Ends,
    netlink::{Attributes, Batch, DUMP, Message, Socket, u32_of},
};

/// A TCP connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub ends: Ends,
    /// The kernel's identifier of the socket.
    pub cookie: u64,
    /// The lowest round trip; zero: none was measured.
    pub rtt_min: Duration,
    /// Segments with data, retransmitted ones included.
    pub data_segments: u32,
    pub retransmitted_segments: u32,
    pub bytes_acked: u64,
    /// Time with data in flight, in ticks of the kernel (`CONFIG_HZ`).
    pub busy: Duration,
}

/// Receives a notice for each TCP connection that ends in a namespace.
#[derive(Debug)]
pub struct EndedConnections {
    socket: Socket,
}

impl EndedConnections {
    /// For the calling thread's network namespace, from now on.
    ///
    /// # Errors
    /// No netlink socket is available, or CAP_NET_ADMIN is missing.
    pub fn open() -> Result<Self, DiagError> {
        let socket = Socket::open(libc::NETLINK_SOCK_DIAG)?;
        for group in [GROUP_TCP, GROUP_TCP6] {
            socket.join(group)?;
        }
        Ok(Self { socket })
    }

    /// Passes what has ended since the last call to `each`, `most` at most. Does not block. `false` if the
    /// kernel's buffer was full, so that notices were lost.
    ///
    /// # Errors
    /// The socket is broken.
    pub fn take(&mut self, most: usize, mut each: impl FnMut(Ended)) -> io::Result<bool> {
        let (mut whole, mut taken) = (true, 0);
        while taken < most {
            match self.socket.receive(true) {
                Ok(messages) => {
                    let before = taken;
                    for message in messages {
                        taken += 1;
                        if let Some(ended) = read(&message) {
                            each(ended);
                        }
                    }
                    if taken == before {
                        break;
                    }
                }
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => whole = false,
                Err(error) => return Err(error),
            }
        }
        Ok(whole)
    }
}

/// A TCP connection that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    pub ends: Ends,
    pub cookie: u64,
}

/// The TCP connections of the calling thread's namespace that are wanted, those that are being established included;
/// at most `most`.
///
/// # Errors
/// The kernel does not answer.
pub fn live(is_wanted: impl Fn(&Ends) -> bool, most: usize) -> Result<Vec<Live>, DiagError> {
    let mut socket = Socket::open(libc::NETLINK_SOCK_DIAG)?;
    let mut all: Vec<Live> = Vec::new();
    // A server may listen at sockets of either family.
    for family in [libc::AF_INET6, libc::AF_INET] {
        let left = most.saturating_sub(all.len());
        let write = |batch: &mut Batch| {
            batch.raw(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
            batch.raw(&LIVE_STATES.to_ne_bytes());
            batch.raw(&[0; ID_BYTES]);
        };
        let found = socket.list(BY_FAMILY, DUMP, write, |found: &mut Vec<Live>, message| {
            let live = identify(&message).filter(|_| message.kind == BY_FAMILY);
            let wanted = live.filter(|live| found.len() < left && is_wanted(&live.ends));
            found.extend(wanted);
        });
        all.append(&mut found.map_err(error_of)?);
    }
    Ok(all)
}

/// `struct inet_diag_msg`: ends and cookie.
fn identify(message: &Message<'_>) -> Option<Live> {
    let body: &[u8; ANSWER_BYTES] = message.body.first_chunk()?;
    let v4 = libc::c_int::from(body[0]) == libc::AF_INET;
    let id = &body[ID..ID + ID_BYTES];
    let port = |at: usize| u16::from_be_bytes([id[at], id[at + 1]]);
    let address = |at: usize| -> Option<IpAddr> {
        Some(match v4 {
            true => Ipv4Addr::from(*id[at..].first_chunk::<4>()?).into(),
            // A client of IPv4 at a socket of IPv6.
            false => Ipv6Addr::from(*id[at..].first_chunk::<16>()?).to_canonical(),
        })
    };
    // Two words, the lower one first.
    let word = |at: usize| u32_of(&id[at..at + 4]).map(u64::from);
    Some(Live {
        ends: Ends {
            local: SocketAddr::new(address(4)?, port(0)),
            remote: SocketAddr::new(address(20)?, port(2)),
        },
        cookie: word(COOKIE)? | word(COOKIE + 4)? << 32,
    })
}

fn read(message: &Message<'_>) -> Option<Ended> {
    if message.kind != BY_FAMILY {
        return None;
    }
    let Live { ends, cookie } = identify(message)?;
    let (_, mut all): (&[u8; ANSWER_BYTES], Attributes<'_>) = message.split()?;
    let info = all.find_map(|(name, value)| (name == INFO).then_some(value))?;
    let u32_at = |at: usize| u32_of(info.get(at..at + 4)?);
    // A listener, or a connection that was never established, has sent nothing.
    let rtt = u32_at(TCP_MIN_RTT)?;
    Some(Ended {
        ends,
        cookie,
        rtt_min: match rtt {
            u32::MAX => Duration::ZERO,
            micros => Duration::from_micros(micros.into()),
        },
        data_segments: u32_at(TCP_DATA_SEGS_OUT)?,
        retransmitted_segments: u32_at(TCP_TOTAL_RETRANS)?,
        bytes_acked: u64_at(info, TCP_BYTES_ACKED)?,
        busy: Duration::from_micros(u64_at(info, TCP_BUSY_TIME)?),
    })
}

// `include/uapi/linux/sock_diag.h`: `SKNLGRP_INET_TCP_DESTROY`, `SKNLGRP_INET6_TCP_DESTROY`
const GROUP_TCP: u32 = 1;
const GROUP_TCP6: u32 = 3;
/// Offset of `struct inet_diag_sockid` behind family, state, timer and retransmissions.
const ID: usize = 4;
// Offsets in `struct tcp_info` (`include/uapi/linux/tcp.h`)
const TCP_TOTAL_RETRANS: usize = 100;
const TCP_MIN_RTT: usize = 148;
const TCP_DATA_SEGS_OUT: usize = 156;
/// All states but `TCP_TIME_WAIT`, `TCP_CLOSE` and `TCP_LISTEN`.
const LIVE_STATES: u32 = !(1 << 6 | 1 << 7 | 1 << 10);

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        time::Instant,
    };

    use super::*;

    #[test]
    fn a_connection_is_listed_until_it_ends_and_then_reported_once() {
        let Ok(mut ended) = EndedConnections::open() else {
            eprintln!("notices of ended connections need CAP_NET_ADMIN: left out");
            return;
        };
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        far.write_all(&[7; 30_000]).unwrap();
        near.read_exact(&mut [0; 30_000]).unwrap();
        let own = listener.local_addr().unwrap().port();
        let found = match live(|ends| ends.local.port() == own, 10) {
            Ok(found) => found,
            Err(DiagError::Missing) => {
                eprintln!("this kernel has no tcp_diag: left out");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let ends = Ends {
            local: far.local_addr().unwrap(),
            remote: far.peer_addr().unwrap(),
        };
        assert_eq!(
            found.iter().map(|live| live.ends).collect::<Vec<_>>(),
            [ends]
        );
        drop((near, far));
        let (mut reported, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(10));
        while reported.is_empty() {
            assert!(Instant::now() < deadline, "it is never reported");
            ended
                .take(100, |one| {
                    reported.extend((one.ends == ends).then_some(one));
                })
                .unwrap();
            std::thread::yield_now();
        }
        let one = reported[0];
        assert_eq!((reported.len(), one.cookie), (1, found[0].cookie));
        // The SYN counts as one.
        assert_eq!((one.bytes_acked, one.retransmitted_segments), (30_001, 0));
        assert!(!one.rtt_min.is_zero() && one.data_segments > 0, "{one:?}");
        assert_eq!(live(|ends| ends.local.port() == own, 10).unwrap(), []);
    }
}
