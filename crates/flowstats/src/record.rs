//! What the kernel's program counts, as its bytes say it (`bpf/flowstats.bpf.c`).

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

/// Bytes of `struct key`.
pub const KEY_BYTES: usize = 56;
/// Bytes of `struct flow`.
pub const VALUE_BYTES: usize = 72;

/// Which flow: inner addresses, ports and protocol, and the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key([u8; KEY_BYTES]);

/// What the headers of a flow's packets contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Addresses, and ports where the protocol has them.
    Flow,
    /// Fragments but the first, of any flow of the segment.
    Fragments,
    /// Flows for which the kernel's table had no room.
    Overflow,
    /// No IP, or cut short.
    Other,
}

/// What was counted so far, and the socket's figures of a packet at most 10 ms before the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// On the wire, with link-layer headers.
    pub bytes: u64,
    /// On the wire.
    pub packets: u64,
    /// When the last packet came: CLOCK_MONOTONIC in nanoseconds, up to a tick of the kernel's
    /// (10 ms) early.
    pub last_nanos: u64,
    /// The socket's cookie, by which `ss -e` and others know it; `None`: forwarded.
    pub cookie: Option<u64>,
    /// The MPTCP connection's token; `None`: plain TCP, or the kernel does not report it.
    pub token: Option<u32>,
    /// TCP's figures; `None`: not TCP of this host.
    pub tcp: Option<Tcp>,
}

/// Figures of a TCP connection or subflow (`struct tcp_sock`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tcp {
    /// Smoothed round-trip time.
    pub rtt: Duration,
    /// Congestion window, in packets.
    pub window_packets: u32,
    /// Segment size in bytes, headers not counted.
    pub mss_bytes: u32,
    /// Delivery rate in bit/s of payload; `None`: not measured yet.
    pub delivery_bits_per_second: Option<u64>,
    /// Segments sent so far, retransmitted ones as well. Wraps around.
    pub segments: u32,
    /// Segments retransmitted so far. Wraps around.
    pub retransmits: u32,
}

const FRAGMENT: u8 = 1;
const OVERFLOW: u8 = 2;

impl Key {
    /// As the kernel has it.
    pub fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// As the kernel has it.
    pub fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// What kind of packets they are.
    pub fn kind(&self) -> Kind {
        match (self.0[53], self.0[54]) {
            (_, flags) if flags & OVERFLOW != 0 => Kind::Overflow,
            (_, flags) if flags & FRAGMENT != 0 => Kind::Fragments,
            (4 | 6, _) => Kind::Flow,
            _ => Kind::Other,
        }
    }

    /// Inner source; port 0 where the protocol has none. `None`: unknown.
    pub fn source(&self) -> Option<SocketAddr> {
        self.address(0, 48)
    }

    /// Inner destination, as [`Self::source`].
    pub fn destination(&self) -> Option<SocketAddr> {
        self.address(16, 50)
    }

    /// The segment: the last one of a segment list, else the outer destination. `None`: not
    /// encapsulated.
    pub fn sid(&self) -> Option<Ipv6Addr> {
        let octets: [u8; 16] = self.part(32);
        let sid = Ipv6Addr::from(octets);
        (!sid.is_unspecified()).then_some(sid)
    }

    /// Inner protocol number (IANA), 6 for TCP; 0 where it is unknown.
    pub fn protocol(&self) -> u8 {
        self.0[52]
    }

    fn address(&self, at: usize, port: usize) -> Option<SocketAddr> {
        if self.kind() != Kind::Flow {
            return None;
        }
        let octets: [u8; 16] = self.part(at);
        let ip: IpAddr = match self.0[53] {
            4 => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
            _ => octets.into(),
        };
        Some(SocketAddr::new(ip, u16::from_be_bytes(self.part(port))))
    }

    fn part<const N: usize>(&self, at: usize) -> [u8; N] {
        std::array::from_fn(|index| self.0[at + index])
    }
}

impl Counts {
    /// As the kernel has them.
    pub fn new(bytes: &[u8; VALUE_BYTES]) -> Self {
        let long = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| bytes[at + i]));
        let (mss, packets, interval) = (word(52), word(56), word(60));
        let delivery = || {
            let bits = u64::from(packets) * u64::from(mss) * 8 * 1_000_000;
            bits.checked_div(interval.into())
        };
        let tcp = || Tcp {
            rtt: Duration::from_nanos(u64::from(word(44)) * 1000 / 8),
            window_packets: word(48),
            mss_bytes: mss,
            delivery_bits_per_second: delivery(),
            segments: word(64),
            retransmits: word(68),
        };
        Self {
            bytes: long(0),
            packets: long(8),
            last_nanos: long(16),
            cookie: Some(long(32)).filter(|&cookie| cookie != 0),
            token: Some(word(40)).filter(|&token| token != 0),
            // Every TCP socket has a segment size.
            tcp: (mss != 0).then(tcp),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(protocol: u8, kind: u8, flags: u8) -> Key {
        let mut bytes = [0; KEY_BYTES];
        bytes[..2].copy_from_slice(&[0x20, 1]);
        bytes[16..20].copy_from_slice(&[192, 0, 2, 1]);
        bytes[47] = 0xd;
        bytes[48..52].copy_from_slice(&[0x1f, 0x90, 0, 80]);
        bytes[52..55].copy_from_slice(&[protocol, kind, flags]);
        Key::new(bytes)
    }

    #[test]
    fn keys_are_read_as_the_program_writes_them() {
        let v6 = key(6, 6, 0);
        assert_eq!(v6.kind(), Kind::Flow);
        assert_eq!(v6.source().unwrap().to_string(), "[2001::]:8080");
        assert_eq!(v6.sid().unwrap().to_string(), "::d");
        let v4 = key(17, 4, 0);
        assert_eq!(v4.destination().unwrap().to_string(), "192.0.2.1:80");
        assert_eq!(key(6, 6, 1).kind(), Kind::Fragments);
        assert_eq!(key(0, 6, 2).kind(), Kind::Overflow);
        assert_eq!(key(0, 0, 0).kind(), Kind::Other);
        assert_eq!(key(6, 6, 1).source(), None);
    }

    #[test]
    fn counts_are_read_as_the_program_writes_them() {
        let mut bytes = [0; VALUE_BYTES];
        bytes[..8].copy_from_slice(&1500_u64.to_ne_bytes());
        bytes[8..16].copy_from_slice(&1_u64.to_ne_bytes());
        assert_eq!(Counts::new(&bytes).tcp, None);
        bytes[40..44].copy_from_slice(&7_u32.to_ne_bytes());
        bytes[44..48].copy_from_slice(&80_000_u32.to_ne_bytes());
        bytes[52..56].copy_from_slice(&1400_u32.to_ne_bytes());
        bytes[56..60].copy_from_slice(&10_u32.to_ne_bytes());
        let tcp = Counts::new(&bytes).tcp.unwrap();
        assert_eq!(tcp.rtt, Duration::from_millis(10));
        assert_eq!(tcp.delivery_bits_per_second, None, "no interval yet");
        bytes[60..64].copy_from_slice(&100_000_u32.to_ne_bytes());
        let counts = Counts::new(&bytes);
        assert_eq!(counts.token, Some(7));
        assert_eq!(
            counts.tcp.unwrap().delivery_bits_per_second,
            Some(1_120_000)
        );
    }
}
