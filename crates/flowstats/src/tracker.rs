//! From counts to differences: what came since the last reading, per flow, and totals that stay
//! right when flows are let go.

use std::{
    collections::{BTreeMap, HashMap},
    net::Ipv6Addr,
    time::Duration,
};

use crate::record::{Counts, Key, Kind};

/// The segment under which totals of further segments are put together, beyond
/// [`SEGMENTS_MAX`]; no packet has it.
pub const FURTHER: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

/// Segments whose totals are kept apart: forwarded packets may have any.
pub const SEGMENTS_MAX: usize = 1024;

/// Remembers what was counted, and gives what is new.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    flows: HashMap<Key, Counts>,
    totals: BTreeMap<Option<Ipv6Addr>, SegmentStats>,
}

/// What a flow sent since it was read last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: Key,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Packets on the wire.
    pub packets: u64,
    /// TCP segments, retransmitted ones as well.
    pub segments: u32,
    /// TCP segments retransmitted.
    pub retransmits: u32,
    /// All so far, and the socket's figures.
    pub counts: Counts,
}

keiro_stats::stats! {
    /// All that left an interface by one segment.
    pub struct SegmentStats: "flowstats" ["interface", "peer", "sid"] {
        counter bytes: bytes, "Bytes on the wire, with link-layer headers";
        counter packets: packets, "Packets on the wire";
        counter tcp_segments: segments, "TCP segments of this host, retransmitted ones as well";
        counter tcp_retransmits: retransmits, "TCP segments of this host that were retransmitted";
    }
}

impl Tracker {
    /// Takes what was counted of a flow so far; `None` if nothing came since the last time.
    pub fn update(&mut self, key: Key, counts: Counts) -> Option<Change> {
        let last = self.flows.entry(key).or_default();
        // Less than before: the kernel's entry was let go and made anew.
        if counts.packets < last.packets {
            *last = Counts::default();
        }
        if counts.packets == last.packets && counts.bytes == last.bytes {
            return None;
        }
        // Another socket may have taken the same ports; its figures begin at nought.
        let before = match counts.cookie == last.cookie {
            true => last.tcp.unwrap_or_default(),
            false => crate::record::Tcp::default(),
        };
        let now = counts.tcp.unwrap_or(before);
        let change = Change {
            key,
            bytes: counts.bytes - last.bytes,
            packets: counts.packets - last.packets,
            segments: now.segments.wrapping_sub(before.segments),
            retransmits: now.retransmits.wrapping_sub(before.retransmits),
            counts,
        };
        *last = counts;
        let mut sid = key.sid();
        if self.totals.len() >= SEGMENTS_MAX && !self.totals.contains_key(&sid) {
            sid = Some(FURTHER);
        }
        let total = self.totals.entry(sid).or_default();
        total.bytes += change.bytes;
        total.packets += change.packets;
        total.tcp_segments += u64::from(change.segments);
        total.tcp_retransmits += u64::from(change.retransmits);
        Some(change)
    }

    /// Flows that have been silent for `idle` or more at `now_nanos` (CLOCK_MONOTONIC), to be let
    /// go. Those that count for others stay.
    pub fn idle(&self, now_nanos: u64, idle: Duration) -> Vec<Key> {
        let idle = u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX);
        let silent = |counts: &Counts| now_nanos.saturating_sub(counts.last_nanos) >= idle;
        let mut all: Vec<Key> = self
            .flows
            .iter()
            .filter(|(key, counts)| key.kind() == Kind::Flow && silent(counts))
            .map(|(key, _)| *key)
            .collect();
        all.sort_unstable();
        all
    }

    /// Lets go of a flow with its last counts; the totals keep what it sent.
    pub fn forget(&mut self, key: Key, last: Option<Counts>) -> Option<Change> {
        let change = last.and_then(|counts| self.update(key, counts));
        self.flows.remove(&key);
        change
    }

    /// All that was counted, by segment; `None` is what has none, and [`FURTHER`] what is of more
    /// segments than are kept apart.
    pub fn totals(&self) -> &BTreeMap<Option<Ipv6Addr>, SegmentStats> {
        &self.totals
    }

    /// How many flows are known.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{KEY_BYTES, Tcp};

    fn key(number: u8) -> Key {
        let mut bytes = [0; KEY_BYTES];
        bytes[0] = number;
        bytes[53] = 6;
        Key::new(bytes)
    }

    fn counts(packets: u64, cookie: u64, retransmits: u32) -> Counts {
        Counts {
            bytes: packets * 100,
            packets,
            last_nanos: packets,
            cookie: Some(cookie),
            token: None,
            tcp: Some(Tcp {
                segments: packets as u32,
                retransmits,
                mss_bytes: 1400,
                ..Tcp::default()
            }),
        }
    }

    #[test]
    fn only_what_is_new_is_given() {
        let mut tracker = Tracker::default();
        let change = tracker.update(key(1), counts(10, 1, 2)).unwrap();
        assert_eq!((change.bytes, change.packets), (1000, 10));
        assert_eq!(tracker.update(key(1), counts(10, 1, 2)), None);
        let change = tracker.update(key(1), counts(15, 1, 3)).unwrap();
        assert_eq!((change.bytes, change.packets), (500, 5));
        assert_eq!((change.segments, change.retransmits), (5, 1));
    }

    #[test]
    fn further_segments_are_put_together() {
        let mut tracker = Tracker::default();
        let packets = |number: usize| 1 + number as u64;
        for number in 0..SEGMENTS_MAX + 3 {
            let mut bytes = [0; KEY_BYTES];
            bytes[32..34].copy_from_slice(&(1 + number as u16).to_be_bytes());
            bytes[53] = 6;
            let counts = counts(packets(number), 1, 0);
            tracker.update(Key::new(bytes), counts).unwrap();
        }
        let further = tracker.totals()[&Some(FURTHER)];
        let three: u64 = (0..3).map(|more| packets(SEGMENTS_MAX + more)).sum();
        assert_eq!(further.packets, three);
        assert_eq!(tracker.totals().len(), SEGMENTS_MAX + 1);
    }

    #[test]
    fn another_socket_on_the_same_ports_begins_at_nought() {
        let mut tracker = Tracker::default();
        tracker.update(key(1), counts(10, 1, 9)).unwrap();
        let mut next = counts(12, 2, 1);
        next.tcp = Some(Tcp {
            segments: 2,
            retransmits: 1,
            ..Tcp::default()
        });
        let change = tracker.update(key(1), next).unwrap();
        assert_eq!((change.segments, change.retransmits), (2, 1));
    }

    #[test]
    fn totals_keep_what_forgotten_flows_sent() {
        let mut tracker = Tracker::default();
        tracker.update(key(1), counts(10, 1, 0)).unwrap();
        assert_eq!(tracker.idle(100, Duration::from_nanos(90)), [key(1)]);
        assert_eq!(tracker.idle(99, Duration::from_nanos(90)), []);
        // Two more came between reading and forgetting, and three afterwards, on a new entry.
        tracker.forget(key(1), Some(counts(12, 1, 0)));
        assert_eq!(tracker.flows(), 0);
        tracker.update(key(1), counts(3, 1, 0)).unwrap();
        assert_eq!(tracker.totals()[&None].packets, 15);
    }
}
