//! Round trip, delay variation, loss and order, from probes that the server reflects.
//!
//! As in STAMP (RFC 8762) with a stateful reflector: the server numbers its replies, which separates the
//! losses of both directions. Time stamps of arrivals are the kernel's. One-way delays are known only up to
//! the unknown offset of two clocks. The report has their excess over the minimum (RFC 5481 §4.2), and the
//! jitter of RFC 3550 §6.4.1, in which the offset cancels.

use std::time::{Duration, Instant};

use keiro_control::rounded::duration;
use keiro_linux::clock::monotonic_nanos;
use keiro_model::quantiles::nearest_rank;

use super::{
    datagrams::Datagrams,
    error::NetError,
    reflection::{PROBE_BYTES_MAX, PROBES_MAX},
    session::Session,
    timeout::SILENCE,
    wire::{Answer, Probe, ProbeCounts, ProbeKind, Request},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbePlan {
    /// Number of probes; together they take at most [`ProbePlan::TIME_MAX`].
    pub count: u32,
    /// Interval of probes; at least [`ProbePlan::INTERVAL_MIN`].
    pub interval: Duration,
    /// Length of the UDP payload, 60 to 1472 bytes.
    pub bytes: usize,
}

/// Result of a probe measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeReport {
    pub sent: u64,
    /// `None` if no reply arrived.
    pub round_trip: Option<RoundTrip>,
    /// Towards the server.
    pub there: OneWay,
    /// From the server.
    pub back: OneWay,
}

/// Round trips in seconds, without the server's processing time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTrip {
    pub min: f64,
    pub mean: f64,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneWay {
    /// Distinct probes sent in this direction.
    pub sent: u64,
    /// Distinct probes that arrived.
    pub received: u64,
    /// Probes that arrived again.
    pub duplicates: u64,
    /// Probes that arrived after one sent later (RFC 4737 §4.1).
    pub reordered: u64,
    /// `None` if fewer than two replies arrived.
    pub variation: Option<DelayVariation>,
}

/// Excess of one-way delays over the minimum, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DelayVariation {
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub max: f64,
    /// Smoothed difference of consecutive delays at the end (RFC 3550 §6.4.1).
    pub jitter: f64,
}

/// How far probes have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeProgress {
    pub sent: u64,
    /// Probes that were answered.
    pub replies: u64,
}

impl ProbePlan {
    /// Ours: half of the rate at which a server reflects for one client.
    pub const INTERVAL_MIN: Duration = Duration::from_millis(1);
    /// Ours: the longest silence that the control connection permits.
    pub const TIME_MAX: Duration = Duration::from_secs(60);

    /// Checks that the probes can be sent as planned.
    ///
    /// # Errors
    /// A bound is exceeded; the error names it.
    pub fn check(&self) -> Result<(), NetError> {
        let wrong = |text| Err(NetError::Probes(text));
        if self.interval < Self::INTERVAL_MIN {
            return wrong(format!(
                "{} from one probe to the next: {} is the least",
                duration(self.interval),
                duration(Self::INTERVAL_MIN)
            ));
        }
        let room = Self::TIME_MAX.as_nanos() / self.interval.as_nanos();
        if u128::from(self.count) > room {
            let all = self.interval.saturating_mul(self.count);
            let most = duration(Self::TIME_MAX);
            return wrong(format!(
                "{} probes {} apart take {}, and {most} is the most",
                self.count,
                duration(self.interval),
                duration(all),
            ));
        }
        match (Probe::LEN..=PROBE_BYTES_MAX).contains(&self.bytes) && self.count <= PROBES_MAX {
            true => Ok(()),
            false => wrong(format!(
                "{} probes of {} bytes: {PROBES_MAX} of {} to {PROBE_BYTES_MAX} are the most",
                self.count,
                self.bytes,
                Probe::LEN
            )),
        }
    }
}

impl OneWay {
    /// Share of probes that were lost; `None` if none was sent.
    pub fn loss(&self) -> Option<f64> {
        let lost = self.sent.saturating_sub(self.received);
        (self.sent > 0).then(|| lost as f64 / self.sent as f64)
    }
}

#[derive(Clone, Copy, Debug)]
struct Reply {
    sent_at: u64,
    received_at: u64,
    replied_at: u64,
    reply_received_at: u64,
    reply_number: u64,
}

/// Time to wait for replies after the last probe. Ours.
const WAIT: Duration = Duration::from_secs(1);

/// Without any reply for this long, none is expected. Ours.
const GIVE_UP: Duration = Duration::from_secs(2);

/// Sends the probes of `plan` and waits for the replies. Adds to `found` as they arrive, so that it is valid
/// after an error, too. `observe` hears of every probe that was sent.
///
/// # Errors
/// The plan is invalid, the connection to the server is lost, or there is no UDP socket. No reply at all is
/// not an error: the report shows it.
pub fn measure_probes(
    session: &mut Session<'_>,
    plan: &ProbePlan,
    found: &mut Option<ProbeReport>,
    observe: &mut dyn FnMut(ProbeProgress),
) -> Result<(), NetError> {
    plan.check()?;
    let (count, interval, bytes) = (plan.count, plan.interval, plan.bytes);
    let mut datagrams = Datagrams::open(session.server(), session.token())?;
    session.ask_ready(&Request::ProbesBegin { packets: count }, DURING)?;

    let mut course = Course::new(count);
    let ended = course
        .run(session, &mut datagrams, interval, bytes, observe)
        .and_then(|()| session.ask(&Request::ProbesEnd, DURING))
        .and_then(|answer| match answer {
            Answer::Probes(counts) => Ok(counts),
            _ => Err(session.unexpected()),
        });
    match ended {
        Ok(counts) => {
            *found = Some(course.report(&counts));
            Ok(())
        }
        Err(error) => {
            *found = course.report_without_server();
            Err(error)
        }
    }
}

const DURING: &str = "while sending probes";

/// Probes sent and replies received so far.
struct Course {
    sent_at: Vec<u64>,
    answered: Vec<bool>,
    replies: Vec<Reply>,
    duplicates: u64,
}

impl Course {
    fn new(count: u32) -> Self {
        Self {
            sent_at: Vec::with_capacity(count as usize),
            answered: vec![false; count as usize],
            replies: Vec::with_capacity(count as usize),
            duplicates: 0,
        }
    }

    /// Sends all probes, and waits for the last replies.
    fn run(
        &mut self,
        session: &Session<'_>,
        datagrams: &mut Datagrams,
        interval: Duration,
        bytes: usize,
        observe: &mut dyn FnMut(ProbeProgress),
    ) -> Result<(), NetError> {
        let mut data = vec![0; bytes];
        let begin = Instant::now();
        let mut last_reply = (0, begin);
        for number in 0..self.answered.len() as u32 {
            let due = begin + interval * number;
            self.receive_until(datagrams, due, session)?;
            if self.replies.len() > last_reply.0 {
                last_reply = (self.replies.len(), Instant::now());
            }
            let limits = if last_reply.0 == 0 { GIVE_UP } else { SILENCE };
            if last_reply.1.elapsed() >= limits {
                break;
            }
            let sent_at = monotonic_nanos();
            let probe = Probe {
                kind: ProbeKind::Request,
                token: session.token(),
                number: number.into(),
                sent_at,
                received_at: 0,
                replied_at: 0,
                reply_number: 0,
            };
            probe.write(&mut data);
            datagrams.send(&data);
            self.sent_at.push(sent_at);
            observe(ProbeProgress {
                sent: self.sent_at.len() as u64,
                replies: self.replies.len() as u64,
            });
        }
        let end = Instant::now() + WAIT.max(session.round_trip_min() * 4);
        while self.replies.len() < self.sent_at.len() && Instant::now() < end {
            self.receive_until(datagrams, end, session)?;
        }
        Ok(())
    }

    /// Receives replies until `end`, or until there are all.
    fn receive_until(
        &mut self,
        datagrams: &mut Datagrams,
        end: Instant,
        session: &Session<'_>,
    ) -> Result<(), NetError> {
        loop {
            let take = |probe: &Probe, _: usize, reply_received_at: u64| {
                self.on_reply(probe, reply_received_at);
            };
            let count = datagrams.receive(end, session.stop(), take)?;
            let complete = !self.sent_at.is_empty() && self.replies.len() == self.answered.len();
            if count == 0 || complete || Instant::now() >= end {
                return Ok(());
            }
        }
    }

    fn on_reply(&mut self, probe: &Probe, reply_received_at: u64) {
        let number = usize::try_from(probe.number).unwrap_or(usize::MAX);
        // The sending time is from our own record, not from the reply.
        let (Some(&sent_at), ProbeKind::Reply) = (self.sent_at.get(number), probe.kind) else {
            return;
        };
        if std::mem::replace(&mut self.answered[number], true) {
            self.duplicates += 1;
            return;
        }
        self.replies.push(Reply {
            sent_at,
            received_at: probe.received_at,
            replied_at: probe.replied_at,
            reply_received_at,
            reply_number: probe.reply_number,
        });
    }

    /// As far as replies show: up to the last probe that was answered, and the number of replies until then.
    /// `None` without a reply.
    fn report_without_server(&mut self) -> Option<ProbeReport> {
        let last = self.answered.iter().rposition(|answered| *answered)?;
        self.sent_at.truncate(last + 1);
        let replies = self.replies.iter().map(|reply| reply.reply_number);
        let counts = ProbeCounts {
            received: replies.max()?.saturating_add(1),
            duplicates: 0,
            reordered: 0,
            refused: 0,
        };
        Some(self.report(&counts))
    }

    fn report(&self, counts: &ProbeCounts) -> ProbeReport {
        let sent = self.sent_at.len() as u64;
        // In the server's order of arrival, for the direction towards it.
        let mut by_server = self.replies.clone();
        by_server.sort_by_key(|reply| reply.reply_number);
        let there = variation(by_server.iter().map(|r| (r.sent_at, r.received_at)));
        let back = variation(
            self.replies
                .iter()
                .map(|r| (r.replied_at, r.reply_received_at)),
        );
        ProbeReport {
            sent,
            round_trip: round_trip(&self.replies),
            there: OneWay {
                sent,
                // Probes that the server refused to answer have arrived, too.
                received: counts.received.saturating_add(counts.refused).min(sent),
                duplicates: counts.duplicates,
                reordered: counts.reordered,
                variation: there,
            },
            back: OneWay {
                sent: counts.received,
                received: self.replies.len() as u64,
                duplicates: self.duplicates,
                reordered: reordered(self.replies.iter().map(|r| r.reply_number)),
                variation: back,
            },
        }
    }
}

fn round_trip(replies: &[Reply]) -> Option<RoundTrip> {
    let mut seconds: Vec<f64> = replies
        .iter()
        .map(|reply| {
            let total = reply.reply_received_at.saturating_sub(reply.sent_at);
            let held = reply.replied_at.saturating_sub(reply.received_at);
            total.saturating_sub(held) as f64 / 1e9
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    let (min, max) = (*seconds.first()?, *seconds.last()?);
    Some(RoundTrip {
        min,
        mean: seconds.iter().sum::<f64>() / seconds.len() as f64,
        p50: percentile(&seconds, 50.0),
        p95: percentile(&seconds, 95.0),
        p99: percentile(&seconds, 99.0),
        max,
    })
}

/// From pairs of sending time on one clock and arrival time on the other, in order of arrival.
fn variation(pairs: impl Iterator<Item = (u64, u64)>) -> Option<DelayVariation> {
    let delays: Vec<f64> = pairs
        .map(|(sent, arrived)| (i128::from(arrived) - i128::from(sent)) as f64 / 1e9)
        .collect();
    if delays.len() < 2 {
        return None;
    }
    let mut jitter = 0.0;
    for two in delays.windows(2) {
        jitter += ((two[1] - two[0]).abs() - jitter) / 16.0;
    }
    let least = delays.iter().copied().fold(f64::INFINITY, f64::min);
    let mut above: Vec<f64> = delays.iter().map(|delay| delay - least).collect();
    above.sort_by(f64::total_cmp);
    Some(DelayVariation {
        p50: percentile(&above, 50.0),
        p95: percentile(&above, 95.0),
        p99: percentile(&above, 99.0),
        max: percentile(&above, 100.0),
        jitter,
    })
}

fn reordered(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut highest = None;
    let late = numbers.filter(|number| {
        let late = highest.is_some_and(|highest| *number < highest);
        highest = highest.max(Some(*number));
        late
    });
    late.count() as u64
}

/// The nearest rank of sorted values; there is at least one.
fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let rank = nearest_rank(sorted.len(), percent / 100.0);
    sorted[rank.expect("there is a value")]
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LEAD: u64 = 77_777 * MS;

    fn reply(number: u64, there: u64, back: u64, reply_number: u64) -> Probe {
        let received_at = number * 10 * MS + there + LEAD;
        Probe {
            kind: ProbeKind::Reply,
            token: [0; 16],
            number,
            sent_at: 12345,
            received_at,
            replied_at: received_at + MS,
            reply_number,
        }
        .on_the_way(back)
    }

    impl Probe {
        /// Stores the return delay in a field that is not used.
        fn on_the_way(mut self, back: u64) -> Self {
            self.sent_at = back;
            self
        }
    }

    fn course(sent: u32, replies: &[Probe]) -> Course {
        let mut course = Course::new(sent);
        course.sent_at = (0..u64::from(sent)).map(|n| n * 10 * MS).collect();
        for probe in replies {
            course.on_reply(probe, probe.replied_at - LEAD + probe.sent_at);
        }
        course
    }

    #[test]
    fn probes_that_cannot_be_sent_as_planned_are_refused() {
        let plan = |count, interval_micros| {
            let interval = Duration::from_micros(interval_micros);
            let bytes = 172;
            let plan = ProbePlan {
                count,
                interval,
                bytes,
            };
            plan.check().map_err(|error| error.to_string())
        };
        assert_eq!(plan(60_000, 1_000), Ok(()));
        assert_eq!(plan(2, 30_000_000), Ok(()));
        let refused = |count, interval_micros| plan(count, interval_micros).unwrap_err();
        assert_eq!(
            refused(2, 999),
            "999 µs from one probe to the next: 1 ms is the least"
        );
        assert_eq!(
            refused(60_000, 60_000_000),
            "60000 probes 1 min 00 s apart take 41 d 16 h, and 1 min 00 s is the most"
        );
        assert!(refused(60_001, 1_000).contains("60001 probes"));
        assert!(refused(2, 0).contains("1 ms is the least"));
        for bytes in [59, 1473] {
            let (count, interval) = (2, Duration::from_millis(1));
            let plan = ProbePlan {
                count,
                interval,
                bytes,
            };
            assert!(plan.check().is_err(), "{bytes}");
        }
    }

    #[test]
    fn losses_are_attributed_to_their_direction() {
        // Of 10, two are lost towards the server; of the 8 replies, one is lost.
        let replies: Vec<Probe> = (0..7).map(|n| reply(n, 5 * MS, 7 * MS, n)).collect();
        let counts = ProbeCounts {
            received: 8,
            ..ProbeCounts::default()
        };
        let report = course(10, &replies).report(&counts);
        assert_eq!(report.there.loss(), Some(0.2));
        assert_eq!(report.back.loss(), Some(0.125));
        let trip = report.round_trip.unwrap();
        assert!((trip.min - 0.012).abs() < 1e-9 && (trip.max - 0.012).abs() < 1e-9);
        assert_eq!(report.there.variation.unwrap().max, 0.0);
        assert_eq!(report.back.variation.unwrap().jitter, 0.0);
    }

    #[test]
    fn variation_is_above_the_least_and_of_its_own_direction() {
        let replies: Vec<Probe> = (0..100)
            .map(|n| reply(n, if n % 10 == 0 { 9 * MS } else { 5 * MS }, 7 * MS, n))
            .collect();
        let counts = ProbeCounts {
            received: 100,
            ..ProbeCounts::default()
        };
        let report = course(100, &replies).report(&counts);
        let there = report.there.variation.unwrap();
        assert_eq!(there.p50, 0.0);
        assert!((there.p95 - 0.004).abs() < 1e-9, "{there:?}");
        assert!(there.jitter > 0.0 && there.jitter < 0.004);
        assert_eq!(report.back.variation.unwrap().max, 0.0);
    }

    #[test]
    fn duplicated_and_reordered_replies_are_counted() {
        let order = [0, 2, 1, 1, 3];
        let replies: Vec<Probe> = order.iter().map(|n| reply(*n, MS, MS, *n)).collect();
        let counts = ProbeCounts {
            received: 4,
            ..ProbeCounts::default()
        };
        let report = course(4, &replies).report(&counts);
        assert_eq!((report.back.duplicates, report.back.reordered), (1, 1));
        assert_eq!(report.back.loss(), Some(0.0));
    }

    #[test]
    fn replies_to_unsent_probes_do_not_count() {
        let mut made_up = reply(9, MS, MS, 0);
        let request = Probe {
            kind: ProbeKind::Request,
            ..reply(1, MS, MS, 0)
        };
        made_up.number = u64::MAX;
        let report = course(4, &[made_up, request]).report(&ProbeCounts::default());
        assert_eq!(report.round_trip, None);
        assert_eq!(report.there.loss(), Some(1.0));
        assert_eq!(report.back.loss(), None);
    }
}
