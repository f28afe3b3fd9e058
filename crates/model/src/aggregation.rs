//! How many small packets travel as few: the size S, interval I and copies N of aggregates, and the
//! controllers that adapt them, `[aggregation §3]`.
//!
//! A gateway gathers small packets and every I sends one aggregate of at most S bytes, N times
//! over. [`Limits`] say what S, I and N may be, [`within`] keeps M = N·S/I within the bandwidth,
//! and a [`Controller`] turns what was seen in the last period into the parameters of the next:
//!
//! - [`NoControl`]: no control.
//! - [`Table2`]: the paper's controller, as it is meant.
//! - [`Adaptive`]: Keiro's own, which distinguishes congestion loss from loss of the line.
//!
//! [`spacing`] estimates the bandwidth from the copies' spacing; [`plant`] has simple models of
//! what a controller acts on, to compare controllers by. Who gathers and sends, and how the figures come from the
//! peer, is the core's; nothing here knows a clock.

mod adaptive;
mod bound;
mod cause;
mod limits;
mod line_loss;
mod mixture;
pub mod plant;
mod probe_backoff;
pub mod spacing;
mod table2;

use std::{
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
    time::Duration,
};

pub use adaptive::Adaptive;
pub use bound::{BURST_MAX, TooNarrow, fits, size_max, within};
pub use cause::Cause;
pub use limits::{
    AGGREGATE_HEAD, COPIES_MAX, INTERVAL_MAX, INTERVAL_MIN, LOSS_MAX, LOSS_MIN, Limits,
    LimitsError, PARITY_HEAD, SIZE_MAX, Settings, Thresholds, VALUES_MAX,
};
pub use table2::{Meant, Reading, Recovery, Table2};

use keiro_units::{Bandwidth, ByteCount, Instant};

/// S, I and N, `[aggregation §3.1]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    size: ByteCount,
    interval: Duration,
    copies: u8,
}

/// What was seen in the last period, of one path and direction.
///
/// A period is a few aggregates long ([`period`]), and every figure is of packets that were sent
/// with the parameters in force.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observation {
    /// How long the period was.
    pub period: Duration,
    /// Packets that the receiver dropped because a buffer of its was full: the socket's.
    pub socket_overflows: u64,
    /// Those that its socket dropped before the period, while nothing was judged because N or I had just changed:
    /// their packets may be missed in it.
    pub socket_overflows_before: u64,
    /// The same of the rest of the receiver's system, packets of others included.
    pub system_overflows: u64,
    /// Aggregates whose fate has become known, and of these the ones of which no copy came.
    pub aggregates: DeliveryCounts,
    /// The same of single copies.
    pub copies: DeliveryCounts,
    /// B: what M must stay within, the path's rate or the estimate if that is less; IP bytes.
    pub bandwidth: Bandwidth,
    /// What was sent in the period, all copies, IP bytes.
    pub sent: Bandwidth,
    /// What came to be gathered in the period, as it would be with one copy: IP bytes, with the headers of the
    /// aggregates that left. Zero if it is not known.
    pub offered: Bandwidth,
    /// Median queueing delay above the path's base, one way. `None`: not known.
    pub queueing: Option<Duration>,
    /// Median spacing of the copies when they came in the last second, as a multiple of what the
    /// bandwidth explains: 1 where no other packets came between. `None`: not known, as with N = 1, or
    /// copies that do not leave back to back.
    pub spread: Option<f64>,
}

/// How many were sent and how many of these were lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Sent, the lost ones included.
    pub sent: u64,
    /// Lost, at most as many.
    pub lost: u64,
}

/// What a controller makes of a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// In force until now.
    pub before: Parameters,
    /// In force from now on; M ≤ B.
    pub parameters: Parameters,
    pub cause: Cause,
}

/// A controller of one path and direction.
pub trait Controller: fmt::Debug + Send {
    /// What is in force.
    fn parameters(&self) -> Parameters;

    /// A period has ended.
    ///
    /// # Errors
    /// If no combination stays within the bandwidth. Nothing has changed then; aggregation by the
    /// clock has to pause until a later period.
    fn on_period(&mut self, now: Instant, seen: &Observation) -> Result<Decision, TooNarrow>;
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ControllerKind {
    /// [`Adaptive`].
    #[default]
    Adaptive,
    /// [`Table2`].
    Table2,
    /// [`NoControl`].
    None,
    /// An experiment's. No configuration names it.
    Custom(&'static CustomController),
}

/// A controller that an experiment brings, to be measured beside the built-in ones.
#[derive(Debug)]
pub struct CustomController {
    /// What snapshots and tables call it; unlike the names of the built-in ones.
    pub name: &'static str,
    /// As [`ControllerKind::controller`].
    pub make: fn(Limits, Bandwidth) -> Result<Box<dyn Controller>, TooNarrow>,
}

/// The name of no controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownController(String);

/// No control: the initial parameters, or what the bandwidth leaves of them.
#[derive(Clone, Debug)]
pub struct NoControl {
    held: Held,
}

/// Intervals I that a period has at least. Ours: enough to see whether a step helped, and a fifth of
/// a second at the longest I.
pub const INTERVALS_PER_PERIOD: u32 = 50;

/// How long a period should be: [`INTERVALS_PER_PERIOD`], and so long that what was sent since the
/// last change has been reported.
pub fn period(interval: Duration, rtt: Duration) -> Duration {
    let intervals = interval.saturating_mul(INTERVALS_PER_PERIOD);
    intervals.max(rtt.saturating_mul(2))
}

impl Parameters {
    /// `None` if one of them is zero.
    pub const fn new(size: ByteCount, interval: Duration, copies: u8) -> Option<Self> {
        if size.is_zero() || interval.is_zero() || copies == 0 {
            return None;
        }
        Some(Self {
            size,
            interval,
            copies,
        })
    }

    /// S: the largest aggregate, IP bytes of one copy with all headers, more than zero.
    pub const fn size(&self) -> ByteCount {
        self.size
    }

    /// I: from one aggregate to the next, more than zero.
    pub const fn interval(&self) -> Duration {
        self.interval
    }

    /// N: how often each aggregate is sent, one at least.
    pub const fn copies(&self) -> u8 {
        self.copies
    }

    /// M = N·S/I, the most that is sent, rounded up to bit/s, `[aggregation eq. 1]`.
    pub fn rate(&self) -> Bandwidth {
        self.burst().rate_over_ceil(self.interval)
    }

    /// N·S: what leaves back to back at most.
    pub const fn burst(&self) -> ByteCount {
        self.size.saturating_mul(self.copies as u64)
    }

    /// S/I: what can be carried of different bytes, headers included.
    pub fn goodput(&self) -> Bandwidth {
        self.size.rate_over_floor(self.interval)
    }

    /// Aggregates sent per second, copies counted.
    pub fn aggregates_per_second(&self) -> f64 {
        f64::from(self.copies) / self.interval.as_secs_f64()
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            size,
            interval,
            copies,
        } = self;
        write!(f, "S {size}, I {interval:?}, N {copies}")
    }
}

impl Observation {
    /// Overflows per second, the socket's and the system's together.
    ///
    /// Zero for a period of zero.
    pub fn overflows_per_second(&self) -> f64 {
        self.per_second(self.socket_overflows.saturating_add(self.system_overflows))
    }

    /// `count` in the period, as a rate per second; zero for a period of zero.
    fn per_second(&self, count: u64) -> f64 {
        match self.period.is_zero() {
            true => 0.0,
            false => count as f64 / self.period.as_secs_f64(),
        }
    }
}

impl DeliveryCounts {
    /// The share that was lost; zero if nothing was sent.
    pub fn loss(&self) -> f64 {
        match self.sent {
            0 => 0.0,
            sent => self.lost.min(sent) as f64 / sent as f64,
        }
    }

    pub fn add(&mut self, other: Self) {
        self.sent = self.sent.saturating_add(other.sent);
        let lost = other.lost.min(other.sent);
        self.lost = self.lost.saturating_add(lost);
    }
}

impl Decision {
    pub fn is_change(&self) -> bool {
        self.before != self.parameters
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_change() {
            write!(f, "{} → {}: {}", self.before, self.parameters, self.cause)
        } else {
            write!(f, "{}: {}", self.parameters, self.cause)
        }
    }
}

impl ControllerKind {
    /// The built-in controllers, in the order in which messages list them.
    pub const BUILT_IN: [Self; 3] = [Self::Adaptive, Self::Table2, Self::None];

    /// The name in configurations, snapshots and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Adaptive => "adaptive",
            Self::Table2 => "table2",
            Self::None => "none",
            Self::Custom(custom) => custom.name,
        }
    }

    /// A controller of this kind at its initial parameters, or at what `bandwidth` leaves of them.
    ///
    /// # Errors
    /// If no combination stays within `bandwidth`.
    pub fn controller(
        self,
        limits: Limits,
        bandwidth: Bandwidth,
    ) -> Result<Box<dyn Controller>, TooNarrow> {
        Ok(match self {
            Self::None => Box::new(NoControl::new(limits, bandwidth)?),
            Self::Table2 => Box::new(Table2::<Meant>::new(limits, bandwidth)?),
            Self::Adaptive => Box::new(Adaptive::new(limits, bandwidth)?),
            Self::Custom(custom) => return (custom.make)(limits, bandwidth),
        })
    }
}

impl PartialEq for CustomController {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for CustomController {}

impl Hash for CustomController {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for ControllerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ControllerKind {
    type Err = UnknownController;

    fn from_str(name: &str) -> Result<Self, UnknownController> {
        Self::BUILT_IN
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownController(name.to_owned()))
    }
}

impl fmt::Display for UnknownController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ControllerKind::BUILT_IN
            .map(ControllerKind::name)
            .join(", ");
        write!(f, "no controller `{}`, there are: {names}", self.0)
    }
}

impl std::error::Error for UnknownController {}

impl NoControl {
    /// At the initial parameters, or at what `bandwidth` leaves of them.
    ///
    /// # Errors
    /// If no combination stays within `bandwidth`.
    pub fn new(limits: Limits, bandwidth: Bandwidth) -> Result<Self, TooNarrow> {
        let held = Held::new(limits, bandwidth)?;
        Ok(Self { held })
    }
}

impl Controller for NoControl {
    fn parameters(&self) -> Parameters {
        self.held.current
    }

    fn on_period(&mut self, _: Instant, seen: &Observation) -> Result<Decision, TooNarrow> {
        let wanted = self.held.wanted;
        self.held.decide(wanted, seen.bandwidth, Cause::Steady)
    }
}

/// What a controller wants, and what the bandwidth leaves of it.
#[derive(Clone, Debug)]
struct Held {
    limits: Limits,
    wanted: Parameters,
    current: Parameters,
}

/// A size that grew by less than this part is kept: a bandwidth that is measured is never the same
/// twice. Ours: what the estimate may be wrong by, and a little.
const SIZE_WORTH: f64 = 1.0 / 16.0;

impl Held {
    fn new(limits: Limits, bandwidth: Bandwidth) -> Result<Self, TooNarrow> {
        let wanted = limits.initial();
        let current = within(wanted, &limits, bandwidth)?;
        Ok(Self {
            limits,
            wanted,
            current,
        })
    }

    /// Wants `wanted` because of `cause`, and takes what `bandwidth` leaves of it.
    fn decide(
        &mut self,
        wanted: Parameters,
        bandwidth: Bandwidth,
        cause: Cause,
    ) -> Result<Decision, TooNarrow> {
        let asked = wanted != self.wanted;
        let before = self.current;
        let mut next = within(wanted, &self.limits, bandwidth)?;
        let gain = next.size.get() as f64 / before.size.get() as f64 - 1.0;
        let same_but_size = next.interval == before.interval && next.copies == before.copies;
        if !asked && same_but_size && (0.0..SIZE_WORTH).contains(&gain) && next != wanted {
            next = before;
        }
        self.wanted = wanted;
        self.current = next;
        let by_bandwidth = !asked && next != before;
        Ok(Decision {
            before,
            parameters: next,
            cause: if by_bandwidth {
                Cause::Bandwidth {
                    wanted: wanted.rate(),
                    bandwidth,
                }
            } else {
                cause
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(size: u64, interval_us: u64, copies: u8) -> Parameters {
        Parameters::new(
            ByteCount::new(size),
            Duration::from_micros(interval_us),
            copies,
        )
        .unwrap()
    }

    #[test]
    fn the_papers_example_is_one_rate_with_ever_fewer_aggregates() {
        // [aggregation §3.2.3]: (a), (b) and (c) are 2 MB/s each.
        let sets = [(1000, 1000, 2), (2000, 2000, 2), (4000, 2000, 1)];
        let sets = sets.map(|(size, interval, copies)| parameters(size, interval, copies));
        for set in sets {
            assert_eq!(set.rate(), Bandwidth::from_mbit_per_second(16), "{set}");
        }
        let loads = sets.map(|set| set.aggregates_per_second());
        assert_eq!(loads, [2000.0, 1000.0, 500.0]);
        // What of it is different bytes: (c) carries twice as many.
        let carried = sets.map(|set| set.goodput().as_bits_per_second());
        assert_eq!(carried, [8_000_000, 8_000_000, 16_000_000]);
    }

    #[test]
    fn controllers_are_parsed_by_the_names_that_they_print() {
        for kind in ControllerKind::BUILT_IN {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let unknown = "fixed".parse::<ControllerKind>().unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "no controller `fixed`, there are: adaptive, table2, none"
        );
    }

    #[test]
    fn zero_parameters_are_refused() {
        let (size, interval) = (ByteCount::new(1), Duration::from_nanos(1));
        assert!(Parameters::new(size, interval, 1).is_some());
        assert_eq!(Parameters::new(ByteCount::ZERO, interval, 1), None);
        assert_eq!(Parameters::new(size, Duration::ZERO, 1), None);
        assert_eq!(Parameters::new(size, interval, 0), None);
    }

    #[test]
    fn without_control_only_the_bandwidth_changes_anything() {
        let mut controller = ControllerKind::None
            .controller(Limits::default(), Bandwidth::from_mbit_per_second(100))
            .unwrap();
        let mut seen = Observation {
            period: Duration::from_millis(50),
            socket_overflows: 1000,
            aggregates: DeliveryCounts { sent: 50, lost: 25 },
            bandwidth: Bandwidth::from_mbit_per_second(100),
            ..Observation::default()
        };
        let decision = controller.on_period(Instant::ZERO, &seen).unwrap();
        assert!(!decision.is_change(), "{decision}");
        seen.bandwidth = Bandwidth::from_mbit_per_second(16);
        let decision = controller.on_period(Instant::ZERO, &seen).unwrap();
        assert_eq!(decision.parameters, parameters(1000, 1000, 2));
        assert_eq!(
            decision.to_string(),
            "S 2.048kB, I 1ms, N 2 → S 1kB, I 1ms, N 2: 32.768Mbit/s are wanted, the path gives \
             16Mbit/s"
        );
        // A little more is not worth a change, as much as before is.
        seen.bandwidth = Bandwidth::from_mbit_per_second(17);
        assert!(
            !controller
                .on_period(Instant::ZERO, &seen)
                .unwrap()
                .is_change()
        );
        seen.bandwidth = Bandwidth::from_mbit_per_second(100);
        let decision = controller.on_period(Instant::ZERO, &seen).unwrap();
        assert_eq!(decision.parameters, Limits::default().initial());
        seen.bandwidth = Bandwidth::from_mbit_per_second(1);
        assert!(controller.on_period(Instant::ZERO, &seen).is_err());
        assert_eq!(controller.parameters(), Limits::default().initial());
    }

    #[test]
    fn periods_are_long_enough_to_have_seen_the_last_change() {
        let ms = Duration::from_millis;
        assert_eq!(period(ms(1), ms(1)), ms(50));
        assert_eq!(period(ms(4), ms(1)), ms(200));
        assert_eq!(period(ms(1), ms(200)), ms(400));
        assert_eq!(period(Duration::MAX, Duration::MAX), Duration::MAX);
    }
}
