//! Measures all cases in interleaved rounds.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};

use super::{TrialOutcome, TrialRequest, TrialRunner, Trials};
use crate::{
    campaign::{Status, until_valid},
    plan::Plan,
    row::Source,
    runner::Progress,
    setup::{Extent, nearest},
};

/// Result of a trial.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Every case's runs, in order of rounds.
    pub(crate) runs: BTreeMap<usize, Vec<TrialRun>>,
    /// Selected cases that cannot be measured here, with the reason.
    pub(crate) missing: BTreeMap<usize, String>,
}

/// One run of a case.
#[derive(Debug)]
pub(crate) struct TrialRun {
    /// Counted from 0.
    pub(crate) round: u32,
    pub(crate) seed: u64,
    /// How often it was repeated because it was void.
    pub(crate) repeats: u32,
    pub(crate) outcome: TrialOutcome,
}

impl Trials {
    /// Whether a run is void.
    pub(crate) fn is_void(&self, outcome: &TrialOutcome) -> bool {
        outcome.void.is_some() || self.trial.needs_punctuality() && outcome.emulator.is_void()
    }
}

impl Measured {
    /// Whether one of a case's runs is void, which voids all its values.
    pub(crate) fn is_void(&self, trials: &Trials, case: usize) -> bool {
        let runs = self.runs.get(&case);
        runs.is_none_or(|runs| runs.is_empty() || runs.iter().any(|r| trials.is_void(&r.outcome)))
    }
}

/// Measures the cases with these names; all if there are none.
///
/// # Errors
/// There is no case of that name, or a run could not be carried out.
pub(crate) fn measure(
    runner: &mut dyn TrialRunner,
    plan: &Plan,
    trials: &Trials,
    names: &[String],
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Measured> {
    let extent = plan.setup.extent(quick);
    let mut cases = select(trials, names)?;
    let missing = |&case: &usize| Some((case, runner.missing(trials, case)?));
    let mut measured = Measured {
        runs: BTreeMap::new(),
        missing: cases.iter().filter_map(missing).collect(),
    };
    cases.retain(|case| !measured.missing.contains_key(case));
    let total = f64::from(extent.rounds) * cases.len() as f64;
    for round in 0..extent.rounds {
        for (position, &case) in cases.iter().enumerate() {
            let before = f64::from(round) * cases.len() as f64 + position as f64;
            let mut notice = |repeat: u32, run: &Progress| {
                let part = run.elapsed.as_secs_f64() / extent.duration.0.as_secs_f64();
                watch(&Status {
                    fraction: (before + part.min(1.0)) / total,
                    source: Source::Lab,
                    setup: &plan.setup,
                    variant: case,
                    round,
                    repeat,
                    run,
                });
            };
            let request = request(trials, case, round, extent, quick);
            let once = |repeat| {
                let outcome = runner.run(&request, &mut |run| notice(repeat, run))?;
                let expected = trials.trial.quantities().len();
                ensure!(
                    outcome.values.len() == expected,
                    "{} values of {expected} were measured",
                    outcome.values.len()
                );
                Ok(outcome)
            };
            let (outcome, repeats) = until_valid(once, |outcome| trials.is_void(outcome))
                .with_context(|| {
                    let name = &plan.setup.variants[case].name;
                    format!("{name}, round {}, could not be run", round + 1)
                })?;
            let runs = measured.runs.entry(case).or_default();
            runs.push(TrialRun {
                round,
                seed: request.seed,
                repeats,
                outcome,
            });
        }
    }
    Ok(measured)
}

fn select(trials: &Trials, names: &[String]) -> anyhow::Result<Vec<usize>> {
    let cases = trials.trial.cases();
    for name in names {
        if !cases.contains(name) {
            let near = nearest(name, cases.iter().map(String::as_str));
            bail!(
                "there is no case `{name}`{near}; there are {}",
                cases.join(", ")
            );
        }
    }
    let is_selected = |case: &usize| names.is_empty() || names.contains(&cases[*case]);
    Ok((0..cases.len()).filter(is_selected).collect())
}

fn request<'a>(
    trials: &'a Trials,
    case: usize,
    round: u32,
    extent: &'a Extent,
    quick: bool,
) -> TrialRequest<'a> {
    TrialRequest {
        trials,
        case,
        seed: extent.seed_of(round),
        quick,
        extent,
    }
}
