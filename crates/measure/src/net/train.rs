//! Capacity by packet trains, both ways: sends them, collects the stamps, and leaves the estimate
//! to [`keiro_model::capacity`].

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

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainPlan {
    /// Trains there; each is paid back by one.
    pub trains: u32,
    /// Packets of each, 2 to 256.
    pub packets: u16,
    /// Length of their UDP payload, 60 to 1472 bytes.
    pub bytes: usize,
    /// Decides the pauses between trains.
    pub seed: u64,
}

/// What the trains say. Rates count IP packets.
#[derive(Clone, Debug, PartialEq)]
pub struct TrainReport {
    /// Towards the server.
    pub there: Result<Capacity, NoCapacity>,
    /// From the server.
    pub back: Result<Capacity, NoCapacity>,
    /// The trains there.
    pub trains_there: Vec<Train>,
    /// The trains back.
    pub trains_back: Vec<Train>,
}

/// How long after the last packet of a train back more is waited for. Ours, as the server's.
const PAUSE: Duration = Duration::from_millis(100);

/// The shortest time between two trains, on average. Ours.
const REST_MIN: Duration = Duration::from_millis(5);

/// IP and UDP header.
const HEADER_V4: u32 = 28;
const HEADER_V6: u32 = 48;

/// Trains without any arrival after which there is no use in more. Ours.
const SILENT_MAX: usize = 5;

/// Sends the trains of `plan`. `observe` is told how many are done.
///
/// # Errors
/// The server is gone, or there is no UDP socket to be had. That no packet comes is not an error.
pub fn measure_trains(
    session: &mut Session<'_>,
    plan: &TrainPlan,
    observe: &mut dyn FnMut(u64),
) -> Result<TrainReport, NetError> {
    let mut rng = ChaCha12Rng::seed_from_u64(plan.seed);
    let mut rail = Rail {
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
        let train = rail.send(session, number)?;
        let came = !train.received.is_empty();
        if came {
            back.push(rail.take_back(session, number)?);
        }
        let span = |train: &Train| match train.received.as_slice() {
            [first, .., last] => Duration::from_nanos(last.at_nanos - first.at_nanos),
            _ => Duration::ZERO,
        };
        let busy = span(&train) + back.last().map(span).unwrap_or_default();
        there.push(train);
        observe(u64::from(number) + 1);
        if !came && there.len() >= SILENT_MAX && there.iter().all(|t| t.received.is_empty()) {
            break;
        }
        // As long as the trains themselves, and not in step with anybody's traffic.
        let share = (rng.next_u32() % 1000) as f64 / 1000.0 + 0.5;
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

/// What trains leave and arrive on.
struct Rail {
    datagrams: Datagrams,
    packets: u16,
    data: Vec<u8>,
    header: u32,
}

impl Rail {
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
