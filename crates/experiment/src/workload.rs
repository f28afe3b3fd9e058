//! Random workloads drawn from a seed: paths, applications and assignments.
//!
//! Each is a [`Setup`] with one variant per scheduler, so that the same runners carry it.

use std::time::Duration;

use keiro_control::units::Text;
use keiro_planner::{
    delay::{AppSpec, PathSpec},
    plan::{self, Budget, Problem},
    queueing::WireFormat,
};
use keiro_units::{Bandwidth, ByteCount};
use rand_chacha::ChaCha12Rng;
use rand_core::{RngCore, SeedableRng};
use serde::Deserialize;

use crate::{
    error::PlanError,
    setup::{
        Application, Assignment, Extent, GENERATED_TOPOLOGY, Headers, Path, Scheduler, Setup,
        Transport, Variant,
    },
    vary,
};

/// A file of random workloads below `experiments/`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workloads {
    /// Its name, a path below `experiments/` without `.toml`.
    pub id: String,
    /// Title in one line.
    pub title: String,
    /// Header cost.
    pub headers: Headers,
    /// Workloads for the simulator.
    pub simulated: Family,
    /// Workloads for the laboratory.
    pub laboratory: Family,
}

/// Workloads of one kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    pub workloads: u32,
    /// Workload i depends on this and i alone.
    pub seed: u64,
    /// Minimum and maximum of paths.
    pub paths: [u32; 2],
    /// Minimum and maximum of applications.
    pub applications: [u32; 2],
    pub bandwidth: [Text<Bandwidth>; 2],
    /// Minimum and maximum of the one-way propagation delay.
    pub delay: [Text<Duration>; 2],
    /// Minimum and maximum of message lengths.
    pub length: [Text<ByteCount>; 2],
    /// Minimum and maximum of the mean load of each used path, headers included.
    pub load: [f64; 2],
    /// Approximate number of packets that one scheduler sends in a round.
    pub round_packets: u64,
    /// Minimum and maximum of rounds.
    pub rounds: [u32; 2],
    /// Rounds end when the 95 % interval of every 99th percentile is narrower than this fraction of its
    /// value.
    pub interval: f64,
    /// Values with `--quick`.
    pub quick: Quick,
}

/// Values with `--quick`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quick {
    /// See [`Family`].
    pub workloads: u32,
    /// See [`Family`].
    pub round_packets: u64,
    /// See [`Family`].
    pub rounds: [u32; 2],
}

/// Workloads, rounds, and paths and applications of one. Ours: far more than are measured.
const COUNT_MAX: u32 = 1000;

/// Warm-up: the first tenth of a round.
const WARM_UP: u32 = 10;

/// Time to wait for messages in flight after the last one was sent.
const DRAIN: Duration = Duration::from_secs(120);

impl Workloads {
    /// Reads the file; `file` names it in errors.
    ///
    /// # Errors
    /// The fault and its location.
    pub fn parse(file: &str, text: &str) -> Result<Self, PlanError> {
        let workloads: Self = keiro_config::deserialize(text, file)?;
        let checked = workloads.check();
        checked.map_err(|what| vary::located(file, text, &what))?;
        Ok(workloads)
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        for (name, family) in [
            ("simulated", &self.simulated),
            ("laboratory", &self.laboratory),
        ] {
            family.check().map_err(|what| format!("[{name}]: {what}"))?;
        }
        match self.headers.payload.0.is_zero() {
            true => Err("`headers.payload` must not be zero".to_owned()),
            false => Ok(()),
        }
    }
}

impl Family {
    /// The full family, or the quick one.
    #[must_use]
    pub fn extent(&self, quick: bool) -> Self {
        let mut family = self.clone();
        if quick {
            family.workloads = self.quick.workloads;
            family.round_packets = self.quick.round_packets;
            family.rounds = self.quick.rounds;
        }
        family
    }

    pub fn setups(&self, headers: Headers) -> Vec<Setup> {
        (0..self.workloads)
            .map(|index| self.setup(index, headers))
            .collect()
    }

    fn setup(&self, index: u32, headers: Headers) -> Setup {
        let mut draw = Draw::new(self.seed, index);
        let wire = WireFormat::new(headers.payload.0, headers.overhead.0)
            .expect("a payload was checked for");
        // Stratified over the workloads in a random order, so that neighbours differ.
        let stratum = (index * 7 + 3) % self.workloads.max(1);
        let part = (f64::from(stratum) + draw.unit()) / f64::from(self.workloads.max(1));
        let load = self.load[0] + (self.load[1] - self.load[0]) * part;
        let applications = draw.whole(self.applications) as usize;
        let paths = self.draw_paths(&mut draw, applications);
        let lengths: Vec<ByteCount> = (0..applications)
            .map(|_| {
                let range = self.length.map(|length| length.0.get() as f64);
                ByteCount::new(draw.logarithmic(range) as u64)
            })
            .collect();
        let weights: Vec<f64> = (0..applications)
            .map(|_| draw.logarithmic([1.0, 10.0]))
            .collect();
        let random = draw.assignment(applications, paths.len());
        let drawn = Drawn {
            load,
            wire,
            paths: &paths,
            lengths: &lengths,
            weights: &weights,
        };
        let target_factors: Vec<f64> = (0..applications)
            .map(|_| draw.logarithmic([2.0, 20.0]))
            .collect();
        // Every other workload has the planner's assignment, unless that overloads a path.
        let planned = (index % 2 == 1)
            .then(|| drawn.planned(&target_factors, self.load[1]))
            .flatten();
        let (assignment, specs) = planned.unwrap_or_else(|| drawn.loaded(random, &target_factors));
        let extent = self.extent_of(index, &specs, &wire);
        Setup {
            id: format!("workload {}", index + 1),
            title: format!(
                "{} applications over {} paths, load {load:.2}",
                applications,
                paths.len()
            ),
            topology: GENERATED_TOPOLOGY.to_owned(),
            variants: [Scheduler::Fifo, Scheduler::Deadline]
                .map(|scheduler| variant(scheduler, &assignment, &paths, headers))
                .to_vec(),
            applications: (1..)
                .zip(&specs)
                .map(|(number, spec)| application(number, spec))
                .collect(),
            paths,
            run: extent.clone(),
            quick: extent,
        }
    }

    fn draw_paths(&self, draw: &mut Draw, applications: usize) -> Vec<Path> {
        let count = draw.whole(self.paths).min(applications as u32);
        (1..=count)
            .map(|number| {
                let mbit =
                    |bandwidth: Text<Bandwidth>| bandwidth.0.as_bits_per_second() as f64 / 1e6;
                let micros = |delay: Text<Duration>| delay.0.as_micros() as f64;
                Path {
                    name: format!("path{number}"),
                    bandwidth: Text(Bandwidth::from_mbit_per_second(
                        draw.logarithmic(self.bandwidth.map(mbit)).round() as u64,
                    )),
                    // Whole tenths of a millisecond are easy to read and need no rounding.
                    delay: Text(Duration::from_micros(
                        (draw.logarithmic(self.delay.map(micros)) / 100.0).round() as u64 * 100,
                    )),
                }
            })
            .collect()
    }

    /// The time to send this many packets.
    fn extent_of(&self, index: u32, apps: &[AppSpec], wire: &WireFormat) -> Extent {
        let packets_per_second: f64 = apps
            .iter()
            .map(|app| wire.packets(app.length) as f64 / app.interval.as_secs_f64())
            .sum();
        let seconds = (self.round_packets as f64 / packets_per_second).ceil() as u32;
        let duration = Duration::from_secs(u64::from(seconds.max(WARM_UP)));
        Extent {
            rounds: self.rounds[0],
            duration: Text(duration),
            warm_up: Text(duration / WARM_UP),
            drain: Text(DRAIN),
            seed: self.seed.wrapping_mul(1_000_003) + u64::from(index) * 1000,
        }
    }

    fn check(&self) -> Result<(), String> {
        let quick = &self.quick;
        if self.workloads == 0 || quick.workloads == 0 {
            return Err("`workloads` must not be zero".to_owned());
        }
        if self.workloads.max(quick.workloads) > COUNT_MAX {
            return Err(format!("`workloads`: {COUNT_MAX} at most"));
        }
        let [low, high] = self.load;
        let rises = low > 0.0 && low <= high && high < 1.0;
        if !rises {
            return Err(format!(
                "`load` must rise within 0 and 1, not {low} to {high}"
            ));
        }
        for (name, [low, high]) in [
            ("paths", self.paths),
            ("applications", self.applications),
            ("rounds", self.rounds),
            ("quick.rounds", quick.rounds),
        ] {
            if low == 0 || low > high || high > COUNT_MAX {
                return Err(format!(
                    "`{name}` must rise from one at least to {COUNT_MAX} at most"
                ));
            }
        }
        if self.bandwidth[0].0 == Bandwidth::ZERO || self.length[0].0.is_zero() {
            return Err("bandwidths and lengths must be above zero".to_owned());
        }
        if self.interval.is_nan()
            || self.interval <= 0.0
            || self.round_packets == 0
            || quick.round_packets == 0
        {
            return Err("`interval` and `round_packets` must be above zero".to_owned());
        }
        Ok(())
    }
}

/// A workload without its intervals.
struct Drawn<'a> {
    load: f64,
    wire: WireFormat,
    paths: &'a [Path],
    lengths: &'a [ByteCount],
    /// The relative load of each application on its path.
    weights: &'a [f64],
}

impl Drawn<'_> {
    /// Sets intervals so that every used path has the load. Latency targets are this multiple of the idle
    /// path's delay.
    fn loaded(&self, assignment: Vec<usize>, target_factors: &[f64]) -> (Vec<usize>, Vec<AppSpec>) {
        let specs = (0..self.lengths.len()).map(|app| {
            let path = assignment[app];
            let on_path = (0..self.lengths.len()).filter(|other| assignment[*other] == path);
            let whole: f64 = on_path.map(|other| self.weights[other]).sum();
            let rate = self.bits(path) * self.load * self.weights[app] / whole;
            let path = &self.paths[path];
            let idle = self.wire_bits(app) / path.bandwidth.0.as_bits_per_second() as f64;
            let idle = path.delay.0 + Duration::from_secs_f64(idle);
            self.spec(app, rate, idle.mul_f64(target_factors[app]))
        });
        let specs = specs.collect();
        (assignment, specs)
    }

    /// The planner's assignment at this total load; `None` if a path would exceed `load_max`.
    fn planned(&self, target_factors: &[f64], load_max: f64) -> Option<(Vec<usize>, Vec<AppSpec>)> {
        let capacity: f64 = (0..self.paths.len()).map(|path| self.bits(path)).sum();
        let whole: f64 = self.weights.iter().sum();
        let fastest = self.paths.iter().map(|p| p.delay.0).min()?;
        let specs: Vec<AppSpec> = (0..self.lengths.len())
            .map(|app| {
                let rate = capacity * self.load * self.weights[app] / whole;
                let idle = self.wire_bits(app) / (capacity / self.paths.len() as f64);
                let idle = fastest + Duration::from_secs_f64(idle);
                self.spec(app, rate, idle.mul_f64(target_factors[app]))
            })
            .collect();
        let paths: Vec<PathSpec> = self
            .paths
            .iter()
            .map(|path| PathSpec {
                bandwidth: path.bandwidth.0,
                delay: path.delay.0,
            })
            .collect();
        let equation = keiro_planner::delay::Equation3::default();
        let problem = Problem::new(&paths, &specs, &equation).ok()?;
        let assignment = plan::frugal(&problem, Budget::default()).assignment;
        let loads = (0..paths.len()).map(|path| -> f64 {
            let on_path = (0..specs.len()).filter(|app| assignment[*app] == path);
            let rate = |app: usize| self.wire_bits(app) / specs[app].interval.as_secs_f64();
            on_path.map(rate).sum::<f64>() / self.bits(path)
        });
        loads
            .fold(0.0, f64::max)
            .le(&load_max)
            .then_some((assignment, specs))
    }

    fn spec(&self, app: usize, rate: f64, latency_target: Duration) -> AppSpec {
        let interval = Duration::from_secs_f64(self.wire_bits(app) / rate);
        AppSpec {
            length: self.lengths[app],
            interval: whole_micros(interval),
            latency_target: Some(whole_micros(latency_target)),
        }
    }

    fn bits(&self, path: usize) -> f64 {
        self.paths[path].bandwidth.0.as_bits_per_second() as f64
    }

    fn wire_bits(&self, app: usize) -> f64 {
        self.wire.wire_length(self.lengths[app]).get() as f64 * 8.0
    }
}

struct Draw(ChaCha12Rng);

impl Draw {
    fn new(seed: u64, index: u32) -> Self {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        random.set_stream(u64::from(index));
        Self(random)
    }

    /// Uniform in [0, 1).
    fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn logarithmic(&mut self, [low, high]: [f64; 2]) -> f64 {
        low * (high / low).powf(self.unit())
    }

    fn whole(&mut self, [low, high]: [u32; 2]) -> u32 {
        low + (self.unit() * f64::from(high - low + 1)) as u32
    }

    /// A random assignment that leaves no path empty.
    fn assignment(&mut self, applications: usize, paths: usize) -> Vec<usize> {
        (0..applications)
            .map(|app| match app < paths {
                true => app,
                false => (self.unit() * paths as f64) as usize,
            })
            .collect()
    }
}

fn application(number: u32, spec: &AppSpec) -> Application {
    Application {
        name: format!("A{number}"),
        length: Text(spec.length),
        interval: Text(spec.interval),
        latency_target: Text(spec.latency_target.unwrap_or(Duration::MAX)),
    }
}

fn variant(
    scheduler: Scheduler,
    assignment: &[usize],
    paths: &[Path],
    headers: Headers,
) -> Variant {
    let (id, name) = match scheduler {
        Scheduler::Fifo => ("f", "fifo"),
        Scheduler::Deadline => ("d", "deadline"),
    };
    let names = assignment.iter().map(|path| paths[*path].name.clone());
    Variant {
        id: id.to_owned(),
        name: name.to_owned(),
        transport: Transport::Gateway,
        assignment: Some(Assignment::Given(names.collect())),
        scheduler: Some(scheduler),
        simulated: true,
        headers,
    }
}

fn whole_micros(time: Duration) -> Duration {
    Duration::from_micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{plan::Plan, predict};

    fn workloads() -> Workloads {
        let plan = Plan::find("prediction/error").unwrap();
        plan.accuracy().unwrap().workloads.clone()
    }

    #[test]
    fn the_repositorys_workloads_have_the_specified_sizes() {
        let workloads = workloads();
        for (family, least, load_max) in [
            (&workloads.simulated, 20, 0.9),
            (&workloads.laboratory, 3, 0.7),
        ] {
            let setups = family.setups(workloads.headers);
            assert!(setups.len() >= least);
            for setup in &setups {
                assert!(
                    (3..=12).contains(&setup.applications.len()),
                    "{}",
                    setup.title
                );
                assert!((2..=4).contains(&setup.paths.len()), "{}", setup.title);
                for variant in 0..setup.variants.len() {
                    let predicted = predict::predict(setup, variant).unwrap();
                    for forecast in &predicted.forecasts {
                        let load = forecast.terms.load;
                        assert!(
                            load > 0.0 && load < load_max + 0.01,
                            "{}: {load}",
                            setup.title
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_workload_follows_from_seed_and_number_alone() {
        let workloads = workloads();
        let family = &workloads.laboratory;
        let text = |setup: &Setup| format!("{setup:?}");
        let first = family.setups(workloads.headers);
        let again = family.setups(workloads.headers);
        assert!(first.iter().map(text).eq(again.iter().map(text)));
        assert_ne!(text(&first[0]), text(&first[1]));
    }

    #[test]
    fn a_wrong_file_is_refused_with_the_place() {
        let text = include_str!("../../../experiments/prediction/workloads.toml");
        for (from, to, part) in [
            (
                "load = [0.2, 0.9]",
                "load = [0.9, 0.2]",
                "[simulated]: `load`",
            ),
            (
                "load = [0.3, 0.7]",
                "load = [0.3, 1.0]",
                "[laboratory]: `load`",
            ),
            ("paths = [2, 4]", "paths = [0, 4]", "`paths`"),
            ("workloads = 24", "workloads = 0", "`workloads`"),
            ("payload = \"1428B\"", "payload = \"0B\"", "headers.payload"),
            ("seed = 3", "sed = 3", "sed"),
        ] {
            assert!(text.contains(from), "{from}");
            let wrong = text.replacen(from, to, 1);
            let error = Workloads::parse("w.toml", &wrong).unwrap_err().to_string();
            assert!(error.contains(part), "`{part}` is missing in: {error}");
        }
    }
}
