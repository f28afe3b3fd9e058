//! Transfer times: one line, a line with a break, and two lines that cross.

use std::time::Duration;

use keiro_lab::Interrupts;
use keiro_measure::net::{
    Connection, Direction, NetError, Session, TransferPlan, Transfers, log_spaced,
    measure_transfers,
};
use keiro_model::fit::{Comparison, Fit, Sample};
use keiro_units::ByteCount;

use crate::{
    Failed, SEED,
    laboratory::{Network, in_time, measured},
    verdicts::{Bound, Figure, Verdicts},
};

const BANDWIDTH: Bound = Bound::percent(2.0);
const OVERHEAD: Bound = Bound {
    percent: 5.0,
    or_absolute: Some(0.2),
};
const PREDICTION: Bound = Bound::percent(3.0);
const BREAK: Bound = Bound::percent(10.0);
const CROSSOVER: Bound = Bound::percent(5.0);

/// B, oh and times of sizes that were not measured, on a link without a break.
pub(crate) fn line(
    interrupts: &Interrupts,
    network: Network,
    verdicts: &mut Verdicts,
) -> Result<(), Failed> {
    let lab = network.up(interrupts)?;
    // Between 0.1 s and 1.5 s.
    let sizes = log_spaced(1_000, u64::from(network.mbit) * 200_000, 3)?;
    let measure = |sizes: &[u64]| {
        let plan = plan(network, sizes, 45);
        in_time(&lab, || measured(&lab, |session| series(session, &plan)))
    };
    let (fitted, others) = (measure(&sizes)?, measure(&between(&sizes))?);
    let fit = fit(&fitted)?;
    let (first, last) = (&fit.pieces()[0], &fit.pieces()[fit.pieces().len() - 1]);
    verdicts.heading(&network.to_string());
    let found = last.bandwidth().as_bits_per_second() as f64 / 1e6;
    verdicts.check(
        "B",
        Figure {
            found,
            truth: network.bandwidth_mbit(),
            unit: "Mbit/s",
        },
        BANDWIDTH,
    );
    let found = first.overhead_seconds() * 1e3;
    verdicts.check(
        "oh",
        Figure {
            found,
            truth: network.overhead_ms(),
            unit: "ms",
        },
        OVERHEAD,
    );
    predictions(&fit, &others, verdicts);
    Ok(lab.down()?)
}

/// The same values and the break, behind a token bucket.
///
/// Transfers begin with a full bucket of s bytes. Let p be the payload rate of the link and q < p the fill
/// rate of the bucket, both in byte/s, and d the link's delay. At t after the first byte, at most pt (the
/// link) and at most s + qt (the bucket) have left:
///
/// - n ≤ pt gives T(n) = d + n/p for small n,
/// - n ≤ s + qt gives T(n) = d + (n − s)/q for large n, so B = 8q and oh = d − s/q,
/// - both are equal at the break n = s·p/(p − q); the time does not jump there.
///
/// Rates of the link count 1500 bytes per 1448 bytes of payload, those of the bucket 1514.
pub(crate) fn broken_line(
    interrupts: &Interrupts,
    network: Network,
    verdicts: &mut Verdicts,
) -> Result<(), Failed> {
    let shaper = network.shaper.ok_or("no shaper")?;
    let lab = network.up(interrupts)?;
    let (p, q) = (network.bandwidth_mbit(), shaper.bandwidth_mbit());
    let burst = shaper.burst_payload_bytes();
    let knee = burst * p / (p - q);
    // One and a half decades below the break, and more than half a decade above it.
    let sizes = log_spaced(10_000, 4_000_000, 8)?;
    let measure = |sizes: &[u64]| {
        let plan = plan(network, sizes, 75);
        in_time(&lab, || measured(&lab, |session| series(session, &plan)))
    };
    let (fitted, others) = (measure(&sizes)?, measure(&between(&sizes))?);
    let fit = fit(&fitted)?;
    verdicts.heading(&network.to_string());
    verdicts.check_count("breaks", fit.breaks().len(), 1);
    if let ([below, above], [one]) = (fit.pieces(), fit.breaks()) {
        // The overhead above the break is the line's intercept, which is negative.
        let delay = network.overhead_ms();
        let overheads = [delay, delay - burst * 8.0 / q / 1e3];
        for ((piece, place), (bandwidth, overhead)) in [(below, "below"), (above, "above")]
            .into_iter()
            .zip([p, q].into_iter().zip(overheads))
        {
            let found = piece.bandwidth().as_bits_per_second() as f64 / 1e6;
            let what = format!("B {place}");
            verdicts.check(
                &what,
                Figure {
                    found,
                    truth: bandwidth,
                    unit: "Mbit/s",
                },
                BANDWIDTH,
            );
            let found = piece.overhead_seconds() * 1e3;
            let what = format!("oh {place}");
            verdicts.check(
                &what,
                Figure {
                    found,
                    truth: overhead,
                    unit: "ms",
                },
                OVERHEAD,
            );
        }
        let found = one.bytes.get() as f64 / 1e3;
        verdicts.check(
            "break",
            Figure {
                found,
                truth: knee / 1e3,
                unit: "kB",
            },
            BREAK,
        );
    }
    predictions(&fit, &others, verdicts);
    Ok(lab.down()?)
}

/// The size at which two networks take the same time: from their fits, and from transfers of sizes around it
/// that the fits do not use.
pub(crate) fn crossover(
    interrupts: &Interrupts,
    networks: [Network; 2],
    verdicts: &mut Verdicts,
) -> Result<(), Failed> {
    // Equation 2 locates the crossover.
    let [a, b] = networks;
    let seconds_per_bit = (1.0 / a.bandwidth_mbit() - 1.0 / b.bandwidth_mbit()) / 1e6;
    let expected = f64::from(b.delay_ms - a.delay_ms) / 1e3 / seconds_per_bit / 8.0;
    let close = log_spaced((expected * 0.6) as u64, (expected * 1.6) as u64, 20)?;
    let mut fits = Vec::new();
    let mut closely = Vec::new();
    for network in networks {
        let lab = network.up(interrupts)?;
        let sizes = log_spaced(1_000, 3_000_000, 4)?;
        let measure =
            |plan: &TransferPlan| in_time(&lab, || measured(&lab, |session| series(session, plan)));
        fits.push(fit(&measure(&plan(network, &sizes, 60))?)?);
        closely.push(measure(&TransferPlan {
            precision: 0.002,
            ..plan(network, &close, 60)
        })?);
        lab.down()?;
    }
    verdicts.heading(&format!("{a} (A) and {b} (B)"));
    let truth = crossing(&closely[0], &closely[1]).ok_or("they do not cross")?;
    let compared = Comparison::of(&fits[0], &fits[1], None, SEED).map_err(|e| e.to_string())?;
    verdicts.check_count("crossovers", compared.crossovers.len(), 1);
    if let Some(one) = compared.crossovers.first() {
        let found = one.bytes.get() as f64 / 1e3;
        verdicts.check(
            "crossover, measured",
            Figure {
                found,
                truth: truth / 1e3,
                unit: "kB",
            },
            CROSSOVER,
        );
        let by_equation = Figure {
            found,
            truth: expected / 1e3,
            unit: "kB",
        };
        verdicts.check("crossover, eq. 2", by_equation, CROSSOVER);
    }
    Ok(())
}

/// Size at which the medians of two series with the same sizes are equal, by a regression line through their
/// differences.
fn crossing(a: &Transfers, b: &Transfers) -> Option<f64> {
    let differences: Vec<(f64, f64)> = a
        .series
        .iter()
        .zip(&b.series)
        .filter(|(a, b)| !a.seconds.is_empty() && !b.seconds.is_empty())
        .map(|(a, b)| (a.bytes as f64, median(&a.seconds) - median(&b.seconds)))
        .collect();
    let count = differences.len() as f64;
    let mean = |of: fn(&(f64, f64)) -> f64| differences.iter().map(of).sum::<f64>() / count;
    let (x, y) = (mean(|d| d.0), mean(|d| d.1));
    let across: f64 = differences.iter().map(|d| (d.0 - x) * (d.1 - y)).sum();
    let along: f64 = differences.iter().map(|d| (d.0 - x).powi(2)).sum();
    let root = x - y / (across / along);
    let (first, last) = (differences.first()?.0, differences.last()?.0);
    (first..=last).contains(&root).then_some(root)
}

fn plan(network: Network, sizes: &[u64], seconds: u64) -> TransferPlan {
    TransferPlan {
        sizes: sizes.to_vec(),
        direction: Direction::There,
        connection: Connection::Warm,
        precision: 0.01,
        budget: Duration::from_secs(seconds),
        repeats_max: 50,
        pause: network.pause(),
        seed: SEED,
    }
}

fn series(session: &mut Session<'_>, plan: &TransferPlan) -> Result<Transfers, NetError> {
    let mut found = Transfers::default();
    measure_transfers(session, plan, &mut found, &mut |_| {}).map(|()| found)
}

/// Geometric means of neighbouring sizes.
fn between(sizes: &[u64]) -> Vec<u64> {
    let pairs = sizes.windows(2);
    pairs
        .map(|two| (two[0] as f64 * two[1] as f64).sqrt() as u64)
        .collect()
}

fn fit(found: &Transfers) -> Result<Fit, Failed> {
    let samples: Vec<Sample> = found
        .samples
        .iter()
        .filter_map(|timed| Sample::new(ByteCount::new(timed.bytes), timed.seconds).ok())
        .collect();
    Ok(Fit::of(&samples).map_err(|error| error.to_string())?)
}

/// The size with the greatest difference between measured time and fit.
fn predictions(fit: &Fit, others: &Transfers, verdicts: &mut Verdicts) {
    let worst = others
        .series
        .iter()
        .filter(|series| !series.seconds.is_empty())
        .map(|series| (fit.seconds(series.bytes as f64), median(&series.seconds)))
        .max_by(|a, b| {
            let [a, b] = [a, b].map(|(predicted, measured)| (predicted / measured - 1.0).abs());
            a.total_cmp(&b)
        });
    match worst {
        Some((predicted, measured)) => verdicts.check(
            "worst size between",
            Figure {
                found: predicted * 1e3,
                truth: measured * 1e3,
                unit: "ms",
            },
            PREDICTION,
        ),
        None => verdicts.missing("worst size between", "no time was left"),
    }
}

fn median(seconds: &[f64]) -> f64 {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
