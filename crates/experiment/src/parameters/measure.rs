//! Measures all cases of a study in interleaved rounds.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use super::{Case, Phase, Study, StudyOutcome, StudyRequest, StudyRunner};
use crate::{
    campaign::{Status, until_valid},
    plan::Plan,
    row::Source,
    runner::{Progress, Runner},
    setup::{Extent, nearest},
};

/// Result of a study.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Every case's runs, in order of rounds.
    pub(crate) runs: BTreeMap<(Source, Case), Vec<StudyRun>>,
}

/// One run of a case.
#[derive(Debug)]
pub(crate) struct StudyRun {
    /// Counted from 0.
    pub(crate) round: u32,
    /// How often it was repeated because the emulator was late.
    pub(crate) repeats: u32,
    /// Result of the run.
    pub(crate) phases: Vec<Phase>,
    /// Length of a phase, in s.
    pub(crate) each_s: f64,
    pub(crate) outcome: StudyOutcome,
}

impl StudyOutcome {
    /// Whether the emulator was too late for the run to count.
    fn is_void(&self) -> bool {
        self.emulator.is_some_and(|e| e.is_void())
    }
}

impl StudyRun {
    /// Whether the run is void.
    pub(crate) fn is_void(&self) -> bool {
        self.outcome.is_void()
    }
}

/// The cases with these names; all if there are none.
pub(crate) fn select(study: &Study, names: &[String]) -> anyhow::Result<Vec<Case>> {
    let cases = study.cases();
    let known: Vec<String> = cases.iter().map(|case| study.name(*case)).collect();
    for name in names {
        if !known.contains(name) {
            let near = nearest(name, known.iter().map(String::as_str));
            bail!("there is no variant `{name}`{near}");
        }
    }
    let is_selected =
        |case: &Case| names.is_empty() || names.iter().any(|name| *name == study.name(*case));
    Ok(cases.into_iter().filter(is_selected).collect())
}

/// Measures `cases` in every source of the study that has a runner.
///
/// # Errors
/// A run could not be carried out.
pub(crate) fn measure(
    runners: &mut [Box<dyn Runner + '_>],
    plan: &Plan,
    cases: &[Case],
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Measured> {
    let study = plan.study().context("the plan has no study")?;
    let all = study.cases();
    let mut measured = Measured::default();
    let mut runners: Vec<&mut dyn StudyRunner> = runners
        .iter_mut()
        .filter_map(|runner| runner.study())
        .filter(|runner| study.sources.contains(&runner.source()))
        .collect();
    let rounds = |runner: &&mut dyn StudyRunner| extent(plan, study, runner.source(), quick).rounds;
    let total = f64::from(runners.iter().map(rounds).sum::<u32>()) * cases.len() as f64;
    let mut done = 0.0;
    for runner in &mut runners {
        let source = runner.source();
        let extent = extent(plan, study, source, quick);
        for round in 0..extent.rounds {
            for &case in cases {
                let variant = all.iter().position(|known| *known == case);
                let variant = variant.context("the plan has no such case")?;
                let phases = study.phases(case);
                let each = (extent.duration.0 - extent.warm_up.0) / phases.len() as u32;
                let request = StudyRequest {
                    study,
                    case,
                    seed: extent.seed_of(round),
                    warm_up: extent.warm_up.0,
                    phases: &phases,
                    each,
                    drain: extent.drain.0,
                };
                let mut notice = |repeat: u32, run: &Progress| {
                    let part = run.elapsed.as_secs_f64() / extent.duration.0.as_secs_f64();
                    watch(&Status {
                        fraction: (done + part.min(1.0)) / total,
                        source,
                        setup: &plan.setup,
                        variant,
                        round,
                        repeat,
                        run,
                    });
                };
                let once = |repeat| runner.run(&request, &mut |run| notice(repeat, run));
                let (outcome, repeats) =
                    until_valid(once, StudyOutcome::is_void).with_context(|| {
                        let name = study.name(case);
                        format!("{name}, round {}, could not be run", round + 1)
                    })?;
                done += 1.0;
                let runs = measured.runs.entry((source, case)).or_default();
                runs.push(StudyRun {
                    round,
                    repeats,
                    phases,
                    each_s: each.as_secs_f64(),
                    outcome,
                });
            }
        }
    }
    Ok(measured)
}

/// The extent in a source.
fn extent<'a>(plan: &'a Plan, study: &'a Study, source: Source, quick: bool) -> &'a Extent {
    match (&study.lab, source) {
        (Some(lab), Source::Lab) if !quick => lab,
        _ => plan.setup.extent(quick),
    }
}
