//! Fits and comparisons held against series whose truth is known.

use keiro_model::fit::{
    CompareError, Comparison, Fit, FitError, Interval, Network, Sample, SampleError,
};
use keiro_units::ByteCount;
use proptest::prelude::*;
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};

/// Lines as (seconds per byte, seconds) with the sizes at which they change.
#[derive(Clone)]
struct Truth {
    lines: Vec<(f64, f64)>,
    breaks: Vec<f64>,
}

/// How times vary.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// In proportion to the time.
    Relative(f64),
    /// By as many seconds whatever the time.
    Steady(f64),
    /// Both.
    Mixed(f64, f64),
    /// In proportion, and one transfer in twenty takes up to four times as long.
    Outliers(f64),
}

impl Truth {
    fn line(seconds_per_byte: f64, overhead: f64) -> Self {
        Self {
            lines: vec![(seconds_per_byte, overhead)],
            breaks: Vec::new(),
        }
    }

    /// Two lines of the paper, in its units, with the break at 10 MB.
    fn paper(below: (f64, f64), above: (f64, f64)) -> Self {
        let line = |(slope, intercept)| (slope / 1e6, intercept);
        Self {
            lines: vec![line(below), line(above)],
            breaks: vec![1e7],
        }
    }

    fn seconds(&self, bytes: f64) -> f64 {
        let (slope, overhead) = self.lines[self.breaks.iter().filter(|b| **b <= bytes).count()];
        slope * bytes + overhead
    }

    fn measure(&self, sizes: &[f64], repeats: usize, noise: Noise, seed: u64) -> Vec<Sample> {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        let mut samples = Vec::new();
        for &bytes in sizes {
            let typical = self.seconds(bytes);
            for _ in 0..repeats {
                let seconds = noise.apply(typical, &mut random).max(typical / 10.0);
                samples.push(sample(bytes, seconds));
            }
        }
        samples
    }
}

impl Noise {
    fn apply(self, seconds: f64, random: &mut ChaCha12Rng) -> f64 {
        match self {
            Self::Relative(share) => seconds * (1.0 + share * normal(random)),
            Self::Steady(steady) => seconds + steady * normal(random),
            Self::Mixed(steady, share) => {
                seconds * (1.0 + share * normal(random)) + steady * normal(random)
            }
            Self::Outliers(_) if uniform(random) < 0.05 => seconds * (1.5 + 2.5 * uniform(random)),
            Self::Outliers(share) => seconds * (1.0 + share * normal(random)),
        }
    }
}

fn uniform(random: &mut ChaCha12Rng) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
}

fn normal(random: &mut ChaCha12Rng) -> f64 {
    (-2.0 * uniform(random).ln()).sqrt() * (std::f64::consts::TAU * uniform(random)).cos()
}

fn sample(bytes: f64, seconds: f64) -> Sample {
    Sample::new(ByteCount::new(bytes as u64), seconds).unwrap()
}

/// 1 kB to 100 MB, log-spaced.
fn sizes(count: usize) -> Vec<f64> {
    let size = |i: usize| (1e3 * 1e5_f64.powf(i as f64 / (count - 1) as f64)).round();
    (0..count).map(size).collect()
}

fn lan() -> Truth {
    Truth::paper((0.0245, 0.00952), (0.0247, 0.00747))
}

fn campus() -> Truth {
    Truth::paper((0.0331, 0.0294), (0.0327, 0.0220))
}

fn internet() -> Truth {
    Truth::paper((0.6886, 0.6580), (1.0150, 2.6844))
}

/// 100 Mbit/s with 10 ms, until at 5 MB a buffer is full: 60 Mbit/s, and a jump of 0.2 s.
fn buffered() -> Truth {
    let below = (8.0 / 100e6, 0.010);
    let above = (8.0 / 60e6, 0.210 + 5e6 * (8.0 / 100e6 - 8.0 / 60e6));
    Truth {
        lines: vec![below, above],
        breaks: vec![5e6],
    }
}

/// How often intervals hold the truth: (slope, overhead, break).
fn coverage(truth: &Truth, noise: Noise, seeds: u64) -> (Vec<usize>, [f64; 3]) {
    let mut breaks = vec![0; 4];
    let (mut slopes, mut overheads, mut pieces, mut places) = (0, 0, 0, 0);
    for seed in 0..seeds {
        let fit = Fit::of(&truth.measure(&sizes(60), 10, noise, seed)).unwrap();
        breaks[fit.breaks().len()] += 1;
        if fit.breaks().len() != truth.breaks.len() {
            continue;
        }
        for (piece, (slope, overhead)) in fit.pieces().iter().zip(&truth.lines) {
            let line = piece.paper_line();
            let slope_interval = line.seconds_per_megabyte_interval;
            slopes += usize::from(slope_interval.contains(&(slope * 1e6)));
            overheads += usize::from(line.overhead_seconds_interval.contains(overhead));
            pieces += 1;
        }
        for (one, at) in fit.breaks().iter().zip(&truth.breaks) {
            places += usize::from(one.interval.contains(&ByteCount::new(*at as u64)));
        }
    }
    let right = breaks[truth.breaks.len()].max(1) as f64;
    let shares = [
        slopes as f64 / f64::from(pieces.max(1)),
        overheads as f64 / f64::from(pieces.max(1)),
        places as f64 / right,
    ];
    (breaks, shares)
}

#[test]
fn the_papers_networks_are_fitted_back_within_their_intervals() {
    // Noise that leaves each network's break to be seen; LAN's is 0.3 ms of 254.
    let cases = [
        ("campus", campus(), Noise::Steady(0.0005)),
        ("campus", campus(), Noise::Relative(0.01)),
        ("Internet", internet(), Noise::Relative(0.01)),
        ("Internet", internet(), Noise::Relative(0.05)),
        ("Internet", internet(), Noise::Mixed(0.01, 0.03)),
        ("Internet", internet(), Noise::Outliers(0.02)),
    ];
    for (name, truth, noise) in cases {
        let (breaks, [slope, overhead, place]) = coverage(&truth, noise, 50);
        assert!(breaks[1] >= 49, "{name} {noise:?}: breaks in {breaks:?}");
        // 100 lines: a true coverage of 95 % falls below 88 % once in two hundred.
        assert!(slope >= 0.88, "{name} {noise:?}: slopes {slope}");
        assert!(overhead >= 0.88, "{name} {noise:?}: overheads {overhead}");
        assert!(place >= 0.95, "{name} {noise:?}: breaks {place}");
    }
}

#[test]
fn noise_hides_the_break_of_the_papers_lan() {
    for noise in [
        Noise::Relative(0.03),
        Noise::Relative(0.05),
        Noise::Mixed(0.0005, 0.02),
        Noise::Outliers(0.03),
    ] {
        let mut none = 0;
        for seed in 0..25 {
            let fit = Fit::of(&lan().measure(&sizes(40), 10, noise, seed)).unwrap();
            none += usize::from(fit.breaks().is_empty());
            // Both lines are near 0.0246 s/MB, and one line for both is too.
            let slope = fit.pieces()[0].paper_line().seconds_per_megabyte;
            let near = (slope / 0.0246 - 1.0).abs() < 0.02;
            assert!(near || !fit.breaks().is_empty(), "seed {seed}: {slope}");
        }
        assert!(none >= 24, "{noise:?}: no break in {none} of 25");
    }
}

#[test]
fn one_line_gets_one_line_and_its_intervals_hold() {
    let truth = Truth::line(8.0 / 100e6, 0.010);
    for noise in [
        Noise::Relative(0.01),
        Noise::Relative(0.10),
        Noise::Steady(0.0005),
        Noise::Mixed(0.0005, 0.02),
        Noise::Outliers(0.02),
    ] {
        let (breaks, [slope, overhead, _]) = coverage(&truth, noise, 80);
        assert!(breaks[0] >= 78, "{noise:?}: breaks in {breaks:?}");
        assert!(slope >= 0.87, "{noise:?}: slopes {slope}");
        assert!(overhead >= 0.87, "{noise:?}: overheads {overhead}");
    }
}

#[test]
fn bandwidth_overhead_and_break_are_near_the_truth() {
    let noises = [
        Noise::Steady(0.0002),
        Noise::Relative(0.02),
        Noise::Mixed(0.0002, 0.02),
        Noise::Outliers(0.02),
    ];
    let truth = buffered();
    for noise in noises {
        for seed in 0..20 {
            let fit = Fit::of(&truth.measure(&sizes(80), 15, noise, seed)).unwrap();
            let said = format!("{noise:?}, seed {seed}: {:?}", fit.pieces());
            assert_eq!(fit.breaks().len(), 1, "{said}");
            for (piece, (slope, _)) in fit.pieces().iter().zip(&truth.lines) {
                let found = piece.bandwidth().as_bits_per_second() as f64;
                assert!((found * slope / 8.0 - 1.0).abs() < 0.02, "B: {said}");
            }
            let overhead = fit.pieces()[0].overhead_seconds();
            let off = (overhead - 0.010).abs();
            assert!(off < 0.05 * 0.010 || off < 0.0002, "oh: {said}");
            let at = fit.breaks()[0].bytes.get() as f64;
            assert!((at / 5e6 - 1.0).abs() < 0.10, "break {at}: {said}");
        }
    }
}

#[test]
fn sizes_that_were_not_measured_are_predicted() {
    let truth = buffered();
    for seed in 0..20 {
        let noise = Noise::Mixed(0.0002, 0.02);
        let fit = Fit::of(&truth.measure(&sizes(80), 15, noise, seed)).unwrap();
        let mut held = 0;
        let others = [
            1.5e3, 7e3, 33e3, 123e3, 777e3, 2.3e6, 7.1e6, 12e6, 45e6, 91e6,
        ];
        for bytes in others {
            let prediction = fit.predict(ByteCount::new(bytes as u64));
            let seconds = truth.seconds(bytes);
            let off = (prediction.seconds / seconds - 1.0).abs();
            assert!(off < 0.03, "seed {seed}, {bytes} bytes: off by {off}");
            assert!(!prediction.extrapolated);
            held += usize::from(prediction.interval.contains(&seconds));
            assert!(prediction.single.low < prediction.interval.low);
            assert!(prediction.single.high > prediction.interval.high);
        }
        assert!(
            held >= 6,
            "seed {seed}: {held} of 10 within their intervals"
        );
    }
}

#[test]
fn beyond_what_was_measured_is_said_to_be() {
    let truth = Truth::line(8.0 / 100e6, 0.010);
    let fit = Fit::of(&truth.measure(&sizes(20), 5, Noise::Relative(0.01), 1)).unwrap();
    assert!(fit.predict(ByteCount::new(200_000_000)).extrapolated);
    assert!(fit.predict(ByteCount::new(1)).extrapolated);
    assert!(!fit.predict(ByteCount::new(100_000_000)).extrapolated);
}

#[test]
fn inside_the_interval_of_a_break_both_lines_count() {
    let fit = Fit::of(&internet().measure(&sizes(30), 10, Noise::Relative(0.01), 3)).unwrap();
    let one = &fit.breaks()[0];
    let middle = ByteCount::new(u64::midpoint(
        one.interval.low.get(),
        one.interval.high.get(),
    ));
    let interval = fit.predict(middle).interval;
    for piece in fit.pieces() {
        assert!(interval.contains(&piece.seconds(middle.get() as f64)));
    }
}

#[test]
fn lines_that_meet_break_where_they_cross() {
    // Twice the slope from 3 MB on, without a jump.
    let slope = 8.0 / 100e6;
    let truth = Truth {
        lines: vec![(slope, 0.010), (2.0 * slope, 0.010 - slope * 3e6)],
        breaks: vec![3e6],
    };
    for seed in 0..20 {
        let noise = Noise::Mixed(0.0001, 0.005);
        let fit = Fit::of(&truth.measure(&sizes(30), 20, noise, seed)).unwrap();
        let one = &fit.breaks()[0];
        let off = (one.bytes.get() as f64 / 3e6 - 1.0).abs();
        assert!(
            fit.breaks().len() == 1 && off < 0.15,
            "seed {seed}: {one:?}"
        );
        assert!(
            one.interval.contains(&ByteCount::new(3_000_000)),
            "seed {seed}: {one:?}"
        );
    }
}

#[test]
fn two_breaks_are_found() {
    let truth = Truth {
        lines: vec![(8e-8, 0.010), (8e-8, 0.020), (12e-8, 0.1)],
        breaks: vec![1e5, 1e7],
    };
    for seed in 0..20 {
        let fit = Fit::of(&truth.measure(&sizes(60), 10, Noise::Relative(0.02), seed)).unwrap();
        let at: Vec<f64> = fit.breaks().iter().map(|b| b.bytes.get() as f64).collect();
        assert_eq!(at.len(), 2, "seed {seed}: {at:?}");
        assert!(
            (at[0] / 1e5 - 1.0).abs() < 0.11 && (at[1] / 1e7 - 1.0).abs() < 0.11,
            "{at:?}"
        );
    }
}

#[test]
fn very_many_sizes_still_give_a_close_break() {
    // 20,000 transfers, no two of one size.
    let mut random = ChaCha12Rng::seed_from_u64(5);
    let truth = internet();
    let samples: Vec<Sample> = (0..20_000)
        .map(|_| {
            let bytes = (1e3 * 1e5_f64.powf(uniform(&mut random))).round();
            let seconds = Noise::Relative(0.05).apply(truth.seconds(bytes), &mut random);
            sample(bytes, seconds)
        })
        .collect();
    let fit = Fit::of(&samples).unwrap();
    assert!(fit.sizes().len() <= 100);
    assert_eq!(fit.breaks().len(), 1);
    let one = &fit.breaks()[0];
    assert!((one.bytes.get() as f64 / 1e7 - 1.0).abs() < 0.02, "{one:?}");
    assert!(
        one.interval.contains(&ByteCount::new(10_000_000)),
        "{one:?}"
    );
    for (piece, (slope, _)) in fit.pieces().iter().zip(&truth.lines) {
        let found = piece.paper_line().seconds_per_megabyte;
        assert!((found / (slope * 1e6) - 1.0).abs() < 0.01, "{found}");
    }
}

#[test]
fn a_single_transfer_per_size_is_fitted_despite_outliers() {
    let truth = Truth::line(8.0 / 50e6, 0.030);
    let mut lines = 0;
    for seed in 0..40 {
        let fit = Fit::of(&truth.measure(&sizes(40), 1, Noise::Outliers(0.01), seed)).unwrap();
        let last = &fit.pieces()[fit.pieces().len() - 1];
        let found = last.bandwidth().as_bits_per_second() as f64;
        assert!((found / 50e6 - 1.0).abs() < 0.02, "seed {seed}: {found}");
        lines += usize::from(fit.breaks().is_empty());
    }
    // Where nothing was repeated, what is noise has to be guessed.
    assert!(lines >= 37, "one line in {lines} of 40");
}

#[test]
fn without_noise_the_lines_are_exact() {
    let samples = internet().measure(&sizes(40), 3, Noise::Steady(0.0), 0);
    let fit = Fit::of(&samples).unwrap();
    assert_eq!(fit.breaks().len(), 1);
    for (piece, (slope, overhead)) in fit.pieces().iter().zip(&internet().lines) {
        let line = piece.paper_line();
        assert!((line.seconds_per_megabyte / (slope * 1e6) - 1.0).abs() < 1e-9);
        assert!((line.overhead_seconds / overhead - 1.0).abs() < 1e-6);
    }
    assert!(
        fit.residuals()
            .all(|r| (r.fitted_seconds / r.sample.seconds() - 1.0).abs() < 1e-9)
    );
}

#[test]
fn the_order_of_the_samples_does_not_matter() {
    let samples = campus().measure(&sizes(30), 5, Noise::Relative(0.02), 9);
    let mut turned = samples.clone();
    turned.reverse();
    let (one, other) = (Fit::of(&samples).unwrap(), Fit::of(&turned).unwrap());
    assert_eq!(one.pieces(), other.pieces());
    assert_eq!(one.breaks(), other.breaks());
}

#[test]
fn what_cannot_be_fitted_is_refused_with_the_reason() {
    let few = [sample(1e3, 0.1), sample(1e6, 0.2)];
    assert_eq!(
        Fit::of(&few).unwrap_err(),
        FitError::TooFewPoints { points: 2 }
    );
    assert_eq!(
        Fit::of(&[]).unwrap_err(),
        FitError::TooFewPoints { points: 0 }
    );
    let bytes = ByteCount::new(1000);
    let same: Vec<Sample> = (1..20).map(|i| sample(1e3, 0.1 * f64::from(i))).collect();
    assert_eq!(Fit::of(&same).unwrap_err(), FitError::OneSize { bytes });
    let falling = Truth::line(-1e-9, 0.5).measure(&sizes(20), 5, Noise::Relative(0.01), 0);
    let refused = Fit::of(&falling).unwrap_err();
    assert!(matches!(refused, FitError::NotRising { .. }), "{refused:?}");
    assert!(!refused.hint().is_empty() && refused.to_string().contains("do not rise"));
}

#[test]
fn numbers_that_are_no_transfer_are_refused() {
    let bytes = ByteCount::new(1000);
    assert_eq!(Sample::new(ByteCount::ZERO, 1.0), Err(SampleError::NoBytes));
    assert_eq!(Sample::new(bytes, 0.0), Err(SampleError::NoTime(0.0)));
    assert_eq!(Sample::new(bytes, -1.0), Err(SampleError::NoTime(-1.0)));
    assert_eq!(Sample::new(bytes, f64::NAN), Err(SampleError::NotFinite));
    assert_eq!(
        Sample::new(bytes, f64::INFINITY),
        Err(SampleError::NotFinite)
    );
}

#[test]
fn a_crossover_is_where_equation_2_has_it() {
    // Network 1: 100 Mbit/s, 50 ms; network 2: 20 Mbit/s, 5 ms. Equation 2:
    // 0.045 s = 8n(1/20 − 1/100)/10^6, n = 140,625 bytes.
    let wide = Truth::line(8.0 / 100e6, 0.050);
    let near = Truth::line(8.0 / 20e6, 0.005);
    for seed in 0..20 {
        let fit = |truth: &Truth, seed| {
            Fit::of(&truth.measure(&sizes(40), 15, Noise::Mixed(0.0002, 0.02), seed)).unwrap()
        };
        let (a, b) = (fit(&wide, seed), fit(&near, seed + 1000));
        let comparison = Comparison::of(&a, &b, None, seed).unwrap();
        let [crossover] = comparison.crossovers[..] else {
            panic!("seed {seed}: {comparison:?}");
        };
        let off = (crossover.bytes.get() as f64 / 140_625.0 - 1.0).abs();
        assert!(off < 0.05, "seed {seed}: {crossover:?}");
        assert_eq!(crossover.faster_above, Network::A);
        assert!(!crossover.at_break && crossover.probability > 0.99);
        let [below, above] = comparison.stretches[..] else {
            panic!("seed {seed}: {comparison:?}");
        };
        assert_eq!(below.faster, Some(Network::B));
        assert_eq!(above.faster, Some(Network::A));
        assert!(below.probability > 0.99 && above.probability > 0.99);
        let sure = below.sure.unwrap();
        assert!(sure.low == ByteCount::new(1000) && sure.high <= crossover.bytes);
    }
}

#[test]
fn the_edge_of_sure_sizes_is_where_95_per_cent_of_draws_agree() {
    // Where lines cross at one size in every draw, a stretch is sure up to its 95 % edge, which
    // lies between the sizes that are looked at first: it must come close to the crossover as the
    // measurements become precise.
    let wide = Truth::line(8.0 / 100e6, 0.050);
    let near = Truth::line(8.0 / 20e6, 0.005);
    let fit = |truth: &Truth, seed| {
        Fit::of(&truth.measure(&sizes(40), 200, Noise::Relative(0.001), seed)).unwrap()
    };
    let comparison = Comparison::of(&fit(&wide, 1), &fit(&near, 2), None, 3).unwrap();
    let crossover = comparison.crossovers[0];
    let interval = crossover.interval.unwrap();
    let [below, above] = comparison.stretches[..] else {
        panic!("{comparison:?}");
    };
    // One-sided 95 % lies inside of two-sided 95 %.
    let (low, high) = (below.sure.unwrap().high, above.sure.unwrap().low);
    assert!(
        interval.low <= low && low < crossover.bytes,
        "{low} {interval:?}"
    );
    assert!(
        crossover.bytes < high && high <= interval.high,
        "{high} {interval:?}"
    );
}

#[test]
fn two_sizes_and_few_repetitions_are_not_exact() {
    // Three of one size and one of another: the repetitions are all there is to go by.
    let times = [(1000, 0.010), (1000, 0.011), (1000, 0.012), (100_000, 0.1)];
    let samples: Vec<Sample> = times.map(|(n, t)| sample(f64::from(n), t)).to_vec();
    let fit = Fit::of(&samples).unwrap();
    let overhead = fit.pieces()[0].overhead_interval();
    assert!(
        overhead.high - overhead.low > 0.001 && overhead.contains(&0.0101),
        "{overhead:?}"
    );
}

#[test]
fn intervals_of_crossovers_hold_the_truth() {
    let wide = Truth::line(8.0 / 100e6, 0.050);
    let near = Truth::line(8.0 / 20e6, 0.005);
    let held = (0..50).filter(|seed| {
        let fit = |truth: &Truth, seed| {
            Fit::of(&truth.measure(&sizes(30), 8, Noise::Relative(0.05), seed)).unwrap()
        };
        let (a, b) = (fit(&wide, *seed), fit(&near, seed + 1000));
        let comparison = Comparison::of(&a, &b, None, *seed).unwrap();
        let interval = comparison.crossovers[0].interval.unwrap();
        interval.contains(&ByteCount::new(140_625))
    });
    let held = held.count();
    assert!(held >= 43, "{held} of 50");
}

#[test]
fn a_jump_can_be_a_crossover() {
    // B begins slower and stays as it is; A jumps past it at 5 MB.
    let other = Truth::line(8.0 / 90e6, 0.012);
    let noise = Noise::Mixed(0.0001, 0.01);
    let a = Fit::of(&buffered().measure(&sizes(80), 15, noise, 1)).unwrap();
    let b = Fit::of(&other.measure(&sizes(80), 15, noise, 2)).unwrap();
    let comparison = Comparison::of(&a, &b, None, 3).unwrap();
    let [crossover] = comparison.crossovers[..] else {
        panic!("{comparison:?}");
    };
    assert!(crossover.at_break);
    assert_eq!(crossover.faster_above, Network::B);
    assert!((crossover.bytes.get() as f64 / 5e6 - 1.0).abs() < 0.05);
}

#[test]
fn a_network_is_not_surely_faster_than_itself() {
    let truth = Truth::line(8.0 / 100e6, 0.010);
    let fit = |seed| Fit::of(&truth.measure(&sizes(30), 10, Noise::Relative(0.03), seed)).unwrap();
    let same = Comparison::of(&fit(1), &fit(1), None, 0).unwrap();
    assert!(same.crossovers.is_empty());
    assert_eq!(same.stretches[0].faster, None);
    assert_eq!(same.stretches[0].sure, None);
    // Of two measurements of one network, one is surely the faster by chance in few.
    let surely = (0..20).filter(|seed| {
        let comparison = Comparison::of(&fit(2 * seed), &fit(2 * seed + 1), None, 0).unwrap();
        let middle = ByteCount::new(300_000);
        let holds = |sure: Interval<ByteCount>| sure.contains(&middle);
        comparison
            .stretches
            .iter()
            .any(|s| s.sure.is_some_and(holds))
    });
    let surely = surely.count();
    assert!(surely <= 5, "{surely} of 20");
}

#[test]
fn the_same_seed_gives_the_same_comparison() {
    let a = Fit::of(&internet().measure(&sizes(30), 5, Noise::Relative(0.05), 1)).unwrap();
    let b = Fit::of(&campus().measure(&sizes(30), 5, Noise::Relative(0.05), 2)).unwrap();
    let compare = |seed| Comparison::of(&a, &b, None, seed).unwrap();
    assert_eq!(compare(7), compare(7));
}

#[test]
fn nothing_in_common_cannot_be_compared() {
    let truth = Truth::line(8.0 / 100e6, 0.010);
    let (low, high) = (sizes(40)[..15].to_vec(), sizes(40)[25..].to_vec());
    let a = Fit::of(&truth.measure(&low, 10, Noise::Steady(1e-6), 1)).unwrap();
    let b = Fit::of(&truth.measure(&high, 10, Noise::Steady(1e-6), 2)).unwrap();
    let refused = Comparison::of(&a, &b, None, 0).unwrap_err();
    assert!(matches!(refused, CompareError::NothingInCommon { .. }));
    // A range of one's own is an extrapolation that was asked for.
    let range = ByteCount::new(1000)..=ByteCount::new(100_000_000);
    assert!(Comparison::of(&a, &b, Some(range), 0).is_ok());
    let reversed = ByteCount::new(2000)..=ByteCount::new(1000);
    let refused = Comparison::of(&a, &b, Some(reversed), 0).unwrap_err();
    assert_eq!(refused, CompareError::EmptyRange);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_measured_is_fitted_or_refused(
        points in prop::collection::vec((1_u64..1 << 53, 1e-9_f64..1e9), 0..60),
        sizes in prop::collection::vec((1_u64..20, 1e-6_f64..10.0), 0..60),
        bytes in 0_u64..u64::MAX,
    ) {
        let all = [points, sizes];
        let fits: Vec<Option<Fit>> = all
            .iter()
            .map(|points| {
                let samples: Vec<Sample> =
                    points.iter().map(|p| Sample::new(ByteCount::new(p.0), p.1).unwrap()).collect();
                Fit::of(&samples).ok()
            })
            .collect();
        for fit in fits.iter().flatten() {
            prop_assert_eq!(fit.pieces().len(), fit.breaks().len() + 1);
            let prediction = fit.predict(ByteCount::new(bytes));
            prop_assert!(prediction.seconds.is_finite());
            prop_assert!(prediction.interval.contains(&prediction.seconds));
            for piece in fit.pieces() {
                prop_assert!(piece.first <= piece.last);
            }
            for one in fit.breaks() {
                prop_assert!(one.interval.contains(&one.bytes), "{:?}", one);
            }
        }
        if let [Some(a), Some(b)] = &fits[..]
            && let Ok(comparison) = Comparison::of(a, b, None, 1)
        {
            prop_assert_eq!(comparison.stretches.len(), comparison.crossovers.len() + 1);
        }
    }
}
