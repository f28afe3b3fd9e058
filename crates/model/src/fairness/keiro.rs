//! Keiro's controller: a rate that follows from how long the bottleneck's queue is.
//!
//! All that share a bottleneck see the same queue. If every ingress sends, per weight, what one
//! curve says for the queue that it sees, shares are as the weights whatever the round trips are, and
//! no ingress needs to know of the others. The curve is ln(rate / unit) =
//!
//! ```text
//!   ln(QUEUE_AT_UNIT / q) / FLATNESS       q: queueing time, smoothed, within AT_UNIT and HIGH
//! + STEEP_LOW · ln(QUEUE_AT_UNIT / q)      where q is below QUEUE_AT_UNIT: capacity is left
//! + STEEP_NONE · ln(QUEUE_NONE / q)        further where q is below QUEUE_NONE: as good as no queue
//! − STEEP_HIGH · ln(q / QUEUE_HIGH)        where q is above QUEUE_HIGH
//! − STEEP_LOSS · ln(1 + loss / LOSS_FELT)  where the buffer ends before the curve does
//! ```
//!
//! In the middle it is flat, so that a tenant that passes three queues gets little less than one that
//! passes a single one: q three times as long is 3^(−1/4) = 0.76 of the rate (at a bottleneck with
//! the usual 1/q it were a third, and with the 1/√p of a loss-driven window 0.58). It is flat also for
//! errors: who takes the queue for twice as long gets 16 % less. What it costs is that the flat part
//! spans a factor of two of the rate only: `unit`, the provider's, says where. Outside it is steep, so
//! that a unit that is too small by far leaves little of a line unused and one that is too large
//! does not fill every buffer; shares at one bottleneck are the same wherever on the curve all are.
//! Where no unit is configured it is found: `unit` beside this.
//!
//! The rate approaches the curve slowly, bounded upwards, and downwards the quicker the longer the
//! queue is; beside that, it answers each change of the queue at once by the share that a round trip
//! later undoes it. The first makes shares equal, the second keeps the queue from swinging.

use std::time::Duration;

use super::{
    controller::{Controller, Feedback, FoundUnit, Line, RoundTrip, SendAllowance, Weight},
    unit::{QUEUE_AT_UNIT, Unit},
};
use keiro_units::{Bandwidth, ByteCount, Instant};

/// Share of packets lost that is felt. Ours: where the line loses a little by itself, the queue decides.
const LOSS_FELT: f64 = 0.01;
/// ln(rate) per ln(1 + loss / LOSS_FELT). Ours, by experiments (`docs/fairness.md`).
const STEEP_LOSS: f64 = 1.5;
/// The approach to the curve, per second of the distance in ln(rate). Ours: slower than the queue's smoothing.
const APPROACH: f64 = 0.5;
/// Fastest rise with a queue, ln(rate) per s. Ours: a rise is noticed a round trip later.
const RISE_MAX: f64 = 0.3;
/// What is added to it without a queue. Ours: there is room for what a rise overshoots by.
const RISE_MAX_EMPTY: f64 = 0.5;
/// Fastest fall without a queue, ln(rate) per s. Ours: without a queue nothing is urgent.
const FALL_MAX: f64 = 0.1;
/// What a second of queueing time adds to it. Ours: at 1 ms it falls as fast as it rises.
const FALL_MAX_PER_QUEUE: f64 = 200.0;
/// What it adds per share of packets lost. Ours: at 5 % it falls as fast as at 2.5 ms of queue.
const FALL_MAX_PER_LOSS: f64 = 10.0;
/// The answer to a change of the queue, of the share that undoes it within a round trip. Ours: with once that share the
/// queue swings enough to run empty where it is short. With twice it never does, and a newcomer takes a part of it for
/// propagation delay.
const DAMPING: f64 = 1.6;
/// The same at most, ln(rate) per s of queueing time. Ours: that of a round trip of 40 ms.
const DAMPING_MAX: f64 = 27.0;
/// Time constant, s, of the queue for damping. Ours: single packets that wait are no change of the queue.
const SMOOTHING_FAST: f64 = 0.02;
/// Time constant, s, of the queue for the curve. Ours: several round trips, over which all tenants see the same.
const SMOOTHING_SLOW: f64 = 0.5;
/// Time constant, s, of loss for the curve. Ours: losses come together, and are rarer than queues.
const SMOOTHING_LOSS: f64 = 1.0;
/// Packets that a share of lost ones is of, at least. Ours: [`LOSS_FELT`] is one of them.
const SMOOTHING_LOSS_PACKETS: f64 = 100.0;
/// ln(rate / unit) at which a tenant begins: 0.14 of its unit. Ours: many may begin at once.
const START: f64 = -2.0;
/// Its rise, ln(rate) per s, until it is where the curve is for the queue that it sees, or sees loss. Ours: at its unit
/// in two thirds of a second.
const RISE_START: f64 = 3.0;
/// Packets in flight of a tenant that begins where the propagation delay is known, while it sees no queue and no loss:
/// what its own TCP flows send then (RFC 6928).
const FREE_PACKETS: f64 = 10.0;
/// The time, s, in which these may leave where the round trip is shorter. Ours: a rate of 24 Mbit/s.
const FREE_SPAN: f64 = 0.005;
/// How many more for each that arrives. Ours: with TCP's 1, buffers of thirty packets overflow.
const FREE_GROWTH: f64 = 0.5;
/// Until so many have arrived. Ours: with 100, such buffers overflow too.
const FREE_TOTAL: f64 = 40.0;
/// A queue that was not shorter than this, s, for [`AGED_AFTER`] may be a path that has become longer. Ours: several
/// times the queue at which a tenant gets its unit.
const AGED_QUEUE: f64 = 0.01;
/// Seconds for which it was not. Ours: for so long a longer path is taken for a queue.
const AGED_AFTER: f64 = 30.0;
/// The part of their rate at which all that see it send then. Ours: a queue goes away at that, a longer path does not.
const DRAIN: f64 = 0.25;
/// Seconds for which they do, beside a round trip. Ours: empties 0.2 s of queue if all do.
const DRAIN_TIME: f64 = 0.3;
/// ln(rate / unit) at most, either way: how far a rate without a queue goes beyond its unit, 163,000
/// times.
const BOUND: f64 = 12.0;
/// Largest change of ln(rate) by one feedback. Ours: a single acknowledgement that is wrong costs a fifth at most.
const STEP_MAX: f64 = 0.2;
/// Longest time between two feedbacks that counts for the approach, s: slow tenants rise as others do.
const GAP_MAX: f64 = 1.0;
/// Round trips of the rate that the window has. Ours: it bounds what leaves while nothing is heard; the rate decides.
const WINDOW_ROUND_TRIPS: f64 = 1.25;
/// Further seconds of the rate. Ours: for acknowledgements and timers that are late at the ends.
const WINDOW_SLACK: f64 = 0.01;
/// Further packets. Ours: for rates of a packet or two in a round trip.
const WINDOW_PACKETS: f64 = 4.0;

#[derive(Debug)]
pub(super) struct Keiro {
    unit: Unit,
    weight: f64,
    packet: f64,
    /// ln(rate / (reference of the unit · weight)).
    level: f64,
    starting: bool,
    /// Packets that arrived since it began; `None`: it has seen a queue or a loss, or enough arrived.
    free: Option<f64>,
    /// Smallest round trip of short and of long packets, s.
    base: [Option<f64>; 2],
    /// The path's, when they were last taken for the base.
    path_min: [Option<Duration>; 2],
    /// By how much the way has become longer since, s.
    aged: f64,
    /// When the queue was last as short as [`AGED_QUEUE`].
    short_at: Instant,
    drain: Option<Drain>,
    /// Queueing time, s.
    queue: f64,
    queue_slow: f64,
    /// Share of packets lost.
    loss: f64,
    last_feedback_at: Instant,
}

/// A look whether the queue is one.
#[derive(Clone, Copy, Debug)]
struct Drain {
    until: Instant,
    /// Shortest queue since it began, s.
    least: f64,
}

impl Keiro {
    /// `unit`: the configured one.
    pub(super) fn new(
        now: Instant,
        unit: Option<Bandwidth>,
        weight: Weight,
        packet: ByteCount,
    ) -> Self {
        Self {
            unit: Unit::new(unit, packet.get() as f64),
            weight: weight.get(),
            packet: packet.get() as f64,
            level: START,
            starting: true,
            free: Some(0.0),
            base: [None; 2],
            path_min: [None; 2],
            aged: 0.0,
            short_at: now,
            drain: None,
            queue: 0.0,
            queue_slow: 0.0,
            loss: 0.0,
            last_feedback_at: now,
        }
    }

    /// What a queue, s, and the loss allow, as a level.
    fn target(&self, queue: f64) -> f64 {
        self.unit.level(queue, self.weight) - STEEP_LOSS * (self.loss / LOSS_FELT).ln_1p()
    }

    /// Change of the level per second.
    fn approach(&mut self) -> f64 {
        if self.starting {
            self.starting = self.loss == 0.0 && self.level < self.target(self.queue);
        }
        if self.starting {
            return RISE_START;
        }
        let queue = self.queue_slow;
        let scaled = queue / self.unit.scale();
        let fall = FALL_MAX + FALL_MAX_PER_QUEUE * scaled + FALL_MAX_PER_LOSS * self.loss;
        let rise = RISE_MAX + RISE_MAX_EMPTY * (1.0 - scaled / QUEUE_AT_UNIT).max(0.0);
        (APPROACH * (self.target(queue) - self.level)).clamp(-fall, rise)
    }

    /// Takes a round trip; by how much the queue has changed. What of a round trip is the way's
    /// follows from the smallest ones.
    fn on_round_trip(
        &mut self,
        now: Instant,
        round_trip: RoundTrip,
        passed: impl Fn(f64) -> f64,
    ) -> f64 {
        let sample = round_trip.sample.as_secs_f64();
        let kind = usize::from(round_trip.is_long);
        // The path's smallest one is not forgotten; ours may be.
        let news = round_trip.min != self.path_min[kind];
        let known = round_trip.min.filter(|_| news);
        self.path_min[kind] = round_trip.min;
        // A kind that is met only now has not been aged with the other.
        let aged = if self.base[kind].is_none() {
            self.aged
        } else {
            0.0
        };
        let known = known.map(|known| known.as_secs_f64() + aged);
        let least = [self.base[kind], known].into_iter().flatten();
        let base = least.fold(sample, f64::min);
        self.base[kind] = Some(base);
        let queue = sample - base;
        let change = (queue - self.queue) * passed(SMOOTHING_FAST * self.unit.scale());
        self.queue += change;
        self.queue_slow += (queue - self.queue_slow) * passed(SMOOTHING_SLOW);
        self.age(now, sample, queue);
        change
    }

    /// Forgets a smallest round trip that the way does not have any more.
    fn age(&mut self, now: Instant, sample: f64, queue: f64) {
        if queue <= AGED_QUEUE {
            (self.short_at, self.drain) = (now, None);
            return;
        }
        let Some(drain) = &mut self.drain else {
            if now.saturating_duration_since(self.short_at).as_secs_f64() >= AGED_AFTER {
                let span = Duration::from_secs_f64((sample + DRAIN_TIME).min(AGED_AFTER));
                self.drain = Some(Drain {
                    until: now + span,
                    least: queue,
                });
            }
            return;
        };
        drain.least = drain.least.min(queue);
        if now >= drain.until {
            let longer = drain.least;
            for base in self.base.iter_mut().flatten() {
                *base += longer;
            }
            self.aged += longer;
            for queue in [&mut self.queue, &mut self.queue_slow] {
                *queue = (*queue - longer).max(0.0);
            }
            (self.short_at, self.drain) = (now, None);
        }
    }

    /// What may be on the way, packets, and the rate, bit/s, of a start that has seen no queue.
    fn free_start(&self) -> Option<(f64, f64)> {
        let (arrived, base) = (self.free?, self.base()?);
        let packets = FREE_PACKETS + FREE_GROWTH * arrived;
        let span = (base + self.queue).max(FREE_SPAN);
        Some((packets, packets * self.packet * 8.0 / span))
    }

    /// Takes what arrived of a start. It ends at the level that all have at the queue that it sees, or
    /// at half its rate.
    fn on_free(&mut self, arrived: u64) {
        let (Some((_, rate)), Some(free)) = (self.free_start(), &mut self.free) else {
            return;
        };
        *free += arrived as f64;
        if self.queue >= QUEUE_AT_UNIT * self.unit.scale() || self.loss > 0.0 || *free >= FREE_TOTAL
        {
            self.free = None;
            let half = (rate / 2.0 / self.weight / self.unit.reference()).ln();
            self.level = self.level.max(half.min(self.target(self.queue)));
        }
    }

    fn round_trip(&self) -> f64 {
        // RFC 9002 §6.2.2 has 333 ms before the first sample; the rate bounds what that lets go.
        self.base().map_or(0.333, |base| base + self.queue)
    }

    /// Smallest round trip, s, of long packets if any were.
    fn base(&self) -> Option<f64> {
        let [short, long] = self.base;
        long.or(short)
    }
}

impl Controller for Keiro {
    fn allowance(&self) -> SendAllowance {
        let drain = if self.drain.is_some() { DRAIN } else { 1.0 };
        let rate = self.level.exp() * self.weight * self.unit.reference() * drain;
        let span = self.round_trip() * WINDOW_ROUND_TRIPS + WINDOW_SLACK;
        let window = rate / 8.0 * span + WINDOW_PACKETS * self.packet;
        let (packets, least) = self.free_start().unwrap_or_default();
        let (rate, window) = (rate.max(least), window.max(packets * self.packet));
        SendAllowance {
            window: ByteCount::new(window as u64),
            rate: Some(Bandwidth::from_bits_per_second(rate as u64)),
        }
    }

    fn on_feedback(&mut self, feedback: &Feedback) {
        let gap = feedback
            .now
            .saturating_duration_since(self.last_feedback_at);
        let gap = gap.as_secs_f64();
        self.last_feedback_at = feedback.now;
        self.packet = feedback.packet.get() as f64;
        self.unit.set_packet(self.packet);
        let passed = |constant: f64| (gap / constant).min(1.0);
        // A mark says what a loss says, without the loss (RFC 3168 §5).
        let bad = feedback
            .lost_packets
            .saturating_add(feedback.marked_packets) as f64;
        let resolved = feedback.lost_packets.saturating_add(feedback.acked_packets) as f64;
        if resolved > 0.0 {
            let share = (bad / resolved).min(1.0);
            let weight = passed(SMOOTHING_LOSS).min(resolved / SMOOTHING_LOSS_PACKETS);
            self.loss += (share - self.loss) * weight;
        }
        let change = feedback.round_trip.map_or(0.0, |round_trip| {
            self.on_round_trip(feedback.now, round_trip, passed)
        });
        self.on_free(feedback.acked_packets);
        let smoothing = SMOOTHING_FAST * self.unit.scale();
        let damping = (DAMPING / (self.round_trip() + smoothing)).min(DAMPING_MAX);
        let approach = self.approach() * gap.min(GAP_MAX);
        // Without being at its limit a tenant learns of queues, but not of what is free.
        let approach = if feedback.limited {
            approach
        } else {
            approach.min(0.0)
        };
        let step = approach - damping * change;
        self.level = (self.level + step.clamp(-STEP_MAX, STEP_MAX)).clamp(-BOUND, BOUND);
    }

    fn set_weight(&mut self, weight: Weight) {
        self.weight = weight.get();
    }

    fn terms(&self) -> Vec<(&'static str, f64)> {
        vec![
            ("queue_ms", self.queue_slow * 1e3),
            ("loss_share", self.loss),
            ("round_trip_min_ms", self.base().unwrap_or(0.0) * 1e3),
            ("curve_of_unit", self.target(self.queue_slow).exp()),
            ("rate_of_unit", self.level.exp()),
            ("unit_mbit", self.unit.reported_mbit()),
            ("capacity_mbit", self.unit.capacity_mbit()),
        ]
    }

    fn on_line(&mut self, line: Line) {
        let before = self.unit.beginning();
        self.unit.on_line(line);
        if self.starting {
            let beginning = self.unit.beginning();
            // A tenant that has not sent begins there; one that has does not go on above what it learns.
            self.level = match self.level <= before + START {
                true => beginning + START,
                false => self.level.min(beginning.max(before + START)),
            };
        }
    }

    fn found_unit(&self) -> Option<FoundUnit> {
        self.unit.found()
    }

    fn on_resume(&mut self, now: Instant) {
        self.level = self.level.min(self.unit.beginning() + START);
        self.starting = true;
        self.free = Some(0.0);
        (self.queue, self.queue_slow, self.loss) = (0.0, 0.0, 0.0);
        self.last_feedback_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MBIT: f64 = 1e6;
    const UNIT: Bandwidth = Bandwidth::from_mbit_per_second(4);

    /// A controller with its clock, fed one packet at a time.
    struct Driven {
        controller: Keiro,
        now: Instant,
        is_long: bool,
    }

    impl Driven {
        fn new() -> Self {
            let (now, packet) = (Instant::ZERO, ByteCount::new(1500));
            let controller = Keiro::new(now, Some(UNIT), Weight::ONE, packet);
            Self {
                controller,
                now,
                is_long: true,
            }
        }

        /// Feedback after `gap`, all in ms.
        fn feed(&mut self, gap: u64, round_trip: f64, lost: bool) {
            self.now += Duration::from_millis(gap);
            let lost = u64::from(lost);
            self.controller.on_feedback(&Feedback {
                now: self.now,
                acked: ByteCount::new(1500 * (1 - lost)),
                acked_packets: 1 - lost,
                lost_packets: lost,
                marked_packets: 0,
                round_trip: Some(RoundTrip {
                    sample: Duration::from_secs_f64(round_trip / 1e3),
                    is_long: self.is_long,
                    min: Some(Duration::from_millis(20)),
                }),
                in_flight: ByteCount::new(1500),
                limited: true,
                packet: ByteCount::new(1500),
            });
        }

        fn rate(&self) -> f64 {
            let rate = self
                .controller
                .allowance()
                .rate
                .map(Bandwidth::as_bits_per_second);
            rate.expect("it paces") as f64
        }
    }

    #[test]
    fn without_a_queue_the_rate_leaves_a_unit_that_is_too_small_behind() {
        let mut driven = Driven::new();
        for _ in 0..3000 {
            driven.feed(1, 20.0, false);
        }
        assert!(driven.rate() > 100.0 * MBIT, "{}", driven.rate());
        for _ in 0..10_000 {
            driven.feed(1, 60.0, false);
        }
        assert!(driven.rate() < 4.0 * MBIT, "{}", driven.rate());
    }

    /// A rest of 2 s on a way of 20 ms, and what a round trip may take then, packets.
    fn rested(driven: &mut Driven) -> f64 {
        driven.now += Duration::from_secs(2);
        driven.controller.on_resume(driven.now);
        driven.rate() * 0.02 / 8.0 / 1500.0
    }

    #[test]
    fn a_short_flow_after_a_rest_does_not_wait_where_there_is_no_queue() {
        let mut driven = Driven::new();
        driven.feed(20, 20.0, false);
        let window = driven.controller.allowance().window;
        assert!(rested(&mut driven) >= 10.0);
        assert!(window >= ByteCount::new(15_000));
        // Twenty packets arrive, a millisecond apart.
        for _ in 0..20 {
            driven.feed(1, 20.0, false);
        }
        assert!(driven.rate() * 0.02 / 8.0 / 1500.0 >= 20.0);
    }

    #[test]
    fn return_to_a_full_line_begins_with_a_part_of_the_unit() {
        for (round_trip, lost) in [(24.0, false), (20.0, true)] {
            let mut driven = Driven::new();
            driven.feed(20, 20.0, false);
            rested(&mut driven);
            driven.feed(20, round_trip, lost);
            assert!(driven.rate() <= 4.0 * MBIT, "{}", driven.rate());
        }
    }

    #[test]
    fn short_packets_on_a_lengthened_path_see_no_queue() {
        let mut driven = Driven::new();
        for step in 0..5500 {
            let round_trip = match step {
                0..1000 => 21.8,
                1000..4500 => 51.0,
                _ => 52.8,
            };
            driven.feed(10, round_trip, false);
        }
        let before = driven.rate();
        for step in 0..1000 {
            driven.is_long = step % 2 == 0;
            driven.feed(10, if driven.is_long { 52.8 } else { 52.0 }, false);
        }
        let ratio = driven.rate() / before;
        assert!((0.7..2.5).contains(&ratio), "{ratio} of {before}");
    }

    #[test]
    fn shorter_transmission_of_short_packets_is_no_queue() {
        let rates = [false, true].map(|begins_short| {
            let mut driven = Driven::new();
            driven.is_long = !begins_short;
            driven.feed(20, if begins_short { 19.0 } else { 20.0 }, false);
            driven.is_long = true;
            for _ in 0..3000 {
                driven.feed(1, 21.8, false);
            }
            driven.rate()
        });
        assert!((rates[0] / rates[1] - 1.0).abs() < 0.01, "{rates:?}");
    }

    fn feedback(driven: &Driven, acked: u64, marked: u64, limited: bool) -> Feedback {
        Feedback {
            now: driven.now,
            acked: ByteCount::new(1500 * acked),
            acked_packets: acked,
            lost_packets: 0,
            marked_packets: marked,
            round_trip: None,
            in_flight: ByteCount::new(1500),
            limited,
            packet: ByteCount::new(1500),
        }
    }

    #[test]
    fn a_marked_packet_lowers_the_rate_as_a_lost_one_does() {
        let rates = [0, 1].map(|marked| {
            let mut driven = Driven::new();
            for _ in 0..2000 {
                driven.feed(1, 21.8, false);
            }
            for _ in 0..2000 {
                driven.now += Duration::from_millis(1);
                let feedback = feedback(&driven, 1, marked, true);
                driven.controller.on_feedback(&feedback);
            }
            driven.rate()
        });
        assert!(rates[1] < 0.5 * rates[0], "{rates:?}");
    }

    #[test]
    fn a_tenant_that_sends_less_than_it_may_does_not_rise() {
        let rates = [true, false].map(|limited| {
            let mut driven = Driven::new();
            for _ in 0..1000 {
                driven.feed(1, 21.8, false);
            }
            let before = driven.rate();
            for _ in 0..3000 {
                driven.now += Duration::from_millis(1);
                let mut feedback = feedback(&driven, 1, 0, limited);
                feedback.round_trip = Some(RoundTrip {
                    sample: Duration::from_millis(20),
                    is_long: true,
                    min: Some(Duration::from_millis(20)),
                });
                driven.controller.on_feedback(&feedback);
            }
            driven.rate() / before
        });
        assert!(rates[0] > 2.0, "{rates:?}");
        // The queue fell by 1.8 ms, which is answered whether the tenant is limited or not.
        assert!(rates[1] < 1.5, "{rates:?}");
    }

    #[test]
    fn after_a_rest_the_rate_begins_below_the_unit_again() {
        let mut driven = Driven::new();
        for _ in 0..3000 {
            driven.feed(1, 20.0, false);
        }
        assert!(driven.rate() > 100.0 * MBIT, "{}", driven.rate());
        rested(&mut driven);
        assert!(driven.rate() < 10.0 * MBIT, "{}", driven.rate());
    }

    #[test]
    fn a_line_without_any_queue_is_not_kept_to_a_small_unit() {
        let mut driven = Driven::new();
        for _ in 0..5000 {
            driven.feed(1, 20.0, false);
        }
        assert!(driven.rate() > 4000.0 * MBIT, "{}", driven.rate());
    }

    #[test]
    fn one_loss_among_few_packets_costs_little() {
        let mut driven = Driven::new();
        for _ in 0..5000 {
            driven.feed(1, 21.5, false);
        }
        let before = driven.rate();
        // Three packets a second, and one of them is lost.
        for step in 0..30 {
            driven.feed(333, 21.5, step == 5);
            assert!(
                driven.rate() > before / 3.0,
                "{} of {before}",
                driven.rate()
            );
        }
    }

    #[test]
    fn longer_path_is_learnt_and_a_standing_queue_is_not() {
        for is_way in [true, false] {
            let mut driven = Driven::new();
            for _ in 0..1000 {
                driven.feed(10, 21.0, false);
            }
            let before = driven.rate();
            for _ in 0..3500 {
                // A queue goes away while all send little.
                let drained = driven.controller.drain.is_some() && !is_way;
                driven.feed(10, if drained { 22.0 } else { 51.0 }, false);
            }
            let ratio = driven.rate() / before;
            let base = driven.controller.base().expect("samples were driven");
            if is_way {
                assert!(
                    (base - 0.051).abs() < 1e-9 && ratio > 0.9,
                    "{base} s, {ratio}"
                );
            } else {
                assert!(base == 0.02 && ratio < 0.7, "{base} s, {ratio}");
            }
        }
    }
}
