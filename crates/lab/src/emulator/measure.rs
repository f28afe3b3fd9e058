//! Accuracy of an emulated path, measured from outside: numbered packets between two hosts, stamped by the
//! kernel where they leave one interface and where they arrive at the other.
//!
//! Neither sender nor receiver has to be punctual, and the measurement does not depend on the emulator.

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

/// Magic and sequence number at the start of a payload.
const PAYLOAD_MIN: usize = 12;

/// Magic of our packets, in addition to their port.
const MARK: [u8; 8] = *b"keiro-lm";

/// The destination port: "discard".
const PORT: u16 = 9;

/// Maximum of packets in one measurement; ours.
pub const PACKETS_MAX: u32 = 1_000_000;

/// Capacity of a ring in frames; ours: 80 ms of 100 Mbit/s in long packets.
const RING_FRAMES: usize = 8192;

/// Period of emptying rings; ours.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Below the emulator, above ordinary threads, so that the offered load is steady.
const SENDER_PRIORITY: FifoPriority = FifoPriority::new(20).unwrap();

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathEnd {
    pub netns: String,
    /// Its interface towards the path.
    pub interface: String,
    pub address: Ipv4Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets, at most [`PACKETS_MAX`].
    pub packets: u32,
    /// Interval of packets; a late sender catches up.
    pub interval: Duration,
    /// Length of the IP packet, 40 to 1500 bytes.
    pub ip_bytes: u16,
    /// Time to wait for packets after the last one was sent.
    pub patience: Duration,
}

/// Result of a measurement.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// Time stamps by packet number; `received` in the order of arrival.
    sent: BTreeMap<u32, Duration>,
    received: Vec<(u32, Duration)>,
    ip_bytes: u16,
}

/// Differences between measured and expected delays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DelayError {
    /// Number of packets.
    pub packets: usize,
    /// Mean, in microseconds; negative if packets are early.
    pub mean_micros: f64,
    /// Median, in microseconds, with sign.
    pub p50_micros: f64,
    /// 99th percentile of the absolute value, in microseconds.
    pub p99_micros: f64,
    /// Greatest absolute value, in microseconds.
    pub max_micros: f64,
}

/// Why the measurement failed.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// A namespace cannot be used.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// An interface cannot be captured.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// Packets cannot be sent.
    #[error("cannot send packets from {from} to {to}: {source}")]
    Send {
        from: Ipv4Addr,
        to: Ipv4Addr,
        source: io::Error,
    },
    /// The ring of a tap was full, so that time stamps are missing.
    #[error("{0} packets passed unseen: the machine was too busy to measure")]
    Unseen(u64),
}

/// Sends `traffic` along the path and captures it at both ends.
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
    // Receives the packets, so that they are not answered as unreachable.
    let sink = socket(to, PORT)?;
    let source = socket(from, 0)?;
    let mut observation = Observation {
        ip_bytes: traffic.ip_bytes,
        ..Observation::default()
    };
    let mut sent = Ok(());
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(&source, to.address, traffic));
        let mut patience_ends = None;
        let total = traffic.packets.min(PACKETS_MAX) as usize;
        while observation.received.len() < total {
            observation.take(&mut leaving, &mut arriving);
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
    observation.take(&mut leaving, &mut arriving);
    drop(sink);
    sent.map_err(|source| MeasureError::Send {
        from: from.address,
        to: to.address,
        source,
    })?;
    match [&leaving, &arriving].map(|tap| tap.take_ring_drops().unwrap_or_default()) {
        [0, 0] => Ok(observation),
        [left, arrived] => Err(MeasureError::Unseen(left + arrived)),
    }
}

impl Observation {
    pub fn packets_sent(&self) -> usize {
        self.sent.len()
    }

    /// Packets that arrived, duplicates included.
    pub fn packets_received(&self) -> usize {
        self.received.len()
    }

    /// Packets that arrived after one that was sent later.
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

    /// Measured one-way delays minus `expected`; `None` if nothing arrived.
    pub fn delay_error(&self, expected: Duration) -> Option<DelayError> {
        let nanos = |time: Duration| time.as_nanos() as f64;
        let errors = self.received.iter().filter_map(|(number, at)| {
            let sent = self.sent.get(number)?;
            Some((nanos(*at) - nanos(*sent) - nanos(expected)) / 1000.0)
        });
        DelayError::of(errors.collect())
    }

    /// The rate of arriving IP packets in bit/s, from `warm_up` after the first arrival to the last; `None`
    /// if fewer than two arrived in that time.
    pub fn rate(&self, warm_up: Duration) -> Option<f64> {
        let begin = self.received.first()?.1 + warm_up;
        let mut counted = self
            .received
            .iter()
            .map(|(_, at)| *at)
            .filter(|at| *at >= begin);
        let first = counted.next()?;
        // The first packet's transmission precedes the counted time.
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

/// The number of one of our packets; `None` for others.
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
        let observation = observation(&[0; 11]);
        assert!((observation.rate(Duration::ZERO).unwrap() - 8_000_000.0).abs() < 1.0);
        assert!((observation.rate(Duration::from_millis(5)).unwrap() - 8_000_000.0).abs() < 1.0);
        assert_eq!(observation.rate(Duration::from_millis(10)), None);
    }

    #[test]
    fn overtaken_packets_are_counted() {
        assert_eq!(observation(&[0, 0, 0]).packets_overtaken(), 0);
        assert_eq!(observation(&[5000, 0, 0]).packets_overtaken(), 1);
    }
}
