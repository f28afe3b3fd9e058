//! A machine that is itself kept waiting: where a hypervisor gives the processors to others, no
//! emulator is punctual, and what was measured meanwhile says nothing about what was measured.
//!
//! [`punctually`] repeats a measurement until it counts. What to make of a machine on which none
//! does is the caller's: an experiment is void, and a test says aloud what it has not tested
//! ([`Starved::excuse`]), if the machine's fault shows: in what was stolen of the processors' time,
//! or in that on one of them a thread that comes before all others, and does nothing, was late too.

use std::{
    env, fmt,
    fs::{self, OpenOptions},
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use keiro_linux::realtime::{self, FifoPriority};

use crate::{
    Lab, LabError,
    emulator::{LATENESS_P99_MAX, Lateness},
};

/// From this much of the processors' time in others' hands on, lateness is the machine's fault.
const STOLEN_MIN: f64 = 0.01;

/// And from this on, at the 99th percentile, where somebody who does nothing is as late.
const IDLER_LATE_MIN: Duration = Duration::from_micros(100);

/// Lateness is told up to this.
const LATE_MOST: Duration = Duration::from_secs(10);

/// A file that tests append to what they have not tested, if it is named.
const NOT_TESTED: &str = "KEIRO_NOT_TESTED";

/// What the processors have spent since the machine started, and what of it the hypervisor took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessorTime {
    /// In ticks of the kernel, all processors together, idle ones included.
    all: u64,
    stolen: u64,
}

impl ProcessorTime {
    /// Until now.
    ///
    /// # Errors
    /// Where `/proc/stat` cannot be read, or is none.
    pub fn now() -> io::Result<Self> {
        let stat = fs::read_to_string("/proc/stat")?;
        Self::parse(&stat).ok_or_else(|| {
            let what = "/proc/stat has no line `cpu` with its eight numbers";
            io::Error::new(io::ErrorKind::InvalidData, what)
        })
    }

    /// Of proc(5): user, nice, system, idle, iowait, irq, softirq, steal. The guests' times after
    /// them are part of user and nice.
    fn parse(stat: &str) -> Option<Self> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let mut ticks = [0_u64; 8];
        let mut words = line.split_ascii_whitespace();
        for tick in &mut ticks {
            *tick = words.next()?.parse().ok()?;
        }
        Some(Self {
            all: ticks
                .iter()
                .fold(0, |sum: u64, tick| sum.saturating_add(*tick)),
            stolen: ticks[7],
        })
    }

    /// How much of what they could have done since `earlier` the hypervisor took, 0 to 1.
    pub fn stolen_since(self, earlier: Self) -> f64 {
        let all = self.all.saturating_sub(earlier.all);
        let stolen = self.stolen.saturating_sub(earlier.stolen);
        if all == 0 {
            0.0
        } else {
            (stolen as f64 / all as f64).min(1.0)
        }
    }
}

/// Threads that wake up every millisecond, one on every processor, before everybody else. How late
/// they are is the machine's doing alone.
#[derive(Debug)]
struct Idlers {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Duration>>,
}

impl Idlers {
    fn start() -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let start = |processor| {
            let done = Arc::clone(&done);
            thread::spawn(move || idle(processor, &done))
        };
        let threads = (0..processors).map(start).collect();
        Self { done, threads }
    }

    /// The 99th percentile of who was latest.
    fn late_p99(mut self) -> Duration {
        self.done.store(true, Ordering::Relaxed);
        let late = self.threads.drain(..).map(|idler| idler.join());
        late.map(|late| late.unwrap_or_default())
            .max()
            .unwrap_or_default()
    }
}

impl Drop for Idlers {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

fn idle(processor: usize, done: &AtomicBool) -> Duration {
    // Who may not do these waits for others, and shows less of the machine's fault than there is.
    let all = FifoPriority::new(99).map(realtime::schedule_fifo);
    let bound = realtime::pin_to_cpu(processor);
    if !matches!(all, Some(Ok(()))) || bound.is_err() {
        return Duration::ZERO;
    }
    let mut late =
        Histogram::<u64>::new_with_max(LATE_MOST.as_nanos() as u64, 3).expect("fair bounds");
    while !done.load(Ordering::Relaxed) {
        let due = Instant::now() + Duration::from_millis(1);
        thread::sleep(Duration::from_millis(1));
        late.saturating_record(due.elapsed().as_nanos() as u64);
    }
    Duration::from_nanos(late.value_at_quantile(0.99))
}

/// Why nothing was measured: the emulator was late every time.
#[derive(Clone, Copy, Debug)]
pub struct Starved {
    attempts: u32,
    lateness: Lateness,
    stolen: f64,
    idler_late_p99: Duration,
}

impl fmt::Display for Starved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the emulator was late in each of {} attempts ({:?} at the 99th percentile of the \
             last, {LATENESS_P99_MAX:?} is the bound); meanwhile {:.1} % of the processors' time \
             was stolen, and who had nothing to do woke up {:?} late",
            self.attempts,
            self.lateness.p99,
            100.0 * self.stolen,
            self.idler_late_p99,
        )
    }
}

impl Starved {
    /// Says for a test that it has tested nothing, as [`not_tested`] does.
    ///
    /// # Panics
    /// Where the machine was not starved: then the emulator is too slow, and that is a failure.
    pub fn excuse(&self, test: &str) {
        assert!(
            self.stolen >= STOLEN_MIN || self.idler_late_p99 >= IDLER_LATE_MIN,
            "{test}: {self}, which does not explain it"
        );
        not_tested(test, self);
    }
}

/// Says that a test has tested nothing, and why, where everybody sees it: on standard error, past a
/// harness that swallows what passing tests print, and in the file named by `KEIRO_NOT_TESTED`,
/// which `make test` shows at its end.
///
/// # Panics
/// Where that file cannot be written.
pub fn not_tested(test: &str, why: impl fmt::Display) {
    let line = format!("NOT TESTED: {test}: {why}\n");
    // Not the macro, whose output the harness takes.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(path) = env::var_os(NOT_TESTED) {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// Does something until it counts: until the laboratory's emulator was punctual meanwhile, or what
/// came of it `counts_if_late`. Again and again for as long as `patience` lasts, but at least once.
///
/// # Errors
/// The outer one: the laboratory has ended. The inner one: the emulator was late every time.
pub fn punctually<T>(
    lab: &Lab,
    patience: Duration,
    mut once: impl FnMut() -> T,
    counts_if_late: impl Fn(&T) -> bool,
) -> Result<Result<T, Starved>, LabError> {
    let (began, before, idlers) = (Instant::now(), ProcessorTime::now(), Idlers::start());
    let mut attempts = 0;
    loop {
        lab.measure_from_now()?;
        let done = once();
        attempts += 1;
        let Some(report) = lab.emulator_report()? else {
            return Ok(Ok(done));
        };
        if !report.void() || counts_if_late(&done) {
            return Ok(Ok(done));
        }
        if began.elapsed() >= patience {
            // Who cannot say what was stolen cannot blame it.
            let stolen = before.and_then(|before| Ok(ProcessorTime::now()?.stolen_since(before)));
            return Ok(Err(Starved {
                attempts,
                lateness: report.lateness,
                stolen: stolen.unwrap_or(0.0),
                idler_late_p99: idlers.late_p99(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stolen_is_a_share_of_all_processors_time() {
        let of = |stat| ProcessorTime::parse(stat).unwrap();
        let before = of("cpu  100 0 100 700 50 0 20 30 0 0\ncpu0 1 2 3\n");
        let after = of("cpu  150 0 150 1400 50 0 20 130 70 0\n");
        assert!((after.stolen_since(before) - 100.0 / 900.0).abs() < 1e-12);
        assert_eq!(before.stolen_since(before), 0.0);
        // Counters of virtual machines have been seen to go back.
        assert_eq!(before.stolen_since(after), 0.0);
    }

    #[test]
    fn a_file_that_is_no_proc_stat_is_refused() {
        for stat in [
            "",
            "cpu0 1 2 3 4 5 6 7 8\n",
            "cpu  1 2 3\n",
            "cpu  1 2 3 4 5 6 7 -8\n",
        ] {
            assert_eq!(ProcessorTime::parse(stat), None, "{stat:?}");
        }
    }

    #[test]
    fn idlers_tell_how_late_they_were() {
        let began = Instant::now();
        let idlers = Idlers::start();
        thread::sleep(Duration::from_millis(50));
        let (late, waited) = (idlers.late_p99(), began.elapsed());
        // No kernel wakes anybody up within 100 ns. Without the right to come first they tell
        // nothing.
        let first = FifoPriority::new(99).map(realtime::schedule_fifo);
        let right = matches!(first, Some(Ok(())));
        assert_eq!(late > Duration::from_nanos(100), right, "{late:?}");
        assert!(late < waited, "{late:?} of {waited:?}");
    }

    #[test]
    #[should_panic(expected = "does not explain it")]
    fn a_slow_emulator_on_a_free_machine_is_no_excuse() {
        Starved {
            attempts: 3,
            lateness: Lateness::default(),
            stolen: 0.0,
            idler_late_p99: Duration::ZERO,
        }
        .excuse("a test");
    }
}
