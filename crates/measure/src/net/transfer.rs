//! Transfer time against size: `[latency-bandwidth §3]`, measured as an application sees it.
//!
//! The paper does not say whether its connections were new. The default here is one warm connection, so that
//! the fit describes the network and not connection setup, and `T(n)` is a line where the network has one. To
//! make "warm" mean the same for every transfer, regardless of the random order, the congestion window is
//! kept open: before a transfer that exceeds an initial window, as many bytes (at most [`PRIMING_BYTES_MAX`])
//! are sent untimed. No TCP parameter is tuned, as in the paper.

use std::time::{Duration, Instant};

use super::{
    error::NetError,
    sampling::{REPEATS_MIN, Schedule, SizeSeries},
    session::{Connection, Direction, Session},
};

#[derive(Clone, Debug, PartialEq)]
pub struct TransferPlan {
    /// The sizes in bytes.
    pub sizes: Vec<u64>,
    pub direction: Direction,
    pub connection: Connection,
    /// Half of the 95 % interval of a size's median relative to the median, at which a size is done.
    pub precision: f64,
    /// Time limit; the last transfer may end a little later.
    pub budget: Duration,
    /// Maximum of transfers per size.
    pub repeats_max: usize,
    /// Pause without traffic before each transfer.
    pub pause: Duration,
    /// Determines the order of the transfers.
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timed {
    /// TCP payload.
    pub bytes: u64,
    /// From before the first write until the receiver had the last byte.
    pub seconds: f64,
}

/// Transfers in the order in which they were made.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transfers {
    pub samples: Vec<Timed>,
    /// Transfers by size; sizes without transfers are included.
    pub series: Vec<SizeSeries>,
}

/// Progress of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferProgress {
    pub transfers: usize,
    /// Number of sizes that are done.
    pub precise: usize,
    pub sizes: usize,
    /// Since the first transfer began.
    pub elapsed: Duration,
    /// Remaining time, at most.
    pub left: Duration,
}

/// Maximum size of a transfer that fits into the initial window: ten segments of 1448 bytes (RFC 6928).
const FIRST_WINDOW_BYTES: u64 = 14_480;

/// Maximum of untimed bytes before a transfer. Ours: 80 ms of 400 Mbit/s.
const PRIMING_BYTES_MAX: u64 = 4_000_000;

/// The first look at the path ends when a transfer takes this long. Ours.
const LOOK: Duration = Duration::from_millis(200);

/// Clocks are compared again after a transfer that took longer than this. Ours: a drift of 30 ppm is 30 µs
/// then.
const CLOCKS_AGE_MAX: Duration = Duration::from_secs(1);

/// Runs `plan`, adding to `found`, so that results survive an error. `observe` is called after every
/// transfer.
///
/// # Errors
/// The connection is lost, the server refuses, there is nothing to measure, or no time for it.
pub fn measure_transfers(
    session: &mut Session<'_>,
    plan: &TransferPlan,
    found: &mut Transfers,
    observe: &mut dyn FnMut(&TransferProgress),
) -> Result<(), NetError> {
    if plan.sizes.is_empty() {
        return Err(NetError::Sizes("no sizes to measure".into()));
    }
    let begin = Instant::now();
    let path = look(session, plan)?;
    let looked = begin.elapsed();
    let mut schedule = Schedule::new(
        &plan.sizes,
        plan.budget,
        plan.precision,
        plan.repeats_max.max(REPEATS_MIN),
        plan.seed,
    );
    found.series = schedule.series().to_vec();
    let around = plan.pause + path.round_trip * 4;
    let expected = |bytes: u64| {
        let priming = if bytes > FIRST_WINDOW_BYTES {
            path.priming.min(bytes)
        } else {
            0
        };
        path.time_of(bytes.saturating_add(priming)) + around
    };
    while let Some(index) = schedule.next(begin.elapsed(), expected) {
        let bytes = plan.sizes[index];
        let started = Instant::now();
        prime(session, plan, bytes, path.priming)?;
        pause(session, plan.pause)?;
        let time = session.transfer(bytes, plan.direction, plan.connection)?;
        if time > CLOCKS_AGE_MAX {
            session.exchange_stamps()?;
        }
        schedule.on_transfer(index, time, started.elapsed());
        found.samples.push(Timed {
            bytes,
            seconds: time.as_secs_f64(),
        });
        found.series[index] = schedule.series()[index].clone();
        observe(&TransferProgress {
            transfers: found.samples.len(),
            precise: found.series.iter().filter(|series| series.precise).count(),
            sizes: plan.sizes.len(),
            elapsed: begin.elapsed(),
            left: schedule.left(begin.elapsed(), expected),
        });
    }
    match schedule.series().iter().all(|s| s.seconds.is_empty()) {
        true => Err(no_time(plan, looked, expected)),
        false => Ok(()),
    }
}

/// Why there was no transfer at all.
fn no_time(plan: &TransferPlan, looked: Duration, expected: impl Fn(u64) -> Duration) -> NetError {
    let each = plan.sizes.iter().map(|bytes| expected(*bytes));
    let once = each.clone().fold(Duration::ZERO, Duration::saturating_add);
    let enough = once.saturating_mul(REPEATS_MIN as u32);
    let enough = enough.saturating_add(looked).as_secs();
    NetError::NoTime {
        budget: plan.budget,
        looked,
        shortest: each.min().unwrap_or_default(),
        // Rounded up to whole seconds, with a margin.
        enough: Duration::from_secs(enough.saturating_add(1)),
    }
}

/// Result of the first look at the path.
struct Path {
    bytes_per_second: f64,
    round_trip: Duration,
    /// Untimed bytes that open the congestion window.
    priming: u64,
}

impl Path {
    fn time_of(&self, bytes: u64) -> Duration {
        let seconds = bytes as f64 / self.bytes_per_second;
        Duration::try_from_secs_f64(seconds)
            .unwrap_or(Duration::MAX)
            .saturating_add(self.round_trip)
    }
}

/// Transfers increasing sizes until one takes a while, which also opens the congestion window.
fn look(session: &mut Session<'_>, plan: &TransferPlan) -> Result<Path, NetError> {
    let largest = plan.sizes.iter().copied().max().unwrap_or(1);
    let round_trip = session.round_trip_min();
    let mut bytes = FIRST_WINDOW_BYTES.min(largest);
    let mut fastest: f64 = 0.0;
    let mut again = plan.connection == Connection::Warm;
    loop {
        let time = session.transfer(bytes, plan.direction, plan.connection)?;
        let seconds = time.saturating_sub(round_trip / 2).as_secs_f64();
        let bytes_per_second = bytes as f64 / seconds.max(1e-6);
        // The shortest transfers say little, and a long one may be slower than a burst.
        if time >= round_trip * 2 {
            fastest = fastest.max(bytes_per_second);
        }
        let enough = time >= LOOK.max(round_trip * 4) || bytes >= largest.min(LOOK_BYTES_MAX);
        // Repeats once with the window that this one has opened, unless it was long enough to use the window.
        if enough && (!std::mem::take(&mut again) || time >= LOOK * 5) {
            // Twice the bytes in flight, so that the window covers them.
            let under_way = fastest.max(bytes_per_second) * round_trip.as_secs_f64();
            let priming = (2.0 * under_way) as u64;
            return Ok(Path {
                bytes_per_second,
                round_trip,
                priming: priming.clamp(FIRST_WINDOW_BYTES, PRIMING_BYTES_MAX),
            });
        }
        if !enough {
            bytes = bytes.saturating_mul(4).min(largest);
        }
    }
}

/// Maximum transfer of the first look. Ours: 80 ms of 10 Gbit/s.
const LOOK_BYTES_MAX: u64 = 100_000_000;

/// Keeps the congestion window open.
fn prime(
    session: &mut Session<'_>,
    plan: &TransferPlan,
    bytes: u64,
    priming: u64,
) -> Result<(), NetError> {
    if plan.connection == Connection::Warm && bytes > FIRST_WINDOW_BYTES {
        session.transfer(bytes.min(priming), plan.direction, plan.connection)?;
    }
    Ok(())
}

fn pause(session: &Session<'_>, time: Duration) -> Result<(), NetError> {
    let end = Instant::now() + time;
    loop {
        if session.stop().load(std::sync::atomic::Ordering::Acquire) {
            return Err(NetError::Interrupted);
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}
