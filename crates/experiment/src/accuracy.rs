//! Accuracy of forecasts: random workloads run until their delays are known precisely, and compared with the
//! model.
//!
//! `workload` draws the workloads and `predict` computes the forecasts. `accuracy/report.rs` makes rows and
//! figures of the comparison.

mod control_variate;
mod reference;
mod report;

use std::fmt::Write as _;

use anyhow::Context;
use keiro_planner::queueing::{Outcome, Statistic};

use crate::{
    campaign::{Status, run_until_valid},
    manifest::{EmulatorsReport, RunsReport},
    plan::Accuracy,
    predict,
    record::{self, EmulatorReport, MessageRecord, Run, Window},
    row::Source,
    runner::{MessageRunner, Progress, Request, Schedule},
    setup::{Scheduler, Setup},
    stats::{self, Estimate},
};
use control_variate::ControlVariate;
use reference::{Class, LongRun, Message, Queue, nanos};

pub(crate) use report::{drawings, rows};

/// The numbers of a delay's distribution that are compared.
pub(crate) const STATISTICS: [Statistic; 4] = [
    Statistic::Mean,
    Statistic::P50,
    Statistic::P95,
    Statistic::P99,
];

/// One application of one workload under one scheduler.
#[derive(Clone, Debug)]
pub(crate) struct Comparison {
    pub(crate) source: Source,
    /// Counted from 0.
    pub(crate) workload: usize,
    /// Name of the scheduler's variant.
    pub(crate) scheduler: String,
    pub(crate) application: String,
    /// The mean load of its path.
    pub(crate) load: f64,
    pub(crate) length_bytes: u64,
    /// Over the messages of the runs, in ms, in the order of [`STATISTICS`].
    pub(crate) run: [Estimate; 4],
    /// Over the long run, in ms, in the order of [`STATISTICS`]; see `reference`.
    pub(crate) measured: [Estimate; 4],
    /// In ms, in the order of [`STATISTICS`]; `None` if the model predicts overload.
    pub(crate) forecast: [Option<f64>; 4],
    /// The mean by [path-selection eq. 3] as printed, in ms; `None` if it predicts overload.
    pub(crate) eq3: Option<f64>,
    /// Whether the runs are void: the emulator was late in every repeat.
    pub(crate) void: bool,
}

/// Result of measuring workloads.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) comparisons: Vec<Comparison>,
    /// The runs of every workload, for the manifest.
    pub(crate) runs: Vec<RunsReport>,
}

/// Runs all workloads with all runners and compares forecasts with the measurements.
///
/// # Errors
/// A workload could not be run.
pub(crate) fn measure(
    runners: &mut [Box<dyn MessageRunner + '_>],
    accuracy: &Accuracy,
    quick: bool,
    watch: &mut dyn FnMut(&Status<'_>),
) -> anyhow::Result<Compared> {
    let mut compared = Compared::default();
    let sources = runners.len() as f64;
    for (runner_index, runner) in runners.iter_mut().enumerate() {
        let family = match runner.source() {
            Source::Lab => &accuracy.workloads.laboratory,
            Source::Sim => &accuracy.workloads.simulated,
        };
        let family = family.extent(quick);
        let setups = family.setups(accuracy.workloads.headers);
        let total = setups.iter().map(|s| s.variants.len()).sum::<usize>() as f64;
        let mut done = 0.0;
        for (workload, setup) in setups.into_iter().enumerate() {
            for variant in 0..setup.variants.len() {
                let carry = WorkloadRun {
                    setup: &setup,
                    variant,
                    rounds: family.rounds,
                    interval: family.interval,
                };
                let delays = carry
                    .run(runner.as_mut(), &mut |part, status| {
                        let fraction = (done + part) / total;
                        watch(&Status {
                            fraction: (runner_index as f64 + fraction) / sources,
                            ..status
                        });
                    })
                    .with_context(|| format!("{} could not be carried", setup.id))?;
                done += 1.0;
                let source = runner.source();
                let new = compare(&setup, workload, variant, source, &delays);
                compared.comparisons.extend(new);
                compared.runs.push(delays.report(&setup, variant, source));
            }
        }
    }
    Ok(compared)
}

/// Runs one workload under one scheduler.
struct WorkloadRun<'a> {
    setup: &'a Setup,
    variant: usize,
    rounds: [u32; 2],
    interval: f64,
}

impl WorkloadRun<'_> {
    /// Runs rounds until every 99th percentile is known within the interval, or the maximum of rounds is
    /// reached. Then simulates the reference's long run.
    fn run(
        &self,
        runner: &mut dyn MessageRunner,
        watch: &mut dyn FnMut(f64, Status<'_>),
    ) -> anyhow::Result<Delays> {
        let source = runner.source();
        let extent = &self.setup.run;
        let [least, most] = self.rounds;
        let queues = queues(self.setup, self.variant).context("the variant has no assignment")?;
        let mut delays = Delays::new(self.setup, queues, record::parts(least as usize));
        for round in 0..most {
            let schedule = Schedule::of(self.setup, extent, round);
            let request = Request {
                setup: self.setup,
                variant: self.variant,
                round,
                extent,
                schedule: &schedule,
            };
            let mut notice = |repeat: u32, run: &Progress| {
                let status = Status {
                    fraction: 0.0,
                    source,
                    setup: self.setup,
                    variant: self.variant,
                    round,
                    repeat,
                    run,
                };
                watch(f64::from(round) / f64::from(most), status);
            };
            delays.add(&run_until_valid(runner, &request, &mut notice)?);
            // Half of the interval is left for the uncertainty of the long run.
            if round + 1 >= least && delays.is_known_within(self.interval / 2.0) {
                break;
            }
        }
        delays.run_long(extent.seed, self.interval / 2.0);
        Ok(delays)
    }
}

/// Delays of a workload's counted messages, and statistics of its runs.
///
/// Records are not kept, because there may be millions.
#[derive(Debug)]
struct Delays {
    window: Window,
    /// Number of batches into which a run is cut.
    parts: usize,
    /// The reference queues, one per path.
    queues: Vec<PathQueue>,
    /// Delays in ms, indexed by application and batch.
    batches: Vec<Vec<Vec<f64>>>,
    /// Delays of the reference for the same messages, indexed the same way.
    reference: Vec<Vec<Vec<f64>>>,
    /// The reference's long run, indexed by application.
    long: Vec<Option<LongRun>>,
    runs: usize,
    messages: usize,
    repeats: u32,
    void_runs: usize,
    emulators: Vec<EmulatorReport>,
}

impl Delays {
    fn new(setup: &Setup, queues: Vec<PathQueue>, parts: usize) -> Self {
        let applications = setup.applications.len();
        Self {
            queues,
            window: Window {
                from: setup.run.warm_up.0,
                to: setup.run.duration.0,
            },
            parts,
            batches: vec![Vec::new(); applications],
            reference: vec![Vec::new(); applications],
            long: vec![None; applications],
            runs: 0,
            messages: 0,
            repeats: 0,
            void_runs: 0,
            emulators: Vec::new(),
        }
    }

    fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.messages += run.records.len();
        self.repeats += run.repeats;
        self.void_runs += usize::from(run.is_void());
        self.emulators.extend(run.emulator);
        let first = self.batches.first().map_or(0, Vec::len);
        for batches in self.batches.iter_mut().chain(&mut self.reference) {
            batches.resize(first + self.parts, Vec::new());
        }
        for path in &self.queues {
            let mut records: Vec<&MessageRecord> = run
                .records
                .iter()
                .filter(|record| path.members.contains(&record.application))
                .collect();
            records.sort_by_key(|record| record.made_ns);
            let class = |app| path.members.iter().position(|member| *member == app);
            let messages = records.iter().enumerate().map(|(tag, record)| Message {
                made: record.made_ns,
                class: class(record.application).unwrap_or(0),
                tag,
            });
            let mut reference = vec![0; records.len()];
            let done = |message: &Message, delay| reference[message.tag] = delay;
            path.queue.serve(messages, done);
            for (record, reference) in records.into_iter().zip(reference) {
                if let Some(part) = self.window.part(record.made_ns, self.parts) {
                    let (app, batch) = (record.application, first + part);
                    self.batches[app][batch].push(record.delay_ms());
                    self.reference[app][batch].push(reference as f64 / 1e6);
                }
            }
        }
    }

    /// Whether the reference is so strongly correlated with the runs that every 99th percentile is known
    /// within `interval`.
    fn is_known_within(&self, interval: f64) -> bool {
        (0..self.batches.len())
            .all(|application| self.control_variate(application).is_known_within(interval))
    }

    fn control_variate(&self, application: usize) -> ControlVariate {
        ControlVariate::new(&self.batches[application], &self.reference[application])
    }

    /// Simulates the long run of each reference, in parallel on all processors.
    fn run_long(&mut self, seed: u64, interval: f64) {
        let (queues, long) = (&self.queues, &mut self.long);
        std::thread::scope(|scope| {
            let running: Vec<_> = (1..)
                .zip(queues)
                .map(|(number, path)| {
                    let seed = seed.wrapping_add(number << 32);
                    (
                        path,
                        scope.spawn(move || path.queue.long_run(seed, interval)),
                    )
                })
                .collect();
            for (path, running) in running {
                let classes = match running.join() {
                    Ok(classes) => classes,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                for (&member, class) in path.members.iter().zip(classes) {
                    long[member] = class;
                }
            }
        });
    }

    /// In the order of [`STATISTICS`]; `None` without messages.
    fn statistics(&self, batches: &[Vec<f64>]) -> Option<[Estimate; 4]> {
        let percentile = |share| stats::percentile_of_batches(batches, share);
        Some([
            stats::mean_of_batches(batches)?,
            percentile(0.50)?,
            percentile(0.95)?,
            percentile(0.99)?,
        ])
    }

    /// Over the messages of the runs, and over the long run; `None` without messages.
    fn estimates(&self, application: usize) -> Option<([Estimate; 4], [Estimate; 4])> {
        let run = self.statistics(&self.batches[application])?;
        let long = self.long[application].as_ref()?;
        Some((run, self.control_variate(application).estimates(long)?))
    }

    fn report(&self, setup: &Setup, variant: usize, source: Source) -> RunsReport {
        RunsReport {
            variant: format!("{}, {}", setup.id, setup.variants[variant].name),
            source,
            runs: self.runs,
            messages: self.messages,
            void_repeats: self.repeats,
            void_runs: self.void_runs,
            emulator: EmulatorsReport::of(&self.emulators),
        }
    }
}

/// A path's reference queue and the applications that it serves.
#[derive(Debug)]
struct PathQueue {
    queue: Queue,
    members: Vec<usize>,
}

/// The references of a variant, one for each path that is used.
fn queues(setup: &Setup, variant: usize) -> Option<Vec<PathQueue>> {
    let variant = &setup.variants[variant];
    let assignment = predict::assignment(setup, variant)?;
    let queue = |index: usize| {
        let wire = predict::wire_format_on(setup, variant, index)?;
        let path = &setup.paths[index];
        let time = |bytes| nanos(path.bandwidth.0.transmission_time_ceil(bytes));
        let members: Vec<usize> = (0..setup.applications.len())
            .filter(|app| assignment[*app] == index)
            .collect();
        let class = |app: &usize| {
            let application = &setup.applications[*app];
            Class {
                interval: application.interval.0.as_nanos() as f64,
                work: time(wire.wire_length(application.length.0)),
                latency_target: nanos(application.latency_target.0),
            }
        };
        Some(PathQueue {
            queue: Queue {
                scheduler: variant.scheduler.unwrap_or(Scheduler::Fifo),
                delay: nanos(path.delay.0),
                ahead: nanos(predict::AHEAD),
                piece: time(wire.full_packet()).max(1),
                classes: members.iter().map(class).collect(),
            },
            members,
        })
    };
    let used = (0..setup.paths.len()).map(queue);
    used.filter(|path| path.as_ref().is_none_or(|path| !path.members.is_empty()))
        .collect()
}

/// Width of an estimate's interval relative to its value; infinite if it has none.
pub(crate) fn relative_width(estimate: &Estimate) -> f64 {
    estimate.interval.map_or(f64::INFINITY, |interval| {
        (interval.high - interval.low) / estimate.value
    })
}

fn compare(
    setup: &Setup,
    workload: usize,
    variant: usize,
    source: Source,
    delays: &Delays,
) -> Vec<Comparison> {
    let Some(predicted) = predict::predict(setup, variant) else {
        return Vec::new();
    };
    let application = |index: usize| {
        let (run, measured) = delays.estimates(index)?;
        let forecast = &predicted.forecasts[index];
        let forecast_of = |statistic| match forecast.outcome {
            Outcome::Overloaded => None,
            Outcome::Stable(delay) => Some(delay.get(statistic).as_secs_f64() * 1e3),
        };
        Some(Comparison {
            source,
            workload,
            scheduler: setup.variants[variant].name.clone(),
            application: setup.applications[index].name.clone(),
            load: forecast.terms.load,
            length_bytes: setup.applications[index].length.0.get(),
            run,
            measured,
            forecast: STATISTICS.map(forecast_of),
            eq3: predicted.eq3_ms[index],
            void: delays.void_runs > 0,
        })
    };
    (0..setup.applications.len())
        .filter_map(application)
        .collect()
}

/// All comparisons as CSV.
pub(crate) fn csv(comparisons: &[Comparison]) -> String {
    let mut csv = "source,workload,scheduler,application,load,length_bytes,messages".to_owned();
    for name in ["mean", "p50", "p95", "p99"] {
        let _ = write!(
            csv,
            ",{name}_run_ms,{name}_ms,{name}_low_ms,{name}_high_ms,{name}_forecast_ms"
        );
    }
    csv.push_str(",eq3_ms\n");
    let value = |v: Option<f64>| v.map(|v| format!("{v:.4}")).unwrap_or_default();
    for one in comparisons {
        let _ = write!(
            csv,
            "{},{},{},{},{:.4},{},{}",
            if one.source == Source::Lab {
                "lab"
            } else {
                "sim"
            },
            one.workload + 1,
            one.scheduler,
            one.application,
            one.load,
            one.length_bytes,
            one.measured[0].samples
        );
        let both = one.run.iter().zip(&one.measured);
        for ((run, measured), forecast) in both.zip(one.forecast) {
            let _ = write!(
                csv,
                ",{:.4},{:.4},{},{},{}",
                run.value,
                measured.value,
                value(measured.interval.map(|i| i.low)),
                value(measured.interval.map(|i| i.high)),
                value(forecast)
            );
        }
        let _ = writeln!(csv, ",{}", value(one.eq3));
    }
    csv
}
