//! The server's UDP: reflects probes, records the arrivals of trains, and sends trains back.
//!
//! The server never sends more than it received: a probe is answered by one datagram of the same length, a
//! train by at most as many packets of at most its length. Only the address of the session's control
//! connection is answered, so that the server is of no use for reflection attacks.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use keiro_linux::{
    clock::monotonic_nanos,
    udp::{BatchSocket, DatagramBatch, ReceiveBuffers},
};

use super::wire::{Probe, ProbeCounts, ProbeKind, TRAIN_PACKETS_MAX, Token, TrainStamp};

/// Maximum of probes in one measurement. Ours: the bitmap of received ones is 128 KiB.
pub(crate) const PROBES_MAX: u32 = 1 << 20;

/// Maximum length of probes and train packets; ours: they fit into an Ethernet frame.
pub(crate) const PROBE_BYTES_MAX: usize = 1472;

/// Maximum of probes of one session per second on average, and burst. Ours.
const PROBES_PER_SECOND: f64 = 2000.0;
const PROBES_AT_ONCE: f64 = 2000.0;

/// A train that pauses this long is considered complete. Ours: a packet of 1400 bytes takes 11 ms at 1
/// Mbit/s.
const TRAIN_PAUSE: Duration = Duration::from_millis(100);

/// Maximum time to wait for a train. Ours: the longest train at 1 Mbit/s.
const TRAIN_WAIT_MAX: Duration = Duration::from_secs(4);

/// UDP state of one session.
pub(crate) struct Reflection {
    peer: IpAddr,
    state: Mutex<State>,
    train_came: Condvar,
}

struct State {
    allowed: u32,
    /// One bit per announced probe.
    seen: Vec<u64>,
    highest: Option<u64>,
    counts: ProbeCounts,
    budget: f64,
    refilled: Instant,
    train: Option<TrainRecord>,
}

struct TrainRecord {
    number: u32,
    packets: u16,
    stamps: Vec<(u16, u64)>,
    last: Instant,
    /// Source and destination address, and the length of its packets.
    origin: Option<(SocketAddr, Option<IpAddr>, usize)>,
    sent_back: bool,
}

/// The sessions that use UDP, by token.
pub(crate) type Reflections = Mutex<BTreeMap<Token, Arc<Reflection>>>;

/// A datagram to send.
struct Reply {
    to: SocketAddr,
    from: Option<IpAddr>,
    probe: Probe,
    length: usize,
}

impl Reflection {
    /// For a client at this IP address.
    pub(crate) fn new(peer: IpAddr) -> Self {
        let state = State {
            allowed: 0,
            seen: Vec::new(),
            highest: None,
            counts: ProbeCounts::default(),
            budget: PROBES_AT_ONCE,
            refilled: Instant::now(),
            train: None,
        };
        Self {
            peer: peer.to_canonical(),
            state: Mutex::new(state),
            train_came: Condvar::new(),
        }
    }

    /// Resets the counters and expects `packets` probes.
    pub(crate) fn begin_probes(&self, packets: u32) {
        let mut state = self.lock();
        state.allowed = packets.min(PROBES_MAX);
        state.seen = vec![0; (state.allowed as usize).div_ceil(64)];
        state.highest = None;
        state.counts = ProbeCounts::default();
    }

    /// Returns the counters and stops answering.
    pub(crate) fn end_probes(&self) -> ProbeCounts {
        let mut state = self.lock();
        state.allowed = 0;
        state.seen = Vec::new();
        state.counts
    }

    pub(crate) fn begin_train(&self, number: u32, packets: u16) {
        let packets = packets.min(TRAIN_PACKETS_MAX);
        self.lock().train = Some(TrainRecord {
            number,
            packets,
            stamps: Vec::with_capacity(packets.into()),
            last: Instant::now(),
            origin: None,
            sent_back: false,
        });
    }

    /// Waits until the train is complete or pauses, and returns its arrivals; `None` if no such train was
    /// announced.
    pub(crate) fn end_train(&self, number: u32) -> Option<Vec<TrainStamp>> {
        let mut state = self.lock();
        let asked = Instant::now();
        loop {
            let train = state.train.as_ref().filter(|t| t.number == number)?;
            let quiet_since = train.last.max(asked);
            let complete = train.stamps.len() >= usize::from(train.packets);
            let left = TRAIN_PAUSE.saturating_sub(quiet_since.elapsed());
            if complete || left.is_zero() || asked.elapsed() >= TRAIN_WAIT_MAX {
                return Some(train.stamps_after_first());
            }
            let waited = self.train_came.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sends as many packets back to the train's source as arrived, once. Returns the times before the first
    /// and after the last, and their number; `None` for an unknown train.
    pub(crate) fn send_back(
        &self,
        number: u32,
        token: Token,
        socket: &Mutex<BatchSocket>,
    ) -> Option<(u64, u64, u64)> {
        let (count, origin) = {
            let mut state = self.lock();
            let train = state.train.as_mut().filter(|t| t.number == number)?;
            let unpaid = !std::mem::replace(&mut train.sent_back, true);
            (if unpaid { train.stamps.len() } else { 0 }, train.origin)
        };
        let (to, from, length) = origin?;
        let mut socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = [0; PROBE_BYTES_MAX];
        let first_at = monotonic_nanos();
        for index in 0..count as u64 {
            let probe = Probe {
                kind: ProbeKind::TrainBack,
                token,
                number: u64::from(number) << 32 | index,
                sent_at: 0,
                received_at: 0,
                replied_at: monotonic_nanos(),
                reply_number: index,
            };
            probe.write(&mut bytes);
            let _ = socket.send(&outgoing(to, from, &bytes[..length]));
        }
        Some((first_at, monotonic_nanos(), count as u64))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a datagram of this session and returns the reply, if any.
    fn on_datagram(
        &self,
        probe: &Probe,
        length: usize,
        received_at: u64,
        remote: SocketAddr,
        local: Option<IpAddr>,
    ) -> Option<Reply> {
        if remote.ip().to_canonical() != self.peer || length > PROBE_BYTES_MAX {
            return None;
        }
        let mut state = self.lock();
        match probe.kind {
            ProbeKind::Request => {
                let reply_number = state.on_request(probe.number)?;
                Some(Reply {
                    to: remote,
                    from: local,
                    probe: Probe {
                        kind: ProbeKind::Reply,
                        received_at,
                        reply_number,
                        ..*probe
                    },
                    length,
                })
            }
            ProbeKind::Train => {
                let train = state.train.as_mut()?;
                let index = u16::try_from(probe.number & 0xffff_ffff).ok()?;
                let known = train.stamps.iter().any(|(known, _)| *known == index);
                if probe.number >> 32 == u64::from(train.number) && index < train.packets && !known
                {
                    train.stamps.push((index, received_at));
                    train.last = Instant::now();
                    // The shortest, so that the reply is never larger than what arrived.
                    let shortest = train.origin.map_or(length, |(_, _, l)| l.min(length));
                    train.origin = Some((remote, local, shortest));
                    self.train_came.notify_all();
                }
                None
            }
            ProbeKind::Reply | ProbeKind::TrainBack => None,
        }
    }
}

impl State {
    /// Counts a probe and returns the number of its reply; `None` for no reply.
    fn on_request(&mut self, number: u64) -> Option<u64> {
        if number >= u64::from(self.allowed) || !self.take_budget() {
            self.counts.refused += 1;
            return None;
        }
        let (word, bit) = ((number / 64) as usize, 1 << (number % 64));
        if self.seen[word] & bit != 0 {
            self.counts.duplicates += 1;
            return None;
        }
        self.seen[word] |= bit;
        match self.highest {
            Some(highest) if number < highest => self.counts.reordered += 1,
            _ => self.highest = Some(number),
        }
        self.counts.received += 1;
        Some(self.counts.received - 1)
    }

    fn take_budget(&mut self) -> bool {
        let refill = self.refilled.elapsed().as_secs_f64() * PROBES_PER_SECOND;
        self.refilled = Instant::now();
        self.budget = (self.budget + refill).min(PROBES_AT_ONCE);
        let enough = self.budget >= 1.0;
        self.budget -= if enough { 1.0 } else { 0.0 };
        enough
    }
}

impl TrainRecord {
    fn stamps_after_first(&self) -> Vec<TrainStamp> {
        let first = self.stamps.iter().map(|(_, at)| *at).min().unwrap_or(0);
        let mut stamps: Vec<_> = self.stamps.clone();
        stamps.sort_by_key(|(_, at)| *at);
        stamps
            .into_iter()
            .map(|(index, at)| TrainStamp {
                index,
                // Later than the 4 s that the field can hold: saturates.
                after_first_nanos: u32::try_from(at - first).unwrap_or(u32::MAX),
            })
            .collect()
    }
}

/// Receives all pending datagrams of the socket and answers them.
pub(crate) fn reflect(
    socket: &Mutex<BatchSocket>,
    buffers: &mut ReceiveBuffers,
    reflections: &Reflections,
) {
    let mut socket = socket.lock().unwrap_or_else(PoisonError::into_inner);
    let mut replies = Vec::new();
    // The errors belong to datagrams sent earlier, such as an unreachable port.
    let _ = socket.receive(buffers, |received| {
        for data in received.data.chunks(received.stride) {
            let Some(probe) = Probe::read(data) else {
                continue;
            };
            let reflection = {
                let known = reflections.lock().unwrap_or_else(PoisonError::into_inner);
                known.get(&probe.token).cloned()
            };
            let Some(reflection) = reflection else {
                continue;
            };
            replies.extend(reflection.on_datagram(
                &probe,
                data.len(),
                received.received_at_nanos,
                received.remote,
                received.local,
            ));
        }
    });
    let mut bytes = [0; PROBE_BYTES_MAX];
    for mut reply in replies {
        reply.probe.replied_at = monotonic_nanos();
        reply.probe.write(&mut bytes);
        let _ = socket.send(&outgoing(reply.to, reply.from, &bytes[..reply.length]));
    }
}

fn outgoing(to: SocketAddr, from: Option<IpAddr>, data: &[u8]) -> DatagramBatch<'_> {
    DatagramBatch {
        remote: to,
        source: from,
        ecn: 0,
        data,
        segment_size: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: &str = "192.0.2.1:5000";

    fn probe(kind: ProbeKind, number: u64) -> Probe {
        Probe {
            kind,
            token: [1; 16],
            number,
            sent_at: 7,
            received_at: 0,
            replied_at: 0,
            reply_number: 0,
        }
    }

    fn reflection() -> Reflection {
        Reflection::new("192.0.2.1".parse().unwrap())
    }

    #[test]
    fn probes_are_counted_once_and_answered_with_their_own_length() {
        let reflection = reflection();
        let here = HERE.parse().unwrap();
        let take =
            |number| reflection.on_datagram(&probe(ProbeKind::Request, number), 100, 9, here, None);
        assert!(take(0).is_none(), "none was announced");
        reflection.begin_probes(100);
        let numbers: Vec<Option<u64>> = [0, 3, 1, 3, 2, 100]
            .into_iter()
            .map(|number| {
                take(number).map(|reply| {
                    assert_eq!((reply.length, reply.to), (100, here));
                    assert_eq!((reply.probe.sent_at, reply.probe.received_at), (7, 9));
                    reply.probe.reply_number
                })
            })
            .collect();
        let expected = [Some(0), Some(1), Some(2), None, Some(3), None];
        assert_eq!(numbers, expected);
        let counts = reflection.end_probes();
        let expected = ProbeCounts {
            received: 4,
            duplicates: 1,
            reordered: 2,
            refused: 1,
        };
        assert_eq!(counts, expected);
        assert!(take(50).is_none(), "it is over");
    }

    #[test]
    fn other_addresses_are_not_answered_even_with_the_token() {
        let reflection = reflection();
        reflection.begin_probes(100);
        let request = probe(ProbeKind::Request, 0);
        let elsewhere = "198.51.100.1:5000".parse().unwrap();
        assert!(
            reflection
                .on_datagram(&request, 100, 9, elsewhere, None)
                .is_none()
        );
        let mapped = "[::ffff:192.0.2.1]:5000".parse().unwrap();
        assert!(
            reflection
                .on_datagram(&request, 100, 9, mapped, None)
                .is_some()
        );
    }

    #[test]
    fn more_probes_than_the_rate_allows_are_refused() {
        let reflection = reflection();
        reflection.begin_probes(PROBES_MAX);
        let here = HERE.parse().unwrap();
        let answered = (0..u64::from(PROBES_MAX) / 4)
            .filter(|number| {
                let request = probe(ProbeKind::Request, *number);
                reflection
                    .on_datagram(&request, 60, 9, here, None)
                    .is_some()
            })
            .count();
        let counts = reflection.end_probes();
        assert!(
            counts.refused > 0 && answered >= PROBES_AT_ONCE as usize,
            "{counts:?}"
        );
    }

    #[test]
    fn a_train_is_reported_with_its_time_stamps_in_any_order_of_arrival() {
        let reflection = reflection();
        let here = HERE.parse().unwrap();
        reflection.begin_train(5, 4);
        for (index, at) in [(1, 2000), (0, 1000), (1, 2500), (3, 3000), (9, 3500)] {
            let packet = probe(ProbeKind::Train, 5 << 32 | index);
            assert!(
                reflection
                    .on_datagram(&packet, 1000, at, here, None)
                    .is_none()
            );
        }
        let other = probe(ProbeKind::Train, 6 << 32 | 2);
        assert!(
            reflection
                .on_datagram(&other, 1000, 1, here, None)
                .is_none()
        );
        let stamps = reflection.end_train(5).unwrap();
        let stamps: Vec<_> = stamps
            .iter()
            .map(|s| (s.index, s.after_first_nanos))
            .collect();
        assert_eq!(stamps, [(0, 0), (1, 1000), (3, 2000)]);
        assert_eq!(reflection.end_train(6), None);
    }
}
