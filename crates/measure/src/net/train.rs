//! Capacity by packet trains in both directions: sends them and collects time stamps.
//! [`keiro_model::capacity`] estimates.

use std::time::{Duration, Instant};

use keiro_linux::clock::monotonic_nanos;
use keiro_model::capacity::{Capacity, NoCapacity, Settings, Stamp, Train, estimate};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

use super::{
    datagrams::Datagrams,
    error::NetError,
    reflection::PROBE_BYTES_MAX,
    session::Session,
    wire::{Answer, Probe, ProbeKind, Request, TRAIN_PACKETS_MAX, TrainStamp},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainPlan {
    /// Number of trains towards the server; each is answered by one train back.
    pub trains: u32,
    /// Packets per train, 2 to 256.
    pub packets: u16,
    /// Length of their UDP payload, 60 to 1472 bytes.
    pub bytes: usize,
    /// Seed of the pauses between trains.
    pub seed: u64,
}

/// Capacity estimates and their trains. Rates count IP packets.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainReport {
    /// Towards the server.
    pub there: Result<Capacity, NoCapacity>,
    /// From the server.
    pub back: Result<Capacity, NoCapacity>,
    pub trains_there: Vec<Train>,
    pub trains_back: Vec<Train>,
}

/// A train has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainProgress {
    /// Trains so far, this one included.
    pub done: u64,
    /// Some of its packets arrived.
    pub arrived: bool,
}

/// Time to wait for more after the last packet of a train back. Ours, as the server's.
const PAUSE: Duration = Duration::from_millis(100);

/// Minimum of the mean time between two trains. Ours.
const REST_MIN: Duration = Duration::from_millis(5);

/// Length of IP and UDP headers.
const HEADER_V4: u32 = 28;
const HEADER_V6: u32 = 48;

/// Give up after this many trains without any arrival. Ours.
const SILENT_MAX: usize = 5;

/// Sends the trains of `plan`. `observe` hears of every one that has ended.
///
/// # Errors
/// The connection to the server is lost, or there is no UDP socket. Lost packets are not an error.
pub fn measure_trains(
    session: &mut Session<'_>,
    plan: &TrainPlan,
    observe: &mut dyn FnMut(TrainProgress),
) -> Result<TrainReport, NetError> {
    let mut rng = ChaCha12Rng::seed_from_u64(plan.seed);
    let mut socket = TrainSocket {
        datagrams: Datagrams::open(session.server(), session.token())?,
        packets: plan.packets.clamp(2, TRAIN_PACKETS_MAX),
        data: vec![0; plan.bytes.clamp(Probe::LEN, PROBE_BYTES_MAX)],
        header: if session.server().is_ipv4() {
            HEADER_V4
        } else {
            HEADER_V6
        },
    };
    let (mut there, mut back) = (Vec::new(), Vec::new());
    for number in 0..plan.trains {
        let train = socket.send(session, number)?;
        let arrived = !train.received.is_empty();
        if arrived {
            back.push(socket.take_back(session, number)?);
        }
        let span = |train: &Train| match train.received.as_slice() {
            [first, .., last] => Duration::from_nanos(last.at_nanos - first.at_nanos),
            _ => Duration::ZERO,
        };
        let busy = span(&train) + back.last().map(span).unwrap_or_default();
        there.push(train);
        observe(TrainProgress {
            done: u64::from(number) + 1,
            arrived,
        });
        if !arrived && there.len() >= SILENT_MAX && there.iter().all(|t| t.received.is_empty()) {
            break;
        }
        // Random, and on average as long as the trains themselves, so as not to synchronise with other
        // traffic.
        let share = f64::from(rng.next_u32() % 1000) / 1000.0 + 0.5;
        std::thread::sleep((busy / 2).max(REST_MIN).mul_f64(share));
    }
    let settings = Settings::default();
    Ok(TrainReport {
        there: estimate(&there, &settings),
        back: estimate(&back, &settings),
        trains_there: there,
        trains_back: back,
    })
}

const DURING: &str = "while sending trains";

/// Socket and state of the trains.
struct TrainSocket {
    datagrams: Datagrams,
    packets: u16,
    data: Vec<u8>,
    header: u32,
}

impl TrainSocket {
    fn send(&mut self, session: &mut Session<'_>, number: u32) -> Result<Train, NetError> {
        let begin = Request::TrainBegin {
            train: number,
            packets: self.packets,
        };
        session.ask_ready(&begin, DURING)?;
        let mut probe = Probe {
            kind: ProbeKind::Train,
            token: session.token(),
            number: u64::from(number) << 32,
            sent_at: 0,
            received_at: 0,
            replied_at: 0,
            reply_number: 0,
        };
        let (mut first_at, mut last_at) = (0, 0);
        for index in 0..self.packets {
            last_at = monotonic_nanos();
            if index == 0 {
                first_at = last_at;
            }
            probe.sent_at = last_at;
            probe.write(&mut self.data);
            self.datagrams.send(&self.data);
            probe.number += 1;
        }
        let end = Request::TrainEnd { train: number };
        let Answer::Train(stamps) = session.ask(&end, DURING)? else {
            return Err(session.unexpected());
        };
        let bytes = self.data.len() as u32 + self.header;
        let stamp = |stamp: &TrainStamp| Stamp {
            index: stamp.index.into(),
            at_nanos: stamp.after_first_nanos.into(),
            bytes,
        };
        Ok(Train {
            send_span: Some(Duration::from_nanos(last_at.saturating_sub(first_at))),
            sent_packets: self.packets.into(),
            received: stamps.iter().map(stamp).collect(),
        })
    }

    fn take_back(&mut self, session: &mut Session<'_>, number: u32) -> Result<Train, NetError> {
        let back = Request::TrainBack { train: number };
        let Answer::Done {
            bytes: packets,
            first_at,
            last_at,
        } = session.ask(&back, DURING)?
        else {
            return Err(session.unexpected());
        };
        let packets = u32::try_from(packets)
            .unwrap_or(u32::MAX)
            .min(self.packets.into());
        let mut received: Vec<Stamp> = Vec::new();
        let header = self.header;
        while received.len() < packets as usize {
            let take = |probe: &Probe, length: usize, at_nanos: u64| {
                let index = (probe.number & 0xffff_ffff) as u32;
                let ours = probe.number >> 32 == u64::from(number) && index < packets;
                let room = received.len() < packets as usize;
                if probe.kind == ProbeKind::TrainBack && ours && room {
                    received.push(Stamp {
                        index,
                        at_nanos,
                        bytes: length as u32 + header,
                    });
                }
            };
            let until = Instant::now() + PAUSE;
            if self.datagrams.receive(until, session.stop(), take)? == 0 {
                break;
            }
        }
        received.sort_by_key(|stamp| stamp.at_nanos);
        Ok(Train {
            send_span: Some(Duration::from_nanos(last_at.saturating_sub(first_at))),
            sent_packets: packets,
            received,
        })
    }
}

#[cfg(test)]
mod tests {
    use keiro_link::{Arrival, Link, LinkConfig, Ticket};
    use keiro_units::{Bandwidth, ByteCount, Instant};

    use super::*;

    /// Number of a train, and the index of a packet in it.
    type PacketPosition = (u32, u32);

    const TRAINS: u32 = 40;
    const PACKETS: u32 = 40;
    const BYTES: u32 = 1400;

    fn unit(rng: &mut ChaCha12Rng) -> f64 {
        (f64::from(rng.next_u32()) + 0.5) / (f64::from(u32::MAX) + 1.0)
    }

    /// Trains over a link of `mbit`, sent at `feed` times its rate, with Poisson cross traffic of several
    /// packet lengths that uses `load` of the link's rate.
    fn through_link(mbit: f64, load: f64, feed: f64, seed: u64) -> Vec<Train> {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let config = LinkConfig {
            rate: Some(Bandwidth::from_bits_per_second((mbit * 1e6) as u64)),
            delay: Duration::from_millis(5),
            ..LinkConfig::default()
        };
        let mut link = Link::new(config, seed);
        let spacing = f64::from(BYTES) * 8e3 / mbit / feed;
        // Twice the duration of the train.
        let train_interval = f64::from(PACKETS * BYTES) * 8e3 / mbit * 3.0;
        // Time, length, and for our own packets the train and the index in it.
        let mut arrivals: Vec<(f64, u32, Option<PacketPosition>)> = Vec::new();
        for train in 0..TRAINS {
            let begin = 1e6 + f64::from(train) * train_interval;
            arrivals.extend((0..PACKETS).map(|position| {
                (
                    begin + f64::from(position) * spacing,
                    BYTES,
                    Some((train, position)),
                )
            }));
        }
        let lengths = [1500, 1500, 576, 40];
        let mean = f64::from(lengths.iter().sum::<u32>()) / 4.0;
        let mut at = 0.0;
        while load > 0.0 && at < 1e6 + f64::from(TRAINS) * train_interval {
            at -= unit(&mut rng).ln() * mean * 8e3 / (mbit * load);
            arrivals.push((at, lengths[(rng.next_u32() % 4) as usize], None));
        }
        arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut own: Vec<(Ticket, PacketPosition)> = Vec::new();
        for (at, length, position) in arrivals {
            let now = Instant::from_nanos(at as u64);
            let arrival = link.arrive(now, ByteCount::new(length.into()));
            if let (Arrival::Accepted(ticket), Some(position)) = (arrival, position) {
                own.push((ticket, position));
            }
        }
        let mut trains = vec![Train::default(); TRAINS as usize];
        let mut next = own.into_iter().peekable();
        while let Some(departure) = link.poll_departure(Instant::MAX) {
            if let Some((_, (train, index))) = next.next_if(|own| own.0 == departure.ticket) {
                let train = &mut trains[train as usize];
                train.send_span = Some(Duration::from_nanos((spacing * 39.0) as u64));
                train.sent_packets = PACKETS;
                train.received.push(Stamp {
                    index,
                    at_nanos: departure.at.as_nanos() + (unit(&mut rng) * 20e3) as u64,
                    bytes: BYTES,
                });
            }
        }
        trains
    }

    #[test]
    fn capacity_is_found_under_cross_traffic() {
        for mbit in [10.0, 50.0, 100.0] {
            for load in [0.0, 0.3, 0.6] {
                for seed in 0..10 {
                    let trains = through_link(mbit, load, 10.0, seed);
                    let found = estimate(&trains, &Settings::default());
                    let rate = found.map(|f| f.rate.as_bits_per_second() as f64 / 1e6);
                    assert!(
                        rate.is_ok_and(|rate| (rate / mbit - 1.0).abs() <= 0.05),
                        "{rate:?} instead of {mbit} at {load}, seed {seed}"
                    );
                }
            }
        }
    }
}
