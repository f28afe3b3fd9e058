//! Measures all links in rounds.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, bail};
use keiro_lab::recording;
use keiro_link::Trace;

use super::{Recorded, RecordedOutcome, RecordedRequest, RecordedRunner, Transport};
use crate::{
    campaign::{Status, until_valid},
    plan::Plan,
    row::Source,
    runner::Progress,
    setup::nearest,
};

#[derive(Debug, Default)]
pub(crate) struct Measured {
    /// In the order in which they were made.
    pub(crate) runs: Vec<RecordedRun>,
    /// Selected links, as indices.
    pub(crate) selected: BTreeSet<usize>,
    /// Sources that there are.
    pub(crate) sources: BTreeSet<Source>,
    /// Selected links without a recording, with the reason.
    pub(crate) missing_links: BTreeMap<usize, String>,
    /// Transports that a source does not have, with the reason.
    pub(crate) missing_transports: BTreeMap<(Source, Transport), String>,
}

#[derive(Debug)]
pub(crate) struct RecordedRun {
    pub(crate) source: Source,
    /// Index of the link.
    pub(crate) link: usize,
    pub(crate) round: u32,
    /// How often it was repeated because the emulator was late.
    pub(crate) repeats: u32,
    pub(crate) seconds: f64,
    /// What the recording could have carried.
    pub(crate) capacity_bytes: u64,
    /// The same by time, in steps as [`Carried::bins`](super::Carried::bins).
    pub(crate) capacity: Vec<u64>,
    pub(crate) outcome: RecordedOutcome,
}

impl RecordedRun {
    pub(crate) fn is_void(&self) -> bool {
        self.outcome.is_void()
    }
}

/// Measures the links with these names in every source that there is; all links if there are none.
///
/// # Errors
/// There is no link of that name, or a run could not be carried out.
pub(crate) fn measure(
    runners: &mut [Box<dyn RecordedRunner + '_>],
    plan: &Plan,
    recorded: &Recorded,
    names: &[String],
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Measured> {
    let mut measured = Measured {
        selected: select(recorded, names)?,
        ..Measured::default()
    };
    let extent = plan.setup.extent(quick);
    let rounds = extent.rounds;
    let total = (runners.len() * measured.selected.len()) as f64 * f64::from(rounds);
    let mut done = 0.0;
    for runner in &mut *runners {
        measured.sources.insert(runner.source());
        for transport in Transport::ALL {
            if let Some(why) = runner.missing(transport) {
                let of = (runner.source(), transport);
                measured.missing_transports.insert(of, why);
            }
        }
    }
    for link in measured.selected.clone() {
        let trace = match load(recorded, link) {
            Ok(trace) => trace,
            Err(why) => {
                measured.missing_links.insert(link, why);
                continue;
            }
        };
        for round in 0..rounds {
            for runner in &mut *runners {
                let source = runner.source();
                let has = |transport: &Transport| {
                    let of = (source, *transport);
                    !measured.missing_transports.contains_key(&of)
                };
                let transports: Vec<Transport> = Transport::ALL.into_iter().filter(has).collect();
                let request = RecordedRequest {
                    recorded,
                    link: &recorded.links[link],
                    trace: &trace,
                    transports: &transports,
                    seed: extent.seed_of(round),
                    duration: extent.duration.0.min(trace.period()),
                    drain: extent.drain.0,
                };
                let mut notice = |repeat: u32, run: &Progress| {
                    let part = run.elapsed.as_secs_f64() / request.duration.as_secs_f64();
                    watch(&Status {
                        fraction: (done + part.min(1.0)) / total,
                        source,
                        setup: &plan.setup,
                        variant: link,
                        round,
                        repeat,
                        run,
                    });
                };
                let once = |repeat| runner.run(&request, &mut |run| notice(repeat, run));
                let (outcome, repeats) = until_valid(once, RecordedOutcome::is_void)
                    .with_context(|| recorded.links[link].name.clone())?;
                done += 1.0;
                measured
                    .runs
                    .push(run_of(&request, source, link, round, repeats, outcome));
            }
        }
    }
    Ok(measured)
}

/// The links with these names; all links if there are none.
fn select(recorded: &Recorded, names: &[String]) -> anyhow::Result<BTreeSet<usize>> {
    let known = || recorded.links.iter().map(|link| link.name.as_str());
    if let Some(wrong) = names
        .iter()
        .find(|name| known().all(|known| known != *name))
    {
        bail!("there is no recording `{wrong}`{}", nearest(wrong, known()));
    }
    let is_selected =
        |link: &usize| names.is_empty() || names.contains(&recorded.links[*link].name);
    Ok((0..recorded.links.len()).filter(is_selected).collect())
}

fn run_of(
    request: &RecordedRequest<'_>,
    source: Source,
    link: usize,
    round: u32,
    repeats: u32,
    outcome: RecordedOutcome,
) -> RecordedRun {
    use keiro_lab::emulator::QUEUEING_BIN;
    use keiro_units::Instant;
    let at = |bin: u32| Instant::ZERO + QUEUEING_BIN * bin;
    let bins = (request.duration.as_nanos() / QUEUEING_BIN.as_nanos()) as u32;
    let of_bin = |bin| request.trace.bytes_between(at(bin), at(bin + 1)).get();
    RecordedRun {
        source,
        link,
        round,
        repeats,
        seconds: request.duration.as_secs_f64(),
        capacity_bytes: request
            .trace
            .bytes_between(Instant::ZERO, Instant::ZERO + request.duration)
            .get(),
        capacity: (0..bins).map(of_bin).collect(),
        outcome,
    }
}

/// The recording of a link, or why there is none.
fn load(recorded: &Recorded, link: usize) -> Result<Trace, String> {
    let link = &recorded.links[link];
    let from = || format!("it comes from {}", link.origin);
    let Some(directory) = &recorded.directory else {
        return Err(format!(
            "`{}` is needed: name its directory with --traces or KEIRO_TRACES; {}",
            link.file,
            from()
        ));
    };
    let trace = recording::load(&directory.join(&link.file), link.column.as_deref());
    trace.map_err(|error| format!("{error}; {}", from()))
}
