//! One difference as one line of JSON.

use std::{
    borrow::Cow,
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use serde::Serialize;

use crate::{
    Change, Peers,
    record::{Kind, Tcp},
};

/// What a flow sent in one interval. Fields that are not known are left out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line<'a> {
    /// End of the interval: milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// How long the interval was.
    pub interval_us: u64,
    /// The interface that it left by.
    pub interface: &'a str,
    /// `flow`, or what is counted together: `fragments`, `overflow`, `other`.
    pub kind: &'static str,
    /// `tcp`, `udp`, or the number.
    pub protocol: Cow<'static, str>,
    /// Inner source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    /// Inner destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<SocketAddr>,
    /// The segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sid: Option<Ipv6Addr>,
    /// The egress peer, as [`Peers::name`].
    pub peer: Cow<'a, str>,
    /// Bytes on the wire, with link-layer headers.
    pub bytes: u64,
    /// Packets on the wire.
    pub packets: u64,
    /// The socket's cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket_cookie: Option<u64>,
    /// The MPTCP connection's token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mptcp_token: Option<u32>,
    /// The TCP connection's figures.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpLine>,
}

/// Figures of a TCP connection or subflow.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TcpLine {
    /// Smoothed round-trip time.
    pub srtt_us: u64,
    /// Congestion window.
    pub window_packets: u32,
    /// Segment size.
    pub mss_bytes: u32,
    /// Delivery rate of payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery_bits_per_second: Option<u64>,
    /// Segments sent in the interval, retransmitted ones as well.
    pub segments: u32,
    /// Segments retransmitted in the interval.
    pub retransmits: u32,
}

impl<'a> Line<'a> {
    /// The line of a change that came to `interface` in `interval` up to `unix`, which is time
    /// since the Unix epoch.
    pub fn new(
        interface: &'a str,
        unix: Duration,
        interval: Duration,
        change: &Change,
        peers: &'a Peers,
    ) -> Self {
        let key = &change.key;
        Self {
            unix_ms: u64::try_from(unix.as_millis()).unwrap_or(u64::MAX),
            interval_us: u64::try_from(interval.as_micros()).unwrap_or(u64::MAX),
            interface,
            kind: match key.kind() {
                Kind::Flow => "flow",
                Kind::Fragments => "fragments",
                Kind::Overflow => "overflow",
                Kind::Other => "other",
            },
            protocol: protocol(key.protocol()),
            source: key.source(),
            destination: key.destination(),
            sid: key.sid(),
            peer: peers.name(key.sid()),
            bytes: change.bytes,
            packets: change.packets,
            socket_cookie: change.counts.cookie,
            mptcp_token: change.counts.token,
            tcp: change.counts.tcp.map(|tcp| TcpLine::new(&tcp, change)),
        }
    }
}

impl TcpLine {
    fn new(tcp: &Tcp, change: &Change) -> Self {
        Self {
            srtt_us: u64::try_from(tcp.rtt.as_micros()).unwrap_or(u64::MAX),
            window_packets: tcp.window_packets,
            mss_bytes: tcp.mss_bytes,
            delivery_bits_per_second: tcp.delivery_bits_per_second,
            segments: change.segments,
            retransmits: change.retransmits,
        }
    }
}

/// A protocol's name, or its number.
pub(crate) fn protocol(number: u8) -> Cow<'static, str> {
    match number {
        1 => "icmp".into(),
        6 => "tcp".into(),
        17 => "udp".into(),
        58 => "icmpv6".into(),
        132 => "sctp".into(),
        other => other.to_string().into(),
    }
}
