//! What flows sent, as IPFIX messages (RFC 7011) for a collector.
//!
//! Changes are gathered until they are exported, one record per flow and interface. Here are only
//! the octets; sockets and clocks are the caller's. What IANA has no element for is left out: the
//! socket's cookie, the MPTCP token and TCP's figures.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    time::Duration,
};

use crate::{Change, record::Key};

/// Gathers changes and writes messages.
#[derive(Clone, Debug, Default)]
pub struct Exporter {
    flows: BTreeMap<(Interface, Key), Sent>,
    /// Records written so far (RFC 7011 §3.1). Wraps around.
    sequence: u32,
}

/// The interface that something left by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interface {
    pub index: u32,
    /// Octets of its link-layer header, which count on the wire and not for IP.
    pub header_bytes: u8,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    bytes: u64,
    packets: u64,
    from: Duration,
    until: Duration,
}

/// What a record says of its flow; each is a template of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Shape {
    ends: Ends,
    segment: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ends {
    /// Counted together with others.
    None,
    V4,
    V6,
}

impl Exporter {
    /// Takes what a flow has sent between two times since the Unix epoch.
    pub fn add(&mut self, interface: Interface, change: &Change, from: Duration, until: Duration) {
        let sent = self.flows.entry((interface, change.key)).or_insert(Sent {
            bytes: 0,
            packets: 0,
            from,
            until,
        });
        sent.bytes = sent.bytes.saturating_add(change.bytes);
        sent.packets = sent.packets.saturating_add(change.packets);
        sent.from = sent.from.min(from);
        sent.until = sent.until.max(until);
    }

    /// Whether so much has been gathered that it is to be exported before its time.
    pub fn is_full(&self) -> bool {
        self.flows.len() >= FLOWS_MAX
    }

    /// The messages of all that has been gathered, each for one datagram; `now` since the Unix
    /// epoch. They say first how they are to be read (RFC 7011 §10.3.6: over UDP that is repeated).
    pub fn export(&mut self, now: Duration) -> Vec<Vec<u8>> {
        let mut of_shape: BTreeMap<Shape, Vec<Vec<u8>>> = BTreeMap::new();
        for ((interface, key), sent) in std::mem::take(&mut self.flows) {
            let shape = Shape::of(&key);
            let record = shape.record(interface, &key, &sent);
            of_shape.entry(shape).or_default().push(record);
        }
        let mut messages = Vec::new();
        let mut message = self.begin(now);
        set(
            TEMPLATES,
            Shape::all().flat_map(Shape::template),
            &mut message,
        );
        let mut written = 0;
        for (shape, records) in of_shape {
            let mut waiting = records.into_iter().peekable();
            while let Some(length) = waiting.peek().map(Vec::len) {
                let room = MESSAGE_BYTES_MAX.saturating_sub(message.len() + SET_HEADER);
                let fits = room / length;
                if fits == 0 {
                    self.sequence = self.sequence.wrapping_add(written);
                    written = 0;
                    messages.push(finished(message));
                    message = self.begin(now);
                    continue;
                }
                let some: Vec<Vec<u8>> = waiting.by_ref().take(fits).collect();
                written += some.len() as u32;
                set(shape.number(), some.into_iter().flatten(), &mut message);
            }
        }
        self.sequence = self.sequence.wrapping_add(written);
        messages.push(finished(message));
        messages
    }

    /// RFC 7011 §3.1; its length comes at the end.
    fn begin(&self, now: Duration) -> Vec<u8> {
        let mut message = Vec::with_capacity(MESSAGE_BYTES_MAX);
        message.extend(VERSION.to_be_bytes());
        message.extend([0; 2]);
        // In 2106 it begins anew, as the field does.
        message.extend((now.as_secs() as u32).to_be_bytes());
        message.extend(self.sequence.to_be_bytes());
        message.extend(DOMAIN.to_be_bytes());
        message
    }
}

fn finished(mut message: Vec<u8>) -> Vec<u8> {
    let length = message.len() as u16;
    message[2..4].copy_from_slice(&length.to_be_bytes());
    message
}

/// RFC 7011 §3.3.
fn set(number: u16, content: impl Iterator<Item = u8>, message: &mut Vec<u8>) {
    let begin = message.len();
    message.extend(number.to_be_bytes());
    message.extend([0; 2]);
    message.extend(content);
    let length = (message.len() - begin) as u16;
    message[begin + 2..begin + 4].copy_from_slice(&length.to_be_bytes());
}

impl Shape {
    fn of(key: &Key) -> Self {
        let ends = match (key.source(), key.destination()) {
            (Some(source), Some(_)) if source.is_ipv4() => Ends::V4,
            (Some(_), Some(_)) => Ends::V6,
            _ => Ends::None,
        };
        Self {
            ends,
            segment: key.sid().is_some(),
        }
    }

    fn all() -> impl Iterator<Item = Self> {
        [Ends::None, Ends::V4, Ends::V6]
            .into_iter()
            .flat_map(|ends| [false, true].map(|segment| Self { ends, segment }))
    }

    /// From 256 (RFC 7011 §3.4.1).
    fn number(self) -> u16 {
        256 + 2 * self.ends as u16 + u16::from(self.segment)
    }

    /// Numbers of information elements and how many octets they have.
    fn fields(self) -> Vec<(u16, u16)> {
        let ends: &[_] = match self.ends {
            Ends::None => &[],
            Ends::V4 => &[(SOURCE_V4, 4), (DESTINATION_V4, 4)],
            Ends::V6 => &[(SOURCE_V6, 16), (DESTINATION_V6, 16)],
        };
        let ports: &[_] = match self.ends {
            Ends::None => &[],
            _ => &[(SOURCE_PORT, 2), (DESTINATION_PORT, 2), (PROTOCOL, 1)],
        };
        let segment = self.segment.then_some((ACTIVE_SEGMENT, 16));
        let counts = [
            (EGRESS_INTERFACE, 4),
            (OCTETS, 8),
            (LAYER_2_OCTETS, 8),
            (PACKETS, 8),
            (START_MS, 8),
            (END_MS, 8),
        ];
        let all = ends.iter().chain(ports).copied();
        all.chain(segment).chain(counts).collect()
    }

    fn template(self) -> Vec<u8> {
        let fields = self.fields();
        let head = [self.number(), fields.len() as u16];
        let all = head.into_iter();
        let all = all.chain(
            fields
                .into_iter()
                .flat_map(|(number, length)| [number, length]),
        );
        all.flat_map(u16::to_be_bytes).collect()
    }

    /// In the order of [`fields`](Self::fields).
    fn record(self, interface: Interface, key: &Key, sent: &Sent) -> Vec<u8> {
        let mut record = Vec::with_capacity(RECORD_BYTES_MAX);
        if let (Some(source), Some(destination)) = (key.source(), key.destination()) {
            for address in [source.ip(), destination.ip()] {
                match address {
                    IpAddr::V4(address) => record.extend(address.octets()),
                    IpAddr::V6(address) => record.extend(address.octets()),
                }
            }
            record.extend(source.port().to_be_bytes());
            record.extend(destination.port().to_be_bytes());
            record.push(key.protocol());
        }
        record.extend(key.sid().iter().flat_map(Ipv6Addr::octets));
        record.extend(interface.index.to_be_bytes());
        let headers = sent
            .packets
            .saturating_mul(u64::from(interface.header_bytes));
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        for number in [
            sent.bytes.saturating_sub(headers),
            sent.bytes,
            sent.packets,
            ms(sent.from),
            ms(sent.until),
        ] {
            record.extend(number.to_be_bytes());
        }
        record
    }
}

/// RFC 7011 §3.1.
const VERSION: u16 = 10;
/// One observation domain: this process.
const DOMAIN: u32 = 1;
/// A set of templates (RFC 7011 §3.3.2).
const TEMPLATES: u16 = 2;
const SET_HEADER: usize = 4;
/// A datagram that passes everywhere, IP and UDP headers left out (RFC 7011 §10.3.3: the path MTU,
/// or 512; ours for IPv6's 1,280).
const MESSAGE_BYTES_MAX: usize = 1232;
/// Addresses, ports, protocol, segment, counts.
const RECORD_BYTES_MAX: usize = 97;
/// As many flows as the kernel's table has. Ours.
const FLOWS_MAX: usize = 65_536;

// IANA, "IPFIX Information Elements".
const PACKETS: u16 = 2;
const OCTETS: u16 = 1;
const PROTOCOL: u16 = 4;
const SOURCE_PORT: u16 = 7;
const SOURCE_V4: u16 = 8;
const DESTINATION_PORT: u16 = 11;
const DESTINATION_V4: u16 = 12;
const EGRESS_INTERFACE: u16 = 14;
const SOURCE_V6: u16 = 27;
const DESTINATION_V6: u16 = 28;
const START_MS: u16 = 152;
const END_MS: u16 = 153;
const LAYER_2_OCTETS: u16 = 352;
/// srhActiveSegmentIPv6 (RFC 9487).
const ACTIVE_SEGMENT: u16 = 495;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Counts, KEY_BYTES};

    const ETH0: Interface = Interface {
        index: 7,
        header_bytes: 14,
    };

    /// By number: what a record says.
    type Record = BTreeMap<u16, Vec<u8>>;

    fn number(record: &Record, element: u16) -> u64 {
        record[&element]
            .iter()
            .fold(0, |all, octet| all << 8 | u64::from(*octet))
    }

    /// As a collector reads messages: by the templates in them, and nothing else.
    #[derive(Default)]
    struct Collector {
        templates: BTreeMap<u16, Vec<(u16, usize)>>,
        records: Vec<Record>,
        /// How many there have been, by the sequence numbers.
        expected: u32,
    }

    impl Collector {
        fn take(&mut self, message: &[u8]) {
            let two = |at: usize| u16::from_be_bytes([message[at], message[at + 1]]);
            assert_eq!((two(0), usize::from(two(2))), (10, message.len()));
            assert!(message.len() <= MESSAGE_BYTES_MAX, "{}", message.len());
            let sequence = u32::from_be_bytes(message[8..12].try_into().unwrap());
            assert_eq!(sequence, self.expected);
            let mut at = 16;
            while at < message.len() {
                let (set, end) = (two(at), at + usize::from(two(at + 2)));
                at += 4;
                if set == 2 {
                    while at < end {
                        let (id, count) = (two(at), usize::from(two(at + 2)));
                        let field =
                            |n: usize| (two(at + 4 + 4 * n), usize::from(two(at + 6 + 4 * n)));
                        self.templates.insert(id, (0..count).map(field).collect());
                        at += 4 + 4 * count;
                    }
                    continue;
                }
                while at < end {
                    let mut record = Record::new();
                    for (element, length) in &self.templates[&set] {
                        record.insert(*element, message[at..at + length].to_vec());
                        at += length;
                    }
                    self.records.push(record);
                    self.expected += 1;
                }
                assert_eq!(at, end, "no octet is left over");
            }
        }
    }

    /// IPv6, with a segment or without.
    fn key(port: u16, segment: bool) -> Key {
        let mut bytes = [0; KEY_BYTES];
        bytes[15] = 1;
        bytes[31] = 2;
        bytes[47] = if segment { 0xa } else { 0 };
        bytes[48..50].copy_from_slice(&port.to_be_bytes());
        bytes[50..52].copy_from_slice(&443u16.to_be_bytes());
        (bytes[52], bytes[53]) = (6, 6);
        Key::new(bytes)
    }

    fn change(key: Key, bytes: u64, packets: u64) -> Change {
        Change {
            key,
            bytes,
            packets,
            segments: 0,
            retransmits: 0,
            counts: Counts::default(),
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_collector_reads_what_was_sent() {
        let mut exporter = Exporter::default();
        let by_segment = key(1000, true);
        exporter.add(ETH0, &change(by_segment, 1000, 2), seconds(10), seconds(11));
        exporter.add(ETH0, &change(by_segment, 500, 1), seconds(11), seconds(12));
        exporter.add(
            ETH0,
            &change(key(1000, false), 64, 1),
            seconds(11),
            seconds(12),
        );
        let mut v4 = [0; KEY_BYTES];
        v4[..4].copy_from_slice(&[192, 0, 2, 1]);
        v4[16..20].copy_from_slice(&[192, 0, 2, 2]);
        (v4[52], v4[53]) = (17, 4);
        exporter.add(
            ETH0,
            &change(Key::new(v4), 100, 1),
            seconds(11),
            seconds(12),
        );
        let other = Key::new([0; KEY_BYTES]);
        exporter.add(ETH0, &change(other, 60, 1), seconds(11), seconds(12));
        let mut collector = Collector::default();
        for message in exporter.export(seconds(13)) {
            collector.take(&message);
        }
        assert_eq!(collector.records.len(), 4);
        let find = |holds: &dyn Fn(&Record) -> bool| {
            let mut found = collector.records.iter().filter(|record| holds(record));
            let one = found.next().expect("there is one");
            assert!(found.next().is_none(), "and no other");
            one
        };
        let record = find(&|record| record.contains_key(&495));
        assert_eq!(record[&495], "::a".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(record[&27], "::1".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(record[&28], "::2".parse::<Ipv6Addr>().unwrap().octets());
        let numbers = [7, 11, 4, 14, 1, 352, 2, 152, 153].map(|element| number(record, element));
        assert_eq!(numbers, [1000, 443, 6, 7, 1458, 1500, 3, 10_000, 12_000]);
        let v4 = find(&|record| record.contains_key(&8));
        assert_eq!(
            (v4[&8].as_slice(), number(v4, 4)),
            (&[192, 0, 2, 1][..], 17)
        );
        let other = find(&|record| !record.contains_key(&4));
        assert_eq!((number(other, 352), number(other, 1)), (60, 46));
    }

    #[test]
    fn many_flows_are_many_messages_and_none_is_lost() {
        let mut exporter = Exporter::default();
        let mut collector = Collector::default();
        for round in 1..=2u64 {
            for port in 0..2000 {
                let change = change(key(port, port % 3 == 0), 100 * round, round);
                exporter.add(ETH0, &change, seconds(1), seconds(2));
            }
            assert!(!exporter.is_full());
            let messages = exporter.export(seconds(3));
            assert!(messages.len() > 100);
            messages.iter().for_each(|message| collector.take(message));
        }
        assert_eq!(collector.records.len(), 4000);
        let bytes = collector.records.iter().map(|record| number(record, 352));
        assert_eq!(bytes.sum::<u64>(), 2000 * 300);
        // Where nothing was sent a collector still learns how to read what comes.
        let quiet = exporter.export(seconds(4));
        assert_eq!(quiet.len(), 1);
        collector.take(&quiet[0]);
        assert_eq!(collector.templates.len(), 6);
    }
}
