//! The capacity of a path from trains of packets sent back to back.
//!
//! A bottleneck spreads a train: its packets leave one after the other at the bottleneck's rate,
//! and keep that spacing. Traffic of others that comes in between widens it, and packets that
//! queue again behind the bottleneck, or whose stamps are late, narrow it now and then (Dovrolis,
//! Ramanathan, Moore: What do packet dispersion techniques measure?, INFOCOM 2001). So the
//! estimate is neither the mean, which cross traffic lowers, nor the highest rate seen, which
//! noise raises, but the densest agreement among the *least spread* runs of packets: the leftmost
//! cluster of time per byte that enough of the trains have part in.
//!
//! Runs are parts of trains: short enough that some meet no cross traffic, long enough that the
//! noise of a stamp matters little. Capacity counts the bytes that the caller gives, normally of
//! IP packets. Pure: no clock, no sockets; the gateway's live estimate uses it as well.

pub mod cross;

use std::{fmt, time::Duration};

use keiro_units::Bandwidth;

/// A train as sent and as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Train {
    /// From the first packet's sending to the last one's, all packets sent. `None`: not known,
    /// taken as no time.
    pub send_span: Option<Duration>,
    /// Packets sent, at least as many as received.
    pub sent_packets: u32,
    /// Those that came, in order of arrival.
    pub received: Vec<Stamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Its place in the train as sent, from zero.
    pub index: u32,
    /// When it came, in nanoseconds of any epoch that the whole train shares.
    pub at_nanos: u64,
    pub bytes: u32,
}

/// What the estimate is made with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How much a stamp's noise may be worth: a run's span is at least fifty times as long where
    /// trains are long enough, and clusters are at least as wide as it makes them.
    pub stamp_noise: Duration,
    /// The fewest trains that count.
    pub trains_min: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capacity {
    /// Rate of the bottleneck.
    pub rate: Bandwidth,
    /// Lower end of the 95 % interval, of chance alone: cross traffic that no train escapes is
    /// not in it.
    pub low: Bandwidth,
    /// Upper end of it.
    pub high: Bandwidth,
    /// Trains with part in the cluster.
    pub trains_used: usize,
    /// The cluster's share of all runs: near 1 without cross traffic.
    pub agreement: f64,
}

/// Why there is no estimate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NoCapacity {
    /// Too few trains of at least two packets came.
    TooFewTrains { trains: usize, needed: usize },
    /// Too few trains agree: load leaves none undisturbed, or the path has no steady rate.
    NoAgreement {
        /// Trains in the largest cluster.
        agreeing: usize,
        /// All that count.
        trains: usize,
    },
    /// The packets came as they were sent, or all at once: the path is faster than the sender.
    SenderTooSlow {
        /// A bound from below.
        at_least: Bandwidth,
    },
}

impl fmt::Display for NoCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewTrains { trains, needed } => {
                write!(f, "{trains} trains came, {needed} are needed")
            }
            Self::NoAgreement { agreeing, trains } => write!(
                f,
                "the trains do not agree: at most {agreeing} of {trains} do"
            ),
            Self::SenderTooSlow { at_least } => write!(
                f,
                "the path carries packets as fast as they are sent: at least {at_least}"
            ),
        }
    }
}

impl std::error::Error for NoCapacity {}

impl Default for Settings {
    /// For kernel stamps.
    fn default() -> Self {
        Self {
            // Ours: what stamps of a busy virtual machine vary by.
            stamp_noise: Duration::from_micros(20),
            trains_min: 10,
        }
    }
}

/// Half of it on each side of a cluster's middle: runs this near to each other agree. Ours: half
/// of the 5 % that an estimate may be wrong by, so that the runs that met one packet of others
/// among forty form a cluster of their own.
const CLUSTER_WIDTH: f64 = 0.025;

/// Wider clusters mean nothing. Ours.
const CLUSTER_WIDTH_MAX: f64 = 0.25;

/// The share of all trains that must have part in a cluster. Ours: what noise brings out of
/// order is a few in a hundred; at 60 % load more than a fifth of short runs are undisturbed.
const TRAINS_SHARE_MIN: f64 = 0.2;

/// A cluster ends where it has this share of the densest one's runs and more. Ours, as above.
const DENSITY_SHARE_MIN: f64 = 0.15;

/// The longest run, in packets after its first. Ours: at 60 % load and a feed ten times as fast
/// as the bottleneck, one packet of others comes with 16.
const RUN_PACKETS_MAX: usize = 16;

/// How much of the sender's own rate an estimate may be.
const SENDER_SHARE_MAX: f64 = 0.9;

/// A run of packets of one train.
#[derive(Clone, Copy, Debug)]
struct Run {
    train: usize,
    nanos_per_byte: f64,
}

/// Estimates the capacity of the path that `trains` took.
///
/// # Errors
/// Why there is none.
pub fn estimate(trains: &[Train], settings: &Settings) -> Result<Capacity, NoCapacity> {
    let trains: Vec<&Train> = trains.iter().collect();
    estimate_of(&trains, settings)
}

/// The rate of a train's fastest run of [`RUN_PACKETS_MAX`]` / 2` packets after its first, or of
/// all, in bit/s; `None`: it has none with a span.
pub(crate) fn fastest_run(train: &Train) -> Option<f64> {
    let length = (RUN_PACKETS_MAX / 2).min(train.received.len().checked_sub(1)?);
    let rate = |run: &[Stamp]| {
        let (first, later) = run.split_first()?;
        let span = later.last()?.at_nanos.saturating_sub(first.at_nanos);
        let bytes: u64 = later.iter().map(|stamp| u64::from(stamp.bytes)).sum();
        (span > 0).then(|| bytes as f64 * 8e9 / span as f64)
    };
    let runs = train.received.windows(length + 1);
    runs.filter_map(rate).max_by(f64::total_cmp)
}

/// As [`estimate`], of trains that lie anywhere.
pub(crate) fn estimate_of(trains: &[&Train], settings: &Settings) -> Result<Capacity, NoCapacity> {
    let usable: Vec<&Train> = trains
        .iter()
        .copied()
        .filter(|t| t.received.len() >= 2)
        .collect();
    if usable.len() < settings.trains_min.max(2) {
        return Err(NoCapacity::TooFewTrains {
            trains: usable.len(),
            needed: settings.trains_min.max(2),
        });
    }
    let noise = settings.stamp_noise.as_nanos() as f64;
    let length = run_length(&usable, noise);
    let (mut runs, mut spans) = runs(&usable, length);
    let slowest_sender = sender_rate(&usable);
    // More than half in no time: nothing spread them.
    runs.retain(|run| run.nanos_per_byte > 0.0);
    if runs.len() * 2 <= spans.len() {
        return Err(NoCapacity::SenderTooSlow {
            at_least: Bandwidth::from_bits_per_second(slowest_sender.unwrap_or(0.0) as u64),
        });
    }
    runs.sort_unstable_by(|a, b| a.nanos_per_byte.total_cmp(&b.nanos_per_byte));
    let half = spans.len() / 2;
    let (_, typical, _) = spans.select_nth_unstable_by(half, f64::total_cmp);
    let typical = typical.max(1.0);
    let width = (2.0 * noise / typical).clamp(CLUSTER_WIDTH, CLUSTER_WIDTH_MAX);
    let cluster = cluster(&runs, usable.len(), width)?;
    let estimate = of_cluster(cluster, runs.len());
    match slowest_sender {
        Some(sender) if estimate.rate.as_bits_per_second() as f64 >= SENDER_SHARE_MAX * sender => {
            Err(NoCapacity::SenderTooSlow {
                at_least: estimate.low,
            })
        }
        _ => Ok(estimate),
    }
}

/// How many packets after the first a run has: enough for a span of fifty times the noise.
fn run_length(trains: &[&Train], noise: f64) -> usize {
    let mut gaps: Vec<f64> = trains
        .iter()
        .filter_map(|train| {
            let (first, last) = (train.received.first()?, train.received.last()?);
            let span = last.at_nanos.saturating_sub(first.at_nanos) as f64;
            Some(span / (train.received.len() - 1) as f64)
        })
        .collect();
    gaps.sort_by(f64::total_cmp);
    let gap = gaps.get(gaps.len() / 2).copied().unwrap_or(0.0).max(1.0);
    // Never less than half as many as allowed: longer runs of clean trains lose nothing.
    let wanted = (50.0 * noise / gap).ceil() as usize;
    wanted.clamp(RUN_PACKETS_MAX / 2, RUN_PACKETS_MAX)
}

/// Every run of `length` packets after its first, or of the whole train where that is shorter;
/// and their spans in nanoseconds.
fn runs(trains: &[&Train], length: usize) -> (Vec<Run>, Vec<f64>) {
    let (mut runs, mut spans) = (Vec::new(), Vec::new());
    for (number, train) in trains.iter().enumerate() {
        let length = length.min(train.received.len() - 1);
        for window in train.received.windows(length + 1) {
            // The bytes that left the bottleneck between the first stamp and the last are those
            // of all packets but the first; what was dropped before it took no time there.
            let bytes: u64 = window[1..].iter().map(|s| u64::from(s.bytes)).sum();
            let in_order = window.windows(2).all(|two| two[0].index < two[1].index);
            if bytes == 0 || !in_order {
                continue;
            }
            let span = window[length].at_nanos.saturating_sub(window[0].at_nanos) as f64;
            spans.push(span);
            runs.push(Run {
                train: number,
                nanos_per_byte: span / bytes as f64,
            });
        }
    }
    if spans.is_empty() {
        spans.push(0.0);
    }
    (runs, spans)
}

/// The median rate at which trains were sent, in bit/s; `None` if it is not known.
fn sender_rate(trains: &[&Train]) -> Option<f64> {
    let mut rates: Vec<f64> = trains
        .iter()
        .filter_map(|train| {
            let span = train.send_span?.as_nanos();
            let bytes = train.received.first()?.bytes;
            let sent = u64::from(bytes) * u64::from(train.sent_packets.saturating_sub(1));
            (span > 0).then(|| sent as f64 * 8e9 / span as f64)
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied()
}

/// The first cluster from the left, of sorted runs, that is dense enough and that enough trains
/// have part in.
fn cluster(runs: &[Run], trains: usize, width: f64) -> Result<&[Run], NoCapacity> {
    let mut end = 0;
    let counts: Vec<usize> = (0..runs.len())
        .map(|begin| {
            let limit = runs[begin].nanos_per_byte * (1.0 + width);
            while end < runs.len() && runs[end].nanos_per_byte <= limit {
                end += 1;
            }
            end - begin
        })
        .collect();
    let densest = counts.iter().copied().max().unwrap_or(0);
    let enough = (densest as f64 * DENSITY_SHARE_MIN).max(3.0);
    let needed = ((trains as f64 * TRAINS_SHARE_MIN).ceil() as usize).max(3);
    let mut largest = 0;
    for begin in 0..runs.len() {
        if (counts[begin] as f64) < enough {
            continue;
        }
        // Climb to the middle of this cluster: the fullest window that begins inside this one.
        let best = (begin..begin + counts[begin])
            .max_by_key(|candidate| (counts[*candidate], runs.len() - candidate))
            .unwrap_or(begin);
        let found = &runs[best..best + counts[best]];
        let mut is_member = vec![false; trains];
        for run in found {
            is_member[run.train] = true;
        }
        let members = is_member.iter().filter(|is| **is).count();
        largest = largest.max(members);
        if members >= needed {
            return Ok(found);
        }
    }
    Err(NoCapacity::NoAgreement {
        agreeing: largest,
        trains,
    })
}

/// The median over trains of each train's own median in the cluster; runs of one train overlap
/// and are not independent, trains are.
fn of_cluster(cluster: &[Run], runs: usize) -> Capacity {
    // By train; stable, so that each train's own are sorted, as the cluster is.
    let mut by_train = cluster.to_vec();
    by_train.sort_by_key(|run| run.train);
    let mut medians: Vec<f64> = by_train
        .chunk_by(|a, b| a.train == b.train)
        .map(middle_run)
        .collect();
    medians.sort_by(f64::total_cmp);
    let (least, most) = (medians[0], medians[medians.len() - 1]);
    let interval = median_interval(&medians).unwrap_or(MedianInterval {
        value: middle(&medians),
        low: least,
        high: most,
    });
    let rate = |nanos_per_byte: f64| Bandwidth::from_bits_per_second((8e9 / nanos_per_byte) as u64);
    Capacity {
        rate: rate(interval.value),
        low: rate(interval.high),
        high: rate(interval.low),
        trains_used: medians.len(),
        agreement: cluster.len() as f64 / runs as f64,
    }
}

/// A median with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MedianInterval {
    pub value: f64,
    /// Lower end of the interval of at least 95 %.
    pub low: f64,
    /// Upper end of it.
    pub high: f64,
}

/// The median of sorted values with the interval of order statistics that has it with at least
/// 95 %, whatever the distribution; `None` for fewer than six values.
pub fn median_interval(sorted: &[f64]) -> Option<MedianInterval> {
    let count = sorted.len();
    // How many values may be left out on each side: the largest k with 2·P(Bin(n, ½) < k) ≤ 5 %.
    let mut probability = 0.5f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let (mut tail, mut left_out) = (probability, 0);
    if count > COUNT_EXACT {
        // The normal approximation; powers of a half that small are zero.
        let n = count as f64;
        left_out = (n / 2.0 - 0.98 * n.sqrt()).floor() as usize;
    } else {
        while 2.0 * tail <= 0.05 && 2 * (left_out + 1) < count + 1 {
            left_out += 1;
            probability *= (count + 1 - left_out) as f64 / left_out as f64;
            tail += probability;
        }
    }
    (left_out > 0).then(|| MedianInterval {
        value: middle(sorted),
        low: sorted[left_out - 1],
        high: sorted[count - left_out],
    })
}

/// Up to here a half to the power of the count is a normal f64.
const COUNT_EXACT: usize = 1000;

/// The median of sorted runs, of which there is one at least.
fn middle_run(sorted: &[Run]) -> f64 {
    let half = sorted.len() / 2;
    let upper = sorted[half].nanos_per_byte;
    match sorted.len() % 2 {
        1 => upper,
        _ => (sorted[half - 1].nanos_per_byte + upper) / 2.0,
    }
}

/// The median of sorted values, of which there is one at least.
fn middle(sorted: &[f64]) -> f64 {
    let half = sorted.len() / 2;
    match sorted.len() % 2 {
        1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha12Rng;
    use rand_core::{RngCore, SeedableRng};

    use super::*;

    const BYTES: u32 = 1400;

    fn unit(rng: &mut ChaCha12Rng) -> f64 {
        (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Trains at a rate in Mbit/s, each stamp late by up to `noise`.
    fn clean(mbit: f64, packets: u32, trains: usize, noise: Duration, seed: u64) -> Vec<Train> {
        let mut rng = ChaCha12Rng::seed_from_u64(seed);
        let gap = f64::from(BYTES) * 8e3 / mbit;
        let train = |_| Train {
            send_span: Some(Duration::from_micros(3) * packets),
            sent_packets: packets,
            received: (0..packets)
                .map(|index| Stamp {
                    index,
                    at_nanos: (1e9
                        + f64::from(index) * gap
                        + unit(&mut rng) * noise.as_nanos() as f64)
                        as u64,
                    bytes: BYTES,
                })
                .collect(),
        };
        (0..trains).map(train).collect()
    }

    #[track_caller]
    fn assert_near(trains: &[Train], mbit: f64, tolerance: f64) -> Capacity {
        let found = estimate(trains, &Settings::default()).unwrap();
        let rate = found.rate.as_bits_per_second() as f64 / 1e6;
        let error = (rate / mbit - 1.0).abs();
        assert!(error <= tolerance, "{rate} instead of {mbit}: {found:?}");
        assert!(found.low <= found.rate && found.rate <= found.high);
        found
    }

    #[test]
    fn clean_trains_give_the_rate_in_spite_of_noisy_stamps() {
        for mbit in [1.0, 10.0, 100.0] {
            let trains = clean(mbit, 64, 30, Duration::from_micros(20), 1);
            let found = assert_near(&trains, mbit, 0.01);
            assert!(found.agreement > 0.8, "{found:?}");
        }
        let trains = clean(500.0, 64, 30, Duration::from_micros(10), 2);
        assert_near(&trains, 500.0, 0.03);
    }

    #[test]
    fn two_copies_count_as_a_packet_train() {
        let trains = clean(50.0, 2, 60, Duration::from_micros(5), 3);
        assert_near(&trains, 50.0, 0.02);
    }

    #[test]
    fn late_and_compressed_trains_do_not_count() {
        let mut trains = clean(50.0, 64, 40, Duration::from_micros(5), 4);
        for train in trains.iter_mut().take(4) {
            // Held up and let go at once, as by a stall.
            let last = train.received[63].at_nanos;
            for stamp in &mut train.received[20..] {
                stamp.at_nanos = last;
            }
        }
        assert_near(&trains, 50.0, 0.01);
    }

    #[test]
    fn lost_packets_take_no_time_at_the_bottleneck() {
        let mut trains = clean(50.0, 64, 40, Duration::from_micros(5), 5);
        for train in &mut trains {
            // Dropped at the tail of the buffer: what comes has the bottleneck's spacing.
            train.received.truncate(30);
        }
        assert_near(&trains, 50.0, 0.01);
    }

    #[test]
    fn there_is_a_reason_where_there_is_no_estimate() {
        let settings = Settings::default();
        let few = clean(50.0, 64, 9, Duration::ZERO, 6);
        assert_eq!(
            estimate(&few, &settings),
            Err(NoCapacity::TooFewTrains {
                trains: 9,
                needed: 10
            })
        );
        assert!(estimate(&[], &settings).is_err());
        let slow = Train {
            send_span: Some(Duration::from_millis(14)),
            ..clean(50.0, 64, 1, Duration::ZERO, 6)[0].clone()
        };
        let slow = vec![slow; 20];
        let found = estimate(&slow, &settings);
        assert!(
            matches!(found, Err(NoCapacity::SenderTooSlow { at_least })
                if at_least.as_bits_per_second() > 40_000_000),
            "{found:?}"
        );
        let mut instant = clean(50.0, 64, 20, Duration::ZERO, 6);
        for stamp in instant.iter_mut().flat_map(|train| &mut train.received) {
            stamp.at_nanos = 5;
        }
        let found = estimate(&instant, &settings);
        assert!(matches!(found, Err(NoCapacity::SenderTooSlow { .. })));
        let wild: Vec<Train> = (1..40)
            .map(|n| clean(1.3f64.powi(n), 8, 1, Duration::ZERO, 6)[0].clone())
            .collect();
        let found = estimate(&wild, &settings);
        assert!(
            matches!(found, Err(NoCapacity::NoAgreement { .. })),
            "{found:?}"
        );
    }

    #[test]
    fn absurd_timestamps_are_harmless() {
        let mut rng = ChaCha12Rng::seed_from_u64(7);
        for _ in 0..200 {
            let trains: Vec<Train> = (0..12)
                .map(|_| Train {
                    send_span: Some(Duration::from_nanos(rng.next_u64())),
                    sent_packets: rng.next_u32(),
                    received: (0..rng.next_u32() % 5)
                        .map(|_| Stamp {
                            index: rng.next_u32() % 4,
                            at_nanos: rng.next_u64(),
                            bytes: rng.next_u32() % 3,
                        })
                        .collect(),
                })
                .collect();
            let _ = estimate(&trains, &Settings::default());
        }
    }

    #[test]
    fn the_interval_of_a_median_is_that_of_the_binomial_distribution() {
        let values: Vec<f64> = (1..=2000).map(f64::from).collect();
        assert_eq!(median_interval(&values[..5]), None);
        // Tables of the sign test: n = 6: 1st and 6th; n = 10: 2nd and 9th; n = 25: 8th and 18th;
        // n = 100: 40th and 61st.
        for (count, low, high) in [
            (6, 1.0, 6.0),
            (10, 2.0, 9.0),
            (25, 8.0, 18.0),
            (100, 40.0, 61.0),
        ] {
            let found = median_interval(&values[..count]).unwrap();
            assert_eq!((found.low, found.high), (low, high), "{count}");
        }
        let large = median_interval(&values).unwrap();
        assert_eq!(large.value, 1000.5);
        assert!(large.low > 950.0 && large.high < 1050.0);
    }
}
