//! The order of a flow whose packets leave by several paths: the sender's side.
//!
//! A packet takes the path by which it arrives first, and so arrives in order as far as the delays are known. It says
//! how long it may wait for those before it, if they come later than predicted, and on which paths they may be. The
//! other side is `resequencer`.

use std::time::Duration;

use keiro_units::{Bandwidth, Instant};

use super::tenant::QueuedOrder;
use crate::{id::PathId, table::Table, wire::PacketOrder};

/// By how much the delays of the paths of one flow differ at most, with what a packet takes to leave. Ours: a transport
/// takes the longest delay for its round trip, and grows the slower for it.
const DELAYS_DIFFER_MAX: Duration = Duration::from_millis(55);
/// The same for a path that the flow uses, so that it does not come and go.
const DELAYS_DIFFER_KEPT: Duration = Duration::from_millis(70);
/// Another group of paths carries more by this part at least. Ours.
const GROUP_GAIN_MIN: f64 = 1.25;
/// What a path may take longer than predicted, beside its own delay and variation. Ours: what a radio or a queue on the
/// way takes. Too long a hold costs little, since one is over when every path has brought a later packet, and the
/// receiving transport waits for the missing one too; too short a hold looks like a loss.
const LATENESS: Duration = Duration::from_millis(10);
/// No packet waits longer than that. Ours: a transport's least retransmission timeout of 200 ms begins beyond the
/// round trip.
const HOLD_MAX: Duration = Duration::from_millis(250);

/// A path by which flows may leave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FlowChoice {
    pub(crate) path: PathId,
    /// From now until a packet that leaves as soon as the pacer lets it has arrived.
    pub(crate) delay: Duration,
    /// The same of the flow's next packet, behind what waits.
    pub(crate) arrival: Duration,
    /// Mean deviation of the path's round trip.
    pub(crate) variation: Duration,
    pub(crate) rate: Bandwidth,
}

/// The paths of a flow that may share it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct PathGroup(Vec<FlowChoice>);

/// What is known of the packets that one path has of a flow.
#[derive(Clone, Copy, Debug)]
struct PathTail {
    /// When the last of them arrives, as predicted.
    arrives: Instant,
    lateness: Duration,
}

/// The order of one flow.
#[derive(Debug)]
pub(super) struct FlowOrder {
    flow: u32,
    next: u32,
    /// When all packets so far have arrived, as predicted.
    all_arrive: Instant,
    tails: Table<PathId, PathTail>,
}

impl PathGroup {
    /// Those of `choices` that carry a flow best. `uses`: a path that the flow uses.
    ///
    /// Of all groups of paths whose delays differ little, it is the one with the highest rate, and the one with the
    /// shorter delays unless the other has a quarter more.
    pub(super) fn best(choices: &[FlowChoice], uses: impl Fn(PathId) -> bool) -> Self {
        let ordered = |choice: &&FlowChoice| choice.path.0 < PacketOrder::PATHS_END;
        let mut choices: Vec<FlowChoice> = choices.iter().filter(ordered).copied().collect();
        choices.sort_by_key(|choice| choice.delay);
        let group = |first: usize| {
            let least = choices[first].delay;
            let near = choices[first..].iter().filter(|choice| {
                let most = match uses(choice.path) {
                    true => DELAYS_DIFFER_KEPT,
                    false => DELAYS_DIFFER_MAX,
                };
                choice.delay <= least + most
            });
            Self(near.copied().collect())
        };
        let mut best = Self::default();
        for first in 0..choices.len() {
            let other = group(first);
            if other.rate() > best.rate() * GROUP_GAIN_MIN || best.0.is_empty() {
                best = other;
            }
        }
        best
    }

    fn rate(&self) -> f64 {
        let rates = self.0.iter().map(|of| of.rate.as_bits_per_second() as f64);
        rates.sum()
    }

    pub(super) fn has_several(&self) -> bool {
        self.0.len() > 1
    }

    fn get(&self, path: PathId) -> Option<&FlowChoice> {
        self.0.iter().find(|choice| choice.path == path)
    }

    /// The path by which the next packet arrives first.
    fn first_to_arrive(&self) -> Option<&FlowChoice> {
        self.0.iter().min_by_key(|choice| choice.arrival)
    }

    /// How much longer the slowest of them takes than `choice`.
    fn delay_beyond(&self, choice: &FlowChoice) -> Duration {
        let longest = self.0.iter().map(|other| other.delay).max();
        longest.unwrap_or_default().saturating_sub(choice.delay)
    }
}

impl FlowOrder {
    pub(super) fn new(now: Instant, flow: u32) -> Self {
        Self {
            flow,
            next: 0,
            all_arrive: now,
            tails: Table::default(),
        }
    }

    /// It has no numbers left.
    pub(super) fn is_used_up(&self) -> bool {
        self.next >= PacketOrder::NUMBER_END
    }

    /// Packets of the flow may be on the way by `path`.
    pub(super) fn uses(&self, path: PathId) -> bool {
        self.tails.contains(path)
    }

    /// The path and the place of the next packet. `home`: the path that the flow had to itself; the first packet with
    /// a place takes it, behind those without. `None`: there is no path.
    pub(super) fn on_packet(
        &mut self,
        now: Instant,
        home: PathId,
        group: &PathGroup,
    ) -> Option<(PathId, QueuedOrder)> {
        let at_home = group.get(home).filter(|_| self.next == 0);
        let choice = at_home.or_else(|| group.first_to_arrive())?;
        self.forget_arrived(now);
        let lateness = choice.delay + choice.variation * 4 + LATENESS;
        let arrives = now + choice.arrival;
        let others = self.tails.iter().filter(|(path, _)| *path != choice.path);
        let late = others.map(|(_, tail)| tail.lateness).max();
        let hold = self.all_arrive.saturating_duration_since(arrives) + late.unwrap_or(LATENESS);
        self.tails
            .insert(choice.path, PathTail { arrives, lateness });
        self.all_arrive = self.all_arrive.max(arrives);
        let paths = self.tails.keys().fold(0, |bits, path| bits | 1 << path.0);
        let order = PacketOrder {
            flow: self.flow,
            number: self.next,
            hold_ms: hold.min(HOLD_MAX).as_millis() as u16 + 1,
            paths,
        };
        self.next += 1;
        let allowed_wait = group.delay_beyond(choice);
        Some((
            choice.path,
            QueuedOrder {
                order,
                allowed_wait,
            },
        ))
    }

    /// Forgets paths on which nothing of the flow can be on the way any more.
    fn forget_arrived(&mut self, now: Instant) {
        self.tails
            .retain(|_, tail| tail.arrives + tail.lateness > now);
    }
}

#[cfg(test)]
mod tests {
    use keiro_units::ByteCount;

    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const PACKET: ByteCount = ByteCount::new(1500);

    /// A path with what waits for it.
    struct Line {
        path: PathId,
        delay: Duration,
        rate: Bandwidth,
        free_at: Instant,
    }

    fn line(path: u8, delay_ms: u32, mbit: u64) -> Line {
        Line {
            path: PathId(path),
            delay: delay_ms * MS,
            rate: Bandwidth::from_mbit_per_second(mbit),
            free_at: Instant::ZERO,
        }
    }

    impl Line {
        fn choice(&self, now: Instant) -> FlowChoice {
            let time = self.rate.transmission_time_ceil(PACKET);
            let waits = self.free_at.saturating_duration_since(now);
            FlowChoice {
                path: self.path,
                delay: self.delay + time,
                arrival: waits + self.delay + time,
                variation: Duration::ZERO,
                rate: self.rate,
            }
        }
    }

    fn group(lines: &[Line], now: Instant) -> PathGroup {
        let choices: Vec<FlowChoice> = lines.iter().map(|line| line.choice(now)).collect();
        PathGroup::best(&choices, |_| false)
    }

    #[test]
    fn packets_arrive_in_order_and_share_paths_by_their_rates() {
        let mut lines = [line(0, 10, 40), line(1, 30, 20)];
        let mut order = FlowOrder::new(Instant::ZERO, 7);
        let mut sent = [0; 2];
        let mut latest = Instant::ZERO;
        // 66 Mbit/s, more than both carry.
        for number in 0..5000 {
            let now = Instant::ZERO + 180 * number * Duration::from_micros(1);
            let (path, placed) = order
                .on_packet(now, PathId(0), &group(&lines, now))
                .expect("a path");
            let line = &mut lines[usize::from(path.0)];
            let arrives = now + line.choice(now).arrival;
            assert!(arrives >= latest, "packet {number}");
            latest = arrives;
            line.free_at = line.free_at.max(now) + line.rate.transmission_time_ceil(PACKET);
            sent[usize::from(path.0)] += 1;
            assert_eq!(placed.order.number, number);
            assert!(placed.order.hold_ms <= 80, "{placed:?}");
            let allowed = placed.allowed_wait.as_millis();
            assert_eq!(allowed > 15, path == PathId(0), "{placed:?}");
        }
        assert!(
            sent[0] > sent[1] * 18 / 10 && sent[0] < sent[1] * 23 / 10,
            "{sent:?}"
        );
    }

    #[test]
    fn a_flow_that_one_path_carries_stays_on_the_fastest() {
        let mut lines = [line(0, 10, 40), line(1, 30, 20)];
        let mut order = FlowOrder::new(Instant::ZERO, 7);
        for number in 0..1000 {
            let now = Instant::ZERO + 400 * number * Duration::from_micros(1);
            let (path, _) = order
                .on_packet(now, PathId(1), &group(&lines, now))
                .expect("a path");
            // The first follows what the flow has sent without places.
            assert_eq!(path, PathId(u8::from(number == 0)));
            let line = &mut lines[usize::from(path.0)];
            line.free_at = line.free_at.max(now) + line.rate.transmission_time_ceil(PACKET);
        }
    }

    #[test]
    fn paths_share_a_flow_if_their_delays_differ_little_and_it_gains() {
        let several = |lines: &[Line]| {
            let group = group(lines, Instant::ZERO);
            let paths: Vec<u8> = group.0.iter().map(|choice| choice.path.0).collect();
            paths
        };
        assert_eq!(several(&[line(0, 10, 40), line(1, 60, 20)]), [0, 1]);
        assert_eq!(several(&[line(0, 10, 40), line(1, 90, 20)]), [0]);
        // The far one has more.
        assert_eq!(several(&[line(0, 10, 10), line(1, 90, 20)]), [1]);
        assert_eq!(
            several(&[line(0, 10, 10), line(1, 90, 20), line(2, 100, 20)]),
            [1, 2]
        );
        assert_eq!(several(&[line(30, 10, 10)]), Vec::<u8>::new(), "no bit");
        assert_eq!(several(&[]), Vec::<u8>::new());
    }
}
