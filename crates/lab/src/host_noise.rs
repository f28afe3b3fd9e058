//! Measurements on a noisy host: if a hypervisor gives the processors to others, no emulator is punctual, and
//! measurements made meanwhile are meaningless.
//!
//! [`retry_until_on_time`] repeats a measurement until the emulator was on time. If it never is, the
//! caller decides: an experiment is void, and a test reports that it tested nothing
//! ([`EmulatorLate::skip_test`]). That needs evidence against the host: stolen processor time, or a
//! probe thread of the highest priority that woke up late too.
//!
//! [`retry_until_undisturbed`] is for code with a deadline and without an emulator. One pause of a
//! processor is enough to miss a bound of some milliseconds, and too short for percentiles. Its probe
//! threads have ordinary priority, as the code under test has.

use std::{
    fmt, fs,
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
use keiro_testing::not_tested;

use crate::{
    Lab, LabError,
    emulator::{LATENESS_P99_MAX, Lateness},
};

/// Above this share of stolen processor time, lateness is attributed to the host. Ours.
const STOLEN_MIN: f64 = 0.01;

/// Above this 99th percentile of the probes' delay, lateness is attributed to the host. Ours.
const WAKEUP_DELAY_MIN: Duration = Duration::from_micros(100);

/// Pause between two writes of a [`DiskProbe`].
const WRITE_INTERVAL: Duration = Duration::from_millis(20);

/// Longer delays are recorded as this.
const DELAY_RECORDED_MAX: Duration = Duration::from_secs(10);

/// Processor time since the machine started, and how much of it the hypervisor stole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuTime {
    /// Ticks of all processors, idle ones included.
    all: u64,
    stolen: u64,
}

impl CpuTime {
    /// # Errors
    /// `/proc/stat` cannot be read or parsed.
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

    /// The share stolen since `earlier`, 0 to 1.
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

/// One thread per processor that wakes up every millisecond. At the highest priority its delay is caused by
/// the host alone, at ordinary priority by all other threads, too.
#[derive(Debug)]
struct WakeupProbes {
    done: Arc<AtomicBool>,
    threads: Vec<JoinHandle<WakeupDelay>>,
}

/// How late a probe woke up.
#[derive(Clone, Copy, Debug, Default)]
struct WakeupDelay {
    p99: Duration,
    max: Duration,
}

impl WakeupProbes {
    /// `first`: at the highest real-time priority.
    fn start(first: bool) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let start = |processor| {
            let done = Arc::clone(&done);
            thread::spawn(move || probe(processor, first, &done))
        };
        let threads = (0..processors).map(start).collect();
        Self { done, threads }
    }

    /// Stops the probes; returns the greatest value of each figure over all processors.
    fn late(mut self) -> WakeupDelay {
        self.done.store(true, Ordering::Relaxed);
        let late = self.threads.drain(..).map(|probe| probe.join());
        let late = late.map(|late| late.unwrap_or_default());
        late.fold(WakeupDelay::default(), |all, one| WakeupDelay {
            p99: all.p99.max(one.p99),
            max: all.max.max(one.max),
        })
    }
}

/// Finds the longest pause of a processor, which delays all threads on it.
#[derive(Debug)]
pub struct PauseMonitor(WakeupProbes);

impl PauseMonitor {
    pub fn watch() -> Self {
        Self(WakeupProbes::start(true))
    }

    /// Longest delay of a thread of the highest priority; zero if that priority is not permitted.
    pub fn longest(self) -> Duration {
        self.0.late().max
    }
}

impl Drop for WakeupProbes {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

fn probe(processor: usize, first: bool, done: &AtomicBool) -> WakeupDelay {
    // At a lower priority a probe would also measure other threads, so it returns zero.
    let all = FifoPriority::new(99).map(|all| match first {
        true => realtime::schedule_fifo(all),
        false => Ok(()),
    });
    let bound = realtime::pin_to_cpu(processor);
    if !matches!(all, Some(Ok(()))) || bound.is_err() {
        return WakeupDelay::default();
    }
    let mut late = Histogram::<u64>::new_with_max(DELAY_RECORDED_MAX.as_nanos() as u64, 3)
        .expect("fair bounds");
    while !done.load(Ordering::Relaxed) {
        let due = Instant::now() + Duration::from_millis(1);
        thread::sleep(Duration::from_millis(1));
        late.saturating_record(due.elapsed().as_nanos() as u64);
    }
    WakeupDelay {
        p99: Duration::from_nanos(late.value_at_quantile(0.99)),
        max: Duration::from_nanos(late.max()),
    }
}

/// Nothing was measured: the emulator was late in every attempt.
#[derive(Clone, Copy, Debug)]
pub struct EmulatorLate {
    attempts: u32,
    lateness: Lateness,
    stolen: f64,
    wakeup_delay_p99: Duration,
}

impl fmt::Display for EmulatorLate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the emulator was late in each of {} attempts ({:?} at the 99th percentile of the \
             last, {LATENESS_P99_MAX:?} is the bound); meanwhile {:.1} % of the processors' time \
             was stolen, and idle threads woke up {:?} late",
            self.attempts,
            self.lateness.p99,
            100.0 * self.stolen,
            self.wakeup_delay_p99,
        )
    }
}

impl EmulatorLate {
    /// Reports with [`not_tested`] that a test tested nothing.
    ///
    /// If the host was not noisy: then the emulator is too slow, and that is a failure.
    /// Where the machine was not late: then the emulator is too slow, and that is a failure.
    pub fn skip_test(&self, test: &str) {
        assert!(
            self.stolen >= STOLEN_MIN || self.wakeup_delay_p99 >= WAKEUP_DELAY_MIN,
            "{test}: {self}, which does not explain it"
        );
        not_tested(test, self);
    }
}

/// Runs `once` until the laboratory's emulator was punctual meanwhile, or the result `counts_if_late`; starts
/// no attempt after `patience`.
///
/// # Errors
/// The outer one: the laboratory has ended. The inner one: the emulator was late every time.
pub fn retry_until_on_time<T>(
    lab: &Lab,
    patience: Duration,
    mut once: impl FnMut() -> T,
    counts_if_late: impl Fn(&T) -> bool,
) -> Result<Result<T, EmulatorLate>, LabError> {
    let (began, before, probes) = (Instant::now(), CpuTime::now(), WakeupProbes::start(true));
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
            // Without the counters no time counts as stolen.
            let stolen = before.and_then(|before| Ok(CpuTime::now()?.stolen_since(before)));
            return Ok(Err(EmulatorLate {
                attempts,
                lateness: report.lateness,
                stolen: stolen.unwrap_or(0.0),
                wakeup_delay_p99: probes.late().p99,
            }));
        }
    }
}

/// The deadline was missed in every attempt, and the host delayed the probes too.
#[derive(Clone, Copy, Debug)]
pub struct Disturbed {
    attempts: u32,
    wakeup_delay_max: Duration,
    disk_write_max: Duration,
}

/// Host noise up to which a missed deadline still counts.
#[derive(Clone, Copy, Debug)]
pub struct NoiseAllowance {
    /// Probe threads on every processor wake up with less delay than this.
    pub processor: Duration,
    /// A small synced write to temporary files takes less than this; `None` if the code under test does not
    /// write.
    pub disk: Option<Duration>,
}

/// A thread that repeatedly writes and syncs a few bytes to the disk of temporary files, and times it.
#[derive(Debug)]
struct DiskProbe {
    done: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Duration>>,
}

impl DiskProbe {
    fn start() -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&done);
        let thread = thread::spawn(move || write_repeatedly(&stop));
        Self { done, thread }
    }

    /// The longest write; zero if it cannot write.
    fn longest_write(self) -> Duration {
        self.done.store(true, Ordering::Relaxed);
        let took = self.thread.join().ok().and_then(Result::ok);
        took.unwrap_or_default()
    }
}

fn write_repeatedly(done: &AtomicBool) -> io::Result<Duration> {
    let directory = tempfile::tempdir()?;
    let mut file = fs::File::create(directory.path().join("written"))?;
    let mut max = Duration::ZERO;
    loop {
        let began = Instant::now();
        file.write_all(b"a few bytes\n")?;
        file.sync_all()?;
        max = max.max(began.elapsed());
        if done.load(Ordering::Relaxed) {
            return Ok(max);
        }
        thread::sleep(WRITE_INTERVAL);
    }
}

impl fmt::Display for Disturbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "it was late in each of {} attempts; in the last of them idle threads woke up \
             up to {:?} late, and a few bytes took {:?} to the disk",
            self.attempts, self.wakeup_delay_max, self.disk_write_max,
        )
    }
}

impl Disturbed {
    /// Reports with [`not_tested`] that a test tested nothing.
    pub fn skip_test(&self, test: &str) {
        not_tested(test, self);
    }
}

/// Runs `once` until the result `is_in_time`, or the host stayed within `allowance` meanwhile; starts no
/// attempt after `patience`.
///
/// # Errors
/// Every attempt was late while the host exceeded the allowance.
pub fn retry_until_undisturbed<T>(
    allowance: NoiseAllowance,
    patience: Duration,
    mut once: impl FnMut() -> T,
    is_in_time: impl Fn(&T) -> bool,
) -> Result<T, Disturbed> {
    let began = Instant::now();
    let mut attempts = 0;
    loop {
        let probes = WakeupProbes::start(false);
        let writer = allowance.disk.map(|_| DiskProbe::start());
        let done = once();
        let late = probes.late();
        let disk_write_max = writer.map(DiskProbe::longest_write).unwrap_or_default();
        attempts += 1;
        let disk_is_slow = allowance.disk.is_some_and(|disk| disk_write_max >= disk);
        let is_disturbed = late.max >= allowance.processor || disk_is_slow;
        if is_in_time(&done) || !is_disturbed {
            return Ok(done);
        }
        if began.elapsed() >= patience {
            return Err(Disturbed {
                attempts,
                wakeup_delay_max: late.max,
                disk_write_max,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_time_is_a_share_of_all_processors_time() {
        let of = |stat| CpuTime::parse(stat).unwrap();
        let before = of("cpu  100 0 100 700 50 0 20 30 0 0\ncpu0 1 2 3\n");
        let after = of("cpu  150 0 150 1400 50 0 20 130 70 0\n");
        assert!((after.stolen_since(before) - 100.0 / 900.0).abs() < 1e-12);
        assert_eq!(before.stolen_since(before), 0.0);
        // Counters of virtual machines have been observed to decrease.
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
            assert_eq!(CpuTime::parse(stat), None, "{stat:?}");
        }
    }

    #[test]
    fn probes_measure_their_delay() {
        let began = Instant::now();
        let probes = WakeupProbes::start(true);
        thread::sleep(Duration::from_millis(50));
        let (late, waited) = (probes.late(), began.elapsed());
        // No kernel wakes a thread up within 100 ns. Without permission for the priority they return zero.
        let first = FifoPriority::new(99).map(realtime::schedule_fifo);
        let right = matches!(first, Some(Ok(())));
        assert_eq!(late.p99 > Duration::from_nanos(100), right, "{late:?}");
        // Figures are rounded up, by less than a thousandth.
        let max = late.max.mul_f64(0.999);
        assert!(
            late.p99 <= late.max && max < waited,
            "{late:?} of {waited:?}"
        );
    }

    #[test]
    fn probes_of_ordinary_priority_need_no_right() {
        let probes = WakeupProbes::start(false);
        thread::sleep(Duration::from_millis(50));
        let late = probes.late();
        assert!(late.p99 > Duration::from_nanos(100), "{late:?}");
    }

    fn all(allowance: Duration) -> NoiseAllowance {
        NoiseAllowance {
            processor: allowance,
            disk: Some(allowance),
        }
    }

    #[test]
    fn results_in_time_or_late_on_a_quiet_machine_count_at_once() {
        let mut attempts = 0;
        let mut once = || {
            attempts += 1;
            attempts
        };
        let long = Duration::from_secs(60);
        let found = retry_until_undisturbed(all(Duration::ZERO), long, &mut once, |_| true);
        assert_eq!(found.unwrap(), 1);
        let found = retry_until_undisturbed(all(long), long, &mut once, |_| false);
        assert_eq!(found.unwrap(), 2);
    }

    #[test]
    fn late_results_on_a_noisy_machine_are_repeated_until_the_limit() {
        let mut attempts = 0;
        let once = || {
            attempts += 1;
            attempts
        };
        let long = Duration::from_secs(60);
        let found =
            retry_until_undisturbed(all(Duration::ZERO), long, once, |attempt| *attempt == 3);
        assert_eq!(found.unwrap(), 3);
        // A disk that takes any time at all.
        let slow_disk = NoiseAllowance {
            processor: long,
            disk: Some(Duration::from_nanos(1)),
        };
        let brief = || thread::sleep(Duration::from_millis(50));
        let disturbed = retry_until_undisturbed(slow_disk, Duration::ZERO, brief, |()| false);
        let said = disturbed.unwrap_err().to_string();
        assert!(said.contains("in each of 1 attempts"), "{said}");
    }

    #[test]
    #[should_panic(expected = "does not explain it")]
    fn a_slow_emulator_on_a_quiet_machine_is_a_failure() {
        EmulatorLate {
            attempts: 3,
            lateness: Lateness::default(),
            stolen: 0.0,
            wakeup_delay_p99: Duration::ZERO,
        }
        .skip_test("a test");
    }
}
