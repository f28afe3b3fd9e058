//! The events of a gateway since this process runs, bounded.

use std::{
    collections::VecDeque,
    io::ErrorKind,
    sync::Arc,
    thread,
    time::{Duration, SystemTime},
};

use keiro_control::{
    event_text::{Severity, sentence, severity},
    protocol::{
        Event, EventKind, Request, Response,
        client::{Client, ClientError},
    },
};

use super::{Fault, Shared, lock, poll::connect, unexpected};
use crate::text::visible;

/// Events, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Events {
    kept: VecDeque<EventLine>,
    /// Raised by every change.
    pub(crate) number: u64,
    /// The time from which on they were followed; absent: they are not.
    pub(crate) followed_since: Option<SystemTime>,
    /// Events that made room for newer ones.
    pub(crate) forgotten: u64,
}

/// One event, or several of one kind about one subject that came in a minute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct EventLine {
    /// Of the latest.
    pub(crate) time: SystemTime,
    pub(crate) kind: &'static str,
    pub(crate) severity: Severity,
    pub(crate) subject: Subject,
    pub(crate) sentence: String,
    pub(crate) count: u64,
}

/// What an event is about, as far as it has names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    pub(crate) app: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) peer: Option<String>,
}

/// Events that are kept. Ours: about 2 MB.
const KEPT_MAX: usize = 4096;
/// Events of one kind about one subject in a minute that have a line each; further ones raise the count of the last.
/// Ours, as in the gateway's log.
const ALONE_MAX: usize = 3;
const MINUTE: Duration = Duration::from_secs(60);
/// Newest events among which the same kind and subject is looked for. Ours.
const LOOKED_AT_MAX: usize = 64;
/// Characters of one sentence that are kept.
const SENTENCE_CHARACTERS_MAX: usize = 600;

impl Events {
    /// Takes an event over.
    pub(crate) fn on_event(&mut self, event: &Event) {
        self.keep(EventLine {
            time: event.time.0,
            kind: event.kind.name(),
            severity: severity(&event.kind),
            subject: subject(&event.kind),
            sentence: visible(&sentence(&event.kind), SENTENCE_CHARACTERS_MAX).into_owned(),
            count: 1,
        });
    }

    /// The newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &EventLine> {
        self.kept.iter().rev()
    }

    /// From here on events are followed.
    fn on_follow(&mut self, now: SystemTime) {
        self.followed_since = Some(now);
        self.number += 1;
    }

    fn on_lost(&mut self, now: SystemTime, fault: &Fault) {
        if self.followed_since.take().is_none() {
            return;
        }
        self.keep(EventLine {
            time: now,
            kind: "gap",
            severity: Severity::Warning,
            subject: Subject::default(),
            sentence: format!(
                "{}; events are missing from here on until it answers again",
                fault.what
            ),
            count: 1,
        });
    }

    fn keep(&mut self, event: EventLine) {
        self.number += 1;
        let is_same = |seen: &EventLine| {
            let age = event.time.duration_since(seen.time).unwrap_or_default();
            seen.kind == event.kind && seen.subject == event.subject && age < MINUTE
        };
        let newest = self.kept.iter().enumerate().rev().take(LOOKED_AT_MAX);
        let same: Vec<usize> = newest
            .filter(|(_, seen)| is_same(seen))
            .map(|(index, _)| index)
            .collect();
        if same.len() >= ALONE_MAX || same.iter().any(|index| self.kept[*index].count > 1) {
            // It is the newest again.
            if let Some(last) = self.kept.remove(same[0]) {
                let count = last.count.saturating_add(1);
                self.kept.push_back(EventLine { count, ..event });
            }
            return;
        }
        if self.kept.len() >= KEPT_MAX {
            self.kept.pop_front();
            self.forgotten += 1;
        }
        self.kept.push_back(event);
    }
}

fn subject(kind: &EventKind) -> Subject {
    let of_app = |app: &str, path: Option<&String>| Subject {
        app: Some(app.to_owned()),
        path: path.cloned(),
        peer: None,
    };
    let of_peer = |peer: Option<&String>| Subject {
        peer: peer.cloned(),
        ..Subject::default()
    };
    match kind {
        EventKind::AppMoved { app, .. }
        | EventKind::TargetMet { app, .. }
        | EventKind::MessageExpired { app, .. } => of_app(app, None),
        EventKind::TargetMissed { app, path, .. } => of_app(app, path.as_ref()),
        EventKind::AppMismatch {
            app: Some(app),
            peer,
            ..
        } => Subject {
            peer: Some(peer.clone()),
            ..of_app(app, None)
        },
        EventKind::PathUnanswered { on, .. }
        | EventKind::PathUp { on, .. }
        | EventKind::PathDown { on, .. }
        | EventKind::RemoteChanged { on, .. }
        | EventKind::MtuChanged { on, .. }
        | EventKind::AggregationChanged { on, .. }
        | EventKind::AggregationPaused { on, .. }
        | EventKind::AggregationResumed { on, .. } => Subject {
            path: Some(on.path.clone()),
            peer: Some(on.peer.clone()),
            app: None,
        },
        EventKind::LocalChanged { path, .. } => Subject {
            path: Some(path.clone()),
            ..Subject::default()
        },
        EventKind::PeerUp { peer, .. }
        | EventKind::PeerDown { peer, .. }
        | EventKind::ClockBehind { peer, .. }
        | EventKind::DuplicateKey { peer, .. }
        | EventKind::HandshakeUnanswered { peer, .. }
        | EventKind::KeyRefused { peer }
        | EventKind::KeyChanged { peer, .. }
        | EventKind::PeerRenamed { peer, .. }
        | EventKind::TenantUnknown { peer, .. }
        | EventKind::TenantRefused { peer, .. }
        | EventKind::JoinRefused { peer, .. } => of_peer(Some(peer)),
        EventKind::WrongKey { peer, .. }
        | EventKind::VersionMismatch { peer, .. }
        | EventKind::PrefixMismatch { peer, .. } => of_peer(peer.as_ref()),
        EventKind::SiteJoined { site, .. } => of_peer(Some(site)),
        _ => Subject::default(),
    }
}

/// How long a read waits, so that the thread notices the end of its source.
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Between attempts to connect. Ours.
const RETRY: Duration = Duration::from_secs(2);

/// Starts the thread that follows the events; it ends with the source.
pub(super) fn start(shared: Arc<Shared>) {
    thread::Builder::new()
        .name("events".into())
        .spawn(move || {
            while !shared.has_ended() {
                let fault = follow(&shared);
                lock(&shared.events).on_lost(SystemTime::now(), &fault);
                shared.rest(RETRY);
            }
        })
        .expect("a thread can be started");
}

/// Follows until the connection ends, and gives the reason.
fn follow(shared: &Shared) -> Fault {
    let mut client = match connect(&shared.socket, READ_TIMEOUT) {
        Ok(client) => client,
        Err(fault) => return fault,
    };
    match client.request(&Request::Monitor {}) {
        Ok(Response::Monitoring {}) => {}
        Ok(other) => return unexpected(&other),
        Err(error) => return Fault::unanswered(&error),
    }
    lock(&shared.events).on_follow(SystemTime::now());
    while !shared.has_ended() {
        match next(&mut client) {
            Ok(Some(event)) => lock(&shared.events).on_event(&event),
            Ok(None) => {}
            Err(error) => return Fault::unanswered(&error),
        }
    }
    Fault::new("this process ends", "")
}

/// `None`: nothing happened for a while.
fn next(
    client: &mut Client<impl std::io::Read + std::io::Write>,
) -> Result<Option<Event>, ClientError> {
    match client.next_event() {
        Ok(event) => Ok(Some(event)),
        Err(ClientError::Io(error))
            if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use keiro_control::protocol::{DownReason, PathRef, Timestamp};

    use super::*;

    fn down(path: &str, second: u64) -> Event {
        Event {
            time: Timestamp(SystemTime::UNIX_EPOCH + Duration::from_secs(second)),
            kind: EventKind::PathDown {
                on: PathRef {
                    path: path.into(),
                    peer: "osaka".into(),
                },
                reason: DownReason::Silent,
                silent_seconds: None,
                limit_seconds: None,
            },
        }
    }

    #[test]
    fn a_flood_of_one_kind_leaves_other_events_their_lines() {
        let mut events = Events::default();
        events.on_event(&down("wan0", 0));
        for number in 0..10_000 {
            events.on_event(&down("wan1", 1 + number / 1000));
        }
        let lines: Vec<(Option<&str>, u64)> = events
            .newest()
            .map(|seen| (seen.subject.path.as_deref(), seen.count))
            .collect();
        let wan1 = Some("wan1");
        assert_eq!(
            lines,
            [(wan1, 9_998), (wan1, 1), (wan1, 1), (Some("wan0"), 1)]
        );
    }

    #[test]
    fn the_number_of_events_is_bounded() {
        let mut events = Events::default();
        for number in 0..KEPT_MAX as u64 + 10 {
            events.on_event(&down(&format!("wan{number}"), number));
        }
        assert_eq!(events.newest().count(), KEPT_MAX);
        assert_eq!(events.forgotten, 10);
    }

    #[test]
    fn a_lost_connection_is_a_line_of_its_own() {
        let mut events = Events::default();
        let fault = Fault::new("the gateway closed the connection", "");
        events.on_lost(SystemTime::now(), &fault);
        assert_eq!(events.newest().count(), 0);
        events.on_follow(SystemTime::now());
        events.on_lost(SystemTime::now(), &fault);
        let line = events.newest().next().unwrap();
        assert_eq!(line.kind, "gap");
        assert!(
            line.sentence.contains("events are missing"),
            "{}",
            line.sentence
        );
    }
}
