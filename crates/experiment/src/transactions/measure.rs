//! Measures all cases in interleaved rounds.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use super::{
    Case, TransactionOutcome, TransactionRequest, TransactionRunner, TransactionTransport,
    Transactions,
};
use crate::{
    campaign::{REPEATS_MAX, Status},
    plan::Plan,
    row::Source,
    runner::Progress,
    setup::{Extent, nearest},
};

/// Result of measuring transactions.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Every case's runs, in order of rounds.
    pub(crate) runs: BTreeMap<Case, Vec<TransactionRun>>,
    /// Selected transports that cannot be measured here, with the reason.
    pub(crate) missing: Vec<(TransactionTransport, String)>,
    /// Rounds that were not carried out.
    pub(crate) rounds_left: u32,
}

/// One run of a case.
#[derive(Debug)]
pub(crate) struct TransactionRun {
    /// Counted from 0.
    pub(crate) round: u32,
    pub(crate) seed: u64,
    /// How often it was repeated because it was void or the machine paused.
    pub(crate) repeats: u32,
    pub(crate) outcome: TransactionOutcome,
}

impl Measured {
    /// The result without a laboratory: no runs, only the reason.
    pub(crate) fn without_laboratory(cases: &[Case]) -> Self {
        let is_selected = |transport: &TransactionTransport| {
            cases.iter().any(|case| case.transport == *transport)
        };
        let why = |transport| {
            (
                transport,
                "only the laboratory, which needs root, has it".to_owned(),
            )
        };
        Self {
            runs: BTreeMap::new(),
            missing: TransactionTransport::ALL
                .into_iter()
                .filter(is_selected)
                .map(why)
                .collect(),
            rounds_left: 0,
        }
    }

    /// Whether one of a case's runs is void, which voids all its values.
    pub(crate) fn is_void(&self, case: Case) -> bool {
        self.runs.get(&case).is_none_or(|runs| {
            let is_void = |run: &TransactionRun| run.outcome.void(case.load).is_some();
            runs.is_empty() || runs.iter().any(is_void)
        })
    }
}

/// Runs `case` until a run is valid and without a pause of the machine. Repeats at most [`REPEATS_MAX`] times
/// in all, and at most `pause_repeats` times because of pauses. `once` gets the number of repeats so far.
/// Returns the best run and the number of repeats.
fn undisturbed(
    mut once: impl FnMut(u32) -> anyhow::Result<TransactionOutcome>,
    case: Case,
    pause_repeats: u32,
) -> anyhow::Result<(TransactionOutcome, u32)> {
    let mut best: Option<TransactionOutcome> = None;
    let (mut repeats, mut counted) = (0, 0);
    loop {
        let outcome = once(repeats)?;
        let is_void = outcome.void(case.load).is_some();
        counted += u32::from(!is_void);
        let is_good = !is_void && !outcome.has_pause();
        let kept = match best {
            Some(best) if !outcome.is_kept_over(&best, case.load) => best,
            _ => outcome,
        };
        if is_good || repeats == REPEATS_MAX || counted > pause_repeats {
            return Ok((kept, repeats));
        }
        best = Some(kept);
        repeats += 1;
    }
}

/// The cases of the transports with these names; all if there are none.
pub(crate) fn select(transactions: &Transactions, names: &[String]) -> anyhow::Result<Vec<Case>> {
    let transports = || transactions.cases.iter().map(|case| case.transport.name());
    for name in names {
        if !transports().any(|transport| transport == name) {
            bail!(
                "there is no transport `{name}`{}",
                nearest(name, transports())
            );
        }
    }
    let is_selected =
        |case: &&Case| names.is_empty() || names.iter().any(|n| n == case.transport.name());
    Ok(transactions
        .cases
        .iter()
        .filter(is_selected)
        .copied()
        .collect())
}

/// Measures `cases`, and calls `keep` with the measurement after every round but the last.
///
/// # Errors
/// A run could not be carried out, or `keep` failed.
pub(crate) fn measure(
    runner: &mut dyn TransactionRunner,
    plan: &Plan,
    cases: &[Case],
    extent: &Extent,
    watch: &mut dyn FnMut(&Status<'_>),
    mut keep: impl FnMut(&Measured) -> anyhow::Result<()>,
) -> anyhow::Result<Measured> {
    let transactions = plan.transactions();
    let transactions = transactions.context("the plan has no transactions")?;
    let mut measured = Measured::default();
    for transport in TransactionTransport::ALL {
        if !cases.iter().any(|case| case.transport == transport) {
            continue;
        }
        if let Some(why) = runner.missing(transport) {
            measured.missing.push((transport, why));
        }
    }
    let is_there = |case: &&Case| {
        !measured
            .missing
            .iter()
            .any(|(transport, _)| *transport == case.transport)
    };
    let cases: Vec<Case> = cases.iter().filter(is_there).copied().collect();
    let total = f64::from(extent.rounds) * cases.len() as f64;
    for round in 0..extent.rounds {
        for (position, &case) in cases.iter().enumerate() {
            let variant = transactions.cases.iter().position(|known| *known == case);
            let variant = variant.context("the plan has no such case")?;
            let before = f64::from(round) * cases.len() as f64 + position as f64;
            let mut notice = |repeat: u32, run: &Progress| {
                let part = run.elapsed.as_secs_f64() / extent.duration.0.as_secs_f64();
                watch(&Status {
                    fraction: (before + part.min(1.0)) / total,
                    source: Source::Lab,
                    setup: &plan.setup,
                    variant,
                    round,
                    repeat,
                    run,
                });
            };
            let request = TransactionRequest {
                transactions,
                case,
                seed: extent.seed_of(round),
                extent,
            };
            let once = |repeat| runner.run(&request, &mut |run| notice(repeat, run));
            let (outcome, repeats) = undisturbed(once, case, transactions.pause_repeats)
                .with_context(|| format!("{case}, round {}, could not be run", round + 1))?;
            let runs = measured.runs.entry(case).or_default();
            runs.push(TransactionRun {
                round,
                seed: request.seed,
                repeats,
                outcome,
            });
        }
        measured.rounds_left = extent.rounds - round - 1;
        if measured.rounds_left > 0 {
            keep(&measured)?;
        }
    }
    Ok(measured)
}
