//! The result of a run of two gateways: every message from sending to acknowledgement, and all violations of
//! invariants.
//!
//! It joins the logs of both sides; nothing here depends on the core's own counters.

mod streams;

use std::{collections::BTreeMap, fmt, time::Duration};

use keiro_core::{
    AppId, DropCounters, EndpointSnapshot, Event, MessageId, MessageOutcome, SessionSnapshot,
};
use keiro_link::Counters;
use keiro_units::{ByteCount, Instant};

pub use self::streams::{DialogueRecord, StreamRecord};
use crate::{
    gateway::{Gateway, Log, SentMessage, StreamObservation},
    middlebox::Injected,
    network::Counts,
    scenario::{Receiver, Scenario, ScenarioEvent, Side},
};

/// The largest permitted burst ahead of a path's rate.
const BURST_MAX: Duration = Duration::from_millis(2);
/// Permitted bytes beyond that burst and the packet that ends it: acknowledgements, challenges and handshakes
/// do not wait for the pacer, though they are charged to it.
const UNPACED_MAX: ByteCount = ByteCount::new(1000);
/// The core always grants a peer at least one message of maximum length in reassembly.
const REASSEMBLY_MIN: ByteCount =
    ByteCount::new(keiro_core::wire::MESSAGE_LEN_MAX as u64 + keiro_core::wire::CREDIT_PER_MESSAGE);

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Report {
    /// The seed of the run.
    pub seed: u64,
    /// When the measured phase began.
    pub measured_from: Instant,
    /// When the run ended.
    pub ended: Instant,
    /// Every message, those of side A first, in the order of their sending.
    pub messages: Vec<MessageRecord>,
    /// Every datagram, in the same order.
    pub datagrams: Vec<DatagramRecord>,
    /// Every dialogue, in the same order.
    pub dialogues: Vec<DialogueRecord>,
    /// Every stream opened, in the same order.
    pub streams: Vec<StreamRecord>,
    /// Streams whose server never received a header.
    pub nameless_streams: Vec<StreamObservation>,
    /// Violations of invariants, as texts.
    pub violations: Vec<String>,
    pub sides: [SideReport; 2],
    /// By path: forward and backward direction of its link.
    pub links: Vec<[Counters; 2]>,
    /// By path: packets injected by an attacker.
    pub injected: Vec<Injected>,
    /// The network as a whole.
    pub counts: Counts,
    /// Equal for equal runs.
    pub trace_hash: u64,
}

/// A message from one end to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRecord {
    pub from: Side,
    /// Index of the application.
    pub app: usize,
    /// Its number in the sender's core; `None` if it was never accepted.
    pub id: Option<MessageId>,
    pub bytes: usize,
    /// When it was made.
    pub made: Instant,
    /// When the core accepted it; `None` if never.
    pub accepted: Option<Instant>,
    /// When it was first delivered; `None` if never.
    pub delivered_at: Option<Instant>,
    /// Number of deliveries: one at most.
    pub deliveries: u32,
    /// When the sender got its outcome; `None` if never.
    pub done: Option<Instant>,
    /// The outcome; `None` if there is none.
    pub outcome: Option<MessageOutcome>,
    /// Its sender was restarted before its outcome.
    pub forgotten: bool,
}

/// A datagram from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DatagramRecord {
    pub from: Side,
    /// Index of the application.
    pub app: usize,
    pub bytes: usize,
    /// When it was made.
    pub made: Instant,
    /// When it was first delivered; `None` if never, or if it is too short to be recognised.
    pub delivered_at: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct SideReport {
    /// The core's events with their times.
    pub events: Vec<(Instant, Event)>,
    /// The endpoint's statistics; `None` if the gateway does not run.
    pub endpoint: Option<EndpointSnapshot>,
    /// Its session's statistics; `None` if the gateway does not run.
    pub session: Option<SessionSnapshot>,
    /// By path: the largest excess over the configured rate.
    pub bursts: Vec<ByteCount>,
    /// Maximum of bytes of queued messages over all samples.
    pub queued_bytes_max: u64,
    /// Maximum of bytes of messages in reassembly over all samples.
    pub reassembly_bytes_max: u64,
    /// Maximum of stream bytes queued or not acknowledged over all samples.
    pub streams_queued_bytes_max: u64,
    /// Maximum of stream bytes received and not read over all samples.
    pub streams_kept_bytes_max: u64,
    /// Maximum of streams over all samples.
    pub streams_max: usize,
    /// Messages that were refused because the queue was full, and offered again.
    pub queue_full: u64,
    /// Datagrams delivered, short ones included.
    pub datagrams_delivered: usize,
}

impl MessageRecord {
    /// From sending to complete delivery; `None` if never delivered.
    pub fn delay(&self) -> Option<Duration> {
        self.delivered_at.map(|at| at - self.made)
    }
}

impl Report {
    pub(crate) fn new(scenario: &Scenario, seed: u64, gateways: [&Gateway; 2]) -> Self {
        let mut report = Self {
            seed,
            measured_from: Instant::ZERO,
            ended: Instant::ZERO,
            messages: Vec::new(),
            datagrams: Vec::new(),
            dialogues: Vec::new(),
            streams: Vec::new(),
            nameless_streams: Vec::new(),
            violations: Vec::new(),
            sides: gateways.map(SideReport::new),
            links: Vec::new(),
            injected: Vec::new(),
            counts: Counts::default(),
            trace_hash: 0,
        };
        for side in Side::BOTH {
            let (sender, receiver) = (
                gateways[side.index()].log(),
                gateways[side.other().index()].log(),
            );
            let apps: Vec<AppId> = scenario
                .apps
                .iter()
                .map(|app| AppId::of_name(&app.name))
                .collect();
            report.match_messages(side, &apps, sender, receiver);
            report.check_outcomes(scenario, side);
            report.match_datagrams(side, &apps, sender, receiver);
            report.match_streams(scenario, side, &apps, sender, receiver);
            for fault in &sender.faults {
                report.violations.push(format!("{side:?}: {fault}"));
            }
            report.check_bounds(scenario, side, sender);
        }
        report
    }

    /// The messages of one application of side A.
    pub fn messages_of(&self, app: usize) -> impl Iterator<Item = &MessageRecord> {
        self.messages
            .iter()
            .filter(move |message| message.app == app)
    }

    /// Messages without an expected outcome: neither delivered and acknowledged, nor expired or refused as
    /// the scenario specifies.
    pub fn incomplete(&self) -> impl Iterator<Item = &MessageRecord> {
        self.messages.iter().filter(|message| {
            !message.forgotten
                && match message.outcome {
                    Some(MessageOutcome::Delivered) => message.delivered_at.is_none(),
                    // `check_outcomes` has checked when they may be unknown.
                    Some(
                        MessageOutcome::Expired
                        | MessageOutcome::Refused(_)
                        | MessageOutcome::Unknown(_),
                    ) => false,
                    None => true,
                }
        })
    }

    /// Asserts that there are no violations.
    ///
    /// # Panics
    ///
    /// With the seed and the violations.
    pub fn assert_safe(&self) {
        assert!(self.violations.is_empty(), "{self}");
    }

    /// Asserts that there are no violations, and that every message, stream and dialogue has its expected
    /// outcome.
    ///
    /// # Panics
    ///
    /// With the seed and the incomplete items.
    pub fn assert_complete(&self) {
        self.assert_safe();
        assert!(self.incomplete().next().is_none(), "{self}");
        assert!(self.incomplete_streams().is_empty(), "{self}");
    }

    /// Datagrams that both sides ignored, by reason, before and in a session.
    pub fn drops(&self, side: Side) -> BTreeMap<&'static str, u64> {
        let side = &self.sides[side.index()];
        let counters = [
            side.endpoint.as_ref().map(|endpoint| endpoint.drops),
            side.session.as_ref().map(|session| session.drops),
        ];
        let mut drops = BTreeMap::new();
        for (reason, count) in counters.iter().flatten().flat_map(DropCounters::by_reason) {
            *drops.entry(reason).or_default() += count;
        }
        drops
    }

    fn match_messages(&mut self, from: Side, apps: &[AppId], sender: &Log, receiver: &Log) {
        // Very short messages may be equal; each delivery then counts for one of them.
        let mut known: BTreeMap<(AppId, usize, u64), Vec<usize>> = BTreeMap::new();
        for message in &sender.messages {
            if message.accepted.is_some() {
                let key = (apps[message.app], message.bytes, message.hash);
                known.entry(key).or_default().push(self.messages.len());
            }
            self.messages.push(MessageRecord::new(from, message));
        }
        for delivery in &receiver.deliveries {
            let key = (delivery.app, delivery.bytes, delivery.hash);
            let Some(candidates) = known.get(&key) else {
                self.violations.push(format!(
                    "{from:?}: delivered what was never sent: {delivery:?}"
                ));
                continue;
            };
            // Among equal messages, take one that may still be delivered and whose end comes first.
            let merit = |index: &&usize| {
                let record = &self.messages[**index];
                let again = record.deliveries > 0;
                let done = record.done.unwrap_or(Instant::MAX);
                (again, done < delivery.at, done, **index)
            };
            let accepted = |index: &&usize| {
                let accepted = self.messages[**index].accepted;
                accepted.is_some_and(|at| at <= delivery.at)
            };
            let Some(&index) = candidates.iter().filter(accepted).min_by_key(merit) else {
                let violation = format!("{from:?}: delivered before it was sent: {delivery:?}");
                self.violations.push(violation);
                continue;
            };
            let record = &mut self.messages[index];
            record.deliveries += 1;
            record.delivered_at.get_or_insert(delivery.at);
            if record.deliveries > 1 {
                let violation = format!("{from:?}: delivered twice: {record:?}");
                self.violations.push(violation);
            }
        }
    }

    /// Every outcome is true: what is called delivered was, what is called refused was not, and only a restart
    /// leaves an outcome unknown.
    fn check_outcomes(&mut self, scenario: &Scenario, from: Side) {
        let refuses = matches!(
            scenario.gateway(from.other()).receiver,
            Receiver::Refuses(_)
        );
        let restarts = scenario
            .events
            .iter()
            .any(|event| matches!(event.what, ScenarioEvent::Restart { .. }));
        let records = self.messages.iter().filter(|record| record.from == from);
        let is_false = |record: &&MessageRecord| {
            let was_delivered = record.delivered_at.is_some();
            match record.outcome {
                Some(MessageOutcome::Delivered) => !was_delivered,
                // The log counts what a receiver refuses among the deliveries.
                Some(MessageOutcome::Refused(_)) => was_delivered && !refuses,
                Some(MessageOutcome::Unknown(_)) => !restarts,
                Some(MessageOutcome::Expired) | None => false,
            }
        };
        let untrue = records.filter(is_false);
        let untrue = untrue.map(|record| format!("{from:?}: untrue outcome: {record:?}"));
        self.violations.extend(untrue.collect::<Vec<_>>());
    }

    fn match_datagrams(&mut self, from: Side, apps: &[AppId], sender: &Log, receiver: &Log) {
        let first = self.datagrams.len();
        for datagram in &sender.datagrams {
            self.datagrams.push(DatagramRecord {
                from,
                app: datagram.app,
                bytes: datagram.bytes,
                made: datagram.made,
                delivered_at: None,
            });
        }
        for arrival in &receiver.arrivals {
            let Some(index) = arrival.index else {
                continue;
            };
            let sent = usize::try_from(index)
                .ok()
                .and_then(|index| Some((index, sender.datagrams.get(index)?)));
            let Some((index, sent)) = sent else {
                let violation = format!("{from:?}: no such datagram was sent: {arrival:?}");
                self.violations.push(violation);
                continue;
            };
            if (sent.hash, apps[sent.app]) != (arrival.hash, arrival.app) || sent.made > arrival.at
            {
                let violation = format!("{from:?}: not what was sent: {arrival:?} for {sent:?}");
                self.violations.push(violation);
            }
            let record = &mut self.datagrams[first + index];
            if record.delivered_at.replace(arrival.at).is_some() {
                let violation = format!("{from:?}: datagram delivered twice: {arrival:?}");
                self.violations.push(violation);
            }
        }
    }

    fn check_bounds(&mut self, scenario: &Scenario, side: Side, log: &Log) {
        let spec = scenario.gateway(side);
        for (what, bytes, max) in [
            (
                "queued towards the peer",
                log.queued_bytes_max,
                spec.send_queue_bytes_max,
            ),
            (
                "in reassembly",
                log.reassembly_bytes_max,
                spec.reassembly_bytes_max.max(REASSEMBLY_MIN),
            ),
            (
                "of streams queued towards the peer",
                log.streams_queued_bytes_max,
                stream_bytes_max(log.streams_max),
            ),
            (
                "of streams not taken",
                log.streams_kept_bytes_max,
                stream_bytes_max(log.streams_max),
            ),
        ] {
            if bytes > max.get() {
                let violation = format!("{side:?}: {bytes} bytes {what}, more than {max}");
                self.violations.push(violation);
            }
        }
        if spec.processing.transmit > Duration::ZERO {
            return;
        }
        let paced = scenario.paths.iter().zip(&log.bursts);
        for (path, burst) in paced.filter(|(path, _)| !path.is_rate_found) {
            let packet = ByteCount::new(path.mtu_max.into());
            let allowance = path.rate.bytes_in_floor(BURST_MAX);
            let max = allowance.saturating_add(packet).saturating_add(UNPACED_MAX);
            if *burst > max {
                let violation = format!("{side:?}: {burst} sent ahead of {}", path.rate);
                self.violations.push(violation);
            }
        }
    }
}

/// Maximum that the core may buffer for this many streams in one direction: an initial window each, and 64
/// MiB.
const fn stream_bytes_max(streams: usize) -> ByteCount {
    ByteCount::new((64 << 20) + ((streams as u64) << 14))
}

impl SideReport {
    fn new(gateway: &Gateway) -> Self {
        let log = gateway.log();
        Self {
            events: log.events.clone(),
            endpoint: gateway.endpoint().map(keiro_core::Endpoint::snapshot),
            session: gateway.session(),
            bursts: log.bursts.clone(),
            queued_bytes_max: log.queued_bytes_max,
            reassembly_bytes_max: log.reassembly_bytes_max,
            streams_queued_bytes_max: log.streams_queued_bytes_max,
            streams_kept_bytes_max: log.streams_kept_bytes_max,
            streams_max: log.streams_max,
            queue_full: log.queue_full,
            datagrams_delivered: log.arrivals.len(),
        }
    }

    /// Time of the first event for which `matches` holds; `None` if there is none.
    pub fn first(&self, matches: impl Fn(&Event) -> bool) -> Option<Instant> {
        let mut events = self.events.iter();
        events.find(|(_, event)| matches(event)).map(|(at, _)| *at)
    }

    /// Number of events for which `matches` holds.
    pub fn count(&self, matches: impl Fn(&Event) -> bool) -> usize {
        let events = self.events.iter();
        events.filter(|(_, event)| matches(event)).count()
    }
}

impl MessageRecord {
    fn new(from: Side, message: &SentMessage) -> Self {
        Self {
            from,
            app: message.app,
            id: message.accepted.map(|(_, _, id)| id),
            bytes: message.bytes,
            made: message.made,
            accepted: message.accepted.map(|(at, _, _)| at),
            delivered_at: None,
            deliveries: 0,
            done: message.done.map(|(at, _)| at),
            outcome: message.done.map(|(_, outcome)| outcome),
            forgotten: message.forgotten,
        }
    }
}

impl fmt::Display for Report {
    /// A readable summary, with violations first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        writeln!(f, "seed {} ended at {}", self.seed, self.ended)?;
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "  wrong: {violation}")?;
        }
        for message in self.incomplete().take(SHOWN) {
            writeln!(f, "  incomplete: {message:?}")?;
        }
        let streams = self.incomplete_streams();
        for stream in streams.iter().take(SHOWN) {
            writeln!(f, "  incomplete: {stream}")?;
        }
        if !self.streams.is_empty() {
            writeln!(
                f,
                "  {} streams; {} of {} dialogues done; {} incomplete",
                self.streams.len(),
                self.dialogues.iter().filter(|d| d.done.is_some()).count(),
                self.dialogues.len(),
                streams.len(),
            )?;
        }
        let delivered = |record: &&MessageRecord| record.delivered_at.is_some();
        writeln!(
            f,
            "  {} violations; {} of {} messages delivered, {} incomplete; {} of {} datagrams",
            self.violations.len(),
            self.messages.iter().filter(delivered).count(),
            self.messages.len(),
            self.incomplete().count(),
            self.datagrams
                .iter()
                .filter(|record| record.delivered_at.is_some())
                .count(),
            self.datagrams.len(),
        )?;
        for side in Side::BOTH {
            let drops = self.drops(side);
            let drops: Vec<_> = drops.iter().filter(|(_, count)| **count > 0).collect();
            writeln!(f, "  {side:?} ignored {drops:?}")?;
            let events = &self.sides[side.index()].events;
            let shown = events
                .iter()
                .filter(|(_, event)| !matches!(event, Event::MessageDone { .. }));
            for (at, event) in shown.take(2 * SHOWN) {
                writeln!(f, "  {side:?} {at} {event:?}")?;
            }
        }
        write!(f, "  {:?}", self.counts)
    }
}
