//! Measures all cases of a study in interleaved rounds.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use super::{Case, Phase, Study, StudyOutcome, StudyRequest, StudyRunner};
use crate::{
    campaign::{Status, until_valid},
    plan::Plan,
    row::Source,
    runner::Progress,
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
        self.outcome.is_void() || self.lacked().is_some()
    }

    /// Why its traffic was not there before the first impairment.
    pub(crate) fn lacked(&self) -> Option<String> {
        lacked(&self.outcome, &self.phases, self.each_s)
    }
}

/// Why the datagrams were not there in the calm phase before the first impairment; `None` if they were, or if
/// there is no such phase.
fn lacked(outcome: &StudyOutcome, phases: &[Phase], each_s: f64) -> Option<String> {
    let calm = phases.first().filter(|_| phases.len() > 1)?;
    if calm.impairment.is_some() {
        return None;
    }
    let before = outcome
        .datagrams
        .iter()
        .filter(|datagram| datagram.made_s < each_s);
    let (made, arrived) = before.fold((0, 0), |(made, arrived), datagram| {
        (made + 1, arrived + u32::from(datagram.delay_ms.is_some()))
    });
    let is_there = made > 0 && f64::from(arrived) >= f64::from(made) * ARRIVED_MIN;
    (!is_there)
        .then(|| format!("before the first impairment {arrived} of {made} datagrams arrived"))
}

/// Ours: calm phases lose far less.
const ARRIVED_MIN: f64 = 0.5;

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
    runners: &mut [Box<dyn StudyRunner + '_>],
    plan: &Plan,
    cases: &[Case],
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Measured> {
    let study = plan.study().context("the plan has no study")?;
    let all = study.cases();
    let mut measured = Measured::default();
    let mut runners: Vec<&mut Box<dyn StudyRunner + '_>> = runners
        .iter_mut()
        .filter(|runner| study.sources.contains(&runner.source()))
        .collect();
    let rounds = |runner: &&mut Box<dyn StudyRunner + '_>| {
        extent(plan, study, runner.source(), quick).rounds
    };
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
                let (outcome, repeats) = until_valid(once, |outcome: &StudyOutcome| {
                    let each_s = each.as_secs_f64();
                    outcome.is_void() || lacked(outcome, &phases, each_s).is_some()
                })
                .with_context(|| {
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

fn extent<'a>(plan: &'a Plan, study: &'a Study, source: Source, quick: bool) -> &'a Extent {
    match (&study.lab, source) {
        (Some(lab), Source::Lab) if !quick => lab,
        _ => plan.setup.extent(quick),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Datagram, *};
    use crate::parameters::Impairment;

    #[test]
    fn datagrams_that_were_not_there_before_an_impairment_void_the_run() {
        let study = Plan::find("aggregation/controller-path").expect("a plan");
        let study = study.study().expect("a study").clone();
        let phases = study.phases(study.cases()[0]);
        let impaired: Vec<Option<Impairment>> =
            phases.iter().map(|phase| phase.impairment).collect();
        assert!(impaired[0].is_none() && impaired[1].is_some());
        let outcome = |arrived: usize| StudyOutcome {
            datagrams: (0..20)
                .map(|number| Datagram {
                    made_s: number as f64 / 10.0,
                    delay_ms: (number < arrived).then_some(1.0),
                })
                .collect(),
            ..StudyOutcome::default()
        };
        // Ten of them belong to the calm phase of 1 s.
        assert_eq!(lacked(&outcome(5), &phases, 1.0), None);
        let why = lacked(&outcome(4), &phases, 1.0).expect("too few arrived");
        assert!(why.contains("4 of 10 datagrams"), "{why}");
        assert!(lacked(&outcome(0), &[], 1.0).is_none());
        assert!(lacked(&StudyOutcome::default(), &phases, 1.0).is_some());
    }
}
