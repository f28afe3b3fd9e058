//! What ended connections say of an egress, and whether one egress is better than another.
//!
//! Three metrics are compared, each per connection, so that a few large connections do not decide:
//! the logarithm of the lowest round trip, the share of retransmitted segments, and the logarithm
//! of the goodput. Logarithms, because both spread over orders of magnitude among the clients of a
//! prefix. The goodput of a short connection is lower, since it ends during slow start: a goodput
//! counts relative to those of connections of its size ([`Sizes`]). The means are compared by
//! Welch's t test.

use std::time::Duration;

use keiro_model::welch::{Difference, Moments};

pub use crate::status::SteeringMetric as Metric;

/// Counters of an ended connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// The lowest round trip; zero: none was measured.
    pub rtt_min: Duration,
    /// Segments with data, retransmitted ones included.
    pub data_segments: u64,
    pub retransmitted_segments: u64,
    pub bytes_acked: u64,
    /// Time with data in flight.
    pub busy: Duration,
}

/// The connections of one egress.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    pub connections: u64,
    round_trip: Moments,
    retransmissions: Moments,
    /// Relative to connections of the same size.
    goodput: Moments,
    /// The sum of logarithms of bit/s of the same connections.
    goodput_sum: f64,
}

/// The mean logarithm of goodputs by size of the connections of a prefix. Sizes of a class differ
/// by a factor of less than four.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes([(f32, u32); CLASSES]);

/// The goodput of a connection as logarithm of bit/s, and the mean of connections of its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Goodput {
    own: f64,
    usual: f64,
}

/// How much better one egress is than another by one metric: in logarithms, or as a share of
/// segments.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gain {
    pub metric: Metric,
    pub estimate: f64,
    difference: Difference,
}

impl Metric {
    pub const ALL: [Self; 3] = [Self::RoundTrip, Self::Retransmissions, Self::Goodput];

    /// A smaller gain is not worth a move.
    fn margin(self) -> f64 {
        match self {
            Self::RoundTrip | Self::Goodput => RATIO_MARGIN.ln(),
            Self::Retransmissions => RETRANSMITTED_MARGIN,
        }
    }

    /// 1: more is better.
    fn sign(self) -> f64 {
        match self {
            Self::Goodput => 1.0,
            Self::RoundTrip | Self::Retransmissions => -1.0,
        }
    }
}

impl Sizes {
    /// The goodput of a connection; `None`: it has fewer bytes than `bytes_min`, or is the first of
    /// its size. With `learns` it changes the mean of its size.
    pub fn goodput(&mut self, of: &Transfer, bytes_min: u64, learns: bool) -> Option<Goodput> {
        if of.bytes_acked < bytes_min.max(1) {
            return None;
        }
        let seconds = of.busy.max(BUSY_MIN).as_secs_f64();
        let own = (of.bytes_acked as f64 * 8.0 / seconds).ln();
        let class = (of.bytes_acked.ilog2() / 2) as usize;
        let (mean, count) = self.0.get_mut(class.min(CLASSES - 1))?;
        let usual = f64::from(*mean);
        let is_first = *count == 0;
        if learns {
            // A slow mean: it must not follow what is to be detected.
            *count = (*count + 1).min(LEARNED_MAX);
            *mean += (own as f32 - *mean) / *count as f32;
        }
        (!is_first).then_some(Goodput { own, usual })
    }
}

impl Figures {
    /// Counts a connection; `goodput`: `None` does not count.
    pub fn add(&mut self, of: &Transfer, goodput: Option<Goodput>) {
        self.connections += 1;
        if !of.rtt_min.is_zero() {
            let micros = of.rtt_min.as_micros().max(1) as f64;
            self.round_trip.add(micros.ln());
        }
        if of.data_segments >= SEGMENTS_MIN {
            let again = of.retransmitted_segments.min(of.data_segments);
            self.retransmissions
                .add(again as f64 / of.data_segments as f64);
        }
        if let Some(Goodput { own, usual }) = goodput {
            self.goodput.add(own - usual);
            self.goodput_sum += own;
        }
    }

    pub fn merge(&mut self, other: &Self) {
        self.connections += other.connections;
        self.round_trip.merge(&other.round_trip);
        self.retransmissions.merge(&other.retransmissions);
        self.goodput.merge(&other.goodput);
        self.goodput_sum += other.goodput_sum;
    }

    fn of(&self, metric: Metric) -> &Moments {
        match metric {
            Metric::RoundTrip => &self.round_trip,
            Metric::Retransmissions => &self.retransmissions,
            Metric::Goodput => &self.goodput,
        }
    }

    /// The geometric mean; `None`: none was measured.
    pub fn rtt_micros(&self) -> Option<u64> {
        self.round_trip.mean().map(|mean| mean.exp().round() as u64)
    }

    /// The mean share of retransmitted segments.
    pub fn retransmitted_permyriad(&self) -> Option<u64> {
        let mean = self.retransmissions.mean();
        mean.map(|mean| (mean * 10_000.0).round() as u64)
    }

    /// The geometric mean of the goodput, in bit/s.
    pub fn bits_per_second(&self) -> Option<u64> {
        let count = self.goodput.count();
        (count > 0).then(|| (self.goodput_sum / count as f64).exp().round() as u64)
    }

    /// How much better this is than `other`; `None`: one of them has fewer than `count_min` values.
    pub fn gain(&self, other: &Self, metric: Metric, count_min: u64) -> Option<Gain> {
        let (own, others) = (self.of(metric), other.of(metric));
        if own.count().min(others.count()) < count_min {
            return None;
        }
        let difference = difference(own, others)?;
        Some(Gain {
            metric,
            estimate: difference.estimate * metric.sign(),
            difference,
        })
    }

    /// The metric by which this is better than `other` with this confidence, while no metric is
    /// worse; `None`: none.
    pub fn better(&self, other: &Self, confidence: f64, count_min: u64) -> Option<Gain> {
        let gains = Metric::ALL.map(|metric| self.gain(other, metric, count_min));
        let mut known = gains.iter().flatten();
        if known.any(|gain| gain.is_loss()) {
            return None;
        }
        let fits = |gain: &&Gain| {
            gain.estimate > gain.metric.margin()
                && gain.low(confidence) > 0.0
                && (gain.metric != Metric::RoundTrip || self.is_sooner(other))
        };
        let better = gains.iter().flatten().filter(fits).copied();
        better.max_by(|a, b| a.relative().total_cmp(&b.relative()))
    }

    /// Whether this seems better by any metric, with whatever confidence.
    pub fn seems_better(&self, other: &Self) -> bool {
        let gains = Metric::ALL
            .into_iter()
            .filter_map(|metric| self.gain(other, metric, 2));
        let mut gains = gains.map(|gain| gain.relative());
        gains.any(|relative| relative > SEEMING)
    }

    /// Whether the round trip is shorter by a time that matters.
    fn is_sooner(&self, other: &Self) -> bool {
        self.micros_sooner(other) >= RTT_MARGIN_MICROS
    }

    /// By how much the round trip is shorter; 0 where it is not, or not known.
    fn micros_sooner(&self, other: &Self) -> u64 {
        let known = self.rtt_micros().zip(other.rtt_micros());
        known.map_or(0, |(own, others)| others.saturating_sub(own))
    }

    /// Whether a gain over `other` for which this was chosen is too small to matter, surely or, for
    /// a round trip, by far.
    pub fn has_lost(&self, other: &Self, gain: &Gain, confidence: f64) -> bool {
        let is_short =
            gain.metric == Metric::RoundTrip && self.micros_sooner(other) < RTT_MARGIN_MICROS / 2;
        is_short || gain.high(confidence) < gain.metric.margin()
    }
}

impl Gain {
    /// The lower bound at this confidence.
    pub fn low(&self, confidence: f64) -> f64 {
        self.estimate - self.difference.reach(confidence)
    }

    /// The upper bound.
    pub fn high(&self, confidence: f64) -> f64 {
        self.estimate + self.difference.reach(confidence)
    }

    /// In margins of its metric, so that gains by different metrics can be compared.
    pub fn relative(&self) -> f64 {
        self.estimate / self.metric.margin()
    }

    /// Whether it is surely a loss that matters.
    fn is_loss(&self) -> bool {
        self.high(LOSS_CONFIDENCE) < -self.metric.margin()
    }

    /// A gain in thousandths: of the other's round trip or goodput, or of all segments.
    pub fn permille(&self, gain: f64) -> i64 {
        let share = match self.metric {
            Metric::RoundTrip => 1.0 - (-gain).exp(),
            Metric::Goodput => gain.exp() - 1.0,
            Metric::Retransmissions => gain,
        };
        (share * 1000.0).round() as i64
    }
}

/// Welch's difference, with the larger variance for both. A small sample of a metric with rare
/// large values, such as retransmissions, often has none of them, and so a variance near zero.
fn difference(first: &Moments, second: &Moments) -> Option<Difference> {
    let variance = first.variance()?.max(second.variance()?);
    let with = |of: &Moments| {
        Moments::from_parts(of.count(), of.mean()?, variance * (of.count() - 1) as f64)
    };
    Difference::of(&with(first)?, &with(second)?)
}

/// The ratio of round trips or goodputs that is worth a move. Ours.
const RATIO_MARGIN: f64 = 1.1;
/// The difference of round trips that is worth a move. Ours: below it no user notices.
const RTT_MARGIN_MICROS: u64 = 5_000;
/// The difference of retransmitted shares that is worth a move. Ours: at 0.5 % CUBIC gets 10 Mbit/s
/// at 20 ms.
const RETRANSMITTED_MARGIN: f64 = 0.005;
/// The confidence with which a metric is worse, so that a better one does not count. Ours.
const LOSS_CONFIDENCE: f64 = 0.9;
/// Sizes to 2^64 bytes, by powers of four.
const CLASSES: usize = 32;
/// Weight of the mean of a size, in connections. Ours.
const LEARNED_MAX: u32 = 2_000;
/// The gain in margins that a test must show to go on. Ours.
const SEEMING: f64 = 0.8;
/// Connections with fewer segments say nothing of loss. Ours.
const SEGMENTS_MIN: u64 = 10;
/// The kernel counts busy time in ticks of up to 10 ms (`CONFIG_HZ`).
const BUSY_MIN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections with these round trips and shares of retransmissions.
    fn of(transfers: impl IntoIterator<Item = (u64, u64)>) -> Figures {
        let mut all = Figures::default();
        for (rtt_millis, again) in transfers {
            let transfer = Transfer {
                rtt_min: Duration::from_millis(rtt_millis),
                data_segments: 100,
                retransmitted_segments: again,
                ..Transfer::default()
            };
            all.add(&transfer, None);
        }
        all
    }

    #[test]
    fn a_shorter_round_trip_is_better_and_a_longer_one_is_not() {
        let near = of((0..20).map(|n| (50 + n % 5, 0)));
        let far = of((0..200).map(|n| (90 + n % 5, 0)));
        let gain = near.better(&far, 0.999, 10).expect("it is better");
        assert_eq!(gain.metric, Metric::RoundTrip);
        assert!(
            (400..480).contains(&gain.permille(gain.estimate)),
            "{gain:?}"
        );
        assert_eq!(far.better(&near, 0.999, 10), None);
        assert_eq!(near.better(&far, 0.999, 21), None, "too few");
        // Ten per cent of a short round trip do not matter.
        let (one, two) = (of((0..99).map(|_| (10, 0))), of((0..99).map(|_| (13, 0))));
        assert_eq!(one.better(&two, 0.999, 10), None);
    }

    #[test]
    fn a_better_metric_does_not_count_where_another_one_is_worse() {
        let lossy = of((0..40).map(|n| (50, 3 + n % 3)));
        let far = of((0..200).map(|n| (90, n % 2)));
        assert_eq!(lossy.better(&far, 0.99, 10), None);
        assert_eq!(far.better(&lossy, 0.99, 10), None);
    }

    #[test]
    fn rare_losses_that_a_small_sample_happens_to_lack_are_no_gain() {
        let lucky = of((0..20).map(|_| (50, 0)));
        let rare = of((0..400).map(|n| (50, if n % 10 == 0 { 20 } else { 0 })));
        assert_eq!(lucky.better(&rare, 0.99, 10), None);
        let lossy = of((0..400).map(|n| (50, 1 + n % 3)));
        let gain = lucky.better(&lossy, 0.999, 10).unwrap();
        assert_eq!(
            (gain.metric, gain.permille(gain.estimate)),
            (Metric::Retransmissions, 20)
        );
    }

    #[test]
    fn unmeasured_metrics_do_not_count() {
        let mut none = Figures::default();
        for _ in 0..50 {
            none.add(
                &Transfer::default(),
                Sizes::default().goodput(&Transfer::default(), 0, true),
            );
        }
        let figures = (
            none.rtt_micros(),
            none.retransmitted_permyriad(),
            none.bits_per_second(),
        );
        assert_eq!((none.connections, figures), (50, (None, None, None)));
        let huge = Transfer {
            rtt_min: Duration::MAX,
            data_segments: 10,
            retransmitted_segments: u64::MAX,
            bytes_acked: u64::MAX,
            busy: Duration::ZERO,
        };
        let mut sizes = Sizes::default();
        for _ in 0..3 {
            none.add(&huge, sizes.goodput(&huge, 0, true));
        }
        assert_eq!(none.retransmitted_permyriad(), Some(10_000));
        assert!(none.bits_per_second().is_some());
    }

    #[test]
    fn goodputs_count_relative_to_connections_of_their_size() {
        let transfer = |bytes: u64, bits_per_second: u64| Transfer {
            bytes_acked: bytes,
            busy: Duration::from_secs_f64((bytes * 8) as f64 / bits_per_second as f64),
            ..Transfer::default()
        };
        let (mut sizes, mut short, mut long) =
            (Sizes::default(), Figures::default(), Figures::default());
        for _ in 0..20 {
            for (bytes, rate, figures) in [
                (100_000, 1_000_000, &mut short),
                (9_000_000, 20_000_000, &mut long),
            ] {
                let of = transfer(bytes, rate);
                figures.add(&of, sizes.goodput(&of, 1, true));
            }
        }
        let gain = long.gain(&short, Metric::Goodput, 10).unwrap();
        assert!(gain.estimate.abs() < 1e-3, "{gain:?}");
        let rates = (
            short.bits_per_second().unwrap(),
            long.bits_per_second().unwrap(),
        );
        assert!(
            rates.0.abs_diff(1_000_000) < 10 && rates.1.abs_diff(20_000_000) < 200,
            "{rates:?}"
        );
        assert_eq!(sizes.goodput(&transfer(999, 1_000_000), 1_000, true), None);
    }
}
