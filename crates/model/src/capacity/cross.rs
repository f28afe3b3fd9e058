//! What others send over a bottleneck of known capacity, from when a sender's own packets arrive.
//!
//! Two ways, by what the sender does:
//!
//! - **In a burst** that keeps the bottleneck busy by itself, everything that the bottleneck carries
//!   between two of the sender's packets is either the sender's or came from others while the sender
//!   sent: others' rate = (capacity × time between arrivals − own bits) / time between departures.
//!   (Strauss, Katabi, Kaashoek: A measurement study of available bandwidth estimation tools, IMC
//!   2003, who send pairs for it; here it is the traffic's own bursts.)
//! - **A lone packet** finds the bottleneck busy with the probability that others keep it so. It was
//!   busy if the packet took longer than the shortest way by more than the stamps' noise; how often a
//!   wait is shorter than that is allowed for as in the M/D/1 queue (Erlang 1909). A path whose delay
//!   varies for other reasons (a radio link, a hypervisor) has waits that no queue explains: none of
//!   the packets stand out by not having waited, or none waited for long. Then there is no estimate.
//!
//! Pure: who sends what, and when something arrived, is the caller's to say.

use std::time::Duration;

use keiro_units::{Bandwidth, Instant};

/// A packet of the sender's that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When it was sent.
    pub sent_at: Instant,
    /// When it arrived, in microseconds of any epoch.
    pub received_us: u64,
    /// Bits that the sender has sent up to its end.
    pub bits_sent: u64,
    /// Which burst it is of; a burst keeps a bottleneck of the capacity busy by itself.
    pub burst: u32,
    /// For the first packet of a burst: how much longer than the shortest way it took, its own
    /// transmission left out. `None` for the others, or if it is not known.
    pub wait: Option<Duration>,
}

/// Follows what others send over one path.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossMeter {
    capacity: Bandwidth,
    last: Option<Arrival>,
    bursts: Bursts,
    lone: Lone,
    before: Option<Before>,
}

/// What others sent when the path went away.
#[derive(Clone, Copy, Debug)]
struct Before {
    rate: Bandwidth,
    /// Believed until then; `None`: the path is away.
    until: Option<Instant>,
}

/// Sums over times within bursts, older ones weighing less.
#[derive(Clone, Copy, Debug, Default)]
struct Bursts {
    updated: Instant,
    arriving_s: f64,
    sending_s: f64,
    own_bits: f64,
}

/// Counts of lone packets by their wait, older ones weighing less.
#[derive(Clone, Copy, Debug, Default)]
struct Lone {
    updated: Instant,
    /// Waits up to one, two and four times the shortest that counts.
    at_most: [f64; 3],
    all: f64,
}

/// Memory of the sums: some hundred packets of others at 10 Mbit/s. Ours.
const BURSTS_MEMORY: Duration = Duration::from_secs(5);
/// Sending time within bursts that a rate is of, at least. Ours.
const BURSTS_TIME_MIN: f64 = 0.1;
/// Memory of the counts: a hundred pings. Ours.
const LONE_MEMORY: Duration = Duration::from_secs(10);
/// Lone packets that a rate is of, at least. Ours.
const LONE_MIN: f64 = 20.0;
/// The same where something is known from before an outage. Ours: six seconds of pings; the first
/// second's waits are those of what had waited for the path.
const LONE_MIN_AFTER_OUTAGE: f64 = 60.0;
/// Shorter waits may be noise. Ours: stamps of a virtual machine, there and back.
pub const WAIT_MIN: Duration = Duration::from_micros(100);
/// Nor are waits counted that are shorter than this part of what one of others' packets takes. Ours:
/// on a machine whose processors others use, stamps vary by some tenths of a millisecond now and
/// then, which on a slow path are still no packet.
const WAIT_PACKETS_MIN: f64 = 0.5;
/// Length of others' packets, which decides how many waits are shorter than that. Ours: most bytes
/// are in full ones.
const CROSS_PACKET_BITS: f64 = 12_000.0;
/// Where the shortest wait that counts is that of more packets, there is no estimate.
const WAIT_PACKETS_MAX: f64 = 4.0;
/// Least share of packets that did not wait at all: those within the shortest wait that counts, less those in
/// the same time after it. Ours: up to a load of 0.8; without any, chance alone makes it a tenth.
const UNQUEUED_MIN: f64 = 0.12;
/// Long waits are to be this part of what the queue has, at least, give or take [`LONG_WAITS_DEVIATIONS`] standard
/// deviations of their number.
const LONG_WAITS_MIN: f64 = 0.5;
const LONG_WAITS_DEVIATIONS: f64 = 1.0;
/// Nothing that was found is known for longer after the last packet.
const KNOWN_FOR: Duration = Duration::from_secs(15);
/// A capacity that differs by more is another.
const SAME_RATIO: f64 = 0.1;

impl CrossMeter {
    /// A packet arrived, of which is known now; `capacity` is the bottleneck's.
    pub fn on_arrival(&mut self, now: Instant, arrival: Arrival, capacity: Bandwidth) {
        let (bits, known) = (bits(capacity), bits(self.capacity));
        if (bits / known.max(1.0) - 1.0).abs() > SAME_RATIO {
            *self = Self {
                capacity,
                before: self.before,
                ..Self::default()
            };
        }
        if let Some(wait) = arrival.wait {
            self.lone.add(now, wait, wait_min(bits));
        }
        if let Some(last) = self.last.replace(arrival)
            && last.burst == arrival.burst
            && last.bits_sent < arrival.bits_sent
        {
            let us = arrival.received_us.saturating_sub(last.received_us);
            let sending = arrival.sent_at.saturating_duration_since(last.sent_at);
            self.bursts.fade(now);
            self.bursts.arriving_s += us as f64 / 1e6;
            self.bursts.sending_s += sending.as_secs_f64();
            self.bursts.own_bits += (arrival.bits_sent - last.bits_sent) as f64;
        }
    }

    /// What others send; `own` is what the sender itself has sent recently. `None`: not known, or not
    /// known any more.
    pub fn rate(&self, now: Instant, capacity: Bandwidth, own: Bandwidth) -> Option<Bandwidth> {
        let known = |before: &Before| before.until.is_none_or(|until| now <= until);
        let before = self.before.filter(known);
        let lone_min = before.map_or(LONE_MIN, |_| LONE_MIN_AFTER_OUTAGE);
        let lone = || {
            let lone = Some(self.lone).filter(|lone| lone.all >= lone_min)?;
            lone.rate(now, bits(capacity), bits(own))
        };
        let rate = self.bursts.rate(now, bits(capacity)).or_else(lone);
        let Some(rate) = rate else {
            return before.map(|before| before.rate.min(capacity));
        };
        let rate = rate.clamp(0.0, bits(capacity));
        Some(Bandwidth::from_bits_per_second(rate as u64))
    }

    /// The path is down: what is known now is kept, what is counted is not. `capacity`: `None` if it
    /// is not known.
    pub fn on_outage(&mut self, now: Instant, capacity: Option<Bandwidth>, own: Bandwidth) {
        let rate = capacity.and_then(|capacity| self.rate(now, capacity, own));
        *self = Self {
            capacity: self.capacity,
            before: rate.map(|rate| Before { rate, until: None }),
            ..Self::default()
        };
    }

    /// The path is back: others are taken to send what they sent before until enough was seen of
    /// them, for 15 s at most.
    pub fn on_return(&mut self, now: Instant) {
        let before = self.before.map(|before| Before {
            until: Some(now + KNOWN_FOR),
            ..before
        });
        *self = Self {
            capacity: self.capacity,
            before,
            ..Self::default()
        };
    }
}

impl Bursts {
    fn fade(&mut self, now: Instant) {
        let kept = kept(now, self.updated, BURSTS_MEMORY);
        self.updated = now;
        self.arriving_s *= kept;
        self.sending_s *= kept;
        self.own_bits *= kept;
    }

    fn rate(mut self, now: Instant, capacity: f64) -> Option<f64> {
        self.fade(now);
        (self.sending_s >= BURSTS_TIME_MIN)
            .then(|| (capacity * self.arriving_s - self.own_bits) / self.sending_s)
    }
}

impl Lone {
    /// `least` is the shortest wait that counts.
    fn add(&mut self, now: Instant, wait: Duration, least: Duration) {
        let kept = kept(now, self.updated, LONE_MEMORY);
        self.updated = now;
        for (count, times) in self.at_most.iter_mut().zip([1, 2, 4]) {
            *count = *count * kept + f64::from(u8::from(wait <= least * times));
        }
        self.all = self.all * kept + 1.0;
    }

    fn rate(&self, now: Instant, capacity: f64, own: f64) -> Option<f64> {
        let fresh = now.saturating_duration_since(self.updated) <= KNOWN_FOR;
        let wait_packets = wait_min(capacity).as_secs_f64() * capacity / CROSS_PACKET_BITS;
        if !fresh || wait_packets > WAIT_PACKETS_MAX {
            return None;
        }
        let load = load_of(self.at_most[0] / self.all, wait_packets);
        // While the sender has nothing at the bottleneck, others use it for what they need of the
        // time that is left to them.
        self.is_queue(load, wait_packets)
            .then(|| load * (capacity - own).max(0.0))
    }

    /// Whether a queue of this load explains the waits.
    fn is_queue(&self, load: f64, wait_packets: f64) -> bool {
        let [once, twice, four] = self.at_most;
        let unqueued = once - (twice - once);
        let expected = self.all * (1.0 - wait_at_most(4.0 * wait_packets, load)).max(0.0);
        let chance = LONG_WAITS_DEVIATIONS * expected.sqrt();
        let is_long = self.all - four >= LONG_WAITS_MIN * expected - chance;
        unqueued >= UNQUEUED_MIN * self.all && is_long
    }
}

/// Longer waits count at a bottleneck of `capacity`, bit/s.
fn wait_min(capacity: f64) -> Duration {
    let part = WAIT_PACKETS_MIN * CROSS_PACKET_BITS / capacity.max(1.0);
    WAIT_MIN.max(Duration::from_secs_f64(part))
}

/// What is left of a weight of before.
fn kept(now: Instant, before: Instant, memory: Duration) -> f64 {
    let passed = now.saturating_duration_since(before);
    (-passed.as_secs_f64() / memory.as_secs_f64()).exp()
}

/// The load of an M/D/1 queue in which a wait is at most `packets` service times with this
/// probability.
fn load_of(probability: f64, packets: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    // 2^-20 is far below what counts resolve.
    for _ in 0..20 {
        let middle = (low + high) / 2.0;
        if wait_at_most(packets, middle) > probability {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// Erlang's distribution of the wait in the M/D/1 queue, in service times.
fn wait_at_most(packets: f64, load: f64) -> f64 {
    let mut sum = 0.0;
    let mut factorial = 1.0;
    for k in 0..=packets as u32 {
        factorial *= f64::from(k.max(1));
        let x = load * (packets - f64::from(k));
        sum += (-x).powi(k as i32) / factorial * x.exp();
    }
    (1.0 - load) * sum
}

fn bits(rate: Bandwidth) -> f64 {
    rate.as_bits_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: Bandwidth = Bandwidth::from_mbit_per_second(10);
    const MS: Duration = Duration::from_millis(1);

    fn at(us: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 + us * 1000)
    }

    fn mbit(rate: Option<Bandwidth>) -> f64 {
        rate.unwrap().as_bits_per_second() as f64 / 1e6
    }

    #[test]
    fn the_wait_is_distributed_as_erlang_has_it_and_shows_the_load() {
        // (1 − load) Σ (−load (t − k))^k / k! e^(load (t − k)), by hand.
        for (packets, load, by_hand) in [
            (0.0, 0.7, 0.3),
            (1.0, 0.5, 0.5 * 0.5_f64.exp()),
            (1.5, 0.5, 0.5 * (0.75_f64.exp() - 0.25 * 0.25_f64.exp())),
        ] {
            assert!((wait_at_most(packets, load) - by_hand).abs() < 1e-12);
        }
        assert!(wait_at_most(4.0, 0.3) > 0.99);
        for load in [0.1, 0.5, 0.9] {
            for packets in [0.0, 0.3, 1.2, 3.9] {
                let found = load_of(wait_at_most(packets, load), packets);
                assert!((found - load).abs() < 1e-4, "{load} {packets}: {found}");
            }
        }
    }

    #[test]
    fn bursts_show_what_came_between() {
        let mut meter = CrossMeter::default();
        let own = Bandwidth::from_mbit_per_second(2);
        assert_eq!(meter.rate(at(0), CAPACITY, own), None);
        // Sent at 10 Mbit/s, arriving at 6.25: others send 6 Mbit/s.
        for packet in 0..400_u64 {
            let arrival = Arrival {
                sent_at: at(packet * 1200),
                received_us: packet * 1920,
                bits_sent: packet * 12_000,
                burst: 1,
                wait: None,
            };
            meter.on_arrival(at(packet * 1920), arrival, CAPACITY);
        }
        let now = at(400 * 1920);
        assert!((mbit(meter.rate(now, CAPACITY, own)) - 6.0).abs() < 0.01);
        assert_eq!(meter.rate(now + 60_000 * MS, CAPACITY, own), None);
    }

    /// What is known after a thousand lone packets, 100 ms apart, of which a part `u` waits no longer
    /// than `wait(u)` packets of others'.
    fn after_lone(capacity: Bandwidth, wait: impl Fn(f64) -> f64) -> CrossMeter {
        let mut meter = CrossMeter::default();
        let packet_s = CROSS_PACKET_BITS / bits(capacity);
        for packet in 0..1000_u64 {
            // In an order that has all parts at all times.
            let part = (packet as f64 * 0.618_033_988_749_895).fract();
            let wait = Duration::from_secs_f64(wait(part) * packet_s);
            let arrival = Arrival {
                sent_at: at(packet * 100_000),
                received_us: packet * 100_000,
                bits_sent: packet * 500,
                burst: packet as u32,
                wait: Some(wait),
            };
            meter.on_arrival(at(packet * 100_000), arrival, capacity);
        }
        meter
    }

    /// The wait that a part `part` of packets has at most in a queue of this load.
    fn queued(load: f64) -> impl Fn(f64) -> f64 {
        move |part| {
            (0..4000)
                .map(|hundredth| f64::from(hundredth) / 100.0)
                .find(|wait| wait_at_most(*wait, load) >= part)
                .unwrap_or(40.0)
        }
    }

    const LATER: u64 = 100_000_000;

    #[test]
    fn lone_packets_show_how_often_the_path_is_busy() {
        for (load, others) in [(0.0, 0.0), (0.2, 2.0), (0.4, 4.0), (0.6, 6.0), (0.75, 7.5)] {
            let meter = after_lone(CAPACITY, queued(load));
            let rate = mbit(meter.rate(at(LATER), CAPACITY, Bandwidth::ZERO));
            assert!((rate - others).abs() < 0.2, "{load}: {rate}");
        }
        // Half of the time is the sender's: the others use 40 % of the rest.
        let meter = after_lone(CAPACITY, queued(0.4));
        let rate = mbit(meter.rate(at(LATER), CAPACITY, Bandwidth::from_mbit_per_second(5)));
        assert!((rate - 2.0).abs() < 0.1, "{rate}");
        // Too fast for the stamps.
        let fast = Bandwidth::from_mbit_per_second(1000);
        assert_eq!(meter.rate(at(LATER), fast, Bandwidth::ZERO), None);
    }

    #[test]
    fn a_delay_that_varies_is_not_taken_for_others_traffic() {
        // In packets' times; what varies by less than one of them looks as a queue does. Evenly, about
        // a mean, with a long tail.
        for width in [2.0, 8.0, 40.0, 400.0] {
            let evenly = |part: f64| part * width;
            let about = |part: f64| width * (1.0 + 0.3 * (part / (1.0 - part)).ln()).max(0.0);
            let exponential = |part: f64| -(1.0 - part).ln() * width;
            for capacity in [10, 50, 100].map(Bandwidth::from_mbit_per_second) {
                for meter in [
                    after_lone(capacity, evenly),
                    after_lone(capacity, about),
                    after_lone(capacity, exponential),
                ] {
                    let found = meter.rate(at(LATER), capacity, Bandwidth::ZERO);
                    assert_eq!(found, None, "{width} at {capacity:?}");
                }
            }
        }
    }

    #[test]
    fn what_others_sent_before_an_outage_holds_until_something_is_seen_of_them() {
        let mut meter = CrossMeter::default();
        let own = Bandwidth::from_mbit_per_second(2);
        let burst = |from: u64, spacing: u64| {
            (0..400_u64).map(move |packet| Arrival {
                sent_at: at(from + packet * 1200),
                received_us: from + packet * spacing,
                bits_sent: packet * 12_000,
                burst: from as u32,
                wait: None,
            })
        };
        for arrival in burst(0, 1920) {
            meter.on_arrival(arrival.sent_at, arrival, CAPACITY);
        }
        let outage = at(480_000);
        meter.on_outage(outage, Some(CAPACITY), own);
        // It may be away for as long as it likes.
        let back = outage + 60_000 * MS;
        assert!((mbit(meter.rate(back, CAPACITY, own)) - 6.0).abs() < 0.01);
        meter.on_return(back);
        assert!((mbit(meter.rate(back + 15_000 * MS, CAPACITY, own)) - 6.0).abs() < 0.01);
        assert_eq!(meter.rate(back + 15_001 * MS, CAPACITY, own), None);
        // Alone on it now.
        for arrival in burst(61_000_000, 1200) {
            meter.on_arrival(arrival.sent_at, arrival, CAPACITY);
        }
        assert!(mbit(meter.rate(at(61_480_000), CAPACITY, own)) < 0.01);
    }

    #[test]
    fn another_capacity_begins_anew() {
        let mut meter = CrossMeter::default();
        let arrival = |packet: u64| Arrival {
            sent_at: at(packet * 1200),
            received_us: packet * 1920,
            bits_sent: packet * 12_000,
            burst: 1,
            wait: None,
        };
        for packet in 0..400 {
            meter.on_arrival(at(packet * 1920), arrival(packet), CAPACITY);
        }
        let half = Bandwidth::from_mbit_per_second(5);
        meter.on_arrival(at(400 * 1920), arrival(400), half);
        assert_eq!(meter.rate(at(400 * 1920), half, Bandwidth::ZERO), None);
    }
}
