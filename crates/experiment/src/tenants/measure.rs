//! Measures all cases in interleaved rounds.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use super::{Case, Shared, Sharing, SharingRequest, SharingRunner};
use crate::{campaign::Status, plan::Plan, runner::Progress, setup::nearest};

#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// Every case's runs, in order of rounds.
    pub(crate) runs: BTreeMap<Case, Vec<SharingRun>>,
    /// Counted seconds: from, to.
    pub(crate) counted: (usize, usize),
}

/// One run of a case.
#[derive(Debug)]
pub(crate) struct SharingRun {
    pub(crate) seed: u64,
    pub(crate) shared: Shared,
}

/// The cases with these names; all if there are none. A control's name selects all its cases.
pub(crate) fn select(sharing: &Sharing, names: &[String]) -> anyhow::Result<Vec<Case>> {
    let cases = sharing.cases();
    let of = |case: &Case| {
        let control = sharing.controls[case.control].name.clone();
        [sharing.name(*case), control]
    };
    let known: Vec<String> = cases.iter().flat_map(of).collect();
    if let Some(name) = names.iter().find(|name| !known.contains(name)) {
        let near = nearest(name, known.iter().map(String::as_str));
        bail!("there is no variant `{name}`{near}");
    }
    let is_selected =
        |case: &Case| names.is_empty() || names.iter().any(|name| of(case).contains(name));
    Ok(cases.into_iter().filter(is_selected).collect())
}

/// Measures `cases`; nothing without a runner.
///
/// # Errors
/// A run could not be carried out.
pub(crate) fn measure(
    runner: Option<&mut (dyn SharingRunner + '_)>,
    plan: &Plan,
    cases: &[Case],
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Measured> {
    let sharing = plan
        .sharing()
        .context("the plan is not of tenants that share bottlenecks")?;
    let extent = plan.setup.extent(quick);
    let seconds = |time: std::time::Duration| time.as_secs() as usize;
    let mut measured = Measured {
        counted: (seconds(extent.warm_up.0), seconds(extent.duration.0)),
        ..Measured::default()
    };
    let Some(runner) = runner else {
        return Ok(measured);
    };
    let all = sharing.cases();
    let total = f64::from(extent.rounds) * cases.len() as f64;
    let mut done = 0.0;
    for round in 0..extent.rounds {
        for &case in cases {
            let variant = all.iter().position(|known| *known == case);
            let variant = variant.context("the plan has no such case")?;
            let source = runner.source();
            let mut notice = |run: &Progress| {
                let part = run.elapsed.as_secs_f64() / extent.duration.0.as_secs_f64();
                watch(&Status {
                    fraction: (done + part.min(1.0)) / total,
                    source,
                    setup: &plan.setup,
                    variant,
                    round,
                    repeat: 0,
                    run,
                });
            };
            let request = SharingRequest {
                sharing,
                case,
                extent,
                seed: extent.seed_of(round),
            };
            let shared = runner.run(&request, &mut notice).with_context(|| {
                let name = sharing.name(case);
                format!("{name}, round {}, could not be run", round + 1)
            })?;
            done += 1.0;
            measured.runs.entry(case).or_default().push(SharingRun {
                seed: request.seed,
                shared,
            });
        }
    }
    Ok(measured)
}
