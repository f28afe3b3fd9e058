//! A line that several gateways of a site send over, each with its scheduler.
//!
//! Gateways cannot order each other's packets. What two of them send at the same time waits in the
//! line's buffer, first in, first out, behind the queues that each gateway keeps itself. So the line
//! is the second station of a tandem, and what a message finds there follows from three facts:
//!
//! 1. The line sends whenever a gateway has something to send. All work in the gateways and in the
//!    line's buffer together is therefore the workload of one M/G/1 queue that is fed by all
//!    applications, whatever the schedulers. The work in one gateway is the workload of its
//!    applications alone. The difference of the means is the mean work in the line's buffer, B.
//! 2. A message arrives at a random time, so it finds a buffer of B on average, and other gateways
//!    that know nothing of it.
//! 3. Its gateway sends without a break until the message's last packet is sent, at the rate of the
//!    line. Meanwhile the line sends as much as this gateway hands it, and the buffer grows by what the
//!    other gateways send: their load Q/W, times the time that the message takes in its gateway, H.
//!
//! So the mean delay is T + H·(1 + Q/W) + B, where T + H is the forecast of the gateway alone. That
//! is exact for exponential intervals, for every scheduler, where each gateway sends at the rate of the
//! line. For a gateway that sends less at most, the buffer is scaled by how far the rates of those
//! that send together exceed the line's, which is rough.
//!
//! Percentiles take what the line adds as zero or else exponential, with the variance that the three
//! facts give, and as independent of what happens in the gateway.

use std::time::Duration;

use super::{
    DelayDistribution, Forecast, ForecastTerms, Outcome, Statistic, Traffic, WireFormat,
    loss_recovery_delay::Tail,
    poisson::{RenewalStream, Stream, StreamSums},
    validity::INTERVAL_SPREAD_MAX,
};
use keiro_units::Bandwidth;

/// What one gateway sends over a line, as sums over its applications: however many they are,
/// forecasts take no longer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Offered {
    /// In wire bytes in place of seconds.
    bytes: StreamSums,
    /// Bytes per second of applications that send bursts.
    bursts: f64,
}

/// Another gateway that sends over the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OtherGateway {
    /// How fast it sends at most.
    pub rate: Bandwidth,
    pub offered: Offered,
}

/// A line that other gateways use, too.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedLine {
    /// What it carries.
    pub rate: Bandwidth,
    /// How fast this gateway sends at most.
    pub own_rate: Bandwidth,
    pub others: Vec<OtherGateway>,
}

/// A [`SharedLine`] with what this gateway sends over it, in parts of the line and seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JointQueue {
    /// Load of all gateways.
    load: f64,
    /// Load of the others.
    others: f64,
    /// Mean work in the line's buffer; infinite where the line is overloaded.
    buffered: f64,
    /// Mean work in the line's buffer while there is any.
    busy: f64,
    /// By how much this gateway sends less than the line, at most.
    slower: f64,
    /// Load of the others' applications that send bursts.
    bursts: f64,
}

impl Offered {
    /// Adds an application whose messages become packets by `wire`.
    pub fn add(&mut self, traffic: &Traffic, wire: &WireFormat) {
        let stream = Stream {
            rate: 1.0 / traffic.app.interval.as_secs_f64(),
            service: wire.wire_length(traffic.app.length).get() as f64,
        };
        if traffic.interval_spread.ratio() > INTERVAL_SPREAD_MAX {
            self.bursts += stream.rate * stream.service;
        }
        self.bytes.add(&RenewalStream {
            stream,
            length_spread: traffic.length_spread.ratio(),
            interval_spread: traffic.interval_spread.ratio(),
        });
    }

    /// Adds what others offer.
    pub fn add_all(&mut self, other: &Self) {
        self.bytes = self.bytes.and(&other.bytes);
        self.bursts += other.bursts;
    }

    /// What all of `traffic` offers.
    pub fn of<'a>(traffic: impl IntoIterator<Item = &'a Traffic>, wire: &WireFormat) -> Self {
        let mut offered = Self::default();
        for traffic in traffic {
            offered.add(traffic, wire);
        }
        offered
    }

    /// The sums, for [`Offered::from_sums`].
    pub fn sums(&self) -> [f64; 7] {
        let [load, whole, squares, poisson, varied, cubes] = self.bytes.sums();
        [load, whole, squares, poisson, varied, cubes, self.bursts]
    }

    /// What another process has summed. `None`: a sum that is none, or negative.
    pub fn from_sums(sums: [f64; 7]) -> Option<Self> {
        let [load, whole, squares, poisson, varied, cubes, bursts] = sums;
        let is_sane = sums.iter().all(|sum| sum.is_finite() && *sum >= 0.0);
        is_sane.then(|| Self {
            bytes: StreamSums::from_sums([load, whole, squares, poisson, varied, cubes]),
            bursts,
        })
    }

    /// Its mean rate, headers included; saturates.
    pub fn rate(&self) -> Bandwidth {
        Bandwidth::from_bits_per_second((self.bytes.load * 8.0).ceil() as u64)
    }
}

impl SharedLine {
    /// The mean rate of all other gateways.
    pub fn others_rate(&self) -> Bandwidth {
        let rates = self.others.iter().map(|other| other.offered.rate());
        rates.fold(Bandwidth::ZERO, Bandwidth::saturating_add)
    }

    /// With what this gateway sends.
    pub fn joint(&self, own: &Offered) -> JointQueue {
        let per_byte = 8.0 / self.rate.as_bits_per_second().max(1) as f64;
        let part = |rate: Bandwidth| rate.ratio_of(self.rate).unwrap_or(1.0).min(1.0);
        let own = Sender {
            part: part(self.own_rate),
            sums: own.bytes.scaled(per_byte),
        };
        let others = self.others.iter().map(|other| Sender {
            part: part(other.rate),
            sums: other.offered.bytes.scaled(per_byte),
        });
        let senders: Vec<Sender> = std::iter::once(own).chain(others).collect();
        let all = senders
            .iter()
            .fold(StreamSums::default(), |all, sender| all.and(&sender.sums));
        let inside: f64 = senders
            .iter()
            .map(|sender| sender.sums.mean_workload())
            .sum();
        let work = all.mean_workload();
        let buffered = match work.is_finite() {
            true => (work - inside).max(0.0) * excess(&senders),
            false => f64::INFINITY,
        };
        let bursts = self.others.iter().map(|other| other.offered.bursts);
        let others_bursts: f64 = bursts.sum();
        JointQueue {
            load: all.load,
            others: (all.load - own.sums.load).max(0.0),
            buffered,
            busy: busy(&all, &senders, buffered),
            slower: 1.0 - own.part,
            bursts: others_bursts * per_byte,
        }
    }
}

/// A gateway on the line, in parts of the line and seconds.
#[derive(Clone, Copy, Debug)]
struct Sender {
    /// How fast it sends at most, as a part of the line's rate.
    part: f64,
    sums: StreamSums,
}

/// The mean work in the line's buffer while there is any, if that is exponential: half of its second
/// moment by its mean. Its variance is taken as that of all work, less those of the gateways' own.
fn busy(all: &StreamSums, senders: &[Sender], buffered: f64) -> f64 {
    if !buffered.is_finite() || buffered <= 0.0 {
        return 0.0;
    }
    let own = senders.iter().map(|sender| sender.sums.workload_variance());
    let variance = (all.workload_variance() - own.sum::<f64>()).max(0.0);
    (variance + buffered * buffered) / (2.0 * buffered)
}

/// How far gateways that send together exceed the line, as a part of how far they do if each can
/// fill it: 1 if so, 0 if all together do not.
fn excess(senders: &[Sender]) -> f64 {
    if senders.len() < 2 || senders.iter().all(|sender| sender.part >= 1.0) {
        return 1.0;
    }
    let whole: f64 = senders.iter().map(|sender| sender.part).sum();
    let together = ((whole - 1.0) / (senders.len() as f64 - 1.0)).max(0.0);
    // Of any two, weighted by how often both send.
    let (mut pairs, mut over) = (0.0, 0.0);
    for (index, sender) in senders.iter().enumerate() {
        for other in &senders[..index] {
            let weight = sender.sums.load * other.sums.load;
            pairs += weight;
            over += weight * (sender.part + other.part - 1.0).max(0.0);
        }
    }
    match pairs > 0.0 {
        true => together.max(over / pairs),
        false => together,
    }
}

impl JointQueue {
    /// Whether all gateways together send no less than the line carries.
    pub fn is_overloaded(&self) -> bool {
        self.buffered.is_infinite()
    }

    /// The load of all gateways, as a part of the line's rate.
    pub const fn load(&self) -> f64 {
        self.load
    }

    /// What other gateways' applications send in bursts, whose law two moments do not give, as a part
    /// of the line's rate.
    pub const fn bursts(&self) -> f64 {
        self.bursts
    }

    /// What the line adds on average to a message that takes `in_gateway` seconds in its gateway;
    /// infinite where the line is overloaded.
    pub fn added(&self, in_gateway: f64) -> f64 {
        let grows = (self.others - self.slower) * in_gateway;
        match grows >= 0.0 || self.buffered <= 0.0 {
            true => self.buffered + grows.max(0.0),
            // The buffer shrinks meanwhile, but not below nothing.
            false => self.buffered / (1.0 - grows / self.buffered),
        }
    }

    /// The forecast over the shared line, from that of the gateway alone.
    #[must_use]
    pub fn of(&self, alone: Forecast) -> Forecast {
        let terms = ForecastTerms {
            load: self.load,
            ..alone.terms
        };
        let outcome = match alone.outcome {
            Outcome::Stable(_) if self.is_overloaded() => Outcome::Overloaded,
            Outcome::Stable(delay) => Outcome::Stable(self.delay(&alone, &delay)),
            Outcome::Overloaded => Outcome::Overloaded,
        };
        Forecast {
            terms,
            outcome,
            ..alone
        }
    }

    fn delay(&self, alone: &Forecast, delay: &DelayDistribution) -> DelayDistribution {
        let propagation = alone.terms.propagation;
        let in_gateway = delay.mean.saturating_sub(propagation).as_secs_f64();
        let added = self.added(in_gateway);
        if added <= 0.0 {
            return *delay;
        }
        let floor = propagation.saturating_add(alone.terms.transmission);
        let tail = Tail::of(delay, floor);
        // Zero, or else exponential with this mean.
        let some = self.busy.max(added);
        let probability = added / some;
        let percentile = |statistic: Statistic, beyond: f64| {
            let least = delay.get(statistic).as_secs_f64();
            let later = |x: f64| {
                let mut above = (1.0 - probability) * tail.beyond(x);
                let mut reached = 1.0;
                for point in 0..POINTS {
                    let end = (-f64::from(point + 1) * STEP).exp();
                    let more = (f64::from(point) + 0.5) * STEP * some;
                    above += probability * (reached - end) * tail.beyond(x - more);
                    reached = end;
                }
                above + probability * reached
            };
            let (mut low, mut high) = (least, least + some * f64::from(POINTS) * STEP);
            for _ in 0..HALVINGS {
                let middle = low.midpoint(high);
                match later(middle) > beyond {
                    true => low = middle,
                    false => high = middle,
                }
            }
            seconds(high)
        };
        DelayDistribution {
            mean: delay.mean.saturating_add(seconds(added)),
            p50: percentile(Statistic::P50, 0.5),
            p95: percentile(Statistic::P95, 0.05),
            p99: percentile(Statistic::P99, 0.01),
        }
    }
}

/// The exponential part in steps of this part of its mean.
const STEP: f64 = 0.2;
/// Up to eight times its mean, which is exceeded once in 3,000.
const POINTS: u32 = 40;
/// Of eight times the mean, to a hundred-thousandth.
const HALVINGS: usize = 20;

fn seconds(value: f64) -> Duration {
    Duration::try_from_secs_f64(value).unwrap_or(Duration::MAX)
}
