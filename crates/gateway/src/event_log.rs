//! The log of events. What repeats is one line a minute with a count, for each kind of event and each
//! subject, after the first ones that follow a quiet minute. Clients that monitor get every event.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::{
    event_text::{Severity, sentence, severity},
    protocol::{EventKind, encode_line},
};
use tracing::Level;

/// Where a subscriber enables this target, log lines of events have the field `event_fields`: the
/// event as JSON, as `keiro monitor` prints it.
pub const EVENT_FIELDS: &str = "keiro::event_fields";

/// One kind of event about one subject is logged this often at most. Ours: people read the lines.
const INTERVAL: Duration = Duration::from_secs(60);
/// How many are logged at once after a quiet minute: what comes up or goes is in the log when it does. Ours.
const AT_ONCE_MAX: u32 = 3;
/// Subjects that are distinguished; events about further ones are counted together by their kind. Ours: as
/// many lines at once as a burst of moves may leave in the log.
const SUBJECTS_MAX: usize = 256;
/// And of one peer: what it sends names tenants and applications of its choice, which must not leave the others
/// without lines of their subjects. Ours: an eighth of all.
const SUBJECTS_OF_PEER_MAX: usize = SUBJECTS_MAX / 8;
/// The subject of events about subjects beyond these.
const OTHERS: &str = "\u{0}others";

/// Decides which events are logged; see the module.
#[derive(Debug, Default)]
pub(crate) struct EventLog {
    recent: BTreeMap<Topic, Recent>,
}

/// What repeats.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Topic {
    /// The event's name.
    event: &'static str,
    /// The peer that can cause it; empty: none can.
    peer: String,
    /// The peer, path, application or tenant that it is about.
    subject: String,
}

#[derive(Debug)]
struct Recent {
    logged_at: Stopwatch,
    /// Lines that were logged at once since a quiet minute.
    at_once: u32,
    /// Events since then.
    repeats: u64,
    /// The latest of them, and when it happened.
    latest: Option<(Stopwatch, EventKind)>,
}

/// A line that is to be logged.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    level: Level,
    event: &'static str,
    text: String,
    /// How often it has happened since the line before, if not once.
    repeats: Option<u64>,
    kind: EventKind,
}

impl EventLog {
    /// An event has happened. Returns the line to log now, if it is not to wait for others.
    pub(crate) fn on_event(&mut self, now: Stopwatch, kind: &EventKind) -> Option<Line> {
        let Some(topic) = self.topic(kind) else {
            return Some(Line::of(kind, 1));
        };
        if let Some(recent) = self.recent.get_mut(&topic) {
            if recent.at_once < AT_ONCE_MAX && topic.subject != OTHERS {
                recent.at_once += 1;
                return Some(Line::of(kind, 1));
            }
            recent.repeats += 1;
            recent.latest = Some((now, kind.clone()));
            return None;
        }
        let is_of_others = topic.subject == OTHERS;
        let recent = Recent {
            logged_at: now,
            at_once: 1,
            repeats: 0,
            latest: None,
        };
        self.recent.insert(topic, recent);
        // That they are many is worth a line; each is not.
        Some(match is_of_others {
            true => Line::of_others(kind),
            false => Line::of(kind, 1),
        })
    }

    /// The lines about what has repeated for a minute, in the order of the latest events.
    pub(crate) fn on_timeout(&mut self, now: Stopwatch) -> Vec<Line> {
        let is_due = |recent: &Recent| now.saturating_duration_since(recent.logged_at) >= INTERVAL;
        let due = self.recent.values_mut().filter(|recent| is_due(recent));
        let lines = lines_of(due, now);
        // What had no repeats is logged at once when it happens again.
        self.recent.retain(|_, recent| !is_due(recent));
        lines
    }

    /// The lines about everything that has repeated: the gateway ends.
    pub(crate) fn finish(&mut self, now: Stopwatch) -> Vec<Line> {
        let mut recent = std::mem::take(&mut self.recent);
        lines_of(recent.values_mut(), now)
    }

    /// What an event repeats; `None`: it is always logged, since a person has caused it.
    fn topic(&self, kind: &EventKind) -> Option<Topic> {
        let topic = Topic::of(kind)?;
        let is_full = self.recent.len() >= SUBJECTS_MAX;
        if self.recent.contains_key(&topic) || !is_full && self.has_room_of(&topic.peer) {
            return Some(topic);
        }
        let others = Topic {
            subject: OTHERS.to_owned(),
            ..topic
        };
        // Where many peers have too many subjects, they share one line.
        let is_known = self.recent.contains_key(&others);
        Some(match is_full && !is_known {
            true => Topic {
                peer: String::new(),
                ..others
            },
            false => others,
        })
    }

    /// Whether a further subject of this peer is distinguished.
    fn has_room_of(&self, peer: &str) -> bool {
        let of_peer = self.recent.keys().filter(|topic| topic.peer == peer);
        peer.is_empty() || of_peer.count() < SUBJECTS_OF_PEER_MAX
    }
}

impl Topic {
    /// `None`: a person has caused it.
    pub(crate) fn of(kind: &EventKind) -> Option<Self> {
        Some(Self {
            event: kind.name(),
            peer: peer(kind).unwrap_or_default().to_owned(),
            subject: subject(kind)?,
        })
    }

    /// The peer that can cause it; empty: none can.
    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }
}

fn lines_of<'a>(recent: impl Iterator<Item = &'a mut Recent>, now: Stopwatch) -> Vec<Line> {
    let lines = recent.filter_map(|recent| recent.take_line(now));
    let mut lines: Vec<(Stopwatch, Line)> = lines.collect();
    // The last line about a subject says how it is now.
    lines.sort_by_key(|(at, _)| *at);
    lines.into_iter().map(|(_, line)| line).collect()
}

impl Recent {
    /// The line about what has repeated, and when the latest of it happened.
    fn take_line(&mut self, now: Stopwatch) -> Option<(Stopwatch, Line)> {
        let (at, latest) = self.latest.take()?;
        self.logged_at = now;
        let repeats = std::mem::take(&mut self.repeats);
        let mut line = Line::of(&latest, repeats);
        let age = now.saturating_duration_since(at).as_secs();
        if age > 0 {
            line.text.push_str(&format!(" ({age} s ago)"));
        }
        Some((at, line))
    }
}

impl Line {
    fn of(kind: &EventKind, times: u64) -> Self {
        let mut text = sentence(kind);
        if times > 1 {
            text.push_str(&format!(
                " (the latest of {times} such events since the last line about it)"
            ));
        }
        Self {
            level: level(kind),
            event: kind.name(),
            text,
            repeats: (times > 1).then_some(times),
            kind: kind.clone(),
        }
    }

    fn of_others(kind: &EventKind) -> Self {
        let mut line = Self::of(kind, 1);
        line.text
            .push_str(" (events about more subjects follow; they are counted together)");
        line
    }

    /// Writes it to the log.
    pub(crate) fn write(&self) {
        let Self {
            event,
            text,
            repeats,
            kind,
            ..
        } = self;
        // In text the fields would only repeat the sentence.
        let is_wanted = tracing::enabled!(target: EVENT_FIELDS, Level::INFO);
        let fields = is_wanted.then(|| String::from_utf8(encode_line(kind)).unwrap_or_default());
        let event_fields = fields.as_deref();
        let repeats = repeats.filter(|_| is_wanted);
        match self.level {
            Level::WARN => tracing::warn!(event, event_fields, repeats, "{text}"),
            Level::DEBUG => tracing::debug!(event, event_fields, repeats, "{text}"),
            _ => tracing::info!(event, event_fields, repeats, "{text}"),
        }
    }
}

fn level(kind: &EventKind) -> Level {
    match severity(kind) {
        Severity::Warning => Level::WARN,
        Severity::Recovery | Severity::Info => Level::INFO,
        Severity::Debug => Level::DEBUG,
    }
}

/// What an event is about; `None`: it is always logged.
fn subject(kind: &EventKind) -> Option<String> {
    Some(match kind {
        EventKind::Started { .. }
        | EventKind::Draining { .. }
        | EventKind::Reloaded { .. }
        | EventKind::ConfigRejected { .. } => return None,
        EventKind::PeerUp { peer, .. }
        | EventKind::PeerDown { peer, .. }
        | EventKind::ClockBehind { peer, .. }
        | EventKind::DuplicateKey { peer, .. }
        | EventKind::KeyRefused { peer }
        | EventKind::HandshakeUnanswered { peer, .. }
        | EventKind::JoinRefused { peer, .. }
        | EventKind::PeerRenamed { peer, .. }
        | EventKind::KeyChanged { peer, .. } => peer.clone(),
        EventKind::SiteJoined { site, .. } => site.clone(),
        EventKind::VersionMismatch { peer, .. } => peer.clone().unwrap_or_default(),
        EventKind::WrongKey {
            peer,
            at_peer_address,
            ..
        } => match (peer, at_peer_address) {
            (Some(peer), _) => peer.clone(),
            (None, true) => "an address of several peers".to_owned(),
            (None, false) => String::new(),
        },
        EventKind::AppMismatch {
            peer, app, seen_by, ..
        } => {
            format!("{} {peer} {seen_by:?}", app.as_deref().unwrap_or_default())
        }
        EventKind::PathUp { on, .. }
        | EventKind::PathDown { on, .. }
        | EventKind::PathUnanswered { on, .. }
        | EventKind::RemoteChanged { on, .. }
        | EventKind::MtuChanged { on, .. }
        | EventKind::AggregationChanged { on, .. }
        | EventKind::AggregationPaused { on, .. }
        | EventKind::AggregationResumed { on, .. } => format!("{} {}", on.path, on.peer),
        EventKind::AppMoved { app, .. }
        | EventKind::TargetMissed { app, .. }
        | EventKind::TargetMet { app, .. }
        | EventKind::MessageExpired { app, .. } => app.clone(),
        EventKind::TenantUnknown { peer, id } => format!("{id} {peer}"),
        EventKind::TenantRefused { tenant, peer, .. }
        | EventKind::UnitContradicted { tenant, peer, .. } => format!("{tenant} {peer}"),
        EventKind::PrefixMismatch {
            tenant,
            peer,
            from,
            field,
            ..
        } => {
            let peer = peer.as_deref().unwrap_or_default();
            format!("{tenant} {peer} {from:?} {field:?}")
        }
        EventKind::PrefixWithheld { tenant, prefix, .. }
        | EventKind::PrefixRouted { tenant, prefix, .. } => format!("{tenant} {prefix}"),
        EventKind::DeviceLost { tenant, .. }
        | EventKind::DeviceRestored { tenant, .. }
        | EventKind::DeviceDown { tenant, .. }
        | EventKind::DeviceUp { tenant, .. } => tenant.clone(),
        EventKind::LocalChanged { path, .. }
        | EventKind::BudgetWarning { path, .. }
        | EventKind::BudgetSpent { path, .. }
        | EventKind::BudgetRenewed { path, .. } => path.clone(),
        // Its text has what another gateway publishes, and may be another one every time.
        EventKind::StoreNotice { .. }
        | EventKind::StoreLost { .. }
        | EventKind::StoreConnected { .. }
        | EventKind::EventsLost { .. }
        | EventKind::Unknown => String::new(),
    })
}

/// The peer that can cause an event, as often as it likes and with subjects of its choice; `None`: none can.
fn peer(kind: &EventKind) -> Option<&str> {
    match kind {
        EventKind::PeerUp { peer, .. }
        | EventKind::PeerDown { peer, .. }
        | EventKind::DuplicateKey { peer, .. }
        | EventKind::KeyRefused { peer }
        | EventKind::HandshakeUnanswered { peer, .. }
        | EventKind::JoinRefused { peer, .. }
        | EventKind::KeyChanged { peer, .. }
        | EventKind::AppMismatch { peer, .. }
        | EventKind::TenantUnknown { peer, .. }
        | EventKind::TenantRefused { peer, .. }
        | EventKind::UnitContradicted { peer, .. } => Some(peer),
        EventKind::VersionMismatch { peer, .. }
        | EventKind::WrongKey { peer, .. }
        | EventKind::PrefixMismatch { peer, .. } => peer.as_deref(),
        EventKind::PathUp { on, .. }
        | EventKind::PathDown { on, .. }
        | EventKind::PathUnanswered { on, .. }
        | EventKind::RemoteChanged { on, .. }
        | EventKind::MtuChanged { on, .. }
        | EventKind::AggregationChanged { on, .. }
        | EventKind::AggregationPaused { on, .. }
        | EventKind::AggregationResumed { on, .. } => Some(&on.peer),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use keiro_control::protocol::{DownReason, MoveReason, PathRef};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn down(path: &str) -> EventKind {
        EventKind::PathDown {
            on: PathRef {
                path: path.into(),
                peer: "osaka".into(),
            },
            reason: DownReason::Silent,
            silent_seconds: None,
            limit_seconds: None,
        }
    }

    fn moved(app: &str) -> EventKind {
        EventKind::AppMoved {
            app: app.into(),
            from: None,
            to: Some("wan0".into()),
            reason: MoveReason::PathDown,
            from_predicted_seconds: None,
            to_predicted_seconds: None,
            latency_target_seconds: None,
        }
    }

    /// The lines that `events`, one a second from the start on, leave in the log, each with its second.
    fn lines(log: &mut EventLog, events: impl Iterator<Item = Vec<EventKind>>) -> Vec<(u64, Line)> {
        let start = Stopwatch::now();
        let mut lines = Vec::new();
        for (second, events) in (0..).zip(events) {
            let now = start + SECOND * u32::try_from(second).unwrap();
            let mut at = log.on_timeout(now);
            at.extend(events.iter().filter_map(|kind| log.on_event(now, kind)));
            lines.extend(at.into_iter().map(|line| (second, line)));
        }
        lines
    }

    #[test]
    fn repeated_events_are_logged_thrice_then_once_a_minute() {
        let mut log = EventLog::default();
        let every_second = (0..180).map(|_| vec![down("wan0")]);
        let lines = lines(&mut log, every_second);
        let seconds: Vec<u64> = lines.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 1, 2, 60, 120]);
        for (_, line) in &lines[..3] {
            assert_eq!(line.repeats, None);
            assert_eq!(line.text, sentence(&down("wan0")));
        }
        for (_, line) in &lines[3..] {
            let count = line.repeats.expect("a count");
            assert!((57..=60).contains(&count), "{count}");
            let text = format!("the latest of {count} such events");
            assert!(line.text.contains(&text), "{}", line.text);
        }
    }

    #[test]
    fn single_events_are_logged_at_once_without_a_count() {
        let mut log = EventLog::default();
        let rare = (0..200).map(|second| match second % 70 {
            0 => vec![down("wan0")],
            _ => Vec::new(),
        });
        let lines = lines(&mut log, rare);
        let seconds: Vec<u64> = lines.iter().map(|(second, _)| *second).collect();
        assert_eq!(seconds, [0, 70, 140]);
        assert!(lines.iter().all(|(_, line)| line.repeats.is_none()));
        assert!(log.recent.len() <= 1);
    }

    #[test]
    fn throttled_log_lines_count_every_event() {
        let mut log = EventLog::default();
        let bursts = (0..100).map(|second| match second {
            0 | 30 | 61 | 90 => vec![moved("A"); 7],
            _ => Vec::new(),
        });
        let mut counted: u64 = 0;
        for (_, line) in lines(&mut log, bursts) {
            counted += line.repeats.unwrap_or(1);
        }
        let rest = log.finish(Stopwatch::now());
        counted += rest
            .iter()
            .map(|line| line.repeats.unwrap_or(1))
            .sum::<u64>();
        assert_eq!(counted, 28);
    }

    #[test]
    fn log_throttle_is_per_subject_and_kind() {
        let mut log = EventLog::default();
        let at_once = vec![
            down("wan0"),
            down("wan1"),
            moved("A"),
            moved("B"),
            down("wan0"),
        ];
        let first = lines(&mut log, [at_once.clone()].into_iter());
        assert_eq!(first.len(), 5);
        // The first kind about one subject has been logged twice, and once more is all.
        let again = lines(&mut log, [at_once].into_iter());
        assert_eq!(again.len(), 4);
    }

    #[test]
    fn many_subjects_fill_neither_log_nor_memory() {
        let mut log = EventLog::default();
        let all = (0..10_000).map(|number| moved(&format!("A{number}")));
        let events = [all.collect::<Vec<_>>()].into_iter();
        let lines_at_once = lines(&mut log, events);
        assert_eq!(lines_at_once.len(), SUBJECTS_MAX + 1);
        assert_eq!(log.recent.len(), SUBJECTS_MAX + 1);
        let rest = log.finish(Stopwatch::now());
        let counted: u64 = rest.iter().filter_map(|line| line.repeats).sum();
        assert_eq!(counted + lines_at_once.len() as u64, 10_000);
    }

    fn unknown(peer: &str, id: u64) -> EventKind {
        EventKind::TenantUnknown {
            peer: peer.into(),
            id,
        }
    }

    #[test]
    fn subjects_of_one_peer_leave_those_of_others_their_lines() {
        let mut log = EventLog::default();
        let flood = (0..10_000).map(|id| unknown("mallory", id));
        let honest = [unknown("osaka", 1), down("wan0"), moved("A")];
        let events = [flood.collect::<Vec<_>>(), honest.to_vec()];
        let lines_at_once = lines(&mut log, events.into_iter());
        let (of_flood, rest): (Vec<_>, Vec<_>) =
            lines_at_once.iter().partition(|(second, _)| *second == 0);
        // And one line that there are more.
        assert_eq!(of_flood.len(), SUBJECTS_OF_PEER_MAX + 1);
        assert!(
            of_flood[SUBJECTS_OF_PEER_MAX]
                .1
                .text
                .contains("counted together")
        );
        let texts: Vec<_> = rest.iter().map(|(_, line)| line.text.clone()).collect();
        assert_eq!(texts, honest.each_ref().map(sentence));
        let counted: u64 = log
            .finish(Stopwatch::now())
            .iter()
            .filter_map(|line| line.repeats)
            .sum();
        assert_eq!(counted + of_flood.len() as u64, 10_000);
    }

    #[test]
    fn many_peers_with_many_subjects_are_counted_together_in_bounded_memory() {
        let mut log = EventLog::default();
        let peers = (0..1000).map(|number| format!("peer{number}"));
        let all = peers.flat_map(|peer| (0..100).map(move |id| unknown(&peer, id)));
        let events = [all.collect::<Vec<_>>()].into_iter();
        let lines_at_once = lines(&mut log, events).len();
        assert!(log.recent.len() <= SUBJECTS_MAX + 1, "{}", log.recent.len());
        let rest = log.finish(Stopwatch::now());
        let counted: u64 = rest.iter().filter_map(|line| line.repeats).sum();
        assert_eq!(counted + lines_at_once as u64, 100_000);
    }

    /// A peer that moves its address with every packet causes all of these again and again.
    #[test]
    fn a_peer_that_moves_its_address_all_the_time_leaves_few_lines_a_minute() {
        const MINUTES: u32 = 3;
        /// Two thousand moves a second, as one attack makes.
        const MOVES_PER_SECOND: u32 = 2000;
        let on = || PathRef {
            path: "wan0".into(),
            peer: "mallory".into(),
        };
        let mut log = EventLog::default();
        let start = Stopwatch::now();
        let mut per_minute = [0; MINUTES as usize];
        let mut counted = 0;
        let mut events = 0;
        for number in 0..MINUTES * 60 * MOVES_PER_SECOND {
            let now = start + SECOND * number / MOVES_PER_SECOND;
            let remote =
                |number: u32| format!("192.0.2.{}:{}", number % 251, 1024 + number % 60_000);
            let mut at_once = vec![EventKind::RemoteChanged {
                on: on(),
                from: remote(number),
                to: remote(number + 1),
            }];
            if number % 100 == 0 {
                at_once.push(EventKind::PathDown {
                    on: on(),
                    reason: DownReason::Silent,
                    silent_seconds: None,
                    limit_seconds: None,
                });
            }
            events += at_once.len() as u64;
            let mut lines = match number % MOVES_PER_SECOND {
                0 => log.on_timeout(now),
                _ => Vec::new(),
            };
            lines.extend(at_once.iter().filter_map(|kind| log.on_event(now, kind)));
            counted += lines
                .iter()
                .map(|line| line.repeats.unwrap_or(1))
                .sum::<u64>();
            per_minute[(number / MOVES_PER_SECOND / 60) as usize] += lines.len();
        }
        let last = log.finish(start + SECOND * MINUTES * 60);
        counted += last
            .iter()
            .map(|line| line.repeats.unwrap_or(1))
            .sum::<u64>();
        // Two kinds of events about one path: three lines each at once, then one a minute each.
        assert_eq!(per_minute, [6, 2, 2]);
        assert_eq!(counted, events);
    }

    #[test]
    fn operator_actions_are_always_logged() {
        let mut log = EventLog::default();
        let rejected = EventKind::ConfigRejected {
            problems: 1,
            first: "x".into(),
        };
        let lines = lines(&mut log, (0..3).map(|_| vec![rejected.clone()]));
        assert_eq!(lines.len(), 3);
        assert!(log.recent.is_empty());
    }
}
