//! Provenance of a result: commit, seeds, versions, machine, time, and lateness of the emulator.
//!
//! A manifest has no absolute path, so that it can be published.

use std::{
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use crate::{
    campaign::Options,
    plan::{Kind, Plan},
    record::{BATCHES_MIN, EmulatorReport, LATENESS_VOID_US, Measurement},
    row::Source,
    setup::Extent,
    stats,
    subject::Subject,
    vary::Origin,
};

/// Provenance of a result.
#[derive(Clone, Debug, Serialize)]
pub struct Manifest {
    pub experiment: String,
    /// Where the plan is from, and the values that were set.
    pub plan: Origin,
    pub source: SourceState,
    pub versions: Versions,
    pub machine: Machine,
    /// Start time, RFC 3339 in UTC.
    pub date: String,
    /// Duration, in s.
    pub duration_s: f64,
    /// The command; absolute paths are shortened to their last component.
    pub command: Vec<String>,
    /// Extent of the measurement; `None` for predictions.
    pub extent: Option<ExtentReport>,
    /// Runs of every variant, by source; empty for predictions.
    pub runs: Vec<RunsReport>,
    /// Remarks for the reader.
    pub notes: Vec<String>,
}

/// State of the source tree in which the command was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SourceState {
    /// The commit, or `unknown` outside Keiro's repository.
    pub commit: String,
    /// Whether files differ from that commit; `None` if unknown.
    pub dirty: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Versions {
    /// Keiro's version and the commit of the build.
    pub keiro: &'static str,
    /// `release` or `debug`.
    pub profile: &'static str,
    /// The compiler that built it.
    pub rustc: &'static str,
    pub kernel: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    pub cpu: String,
    /// Processors that this process may use.
    pub cpus: usize,
}

/// Extent of a measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExtentReport {
    /// Whether the extent was shortened; such results are not for publication.
    pub quick: bool,
    /// Runs of every variant.
    pub rounds: u32,
    /// The seeds of the rounds.
    pub seeds: Vec<u64>,
    /// Time during which messages were sent in each run, in s.
    pub run_s: f64,
    /// Warm-up of each run, in s.
    pub warm_up_s: f64,
    /// The counted time of each variant, in s.
    pub counted_s: f64,
}

/// The runs of one variant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunsReport {
    pub variant: String,
    pub source: Source,
    /// Runs that were kept.
    pub runs: usize,
    /// Messages sent in them.
    pub messages: usize,
    /// Discarded and repeated runs: the emulator was late, or a run of transactions was void for another
    /// reason or paused by the machine.
    pub void_repeats: u32,
    /// Kept runs whose emulator was late in every repeat.
    pub void_runs: usize,
    /// Lateness of the emulator in these runs.
    #[serde(flatten)]
    pub emulator: EmulatorsReport,
}

/// Lateness of the emulator over several runs; `None` in the simulator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EmulatorsReport {
    /// Median over the runs of the emulator's own p99 lateness, in µs.
    pub emulator_lateness_p99_us_median: Option<f64>,
    /// The greatest p99 lateness of a run, in µs.
    pub emulator_lateness_p99_us_worst: Option<f64>,
    /// The greatest lateness of a packet, in µs: a percentile does not show a single standstill.
    pub emulator_lateness_max_us: Option<f64>,
    /// Whether idle processors polled instead of halting in all runs. Where they halt, a thread that a packet
    /// wakes runs later.
    pub emulator_cpus_awake: Option<bool>,
}

impl Manifest {
    /// The manifest of a result that started at `started` and took `duration`.
    ///
    /// `measurement` is `None` for predictions. Reads the repository's state with `git` and the machine's
    /// from `/proc`; what cannot be read is `unknown`.
    pub fn gather(
        plan: &Plan,
        options: &Options,
        measurement: Option<&Measurement>,
        started: SystemTime,
        duration: Duration,
    ) -> Self {
        let quick = options.quick;
        let measured = plan.kind == Kind::Measurement;
        Self {
            experiment: plan.id.clone(),
            plan: plan.written.origin.clone(),
            source: SourceState::read(Path::new(".")),
            versions: Versions {
                keiro: options.version,
                profile: env!("KEIRO_PROFILE"),
                rustc: env!("KEIRO_RUSTC"),
                kernel: first_line("/proc/sys/kernel/osrelease"),
            },
            machine: Machine {
                cpu: cpu_model(),
                cpus: std::thread::available_parallelism().map_or(1, usize::from),
            },
            date: humantime::format_rfc3339_seconds(started).to_string(),
            duration_s: (duration.as_secs_f64() * 1e3).round() / 1e3,
            command: std::env::args()
                .map(|arg| without_directories(&arg))
                .collect(),
            // Forecasts have many workloads with their own extents; `runs` has the amounts.
            extent: (measured && plan.accuracy().is_none())
                .then(|| ExtentReport::new(plan.setup.extent(quick), quick)),
            runs: measurement.map(|m| runs(plan, m)).unwrap_or_default(),
            notes: notes(plan, quick, measurement),
        }
    }
}

impl SourceState {
    /// State of Keiro's repository around `directory`; unknown if it is another repository.
    pub fn read(directory: &Path) -> Self {
        let unknown = Self {
            commit: "unknown".to_owned(),
            dirty: None,
        };
        let git = |arguments: &[&str]| {
            let output = Command::new("git")
                .arg("-C")
                .arg(directory)
                .args(arguments)
                .output();
            let output = output.ok().filter(|o| o.status.success())?;
            Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
        };
        let is_keiro = |top: &String| Path::new(top).join("crates/experiment/Cargo.toml").exists();
        if git(&["rev-parse", "--show-toplevel"])
            .filter(is_keiro)
            .is_none()
        {
            return unknown;
        }
        match git(&["rev-parse", "HEAD"]) {
            Some(commit) => Self {
                commit,
                dirty: git(&["status", "--porcelain"]).map(|changes| !changes.is_empty()),
            },
            None => unknown,
        }
    }
}

impl ExtentReport {
    fn new(extent: &Extent, quick: bool) -> Self {
        Self {
            quick,
            rounds: extent.rounds,
            seeds: (0..extent.rounds)
                .map(|round| extent.seed_of(round))
                .collect(),
            run_s: extent.duration.0.as_secs_f64(),
            warm_up_s: extent.warm_up.0.as_secs_f64(),
            counted_s: extent.counted().as_secs_f64(),
        }
    }
}

impl EmulatorsReport {
    pub(crate) fn of(runs: &[EmulatorReport]) -> Self {
        let lateness = stats::sorted(runs.iter().map(|run| run.lateness_p99_us));
        let awake = || runs.iter().all(|run| run.cpus_awake);
        Self {
            emulator_lateness_p99_us_median: stats::percentile(&lateness, 0.5),
            emulator_lateness_p99_us_worst: lateness.last().copied(),
            emulator_lateness_max_us: runs
                .iter()
                .map(|run| run.lateness_max_us)
                .max_by(f64::total_cmp),
            emulator_cpus_awake: (!runs.is_empty()).then(awake),
        }
    }
}

fn runs(plan: &Plan, measurement: &Measurement) -> Vec<RunsReport> {
    let report = |(&(source, variant), runs): (&(Source, usize), &Vec<_>)| {
        let runs: &[crate::record::Run] = runs;
        let emulators: Vec<EmulatorReport> = runs.iter().filter_map(|run| run.emulator).collect();
        RunsReport {
            variant: plan.setup.variants[variant].name.clone(),
            source,
            runs: runs.len(),
            messages: runs.iter().map(|r| r.records.len()).sum(),
            void_repeats: runs.iter().map(|r| r.repeats).sum(),
            void_runs: runs.iter().filter(|r| r.is_void()).count(),
            emulator: EmulatorsReport::of(&emulators),
        }
    };
    measurement.runs.iter().map(report).collect()
}

fn notes(plan: &Plan, quick: bool, measurement: Option<&Measurement>) -> Vec<String> {
    let mut notes = Vec::new();
    let measures = plan.kind == Kind::Measurement;
    let simulated_only = matches!(
        plan.subject,
        Subject::Sharing(_) | Subject::Transfers(_) | Subject::Churn(_)
    );
    let of_messages = matches!(
        plan.subject,
        Subject::Messages | Subject::Forecasts(_) | Subject::Sharing(_)
    );
    if measures && of_messages && !simulated_only {
        notes.push(
            "Delays run from the making of a message until its last byte is received; every \
             message made after the warm-up counts."
                .to_owned(),
        );
        notes.push(format!(
            "Intervals are 95 % intervals over at least {BATCHES_MIN} batches: runs, or equal \
             parts of runs where there are fewer."
        ));
    }
    if plan.kind == Kind::Measurement && !simulated_only {
        notes.push(format!(
            "A run counts if the emulator's own lateness stays within {LATENESS_VOID_US} µs at \
             the 99th percentile."
        ));
    }
    if measures && quick {
        notes.push(
            "A quick run: these figures are not the published ones, and targets, which are for full \
             runs, do not judge them."
                .to_owned(),
        );
    }
    if plan.written.origin != Origin::default() {
        notes.push(
            "The plan is not the built-in one: the paper's values and the targets may not be for it."
                .to_owned(),
        );
    }
    if env!("KEIRO_PROFILE") != "release" && plan.kind == Kind::Measurement {
        notes.push("Not a release build: these figures are not the published ones.".to_owned());
    }
    notes.extend(
        measurement
            .into_iter()
            .flat_map(|m| m.notes.iter().cloned()),
    );
    notes
}

/// Shortens an absolute path, also after `=`, to its last component.
fn without_directories(argument: &str) -> String {
    let (key, value) = match argument.split_once('=') {
        Some((key, value)) if key.starts_with('-') => (format!("{key}="), value),
        _ => (String::new(), argument),
    };
    let path = Path::new(value);
    match path.file_name() {
        Some(name) if path.is_absolute() => format!("{key}{}", name.to_string_lossy()),
        _ => argument.to_owned(),
    }
}

fn first_line(path: &str) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .next()
        .filter(|l| !l.is_empty())
        .unwrap_or("unknown")
        .to_owned()
}

fn cpu_model() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    // x86 has "model name"; some ARM kernels have "Processor" or neither.
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| matches!(key.trim(), "model name" | "Processor"))
        .map_or_else(
            || "unknown".to_owned(),
            |(_, value)| value.trim().to_owned(),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_count_as_awake_if_they_were_in_every_run() {
        let run = |cpus_awake| EmulatorReport {
            packets: 1,
            lateness_p50_us: 1.0,
            lateness_p99_us: 2.0,
            lateness_max_us: 3.0,
            cpus_awake,
        };
        let awake = |runs: &[bool]| {
            let runs: Vec<_> = runs.iter().copied().map(run).collect();
            EmulatorsReport::of(&runs).emulator_cpus_awake
        };
        assert_eq!(awake(&[]), None);
        assert_eq!(awake(&[true, true]), Some(true));
        assert_eq!(awake(&[true, false]), Some(false));
        let json = serde_json::to_value(EmulatorsReport::of(&[run(true)])).unwrap();
        assert_eq!(json["emulator_lateness_p99_us_worst"], 2.0);
        assert_eq!(json["emulator_lateness_max_us"], 3.0);
    }

    #[test]
    fn arguments_lose_their_directories() {
        for (argument, expected) in [
            ("/usr/bin/keiro", "keiro"),
            ("--out=/home/someone/results", "--out=results"),
            ("path-selection/table6", "path-selection/table6"),
            ("--quick", "--quick"),
            ("/", "/"),
        ] {
            assert_eq!(without_directories(argument), expected);
        }
    }

    #[test]
    fn outside_a_repository_the_commit_is_unknown() {
        let directory = tempfile::tempdir().unwrap();
        let state = SourceState::read(directory.path());
        assert_eq!(
            state,
            SourceState {
                commit: "unknown".to_owned(),
                dirty: None
            }
        );
    }

    #[test]
    fn a_repository_that_is_not_keiros_is_unknown() {
        let directory = tempfile::tempdir().unwrap();
        let init = Command::new("git")
            .arg("-C")
            .arg(directory.path())
            .args(["init", "-q"])
            .status();
        assert!(
            init.is_ok_and(|status| status.success()),
            "git init must work"
        );
        assert_eq!(SourceState::read(directory.path()).commit, "unknown");
    }
}
