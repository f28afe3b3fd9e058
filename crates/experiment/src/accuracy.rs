//! How far forecasts lie from what is measured: random workloads, carried by the runners until
//! their delays are known well enough.
//!
//! Which workloads there are is `workload`'s; what is forecast is `predict`'s. Rows and figures of
//! the comparison are made in `accuracy/report.rs`.

mod followed;
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
    runner::{Progress, Request, Runner, Schedule},
    setup::{Scheduler, Setup},
    stats::{self, Estimate},
};
use followed::Followed;
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
    /// From 0.
    pub(crate) workload: usize,
    /// The scheduler's name, that is the variant's.
    pub(crate) scheduler: String,
    pub(crate) application: String,
    /// The mean load of its path.
    pub(crate) load: f64,
    pub(crate) length_bytes: u64,
    /// Over the run's own messages, in ms, in the order of [`STATISTICS`].
    pub(crate) run: [Estimate; 4],
    /// In the long run, in ms, in the order of [`STATISTICS`]; see `reference`.
    pub(crate) measured: [Estimate; 4],
    /// In ms, in the order of [`STATISTICS`]; `None` where the model says overloaded.
    pub(crate) forecast: [Option<f64>; 4],
    /// The mean by [path-selection eq. 3] as printed, in ms; `None` where it says overloaded.
    pub(crate) eq3: Option<f64>,
    /// Whether the runs count.
    pub(crate) void: bool,
}

/// What a measurement of workloads gave.
#[derive(Debug, Default)]
pub(crate) struct Compared {
    pub(crate) comparisons: Vec<Comparison>,
    /// Every workload's runs, for the manifest.
    pub(crate) runs: Vec<RunsReport>,
}

/// Carries all workloads with all runners, and compares.
///
/// # Errors
/// What kept a workload from being carried.
pub(crate) fn measure(
    runners: &mut [Box<dyn Runner + '_>],
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
                let carry = Carry {
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

/// Carrying one workload under one scheduler.
struct Carry<'a> {
    setup: &'a Setup,
    variant: usize,
    rounds: [u32; 2],
    interval: f64,
}

impl Carry<'_> {
    /// Round after round until every 99th percentile is known well enough, or there were enough
    /// rounds; the reference's long run comes last.
    fn run(
        &self,
        runner: &mut dyn Runner,
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
            // The long run may take as much of the interval again.
            if round + 1 >= least && delays.is_known_within(self.interval / 2.0) {
                break;
            }
        }
        delays.run_long(extent.seed, self.interval / 2.0);
        Ok(delays)
    }
}

/// The delays of a workload's counted messages, and what its runs were.
///
/// Records are not kept: there may be millions.
#[derive(Debug)]
struct Delays {
    window: Window,
    /// Into how many batches a run is cut.
    parts: usize,
    /// The reference, by path.
    queues: Vec<PathQueue>,
    /// By application, by batch, in ms.
    batches: Vec<Vec<Vec<f64>>>,
    /// The same of the reference over the same messages.
    followed: Vec<Vec<Vec<f64>>>,
    /// The reference's long run, by application.
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
            followed: vec![Vec::new(); applications],
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
        for batches in self.batches.iter_mut().chain(&mut self.followed) {
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
            let mut followed = vec![0; records.len()];
            let done = |message: &Message, delay| followed[message.tag] = delay;
            path.queue.serve(messages, done);
            for (record, followed) in records.into_iter().zip(followed) {
                if let Some(part) = self.window.part(record.made_ns, self.parts) {
                    let (app, batch) = (record.application, first + part);
                    self.batches[app][batch].push(record.delay_ms());
                    self.followed[app][batch].push(followed as f64 / 1e6);
                }
            }
        }
    }

    /// Whether the reference follows the runs so closely that no 99th percentile is off by more.
    fn is_known_within(&self, interval: f64) -> bool {
        (0..self.batches.len())
            .all(|application| self.followed(application).is_known_within(interval))
    }

    fn followed(&self, application: usize) -> Followed {
        Followed::new(&self.batches[application], &self.followed[application])
    }

    /// Lets the references run long, as many at once as there are processors.
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
                let told = match running.join() {
                    Ok(told) => told,
                    Err(panic) => std::panic::resume_unwind(panic),
                };
                for (&member, told) in path.members.iter().zip(told) {
                    long[member] = told;
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

    /// Over the run's own messages, and in the long run; `None` without messages.
    fn told(&self, application: usize) -> Option<([Estimate; 4], [Estimate; 4])> {
        let run = self.statistics(&self.batches[application])?;
        let long = self.long[application].as_ref()?;
        Some((run, self.followed(application).told(long)?))
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

/// A path's reference, and whose messages it serves.
#[derive(Debug)]
struct PathQueue {
    queue: Queue,
    /// Applications by class.
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

/// The width of an estimate's interval as a part of its value; infinite where there is none.
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
        let (run, measured) = delays.told(index)?;
        let forecast = &predicted.forecasts[index];
        let told = |statistic| match forecast.outcome {
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
            forecast: STATISTICS.map(told),
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
