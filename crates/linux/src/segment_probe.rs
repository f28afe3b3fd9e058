//! Probes through a segment to an egress peer's table (End.DT6).
//!
//! A probe is a UDP datagram to an address that the table at the segment's end does not have. The router
//! there answers with an ICMPv6 error that goes to the datagram's source. The answer shows that the segment
//! is reached, taken off, and looked up.

use std::{
    io,
    net::{Ipv6Addr, SocketAddr},
};

use socket2::{Domain, Protocol, Socket, Type};

use crate::{bgp_socket::set_int, limit};

/// A datagram that was sent.
#[derive(Debug)]
pub struct SegmentProbe(Socket);

impl SegmentProbe {
    /// Sends a datagram. Local routes must lead it from `from` to `to` through the segment.
    ///
    /// # Errors
    /// `from` is no address of this host, no route, or no descriptor outside the reserve of [`limit`].
    pub fn send(from: Ipv6Addr, to: Ipv6Addr) -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP))?;
        let socket = limit::outside_reserve(socket)?;
        socket.set_nonblocking(true)?;
        // Without it the kernel does not report that there is no route.
        set_int(&socket, libc::SOL_IPV6, libc::IPV6_RECVERR, 1)?;
        socket.bind(&SocketAddr::from((from, 0)).into())?;
        socket.connect(&SocketAddr::from((to, DISCARD)).into())?;
        socket.send(b"probe")?;
        Ok(Self(socket))
    }

    /// Whether a router has answered that it has no route (ICMPv6 type 1, code 0), or may not use it
    /// (code 1). Other errors may come from this host.
    pub fn is_answered(&self) -> bool {
        let Ok(Some(error)) = self.0.take_error() else {
            return false;
        };
        matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EACCES))
    }
}

/// The discard port (RFC 863).
const DISCARD: u16 = 9;
