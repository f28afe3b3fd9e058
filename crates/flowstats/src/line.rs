//! One difference as one line of JSON.

use std::{
    borrow::Cow,
    collections::HashMap,
    io::{self, Write},
    net::{Ipv6Addr, SocketAddr},
    time::Duration,
};

use serde::Serialize;

use crate::{
    Change, Peers,
    record::{Key, Kind, Tcp},
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sid: Option<Ipv6Addr>,
    /// The egress peer, as [`Peers::name`].
    pub peer: Cow<'a, str>,
    /// Bytes on the wire, with link-layer headers.
    pub bytes: u64,
    /// Packets on the wire.
    pub packets: u64,
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
    pub window_packets: u32,
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

/// Writes the lines of one interface. What stays the same of a flow, its addresses above all, is
/// made into text once and kept until the flow is forgotten.
#[derive(Clone, Debug)]
pub struct Lines {
    interface: String,
    /// From the interface's name to the peer's, by flow.
    same: HashMap<Key, Box<[u8]>>,
    buffer: Vec<u8>,
}

/// What of a [`Line`] may be another in every interval, in its order.
#[derive(Serialize)]
struct Numbers {
    bytes: u64,
    packets: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket_cookie: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mptcp_token: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    srtt_us: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_packets: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mss_bytes: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delivery_bits_per_second: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    segments: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retransmits: Option<u32>,
}

impl Lines {
    /// Of what leaves `interface`.
    pub fn new(interface: &str) -> Self {
        Self {
            interface: interface.into(),
            same: HashMap::new(),
            buffer: Vec::new(),
        }
    }

    /// Writes the [`Line`] of a change that came in `interval` up to `unix`, and a line's end.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(
        &mut self,
        out: &mut impl Write,
        unix: Duration,
        interval: Duration,
        change: &Change,
        peers: &Peers,
    ) -> io::Result<()> {
        let same = match self.same.get(&change.key) {
            Some(same) => same,
            None => {
                let line = Line::new(&self.interface, unix, interval, change, peers);
                let same = same_part(&line)?;
                self.same.entry(change.key).or_insert(same)
            }
        };
        self.buffer.clear();
        write!(
            self.buffer,
            "{{\"unix_ms\":{},\"interval_us\":{},",
            unix.as_millis(),
            interval.as_micros()
        )?;
        self.buffer.extend_from_slice(same);
        let begin = self.buffer.len();
        serde_json::to_writer(&mut self.buffer, &Numbers::new(change))?;
        // They go on the object that is begun.
        self.buffer[begin] = b',';
        self.buffer.push(b'\n');
        out.write_all(&self.buffer)
    }

    /// Lets go of a flow's text.
    pub fn forget(&mut self, key: &Key) {
        self.same.remove(key);
    }
}

/// A line's middle, which is the same in every line of the flow.
fn same_part(line: &Line<'_>) -> io::Result<Box<[u8]>> {
    let text = serde_json::to_string(line)?;
    // Neither can be inside a string, where quotation marks have a backslash before them.
    let (_, rest) = text.split_once(",\"interface\":").unwrap_or_default();
    let (same, _) = rest.split_once(",\"bytes\":").unwrap_or_default();
    Ok(format!("\"interface\":{same}").into_bytes().into())
}

impl Numbers {
    fn new(change: &Change) -> Self {
        let tcp = change.counts.tcp.map(|tcp| TcpLine::new(&tcp, change));
        Self {
            bytes: change.bytes,
            packets: change.packets,
            socket_cookie: change.counts.cookie,
            mptcp_token: change.counts.token,
            srtt_us: tcp.map(|tcp| tcp.srtt_us),
            window_packets: tcp.map(|tcp| tcp.window_packets),
            mss_bytes: tcp.map(|tcp| tcp.mss_bytes),
            delivery_bits_per_second: tcp.and_then(|tcp| tcp.delivery_bits_per_second),
            segments: tcp.map(|tcp| tcp.segments),
            retransmits: tcp.map(|tcp| tcp.retransmits),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Counts, KEY_BYTES};

    fn change(bytes: u64, kind: u8, tcp: bool) -> Change {
        let mut key = [0; KEY_BYTES];
        key[..2].copy_from_slice(&[0x20, 1]);
        key[47] = 0xd;
        key[48..54].copy_from_slice(&[0x1f, 0x90, 0, 80, 6, kind]);
        let figures = Tcp {
            rtt: Duration::from_millis(12),
            window_packets: 10,
            mss_bytes: 1400,
            delivery_bits_per_second: (bytes > 1000).then_some(7_000_000),
            segments: 3,
            retransmits: 1,
        };
        Change {
            key: Key::new(key),
            bytes,
            packets: 2,
            segments: 2,
            retransmits: 1,
            counts: Counts {
                bytes,
                cookie: tcp.then_some(8197),
                token: (bytes > 1000).then_some(77),
                tcp: tcp.then_some(figures),
                ..Counts::default()
            },
        }
    }

    #[test]
    fn text_that_is_kept_makes_the_same_lines() {
        let peers: Peers = [crate::Peer {
            name: r#"a ","bytes":1,"interface":"#.into(),
            sid: "::d".parse().unwrap(),
        }]
        .into_iter()
        .collect();
        let mut lines = Lines::new("eth0");
        let changes = [
            change(1000, 6, true),
            change(2000, 6, true),
            change(3000, 4, false),
            change(500, 4, false),
            change(500, 0, false),
        ];
        // Every flow twice: as it comes, and from what was kept.
        for (number, change) in changes.iter().chain(&changes).enumerate() {
            let unix = Duration::from_millis(1_795_322_400_100 + number as u64);
            let interval = Duration::from_millis(100);
            let mut written = Vec::new();
            lines
                .write(&mut written, unix, interval, change, &peers)
                .unwrap();
            let whole = Line::new("eth0", unix, interval, change, &peers);
            let whole = serde_json::to_string(&whole).unwrap() + "\n";
            assert_eq!(String::from_utf8(written).unwrap(), whole);
        }
        assert_eq!(lines.same.len(), 3);
        lines.forget(&changes[0].key);
        assert_eq!(lines.same.len(), 2);
    }
}
