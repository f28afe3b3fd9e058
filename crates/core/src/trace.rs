//! Trace of what happens on a session's paths, packet by packet, for qlog.
//!
//! Off unless a driver asks for it with [`Endpoint::take_trace`](crate::Endpoint::take_trace): then
//! recording costs one comparison. Writing the trace is the driver's.

use std::{collections::VecDeque, net::SocketAddr, time::Duration};

use keiro_units::{Bandwidth, Instant};

use crate::{
    event::{Event, PathDownReason},
    id::PathId,
};

/// Something that happened on a path.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug, PartialEq)]
pub struct TraceEvent {
    /// When the session saw it.
    pub at: Instant,
    /// The path; packets are numbered per path.
    pub path: PathId,
    pub kind: TraceKind,
}

/// What happened on a path.
#[allow(missing_docs, reason = "some fields say it with their names")]
#[derive(Clone, Debug, PartialEq)]
pub enum TraceKind {
    /// A packet was sealed and handed to the driver.
    PacketSent {
        number: u64,
        /// Its length as an IP packet.
        ip_bytes: u64,
        /// The peer has to acknowledge it.
        ack_eliciting: bool,
    },
    /// A packet arrived and was authentic.
    PacketReceived {
        /// Its number, of the path as the peer numbers it.
        number: u64,
        /// Its length as an IP packet.
        ip_bytes: u64,
        /// It had the ECN mark CE.
        is_ce: bool,
    },
    /// The peer acknowledged a packet.
    PacketAcked {
        number: u64,
        /// It had been declared lost.
        was_lost: bool,
    },
    /// A packet was declared lost (RFC 9002 §6.1).
    PacketLost {
        number: u64,
        /// Its length as an IP packet.
        ip_bytes: u64,
    },
    /// State of loss recovery after an acknowledgement.
    Recovery(RecoveryMetrics),
    /// The largest IP packet that is sent has changed.
    MtuChanged { mtu: u16 },
    /// The peer answered a challenge over the path.
    PathValidated {
        /// The peer's address on this path.
        remote: SocketAddr,
        /// Round trip of the challenge.
        rtt: Duration,
    },
    /// The path leads elsewhere.
    PathMoved {
        /// Where it leads now.
        remote: SocketAddr,
    },
    /// The path carries no traffic any more.
    PathDown { reason: PathDownReason },
}

/// State of a path's loss recovery and pacing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryMetrics {
    /// Smoothed round-trip time; `None` before the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// Mean deviation of the round trip (RFC 9002 §5.3).
    pub rtt_variance: Duration,
    /// Smallest round-trip time; `None` before the first sample.
    pub min_rtt: Option<Duration>,
    /// Bytes sent and neither acknowledged nor lost.
    pub bytes_in_flight: u64,
    /// Rate at which packets leave.
    pub pacing_rate: Bandwidth,
}

/// Events recorded since the last time they were taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceBatch {
    /// In the order in which they happened.
    pub events: Vec<TraceEvent>,
    /// Events that were not recorded because [`TRACE_EVENTS_MAX`] were waiting.
    pub dropped_events: u64,
}

/// Events that wait to be taken. Ours: 0.2 s at 100,000 packets/s with their acknowledgements, and
/// 3 MiB at most.
pub const TRACE_EVENTS_MAX: usize = 1 << 15;

/// Records events of one session.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    /// `None`: recording is off.
    events: Option<VecDeque<TraceEvent>>,
    dropped: u64,
    /// Events of the endpoint have no time of their own: it is that of the call that made them.
    now: Instant,
}

impl Tracer {
    /// Takes what was recorded, and records from now on.
    pub(crate) fn take(&mut self) -> TraceBatch {
        let events = self.events.get_or_insert_default();
        TraceBatch {
            events: events.drain(..).collect(),
            dropped_events: std::mem::take(&mut self.dropped),
        }
    }

    /// Stops recording and forgets what was not taken.
    pub(crate) fn stop(&mut self) {
        *self = Self::default();
    }

    /// Records an event, which is made only if the tracer is on.
    pub(crate) fn record(&mut self, at: Instant, path: PathId, kind: impl FnOnce() -> TraceKind) {
        let Some(events) = &mut self.events else {
            return;
        };
        self.now = at;
        if events.len() >= TRACE_EVENTS_MAX {
            self.dropped += 1;
            return;
        }
        let kind = kind();
        events.push_back(TraceEvent { at, path, kind });
    }

    /// Work begins at `now`.
    pub(crate) fn on_time(&mut self, now: Instant) {
        self.now = now;
    }

    /// Records an event of the session if it is of a path.
    pub(crate) fn on_event(&mut self, event: &Event) {
        if self.events.is_none() {
            return;
        }
        let (path, kind) = match *event {
            Event::PathUp {
                path, remote, rtt, ..
            } => (path, TraceKind::PathValidated { remote, rtt }),
            Event::PathMoved { path, to, .. } => (path, TraceKind::PathMoved { remote: to }),
            Event::PathDown { path, reason, .. } => (path, TraceKind::PathDown { reason }),
            Event::MtuChanged { path, mtu, .. } => (path, TraceKind::MtuChanged { mtu }),
            _ => return,
        };
        self.record(self.now, path, || kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: u64) -> TraceKind {
        TraceKind::PacketSent {
            number,
            ip_bytes: 1500,
            ack_eliciting: true,
        }
    }

    #[test]
    fn disabled_tracer_records_nothing() {
        let mut tracer = Tracer::default();
        tracer.record(Instant::ZERO, PathId(0), || panic!("off"));
        assert_eq!(tracer.take(), TraceBatch::default());
        tracer.record(Instant::ZERO, PathId(0), || sent(0));
        assert_eq!(tracer.take().events.len(), 1);
        tracer.record(Instant::ZERO, PathId(0), || sent(1));
        tracer.stop();
        assert_eq!(tracer.take(), TraceBatch::default());
    }

    #[test]
    fn events_beyond_the_bound_are_counted() {
        let mut tracer = Tracer::default();
        tracer.take();
        for number in 0..TRACE_EVENTS_MAX as u64 + 3 {
            tracer.record(Instant::ZERO, PathId(0), || sent(number));
        }
        let batch = tracer.take();
        assert_eq!(batch.events.len(), TRACE_EVENTS_MAX);
        assert_eq!(batch.dropped_events, 3);
        assert_eq!(batch.events[0].kind, sent(0));
        assert_eq!(tracer.take().dropped_events, 0);
    }
}
