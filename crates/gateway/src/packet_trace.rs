//! Packet traces for `keiro monitor --qlog`: a recording per peer, read by any number of clients.
//!
//! Events are numbered, dropped ones included. A client says which number it wants next, so that
//! each client gets every event, and a gap in the numbers shows what was dropped.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::protocol::QLOG_IDLE_SECONDS;
use keiro_core::{PeerId, TRACE_EVENTS_MAX, TraceBatch, TraceEvent};

/// The recordings, by peer.
#[derive(Debug, Default)]
pub(crate) struct PacketTraces(BTreeMap<PeerId, Recording>);

#[derive(Debug)]
struct Recording {
    /// With their numbers; the newest [`TRACE_EVENTS_MAX`].
    events: VecDeque<(u64, TraceEvent)>,
    /// Number of the next event.
    next: u64,
    last_request: Stopwatch,
}

/// What a client has not got yet.
#[derive(Debug, PartialEq)]
pub(crate) struct NewEvents<'a> {
    pub(crate) events: Vec<&'a TraceEvent>,
    /// Dropped since the last event that the client has.
    pub(crate) dropped: u64,
    /// The number that the client is to ask for next.
    pub(crate) next: u64,
}

/// Time without a request after which a recording ends, because its clients are gone.
const IDLE_MAX: Duration = Duration::from_secs(QLOG_IDLE_SECONDS);

/// Largest number that a client may go on with, far from where numbers end.
const NUMBER_MAX: u64 = u64::MAX / 2;

impl PacketTraces {
    /// Adds a batch and gives what a client has not got that asks for event `from`; `None`: it
    /// begins now.
    pub(crate) fn on_request(
        &mut self,
        peer: PeerId,
        now: Stopwatch,
        batch: TraceBatch,
        from: Option<u64>,
    ) -> NewEvents<'_> {
        let recording = self.0.entry(peer).or_insert_with(|| Recording {
            events: VecDeque::new(),
            // A client that is back after the recording ended goes on with its numbers.
            next: from.unwrap_or(0).min(NUMBER_MAX),
            last_request: now,
        });
        recording.last_request = now;
        recording.add(batch);
        recording.new_events(from.unwrap_or(recording.next))
    }

    /// Peers whose recording ends now.
    pub(crate) fn take_idle(&mut self, now: Stopwatch) -> Vec<PeerId> {
        let is_idle = |_: &PeerId, recording: &mut Recording| {
            now.duration_since(recording.last_request) >= IDLE_MAX
        };
        self.0
            .extract_if(.., is_idle)
            .map(|(peer, _)| peer)
            .collect()
    }
}

impl Recording {
    fn add(&mut self, batch: TraceBatch) {
        for event in batch.events {
            if self.events.len() >= TRACE_EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back((self.next, event));
            self.next += 1;
        }
        // The core drops the newest events when its buffer is full.
        self.next += batch.dropped_events;
    }

    /// A client with a number beyond the newest event begins now.
    fn new_events(&self, from: u64) -> NewEvents<'_> {
        let from = from.min(self.next);
        let known = self.events.partition_point(|(number, _)| *number < from);
        let events: Vec<_> = self.events.range(known..).map(|(_, event)| event).collect();
        NewEvents {
            dropped: self.next - from - events.len() as u64,
            next: self.next,
            events,
        }
    }
}

#[cfg(test)]
mod tests {
    use keiro_core::{Instant, PathId, TraceKind};

    use super::*;

    const PEER: PeerId = PeerId(1);

    fn batch(mtus: impl IntoIterator<Item = u16>, dropped_events: u64) -> TraceBatch {
        let event = |mtu| TraceEvent {
            at: Instant::ZERO,
            path: PathId(0),
            kind: TraceKind::MtuChanged { mtu },
        };
        TraceBatch {
            events: mtus.into_iter().map(event).collect(),
            dropped_events,
        }
    }

    fn mtus(new: &NewEvents<'_>) -> Vec<u16> {
        let mtu = |event: &&TraceEvent| match event.kind {
            TraceKind::MtuChanged { mtu } => mtu,
            _ => unreachable!("only these are recorded"),
        };
        new.events.iter().map(mtu).collect()
    }

    #[test]
    fn every_client_gets_every_event_once() {
        let now = Stopwatch::now();
        let mut traces = PacketTraces::default();
        let first = traces.on_request(PEER, now, batch([], 0), None).next;
        let second = traces.on_request(PEER, now, batch([], 0), None).next;
        let got = traces.on_request(PEER, now, batch([1, 2], 0), Some(first));
        assert_eq!(mtus(&got), [1, 2]);
        let first = got.next;
        let got = traces.on_request(PEER, now, batch([3], 0), Some(second));
        assert_eq!((mtus(&got), got.dropped), (vec![1, 2, 3], 0));
        let got = traces.on_request(PEER, now, batch([], 0), Some(first));
        assert_eq!((mtus(&got), got.dropped), (vec![3], 0));
        let late = traces.on_request(PEER, now, batch([4], 0), None);
        assert_eq!((mtus(&late), late.next), (vec![], 4));
    }

    #[test]
    fn every_client_learns_how_many_events_were_dropped() {
        let now = Stopwatch::now();
        let mut traces = PacketTraces::default();
        traces.on_request(PEER, now, batch([1], 5), None);
        let got = traces.on_request(PEER, now, batch([2], 0), Some(0));
        assert_eq!((mtus(&got), got.dropped, got.next), (vec![1, 2], 5, 7));
        let got = traces.on_request(PEER, now, batch([], 0), Some(1));
        assert_eq!((mtus(&got), got.dropped), (vec![2], 5));
        // A client that is slow loses the oldest events.
        let many = (0..TRACE_EVENTS_MAX).map(|_| 9);
        let got = traces.on_request(PEER, now, batch(many, 0), Some(0));
        assert_eq!((got.events.len(), got.dropped), (TRACE_EVENTS_MAX, 7));
    }

    #[test]
    fn a_recording_ends_when_it_is_not_requested() {
        let start = Stopwatch::now();
        let mut traces = PacketTraces::default();
        traces.on_request(PEER, start, batch([1, 2], 0), None);
        let later = start + Duration::from_secs(3);
        traces.on_request(PeerId(2), later, batch([], 0), None);
        assert_eq!(traces.take_idle(start + Duration::from_secs(4)), []);
        assert_eq!(traces.take_idle(start + IDLE_MAX), [PEER]);
        assert_eq!(traces.take_idle(start + IDLE_MAX), []);
        // A client that comes back gets what the next recording has from its beginning.
        let again = traces.on_request(PEER, start, batch([3], 0), Some(2));
        assert_eq!((mtus(&again), again.dropped, again.next), (vec![3], 0, 3));
    }

    #[test]
    fn a_number_that_no_event_has_is_no_overflow() {
        let now = Stopwatch::now();
        let mut traces = PacketTraces::default();
        let got = traces.on_request(PEER, now, batch([1], 0), Some(u64::MAX));
        assert!(got.events.is_empty());
        let from = got.next;
        let got = traces.on_request(PEER, now, batch([2], 0), Some(from));
        assert_eq!(mtus(&got), [2]);
    }
}
