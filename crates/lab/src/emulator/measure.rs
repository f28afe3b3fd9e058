//! How exact an emulated path is, measured from outside: numbered packets between two hosts,
//! stamped by the kernel where they leave the one's interface and where they reach the other's.
//!
//! Neither sender nor receiver has to be punctual, and nothing here knows who emulates the path.

use std::{
    collections::BTreeMap,
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    thread,
    time::Duration,
};

use keiro_linux::{
    clock,
    netns::{Netns, NetnsError},
    packet::{Frame, PacketError, PacketOptions, PacketSocket},
    realtime::{self, FifoPriority},
};
use keiro_units::ByteCount;

/// Headers of a packet without options: 20 bytes of IPv4, 8 of UDP.
const HEADER_BYTES: usize = 28;

/// Ethernet header, IPv4 header and UDP header.
const PAYLOAD_OFFSET: usize = 14 + HEADER_BYTES;

/// Mark and number at the start of a payload.
const PAYLOAD_MIN: usize = 12;

/// Marks our packets, beside their port.
const MARK: [u8; 8] = *b"keiro-lm";

/// The port that packets are sent to: "discard".
const PORT: u16 = 9;

/// The most packets of one measurement; ours.
pub const PACKETS_MAX: u32 = 1_000_000;

/// Frames between two looks into a ring; ours: 80 ms of 100 Mbit/s in long packets.
const RING_FRAMES: usize = 8192;

/// How often rings are emptied; ours.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Below the emulator, above ordinary threads, so that the offered load holds.
const SENDER_PRIORITY: FifoPriority = FifoPriority::new(20).unwrap();

/// One end of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathEnd {
    /// The network namespace.
    pub netns: String,
    /// The interface in it that the path leads to.
    pub interface: String,
    /// Its address.
    pub address: Ipv4Addr,
}

/// What is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// How many packets, at most [`PACKETS_MAX`].
    pub packets: u32,
    /// From one to the next; a late sender catches up.
    pub interval: Duration,
    /// Length of the IP packet, 40 to 1500.
    pub ip_bytes: u16,
    /// How long to wait for packets after the last one was sent.
    pub patience: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Stamps by packet number; `received` in the order of arrival.
    sent: BTreeMap<u32, Duration>,
    received: Vec<(u32, Duration)>,
    ip_bytes: u16,
}

/// How far delays are from what they should be.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DelayError {
    /// Packets that it is made of.
    pub packets: usize,
    /// Mean, in microseconds; negative where packets come too early.
    pub mean_micros: f64,
    /// Median, in microseconds, with sign.
    pub p50_micros: f64,
    /// 99th percentile of the amount, in microseconds.
    pub p99_micros: f64,
    /// Largest amount, in microseconds.
    pub max_micros: f64,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A namespace cannot be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// An interface cannot be listened on.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// Packets cannot be sent.
    #[error("cannot send packets from {from} to {to}: {source}")]
    Send {
        /// The sender's address.
        from: Ipv4Addr,
        /// The receiver's.
        to: Ipv4Addr,
        /// The system's error.
        source: io::Error,
    },
    /// The ring of a tap was full, so that stamps are missing.
    #[error("{0} packets passed unseen: the machine was too busy to measure")]
    Unseen(u64),
}

/// Sends `traffic` along the path and watches it at both ends.
///
/// # Errors
/// See [`MeasureError`].
pub fn observe(
    from: &PathEnd,
    to: &PathEnd,
    traffic: Traffic,
) -> Result<Observation, MeasureError> {
    let mut leaving = tap(from, true)?;
    let mut arriving = tap(to, false)?;
    // Takes the packets, so that none is answered as unreachable.
    let sink = socket(to, PORT)?;
    let source = socket(from, 0)?;
    let mut seen = Observation {
        ip_bytes: traffic.ip_bytes,
        ..Observation::default()
    };
    let mut sent = Ok(());
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(&source, to.address, traffic));
        let mut patience_ends = None;
        let total = traffic.packets.min(PACKETS_MAX) as usize;
        while seen.received.len() < total {
            seen.take(&mut leaving, &mut arriving);
            if sender.is_finished() {
                let now = clock::monotonic_nanos();
                let end = *patience_ends.get_or_insert(now + traffic.patience.as_nanos() as u64);
                if now > end {
                    break;
                }
            }
            thread::sleep(LOOK_EVERY);
        }
        sent = sender
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    seen.take(&mut leaving, &mut arriving);
    drop(sink);
    sent.map_err(|source| MeasureError::Send {
        from: from.address,
        to: to.address,
        source,
    })?;
    match [&leaving, &arriving].map(|tap| tap.take_ring_drops().unwrap_or_default()) {
        [0, 0] => Ok(seen),
        [left, arrived] => Err(MeasureError::Unseen(left + arrived)),
    }
}

impl Observation {
    /// Packets that left.
    pub fn packets_sent(&self) -> usize {
        self.sent.len()
    }

    /// Packets that arrived, copies included.
    pub fn packets_received(&self) -> usize {
        self.received.len()
    }

    /// Packets that arrived behind one that was sent later.
    pub fn packets_overtaken(&self) -> usize {
        let mut latest = 0;
        let overtaken = self.received.iter().filter(|(number, _)| {
            latest = latest.max(*number);
            *number < latest
        });
        overtaken.count()
    }

    /// Whether packet `number` arrived, for every packet that left, in order.
    pub fn arrived(&self) -> Vec<bool> {
        let mut arrived: Vec<_> = self.sent.keys().map(|number| (*number, false)).collect();
        for (number, _) in &self.received {
            if let Ok(index) = arrived.binary_search_by_key(number, |entry| entry.0) {
                arrived[index].1 = true;
            }
        }
        arrived.into_iter().map(|(_, whether)| whether).collect()
    }

    /// Measured one-way delays less `expected`; `None` if nothing arrived.
    pub fn delay_error(&self, expected: Duration) -> Option<DelayError> {
        let nanos = |time: Duration| time.as_nanos() as f64;
        let errors = self.received.iter().filter_map(|(number, at)| {
            let sent = self.sent.get(number)?;
            Some((nanos(*at) - nanos(*sent) - nanos(expected)) / 1000.0)
        });
        DelayError::of(errors.collect())
    }

    /// The rate at which IP packets arrived, in bit/s, from `warm_up` after the first arrival to
    /// the last; `None` if fewer than two arrived then.
    pub fn rate(&self, warm_up: Duration) -> Option<f64> {
        let begin = self.received.first()?.1 + warm_up;
        let mut counted = self
            .received
            .iter()
            .map(|(_, at)| *at)
            .filter(|at| *at >= begin);
        let first = counted.next()?;
        // The first packet's transmission lies before the time that is counted.
        let (packets, last) = counted.fold((0u64, first), |(n, _), at| (n + 1, at));
        let bits = ByteCount::new(packets * u64::from(self.ip_bytes)).get() * 8;
        let seconds = last.saturating_sub(first).as_secs_f64();
        (seconds > 0.0).then(|| bits as f64 / seconds)
    }

    fn take(&mut self, leaving: &mut PacketSocket, arriving: &mut PacketSocket) {
        while let Some(frame) = leaving.next_frame() {
            if let Some(number) = number_of(&frame) {
                self.sent.entry(number).or_insert(frame.stamp());
            }
        }
        while let Some(frame) = arriving.next_frame() {
            if let Some(number) = number_of(&frame) {
                self.received.push((number, frame.stamp()));
            }
        }
    }
}

impl DelayError {
    fn of(mut micros: Vec<f64>) -> Option<Self> {
        micros.sort_by(f64::total_cmp);
        let mut amounts: Vec<_> = micros.iter().map(|error| error.abs()).collect();
        amounts.sort_by(f64::total_cmp);
        let packets = micros.len();
        Some(Self {
            packets,
            mean_micros: micros.iter().sum::<f64>() / packets as f64,
            p50_micros: *micros.get(packets / 2)?,
            p99_micros: *amounts.get((packets * 99).div_ceil(100).saturating_sub(1))?,
            max_micros: *amounts.last()?,
        })
    }
}

fn tap(end: &PathEnd, outgoing: bool) -> Result<PacketSocket, MeasureError> {
    let options = PacketOptions {
        ring_frames: RING_FRAMES,
        outgoing,
    };
    Ok(Netns::open(&end.netns)?.run(|| PacketSocket::open(&end.interface, options))??)
}

fn socket(end: &PathEnd, port: u16) -> Result<UdpSocket, MeasureError> {
    let bound = Netns::open(&end.netns)?.run(|| UdpSocket::bind((end.address, port)))?;
    bound.map_err(|source| MeasureError::Send {
        from: end.address,
        to: end.address,
        source,
    })
}

fn send(socket: &UdpSocket, to: Ipv4Addr, traffic: Traffic) -> io::Result<()> {
    // Without real-time scheduling the sender is merely less even.
    let _ = realtime::schedule_fifo(SENDER_PRIORITY);
    let length = usize::from(traffic.ip_bytes)
        .saturating_sub(HEADER_BYTES)
        .max(PAYLOAD_MIN);
    let mut payload = vec![0; length];
    payload[..8].copy_from_slice(&MARK);
    let start = clock::monotonic_nanos();
    for number in 0..traffic.packets.min(PACKETS_MAX) {
        let due = start + (traffic.interval * number).as_nanos() as u64;
        let left = due.saturating_sub(clock::monotonic_nanos());
        if left > 0 {
            thread::sleep(Duration::from_nanos(left));
        }
        payload[8..PAYLOAD_MIN].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&payload, SocketAddrV4::new(to, PORT))?;
    }
    Ok(())
}

/// The number of one of our packets; `None` for everything else.
fn number_of(frame: &Frame<'_>) -> Option<u32> {
    let bytes = frame.bytes();
    let is_udp = bytes.get(12..15)? == [0x08, 0x00, 0x45] && *bytes.get(23)? == 17;
    let to_us = bytes.get(36..38)? == PORT.to_be_bytes();
    let payload = bytes.get(PAYLOAD_OFFSET..)?;
    let (mark, rest) = payload.split_at_checked(MARK.len())?;
    let number = rest.first_chunk()?;
    (is_udp && to_us && mark == MARK).then(|| u32::from_be_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Packets of 1000 bytes sent every millisecond that arrive after the given microseconds.
    fn observation(delays_micros: &[u64]) -> Observation {
        let at = |number: usize| Duration::from_millis(number as u64);
        let numbers = 0..delays_micros.len();
        let received = numbers.clone().map(|number| {
            (
                number as u32,
                at(number) + Duration::from_micros(delays_micros[number]),
            )
        });
        let mut received: Vec<_> = received.collect();
        received.sort_by_key(|(_, at)| *at);
        Observation {
            sent: numbers.map(|number| (number as u32, at(number))).collect(),
            received,
            ip_bytes: 1000,
        }
    }

    #[test]
    fn delay_error_keeps_the_sign_of_mean_and_median() {
        let error = observation(&[90, 95, 100, 200])
            .delay_error(Duration::from_micros(100))
            .unwrap();
        assert_eq!(error.packets, 4);
        assert!((error.mean_micros - 21.25).abs() < 1e-6);
        assert!((error.p50_micros - 0.0).abs() < 1e-6);
        assert!((error.p99_micros - 100.0).abs() < 1e-6);
        assert_eq!(observation(&[]).delay_error(Duration::ZERO), None);
    }

    #[test]
    fn rate_counts_from_the_end_of_the_first_packet() {
        let seen = observation(&[0; 11]);
        assert!((seen.rate(Duration::ZERO).unwrap() - 8_000_000.0).abs() < 1.0);
        assert!((seen.rate(Duration::from_millis(5)).unwrap() - 8_000_000.0).abs() < 1.0);
        assert_eq!(seen.rate(Duration::from_millis(10)), None);
    }

    #[test]
    fn overtaken_packets_are_counted() {
        assert_eq!(observation(&[0, 0, 0]).packets_overtaken(), 0);
        assert_eq!(observation(&[5000, 0, 0]).packets_overtaken(), 1);
    }
}
