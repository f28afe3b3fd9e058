//! A machine that is itself kept waiting: where a hypervisor gives the processors to others, no
//! emulator is punctual, and what was measured meanwhile says nothing about what was measured.
//!
//! [`punctually`] repeats a measurement until it counts. What to make of a machine on which none
//! does is the caller's: an experiment is void, and a test says aloud what it has not tested
//! ([`Starved::excuse`]), if the machine's fault shows: in what was stolen of the processors' time,
//! or in that on one of them a thread that comes before all others, and does nothing, was late too.
//!
//! [`unhindered`] does the same for what has to be over in time and has no emulator: one pause of a
//! processor is enough to miss a bound of some milliseconds, and too short for percentiles. It asks
//! threads that are as others are and do nothing, for what it watches comes before nobody either.

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

/// How long a thread that writes rests in between.
const WRITES_APART: Duration = Duration::from_millis(20);

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

/// Threads that wake up every millisecond, one on every processor. How late they are is the machine's
/// doing alone where they come before everybody else, and that of all that runs where they do not.
#[derive(Debug)]
struct Idlers {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<IdlerLate>>,
}

/// How late a thread was that does nothing.
#[derive(Clone, Copy, Debug, Default)]
struct IdlerLate {
    p99: Duration,
    most: Duration,
}

impl Idlers {
    /// `first`: they come before everybody else.
    fn start(first: bool) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let start = |processor| {
            let done = Arc::clone(&done);
            thread::spawn(move || idle(processor, first, &done))
        };
        let threads = (0..processors).map(start).collect();
        Self { done, threads }
    }

    /// The most of each figure.
    fn late(mut self) -> IdlerLate {
        self.done.store(true, Ordering::Relaxed);
        let late = self.threads.drain(..).map(|idler| idler.join());
        let late = late.map(|late| late.unwrap_or_default());
        late.fold(IdlerLate::default(), |all, one| IdlerLate {
            p99: all.p99.max(one.p99),
            most: all.most.max(one.most),
        })
    }
}

/// Watches for how long a processor stands still: all that runs on it does, whatever is measured.
#[derive(Debug)]
pub struct Standstill(Idlers);

impl Standstill {
    /// From now on.
    pub fn watch() -> Self {
        Self(Idlers::start(true))
    }

    /// The longest time for which a processor kept a thread waiting that comes before all others; zero where none may.
    pub fn longest(self) -> Duration {
        self.0.late().most
    }
}

impl Drop for Idlers {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

fn idle(processor: usize, first: bool, done: &AtomicBool) -> IdlerLate {
    // Who may not do these waits for others, and shows less of the machine's fault than there is.
    let all = FifoPriority::new(99).map(|all| match first {
        true => realtime::schedule_fifo(all),
        false => Ok(()),
    });
    let bound = realtime::pin_to_cpu(processor);
    if !matches!(all, Some(Ok(()))) || bound.is_err() {
        return IdlerLate::default();
    }
    let mut late =
        Histogram::<u64>::new_with_max(LATE_MOST.as_nanos() as u64, 3).expect("fair bounds");
    while !done.load(Ordering::Relaxed) {
        let due = Instant::now() + Duration::from_millis(1);
        thread::sleep(Duration::from_millis(1));
        late.saturating_record(due.elapsed().as_nanos() as u64);
    }
    IdlerLate {
        p99: Duration::from_nanos(late.value_at_quantile(0.99)),
        most: Duration::from_nanos(late.max()),
    }
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
    let (began, before, idlers) = (Instant::now(), ProcessorTime::now(), Idlers::start(true));
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
                idler_late_p99: idlers.late().p99,
            }));
        }
    }
}

/// Why something was never in time: the machine kept others waiting, too.
#[derive(Clone, Copy, Debug)]
pub struct Hindered {
    attempts: u32,
    idler_late_most: Duration,
    disk_took_most: Duration,
}

/// What a machine may do to others while something has to be in time.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    /// Less than this who does nothing is late on any processor.
    pub processor: Duration,
    /// In less than this a few bytes are on the disk of temporary files; `None`: what is done needs none.
    pub disk: Option<Duration>,
}

/// A thread that writes a few bytes to the disk of temporary files now and then. What that takes is the
/// machine's doing, and that of all that writes there.
#[derive(Debug)]
struct Writer {
    done: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Duration>>,
}

impl Writer {
    fn start() -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&done);
        let thread = thread::spawn(move || write_now_and_then(&stop));
        Self { done, thread }
    }

    /// The longest time that it took; nothing where it cannot write.
    fn took_most(self) -> Duration {
        self.done.store(true, Ordering::Relaxed);
        let took = self.thread.join().ok().and_then(Result::ok);
        took.unwrap_or_default()
    }
}

fn write_now_and_then(done: &AtomicBool) -> io::Result<Duration> {
    let directory = tempfile::tempdir()?;
    let mut file = fs::File::create(directory.path().join("written"))?;
    let mut most = Duration::ZERO;
    loop {
        let began = Instant::now();
        file.write_all(b"a few bytes\n")?;
        file.sync_all()?;
        most = most.max(began.elapsed());
        if done.load(Ordering::Relaxed) {
            return Ok(most);
        }
        thread::sleep(WRITES_APART);
    }
}

impl fmt::Display for Hindered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it was late in each of {} attempts; in the last of them who had nothing to do woke up \
             as much as {:?} late, and a few bytes took {:?} to the disk",
            self.attempts, self.idler_late_most, self.disk_took_most,
        )
    }
}

impl Hindered {
    /// Says for a test that it has tested nothing, as [`not_tested`] does.
    pub fn excuse(&self, test: &str) {
        not_tested(test, self);
    }
}

/// Does something until it counts: until what came of it `is_in_time`, or the machine has kept nobody
/// else waiting meanwhile for longer than the `allowance`. Again and again for as long as `patience`
/// lasts, but at least once.
///
/// # Errors
/// It was not in time, and the machine late, every time.
pub fn unhindered<T>(
    allowance: Allowance,
    patience: Duration,
    mut once: impl FnMut() -> T,
    is_in_time: impl Fn(&T) -> bool,
) -> Result<T, Hindered> {
    let began = Instant::now();
    let mut attempts = 0;
    loop {
        let idlers = Idlers::start(false);
        let writer = allowance.disk.map(|_| Writer::start());
        let done = once();
        let late = idlers.late();
        let disk_took_most = writer.map(Writer::took_most).unwrap_or_default();
        attempts += 1;
        let disk_is_slow = allowance.disk.is_some_and(|disk| disk_took_most >= disk);
        let is_hindered = late.most >= allowance.processor || disk_is_slow;
        if is_in_time(&done) || !is_hindered {
            return Ok(done);
        }
        if began.elapsed() >= patience {
            return Err(Hindered {
                attempts,
                idler_late_most: late.most,
                disk_took_most,
            });
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
        let idlers = Idlers::start(true);
        thread::sleep(Duration::from_millis(50));
        let (late, waited) = (idlers.late(), began.elapsed());
        // No kernel wakes anybody up within 100 ns. Without the right to come first they tell
        // nothing.
        let first = FifoPriority::new(99).map(realtime::schedule_fifo);
        let right = matches!(first, Some(Ok(())));
        assert_eq!(late.p99 > Duration::from_nanos(100), right, "{late:?}");
        // Figures are rounded up, by less than a thousandth.
        let most = late.most.mul_f64(0.999);
        assert!(
            late.p99 <= late.most && most < waited,
            "{late:?} of {waited:?}"
        );
    }

    #[test]
    fn idlers_that_come_before_nobody_need_no_right() {
        let idlers = Idlers::start(false);
        thread::sleep(Duration::from_millis(50));
        let late = idlers.late();
        assert!(late.p99 > Duration::from_nanos(100), "{late:?}");
    }

    fn all(allowance: Duration) -> Allowance {
        Allowance {
            processor: allowance,
            disk: Some(allowance),
        }
    }

    #[test]
    fn what_is_in_time_or_late_on_a_free_machine_counts_at_once() {
        let mut attempts = 0;
        let mut once = || {
            attempts += 1;
            attempts
        };
        let long = Duration::from_secs(60);
        let found = unhindered(all(Duration::ZERO), long, &mut once, |_| true);
        assert_eq!(found.unwrap(), 1);
        let found = unhindered(all(long), long, &mut once, |_| false);
        assert_eq!(found.unwrap(), 2);
    }

    #[test]
    fn what_is_late_on_a_machine_that_is_late_is_done_again_until_patience_ends() {
        let mut attempts = 0;
        let once = || {
            attempts += 1;
            attempts
        };
        let long = Duration::from_secs(60);
        let found = unhindered(all(Duration::ZERO), long, once, |attempt| *attempt == 3);
        assert_eq!(found.unwrap(), 3);
        // A disk that takes any time at all.
        let slow_disk = Allowance {
            processor: long,
            disk: Some(Duration::from_nanos(1)),
        };
        let brief = || thread::sleep(Duration::from_millis(50));
        let hindered = unhindered(slow_disk, Duration::ZERO, brief, |()| false);
        let said = hindered.unwrap_err().to_string();
        assert!(said.contains("in each of 1 attempts"), "{said}");
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
