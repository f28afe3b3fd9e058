//! A bench for controllers: backlogged tenants, each at an ingress of its own, over links that drop at the
//! tail, with Poisson background. One packet is one event; nothing is drawn but from the seed.
#![allow(dead_code)]

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use keiro_model::fairness::{
    common_unit::{ArrivingRate, CommonUnit, REPORT_INTERVAL, REPORT_LIFETIME},
    controller::{Controller, ControllerConfig, Feedback, Line, RoundTrip, Weight},
};
use keiro_units::{Bandwidth, ByteCount, Instant};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// All packets are as long, wire bytes.
pub(crate) const PACKET: u64 = 1500;

#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) mbit: f64,
    pub(crate) buffer_packets: f64,
    /// Share of it that unresponsive Poisson traffic takes.
    pub(crate) background: f64,
}

#[derive(Clone, Debug)]
pub(crate) struct Tenant {
    pub(crate) weight: f64,
    /// Without queues.
    pub(crate) round_trip_ms: f64,
    pub(crate) route: Vec<usize>,
    /// Seconds in which it has something to send.
    pub(crate) active: Vec<(f64, f64)>,
    /// Changes of its weight: (second, weight).
    pub(crate) changes: Vec<(f64, f64)>,
    /// What its ingress takes for its route's capacity, of the right one; 0: it knows none.
    pub(crate) capacity: f64,
    /// The gateway at which it arrives.
    pub(crate) egress: usize,
    /// The smallest delay was measured with the queue that was there when it began.
    pub(crate) knows_way: bool,
}

impl Tenant {
    pub(crate) fn new(weight: f64, round_trip_ms: f64, start: f64) -> Self {
        Self {
            weight,
            round_trip_ms,
            route: vec![0],
            active: vec![(start, 1e9)],
            changes: Vec::new(),
            capacity: 0.0,
            egress: 0,
            knows_way: false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Bench {
    pub(crate) links: Vec<Link>,
    pub(crate) tenants: Vec<Tenant>,
    pub(crate) controller: ControllerConfig,
    pub(crate) seconds: usize,
    pub(crate) seed: u64,
    /// Gateways report the unit of what arrives.
    pub(crate) reports: bool,
}

/// What a run gave.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Mbit/s that arrived, by second and tenant.
    pub(crate) rates: Vec<Vec<f64>>,
    /// Share of each link that was used from second `from` on, background included.
    pub(crate) from: usize,
    pub(crate) used: Vec<f64>,
    /// Mean queueing time at each link, ms, as arriving packets see it.
    pub(crate) queue_ms: Vec<f64>,
    pub queue_p95_ms: Vec<f64>,
    /// Packets lost of those of tenants.
    pub(crate) loss: f64,
    pub(crate) weights: Vec<Vec<f64>>,
}

impl Outcome {
    /// F of every second from `from` on, over tenants that are active.
    pub(crate) fn fairness(&self) -> Vec<f64> {
        let seconds = self.rates.iter().zip(&self.weights).skip(self.from);
        seconds
            .map(|(rates, weights)| {
                let shares: Vec<f64> = rates
                    .iter()
                    .zip(weights)
                    .filter(|(_, weight)| **weight > 0.0)
                    .map(|(rate, weight)| rate / weight)
                    .collect();
                let sum: f64 = shares.iter().sum();
                let squares: f64 = shares.iter().map(|share| share * share).sum();
                sum * sum / shares.len() as f64 / squares
            })
            .collect()
    }

    pub(crate) fn mean_fairness(&self) -> f64 {
        let all = self.fairness();
        all.iter().sum::<f64>() / all.len() as f64
    }

    pub(crate) fn low_fairness(&self) -> f64 {
        let mut all = self.fairness();
        all.sort_by(f64::total_cmp);
        all[all.len() / 20]
    }

    pub(crate) fn line(&self) -> String {
        let list = |values: &[f64], digits: usize| {
            let texts: Vec<String> = values.iter().map(|v| format!("{v:.digits$}")).collect();
            texts.join("/")
        };
        format!(
            "F {:.4} (5 % {:.4}), used {}, queue {} ms (95 % {}), lost {:.4}",
            self.mean_fairness(),
            self.low_fairness(),
            list(&self.used, 4),
            list(&self.queue_ms, 2),
            list(&self.queue_p95_ms, 2),
            self.loss
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Background(usize),
    /// A tenant's packet reaches its `hop`th link.
    Hop {
        tenant: usize,
        sent_at: u64,
        hop: usize,
    },
    /// What became of a packet is known at its ingress.
    Resolved {
        tenant: usize,
        sent_at: u64,
        lost: bool,
    },
    Wake(usize),
    /// A gateway reports its unit.
    Report,
    /// It arrives at an ingress, in bit/s.
    Reported {
        tenant: usize,
        unit: u64,
    },
}

struct Sender {
    controller: Option<Box<dyn Controller>>,
    in_flight: u64,
    next_at: u64,
    wake_at: Option<u64>,
    limited: bool,
    acked: u64,
    lost: u64,
    round_trip: Option<u64>,
    min: u64,
    reported_at: u64,
    sent_at: u64,
    line: Line,
    unit_at: u64,
    arriving: ArrivingRate,
}

struct Run<'a> {
    bench: &'a Bench,
    now: u64,
    order: u64,
    events: BinaryHeap<Reverse<(u64, u64, Kind)>>,
    free_at: Vec<u64>,
    senders: Vec<Sender>,
    random: ChaCha12Rng,
    rates: Vec<Vec<f64>>,
    used: Vec<u64>,
    waits: Vec<Vec<f64>>,
    sent: u64,
    lost: u64,
    units: Vec<CommonUnit>,
}

const SECOND: f64 = 1e9;
/// Acknowledgements are held back so long.
const REPORT_EVERY: u64 = 1_000_000;

impl Bench {
    pub(crate) fn run(&self) -> Outcome {
        let mut run = Run {
            bench: self,
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            free_at: vec![0; self.links.len()],
            senders: Vec::new(),
            random: ChaCha12Rng::seed_from_u64(self.seed),
            rates: vec![vec![0.0; self.tenants.len()]; self.seconds],
            used: vec![0; self.links.len()],
            waits: vec![Vec::new(); self.links.len()],
            sent: 0,
            lost: 0,
            units: vec![CommonUnit::default(); self.tenants.len()],
        };
        if self.reports {
            run.push(0, Kind::Report);
        }
        for (index, tenant) in self.tenants.iter().enumerate() {
            let narrowest = tenant.route.iter().map(|link| self.links[*link].mbit);
            let capacity = narrowest.fold(f64::INFINITY, f64::min) * 1e6 * tenant.capacity;
            let capacity =
                (capacity > 0.0).then(|| Bandwidth::from_bits_per_second(capacity as u64));
            run.senders.push(Sender {
                controller: None,
                in_flight: 0,
                next_at: 0,
                wake_at: None,
                limited: false,
                acked: 0,
                lost: 0,
                round_trip: None,
                min: match tenant.knows_way {
                    true => (tenant.round_trip_ms * 1e6) as u64,
                    false => u64::MAX,
                },
                reported_at: 0,
                sent_at: 0,
                line: Line {
                    capacity,
                    reported_unit: None,
                },
                unit_at: 0,
                arriving: ArrivingRate::default(),
            });
            for (start, _) in &tenant.active {
                run.push((start * SECOND) as u64, Kind::Wake(index));
            }
        }
        for link in 0..self.links.len() {
            run.background(link);
        }
        run.go();
        run.outcome()
    }
}

impl Run<'_> {
    fn push(&mut self, at: u64, kind: Kind) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, kind)));
    }

    fn from(&self) -> usize {
        10.min(self.bench.seconds / 2)
    }

    fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn background(&mut self, link: usize) {
        let Link {
            mbit, background, ..
        } = self.bench.links[link];
        if background > 0.0 {
            let mean = PACKET as f64 * 8.0 / (mbit * 1e6 * background) * SECOND;
            let gap = -(1.0 - self.uniform()).ln() * mean;
            self.push(self.now + gap as u64, Kind::Background(link));
        }
    }

    fn go(&mut self) {
        let end = self.bench.seconds as u64 * SECOND as u64;
        while let Some(Reverse((at, _, kind))) = self.events.pop() {
            if at >= end {
                return;
            }
            self.now = at;
            match kind {
                Kind::Background(link) => {
                    self.pass(link, false);
                    self.background(link);
                }
                Kind::Hop {
                    tenant,
                    sent_at,
                    hop,
                } => self.hop(tenant, sent_at, hop),
                Kind::Resolved {
                    tenant,
                    sent_at,
                    lost,
                } => self.on_report(tenant, sent_at, lost),
                Kind::Wake(tenant) => {
                    self.senders[tenant].wake_at = None;
                    self.send(tenant);
                }
                Kind::Report => self.report(),
                Kind::Reported { tenant, unit } => {
                    let sender = &mut self.senders[tenant];
                    sender.unit_at = self.now;
                    sender.line.reported_unit = Some(Bandwidth::from_bits_per_second(unit));
                    if let Some(controller) = &mut sender.controller {
                        controller.on_line(sender.line);
                    }
                }
            }
        }
    }

    /// Every gateway reports what arrives at it.
    fn report(&mut self) {
        let now = Instant::from_nanos(self.now);
        let second = self.now as f64 / SECOND;
        for egress in 0..self.units.len() {
            let tenants = 0..self.bench.tenants.len();
            let here = tenants.filter(|tenant| self.bench.tenants[*tenant].egress == egress);
            let here: Vec<usize> = here.collect();
            let mut largest = Vec::new();
            for tenant in &here {
                let weight = Weight::new(self.weight(*tenant, second));
                let arriving = &mut self.senders[*tenant].arriving;
                largest.extend(weight.and_then(|weight| arriving.poll(now, weight)));
            }
            if let Some(unit) = self.units[egress].report(now, largest.into_iter()) {
                let unit = unit.as_bits_per_second();
                for tenant in here {
                    let way = self.bench.tenants[tenant].round_trip_ms * 1e6 / 2.0;
                    self.push(self.now + way as u64, Kind::Reported { tenant, unit });
                }
            }
        }
        self.push(self.now + REPORT_INTERVAL.as_nanos() as u64, Kind::Report);
    }

    /// A packet arrives at a link: when it leaves; `None`: it is dropped.
    fn pass(&mut self, link: usize, measured: bool) -> Option<u64> {
        let Link {
            mbit,
            buffer_packets,
            ..
        } = self.bench.links[link];
        let time = (PACKET as f64 * 8.0 / mbit * 1e3) as u64;
        let wait = self.free_at[link].saturating_sub(self.now);
        let late = self.now >= self.from() as u64 * SECOND as u64;
        if late && measured {
            self.waits[link].push(wait as f64 / 1e6);
        }
        if wait as f64 / time as f64 >= buffer_packets {
            return None;
        }
        self.free_at[link] = self.free_at[link].max(self.now) + time;
        if late {
            self.used[link] += time;
        }
        Some(self.free_at[link])
    }

    fn hop(&mut self, tenant: usize, sent_at: u64, hop: usize) {
        let Tenant {
            round_trip_ms,
            route,
            ..
        } = &self.bench.tenants[tenant];
        // All of the propagation lies behind the last link.
        let back = (round_trip_ms * 1e6) as u64;
        let last = hop + 1 == route.len();
        let Some(leaves) = self.pass(route[hop], true) else {
            self.push(
                self.now + back,
                Kind::Resolved {
                    tenant,
                    sent_at,
                    lost: true,
                },
            );
            return;
        };
        if last {
            let second = (leaves as f64 / SECOND) as usize;
            if let Some(rates) = self.rates.get_mut(second) {
                rates[tenant] += PACKET as f64 * 8.0 / 1e6;
            }
            let arriving = &mut self.senders[tenant].arriving;
            arriving.on_packet(ByteCount::new(PACKET));
            self.push(
                leaves + back,
                Kind::Resolved {
                    tenant,
                    sent_at,
                    lost: false,
                },
            );
        } else {
            self.push(
                leaves,
                Kind::Hop {
                    tenant,
                    sent_at,
                    hop: hop + 1,
                },
            );
        }
    }

    fn on_report(&mut self, tenant: usize, sent_at: u64, lost: bool) {
        let now = self.now;
        let sender = &mut self.senders[tenant];
        sender.in_flight -= PACKET;
        if lost {
            sender.lost += 1;
            self.lost += 1;
        } else {
            sender.acked += 1;
            let sample = now - sent_at;
            sender.round_trip = Some(sample);
            sender.min = sender.min.min(sample);
        }
        if now >= sender.reported_at + REPORT_EVERY {
            let feedback = Feedback {
                now: Instant::from_nanos(now),
                acked: ByteCount::new(sender.acked * PACKET),
                acked_packets: sender.acked,
                lost_packets: sender.lost,
                marked_packets: 0,
                round_trip: sender.round_trip.take().map(|sample| RoundTrip {
                    sample: Duration::from_nanos(sample),
                    is_long: true,
                    min: Some(Duration::from_nanos(sender.min)),
                }),
                in_flight: ByteCount::new(sender.in_flight),
                limited: sender.limited,
                packet: ByteCount::new(PACKET),
            };
            let age = Duration::from_nanos(now - sender.unit_at);
            if sender.line.reported_unit.is_some() && age > REPORT_LIFETIME {
                sender.line.reported_unit = None;
                if let Some(controller) = &mut sender.controller {
                    controller.on_line(sender.line);
                }
            }
            if sender.limited {
                sender.arriving.on_limited(feedback.now);
            }
            sender.limited = false;
            (sender.acked, sender.lost, sender.reported_at) = (0, 0, now);
            if let Some(controller) = &mut sender.controller {
                controller.on_feedback(&feedback);
            }
        }
        self.send(tenant);
    }

    fn weight(&self, tenant: usize, second: f64) -> f64 {
        let Tenant {
            weight,
            active,
            changes,
            ..
        } = &self.bench.tenants[tenant];
        let on = active
            .iter()
            .any(|(start, end)| *start <= second && second < *end);
        let changed = changes.iter().rfind(|(at, _)| *at <= second);
        if on {
            changed.map_or(*weight, |(_, weight)| *weight)
        } else {
            0.0
        }
    }

    fn send(&mut self, tenant: usize) {
        let second = self.now as f64 / SECOND;
        let weight = self.weight(tenant, second);
        if weight == 0.0 {
            return;
        }
        let weight = Weight::new(weight).expect("above 0");
        let now = Instant::from_nanos(self.now);
        let controller = &self.bench.controller;
        loop {
            let (now_ns, sender) = (self.now, &mut self.senders[tenant]);
            if sender.controller.is_none() {
                sender.controller = controller.begin(now, weight, ByteCount::new(PACKET));
                if let Some(controller) = &mut sender.controller {
                    controller.on_line(sender.line);
                }
            }
            let Some(controller) = &mut sender.controller else {
                return;
            };
            controller.set_weight(weight);
            let allowance = controller.allowance();
            if sender.in_flight > 0 && sender.in_flight + PACKET > allowance.window.get() {
                sender.limited = true;
                return;
            }
            if sender.next_at > now_ns {
                sender.limited = true;
                let at = sender.next_at;
                if sender.wake_at.is_none_or(|wake| wake > at) {
                    sender.wake_at = Some(at);
                    self.push(at, Kind::Wake(tenant));
                }
                return;
            }
            if sender.in_flight == 0 && now_ns > sender.sent_at + 1_000_000_000 {
                controller.on_resume(now);
            }
            sender.sent_at = now_ns;
            if let Some(rate) = allowance.rate {
                let time = rate
                    .transmission_time_ceil(ByteCount::new(PACKET))
                    .as_nanos() as u64;
                sender.next_at = sender.next_at.max(now_ns.saturating_sub(1_000_000)) + time;
            }
            sender.in_flight += PACKET;
            self.sent += 1;
            self.push(
                now_ns,
                Kind::Hop {
                    tenant,
                    sent_at: now_ns,
                    hop: 0,
                },
            );
        }
    }

    fn outcome(mut self) -> Outcome {
        let from = self.from();
        let span = (self.bench.seconds - from) as f64 * SECOND;
        let weights = (0..self.bench.seconds)
            .map(|second| {
                let weight = |tenant| {
                    let (now, before) = (second as f64, second as f64 - 1.0);
                    // A second in which it starts is not judged.
                    let (now, before) = (
                        self.weight(tenant, now + 0.999),
                        self.weight(tenant, before + 1.0),
                    );
                    if before > 0.0 { now } else { 0.0 }
                };
                (0..self.bench.tenants.len()).map(weight).collect()
            })
            .collect();
        let mut mean = Vec::new();
        let mut p95 = Vec::new();
        for waits in &mut self.waits {
            waits.sort_by(f64::total_cmp);
            mean.push(waits.iter().sum::<f64>() / waits.len().max(1) as f64);
            p95.push(waits.get(waits.len() * 95 / 100).copied().unwrap_or(0.0));
        }
        Outcome {
            rates: self.rates,
            from,
            used: self.used.iter().map(|used| *used as f64 / span).collect(),
            queue_ms: mean,
            queue_p95_ms: p95,
            loss: self.lost as f64 / self.sent.max(1) as f64,
            weights,
        }
    }
}

/// Fig. 1: five tenants of weights 1, 2, 2, 3, 4 over 50 Mbit/s and 50 packets.
pub(crate) fn one_bottleneck(controller: ControllerConfig, seed: u64) -> Bench {
    let round_trips = [100.0, 50.0, 150.0, 100.0, 50.0];
    let weights = [1.0, 2.0, 2.0, 3.0, 4.0];
    let tenants = weights
        .iter()
        .zip(round_trips)
        .map(|(w, r)| Tenant::new(*w, r, 5.0));
    Bench {
        links: vec![link(50.0, 50.0, 0.3)],
        tenants: tenants.collect(),
        controller,
        seconds: 50,
        seed,
        reports: false,
    }
}

/// Fig. 6: one tenant over three links and one over each.
pub(crate) fn three_bottlenecks(controller: ControllerConfig, b3: f64, seed: u64) -> Bench {
    let tenant = |weight: f64, route: &[usize]| Tenant {
        route: route.to_vec(),
        ..Tenant::new(weight, 2.0, 5.0)
    };
    Bench {
        links: [20.0, 10.0, b3].map(|mbit| link(mbit, 200.0, 0.3)).to_vec(),
        tenants: vec![
            tenant(1.0, &[0, 1, 2]),
            tenant(3.0, &[0]),
            tenant(1.0, &[1]),
            tenant((b3 - 5.0) / 5.0, &[2]),
        ],
        controller,
        seconds: 50,
        seed,
        reports: false,
    }
}

/// Four tenants that begin 5 s apart, over a buffer of 12 ms and at least 20 packets; from 25 s the last one is
/// alone.
pub(crate) fn latecomers(mbit: f64) -> Bench {
    let packets = (mbit * 1e6 * 0.012 / 8.0 / PACKET as f64).max(20.0);
    let tenants = [(1.0, 20.0), (8.0, 60.0), (2.0, 5.0), (4.0, 150.0)];
    let tenants = tenants
        .iter()
        .enumerate()
        .map(|(index, (weight, round_trip))| {
            let mut tenant = Tenant::new(*weight, *round_trip, index as f64 * 5.0);
            if index < 3 {
                tenant.active[0].1 = 25.0;
            }
            tenant
        });
    Bench {
        links: vec![link(mbit, packets, 0.0)],
        tenants: tenants.collect(),
        controller: ControllerConfig::Keiro { unit: None },
        seconds: 35,
        seed: 1,
        reports: true,
    }
}

pub(crate) fn link(mbit: f64, buffer_packets: f64, background: f64) -> Link {
    Link {
        mbit,
        buffer_packets,
        background,
    }
}
