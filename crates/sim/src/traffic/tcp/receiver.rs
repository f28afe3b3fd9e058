//! The receiving side: reordering and acknowledgements (RFC 5681 §4.2, RFC 2018, RFC 7323).

use keiro_units::Instant;

use super::{TcpConfig, offset_of, sequence_of};
use crate::traffic::packet::{Ecn, Flags, SACK_BLOCKS_MAX, SackBlocks, TcpHeader, Timestamps};

/// Maximum of out-of-order ranges; further ones are dropped. Ours: a buffer of 6 MiB full of holes has 4,400.
const RANGES_MAX: usize = 1 << 14;

/// Receives segments, delivers their bytes in order and acknowledges them. It waits for a SYN and answers its
/// sender.
#[derive(Clone, Debug)]
pub struct TcpReceiver {
    config: TcpConfig,
    port: u16,
    /// Sequence number before its peer's first byte, and its peer; `None` before a SYN.
    connection: Option<Connection>,
    /// The first byte that has not arrived.
    next: u64,
    /// Ranges that arrived beyond it, ordered; neither empty nor adjacent.
    beyond: Vec<(u64, u64)>,
    /// The ranges of `beyond` that changed last, the latest first.
    recent: [(u64, u64); SACK_BLOCKS_MAX],
    /// Segments that arrived since the last acknowledgement.
    unacknowledged_segments: u32,
    acknowledge: Acknowledge,
    counts: ReceiverCounts,
}

#[derive(Clone, Copy, Debug)]
struct Connection {
    first: u32,
    peer_port: u16,
    /// The peer's timestamp to echo (RFC 7323 §4.3).
    timestamp: Option<u32>,
    /// The last acknowledgement number.
    acknowledged: u64,
    ecn: bool,
    /// A marked packet arrived, and the peer has not confirmed it by CWR.
    echo_congestion: bool,
    /// The SYN has to be answered.
    answer: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Acknowledge {
    No,
    Now,
    At(Instant),
}

/// Bytes delivered to the application: from offset `from` up to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// First sequence number of the range.
    pub from: u64,
    /// The one after the last.
    pub to: u64,
}

/// Counters of a receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverCounts {
    /// Segments with payload that arrived.
    pub segments: u64,
    /// Of these, duplicates.
    pub repeated: u64,
    /// Of these, out of order.
    pub out_of_order: u64,
    /// Of these, beyond the window or of an unknown connection.
    pub refused: u64,
    pub acknowledgements: u64,
}

impl TcpReceiver {
    /// A receiver on a port.
    pub const fn new(config: TcpConfig, port: u16) -> Self {
        Self {
            config,
            port,
            connection: None,
            next: 0,
            beyond: Vec::new(),
            recent: [(0, 0); SACK_BLOCKS_MAX],
            unacknowledged_segments: 0,
            acknowledge: Acknowledge::No,
            counts: ReceiverCounts {
                segments: 0,
                repeated: 0,
                out_of_order: 0,
                refused: 0,
                acknowledgements: 0,
            },
        }
    }

    /// Bytes delivered to the application so far.
    pub const fn delivered(&self) -> u64 {
        self.next
    }

    pub const fn counts(&self) -> &ReceiverCounts {
        &self.counts
    }

    /// Handles a segment; returns the range delivered to the application.
    pub fn handle_segment(
        &mut self,
        now: Instant,
        header: &TcpHeader,
        ecn: Ecn,
    ) -> Option<Delivered> {
        if header.flags.syn {
            self.handle_syn(header);
            return None;
        }
        let window = u64::from(self.config.window());
        let Some(connection) = &mut self.connection else {
            self.counts.refused += 1;
            return None;
        };
        if connection.peer_port != header.source_port || header.payload == 0 {
            self.counts.refused += u64::from(header.payload > 0);
            return None;
        }
        self.counts.segments += 1;
        if header.flags.cwr {
            connection.echo_congestion = false;
        }
        let marked = ecn == Ecn::Congestion && connection.ecn;
        connection.echo_congestion |= marked;
        let from = offset_of(header.sequence, connection.first.wrapping_add(1), self.next);
        let range = from.map(|from| (from, from + u64::from(header.payload)));
        let Some((from, to)) = range.filter(|&(_, to)| to <= self.next + window) else {
            self.counts.refused += 1;
            self.acknowledge = Acknowledge::Now;
            return None;
        };
        if let Some(timestamps) = header.timestamps
            && from <= connection.acknowledged
        {
            connection.timestamp = Some(timestamps.value);
        }
        let had_gaps = !self.beyond.is_empty();
        let delivered = self.take(from, to);
        self.unacknowledged_segments += 1;
        let at_once =
            marked || had_gaps || delivered.is_none() || self.unacknowledged_segments >= 2;
        match (self.acknowledge, self.config.delayed_ack) {
            (Acknowledge::Now, _) => {}
            (_, Some(delay)) if !at_once => self.acknowledge = Acknowledge::At(now + delay),
            _ => self.acknowledge = Acknowledge::Now,
        }
        delivered
    }

    /// The delayed acknowledgement is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.poll_timeout().is_some_and(|at| at <= now) {
            self.acknowledge = Acknowledge::Now;
        }
    }

    /// When the delayed acknowledgement is due.
    pub const fn poll_timeout(&self) -> Option<Instant> {
        match self.acknowledge {
            Acknowledge::At(at) => Some(at),
            Acknowledge::No | Acknowledge::Now => None,
        }
    }

    /// The segment to send now, if any.
    pub fn poll_segment(&mut self, now: Instant) -> Option<TcpHeader> {
        let window = self.config.window();
        let connection = self.connection.as_mut()?;
        let syn = std::mem::take(&mut connection.answer);
        if !syn && self.acknowledge != Acknowledge::Now {
            return None;
        }
        self.acknowledge = Acknowledge::No;
        self.unacknowledged_segments = 0;
        self.counts.acknowledgements += 1;
        connection.acknowledged = self.next;
        let echo = connection.timestamp.map(|echo| Timestamps {
            value: clock(now),
            echo,
        });
        let first = connection.first.wrapping_add(1);
        let mut sack = SackBlocks::default();
        for (from, to) in self.recent {
            if to > self.next {
                sack.push(sequence_of(from, first), sequence_of(to, first));
            }
        }
        Some(TcpHeader {
            source_port: self.port,
            destination_port: connection.peer_port,
            // The peer sends one SYN and nothing else.
            sequence: u32::from(!syn),
            acknowledgement: sequence_of(self.next, first),
            window,
            flags: Flags {
                syn,
                ack: true,
                ece: if syn {
                    connection.ecn
                } else {
                    connection.echo_congestion
                },
                cwr: false,
            },
            timestamps: echo,
            mss: syn.then_some(self.config.mss),
            sack,
            payload: 0,
        })
    }

    fn handle_syn(&mut self, header: &TcpHeader) {
        match &mut self.connection {
            None => {
                self.connection = Some(Connection {
                    first: header.sequence,
                    peer_port: header.source_port,
                    timestamp: header
                        .timestamps
                        .filter(|_| self.config.timestamps)
                        .map(|timestamps| timestamps.value),
                    acknowledged: 0,
                    ecn: self.config.ecn && header.flags.ece && header.flags.cwr,
                    echo_congestion: false,
                    answer: true,
                });
            }
            // The answer was lost, or the SYN was duplicated.
            Some(connection)
                if connection.peer_port == header.source_port
                    && connection.first == header.sequence =>
            {
                connection.answer = true;
            }
            Some(_) => self.counts.refused += 1,
        }
    }

    /// Adds a range of the stream; returns what is in order now.
    fn take(&mut self, from: u64, to: u64) -> Option<Delivered> {
        if to <= self.next {
            self.counts.repeated += 1;
            return None;
        }
        if from > self.next {
            self.counts.out_of_order += 1;
            self.keep(from, to);
            return None;
        }
        let delivered_from = self.next;
        self.next = to;
        let reached = self.beyond.partition_point(|range| range.0 <= self.next);
        for (_, end) in self.beyond.drain(..reached) {
            self.next = self.next.max(end);
        }
        // A later range can be adjacent only if an earlier one was, which is impossible: ranges are never
        // adjacent.
        Some(Delivered {
            from: delivered_from,
            to: self.next,
        })
    }

    /// Stores an out-of-order range.
    fn keep(&mut self, from: u64, to: u64) {
        // Merges it with the ranges that it touches.
        let first = self.beyond.partition_point(|range| range.1 < from);
        let last = self.beyond.partition_point(|range| range.0 <= to);
        let mut merged = (from, to);
        if first < last {
            merged.0 = merged.0.min(self.beyond[first].0);
            merged.1 = merged.1.max(self.beyond[last - 1].1);
            if last - first == 1 && merged == self.beyond[first] {
                self.counts.repeated += 1;
            }
        } else if self.beyond.len() >= RANGES_MAX {
            self.counts.refused += 1;
            return;
        }
        self.beyond.splice(first..last, [merged]);
        let others = self.recent.map(|range| {
            let within = range.0 >= merged.0 && range.1 <= merged.1;
            if within { (0, 0) } else { range }
        });
        self.recent[0] = merged;
        let mut place = 1;
        for other in others {
            if other.1 > self.next && place < SACK_BLOCKS_MAX {
                self.recent[place] = other;
                place += 1;
            }
        }
        self.recent[place..].fill((0, 0));
    }
}

/// The clock of timestamps: microseconds that wrap around.
pub(super) const fn clock(now: Instant) -> u32 {
    (now.as_nanos() / 1_000) as u32
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use proptest::prelude::*;

    use super::*;

    const FIRST: u32 = u32::MAX - 50;

    fn open() -> TcpReceiver {
        let mut receiver = TcpReceiver::new(TcpConfig::RFC, 80);
        let syn = TcpHeader {
            source_port: 9,
            destination_port: 80,
            sequence: FIRST,
            flags: Flags {
                syn: true,
                ..Flags::default()
            },
            mss: Some(1460),
            ..TcpHeader::default()
        };
        receiver.handle_segment(Instant::ZERO, &syn, Ecn::NotCapable);
        let answer = receiver.poll_segment(Instant::ZERO).unwrap();
        assert!(answer.flags.syn && answer.acknowledgement == FIRST.wrapping_add(1));
        receiver
    }

    fn segment(offset: u64, payload: u16) -> TcpHeader {
        TcpHeader {
            source_port: 9,
            destination_port: 80,
            sequence: sequence_of(offset, FIRST.wrapping_add(1)),
            payload,
            ..TcpHeader::default()
        }
    }

    fn give(receiver: &mut TcpReceiver, offset: u64, payload: u16) -> Option<Delivered> {
        receiver.handle_segment(Instant::ZERO, &segment(offset, payload), Ecn::NotCapable)
    }

    fn blocks(receiver: &mut TcpReceiver) -> Vec<(u64, u64)> {
        let ack = receiver.poll_segment(Instant::ZERO).unwrap();
        let offset = |sequence| offset_of(sequence, FIRST.wrapping_add(1), 0).unwrap();
        ack.sack
            .iter()
            .map(|(from, to)| (offset(from), offset(to)))
            .collect()
    }

    #[test]
    fn every_second_segment_and_every_gap_is_acknowledged_at_once() {
        let mut receiver = open();
        assert!(give(&mut receiver, 0, 100).is_some());
        assert_eq!(receiver.poll_segment(Instant::ZERO), None);
        let delay = receiver.poll_timeout().unwrap();
        assert_eq!(delay, Instant::ZERO + Duration::from_millis(200));
        give(&mut receiver, 100, 100);
        assert!(receiver.poll_segment(Instant::ZERO).is_some());
        assert_eq!(receiver.poll_timeout(), None);
        give(&mut receiver, 300, 100);
        assert_eq!(blocks(&mut receiver), [(300, 400)]);
        give(&mut receiver, 200, 100);
        assert_eq!(blocks(&mut receiver), []);
        give(&mut receiver, 400, 100);
        receiver.handle_timeout(delay);
        assert!(receiver.poll_segment(delay).is_some());
    }

    #[test]
    fn the_latest_ranges_are_named_first() {
        let mut receiver = open();
        for offset in [200, 400, 600, 800] {
            give(&mut receiver, offset, 100);
        }
        assert_eq!(blocks(&mut receiver), [(800, 900), (600, 700), (400, 500)]);
        give(&mut receiver, 300, 100);
        assert_eq!(blocks(&mut receiver), [(200, 500), (800, 900), (600, 700)]);
    }

    #[test]
    fn segments_beyond_the_window_or_before_the_stream_are_refused() {
        let mut receiver = open();
        let window = u64::from(TcpConfig::RFC.window());
        assert_eq!(give(&mut receiver, window, 1), None);
        receiver.handle_segment(
            Instant::ZERO,
            &TcpHeader {
                sequence: FIRST,
                ..segment(0, 5)
            },
            Ecn::NotCapable,
        );
        assert_eq!(receiver.counts().refused, 2);
        assert_eq!(give(&mut receiver, window - 1, 1), None);
        assert_eq!(blocks(&mut receiver), [(window - 1, window)]);
        let stranger = TcpHeader {
            source_port: 10,
            ..segment(0, 5)
        };
        receiver.handle_segment(Instant::ZERO, &stranger, Ecn::NotCapable);
        assert_eq!((receiver.counts().refused, receiver.delivered()), (3, 0));
    }

    proptest! {
        /// Compared with the set of bytes that arrived.
        #[test]
        fn delivers_exactly_the_bytes_without_a_gap_before_them(
            segments in prop::collection::vec((0..60_u64, 1..12_u16), 1..100)
        ) {
            let mut receiver = open();
            let mut came = BTreeSet::new();
            let mut delivered = 0;
            for (offset, payload) in segments {
                came.extend(offset..offset + u64::from(payload));
                if let Some(range) = give(&mut receiver, offset, payload) {
                    prop_assert!(range.from == delivered && range.to > range.from);
                    delivered = range.to;
                }
                let expected = (0..).find(|byte| !came.contains(byte)).unwrap();
                prop_assert_eq!(delivered, expected);
                receiver.acknowledge = Acknowledge::Now;
                for (from, to) in blocks(&mut receiver) {
                    prop_assert!(from > delivered && from < to);
                    prop_assert!((from..to).all(|byte| came.contains(&byte)));
                    prop_assert!(!came.contains(&(from - 1)) && !came.contains(&to));
                }
            }
        }
    }
}
