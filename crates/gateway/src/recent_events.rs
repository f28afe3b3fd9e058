//! Events that say why something does not work, kept for those who ask later, as `keiro doctor` does.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant as Stopwatch},
};

use keiro_control::protocol::{Event, EventKind, RecentEvent};

use crate::event_log::Topic;

/// The latest event of each kind about each subject; see the module.
#[derive(Debug, Default)]
pub(crate) struct RecentEvents {
    recent: BTreeMap<Topic, Recent>,
}

#[derive(Debug)]
struct Recent {
    at: Stopwatch,
    count: u64,
    latest: Event,
}

/// They are kept for this long. Ours: what lasts is reported once a minute.
const KEPT_FOR: Duration = Duration::from_secs(600);
/// Subjects that are kept; beyond, the one that was heard of longest ago is forgotten. Ours.
const KEPT_MAX: usize = 128;
/// And of one peer, which chooses some of its subjects. Ours: an eighth of all.
const KEPT_OF_PEER_MAX: usize = KEPT_MAX / 8;

impl RecentEvents {
    /// An event has happened.
    pub(crate) fn on_event(&mut self, now: Stopwatch, event: &Event) {
        match &event.kind {
            // What is configured wrongly may be right now. If not, it is reported again.
            EventKind::Reloaded { .. } => self.recent.clear(),
            EventKind::PeerUp { peer, .. } => self.forget(|kind| is_over_with_peer(kind, peer)),
            EventKind::PathUp { on, .. } => self.forget(
                |kind| matches!(kind, EventKind::PathUnanswered { on: of, .. } if of == on),
            ),
            kind if is_kept(kind) => self.keep(now, event),
            _ => {}
        }
    }

    /// Those of the last ten minutes, by kind and subject.
    pub(crate) fn snapshot(&self, now: Stopwatch) -> Vec<RecentEvent> {
        let age = |recent: &Recent| now.saturating_duration_since(recent.at);
        let valid = self.recent.values().filter(|recent| age(recent) < KEPT_FOR);
        let shown = |recent: &Recent| RecentEvent {
            event: recent.latest.clone(),
            count: recent.count,
            age_seconds: age(recent).as_secs_f64(),
        };
        valid.map(shown).collect()
    }

    fn keep(&mut self, now: Stopwatch, event: &Event) {
        let Some(topic) = Topic::of(&event.kind) else {
            return;
        };
        self.recent
            .retain(|_, recent| now.saturating_duration_since(recent.at) < KEPT_FOR);
        if let Some(recent) = self.recent.get_mut(&topic) {
            recent.at = now;
            recent.count += 1;
            recent.latest = event.clone();
            return;
        }
        let peer = topic.peer();
        let of_peer = self.recent.keys().filter(|kept| kept.peer() == peer);
        if !peer.is_empty() && of_peer.count() >= KEPT_OF_PEER_MAX {
            self.forget_oldest(|kept| kept.peer() == peer);
        } else if self.recent.len() >= KEPT_MAX {
            self.forget_oldest(|_| true);
        }
        let recent = Recent {
            at: now,
            count: 1,
            latest: event.clone(),
        };
        self.recent.insert(topic, recent);
        self.check_invariants();
    }

    fn forget(&mut self, is_over: impl Fn(&EventKind) -> bool) {
        self.recent
            .retain(|_, recent| !is_over(&recent.latest.kind));
    }

    fn forget_oldest(&mut self, is_among: impl Fn(&Topic) -> bool) {
        let among = self.recent.iter().filter(|(topic, _)| is_among(topic));
        let oldest = among.min_by_key(|(_, recent)| recent.at);
        if let Some(topic) = oldest.map(|(topic, _)| topic.clone()) {
            self.recent.remove(&topic);
        }
    }

    pub(crate) fn check_invariants(&self) {
        debug_assert!(self.recent.len() <= KEPT_MAX);
        debug_assert!(self.recent.values().all(|recent| recent.count > 0));
    }
}

/// It says why something does not work.
fn is_kept(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::VersionMismatch { .. }
            | EventKind::DuplicateKey { .. }
            | EventKind::WrongKey { .. }
            | EventKind::HandshakeUnanswered { .. }
            | EventKind::PathUnanswered { .. }
            | EventKind::KeyRefused { .. }
            | EventKind::AppMismatch { .. }
            | EventKind::RemoteChanged { .. }
            | EventKind::TenantUnknown { .. }
            | EventKind::TenantRefused { .. }
            | EventKind::PrefixMismatch { .. }
    )
}

/// Whether a session with `peer` shows that it is over.
fn is_over_with_peer(kind: &EventKind, peer: &str) -> bool {
    match kind {
        EventKind::VersionMismatch { peer: of, .. } | EventKind::WrongKey { peer: of, .. } => {
            of.as_deref() == Some(peer)
        }
        EventKind::HandshakeUnanswered { peer: of, .. } | EventKind::KeyRefused { peer: of } => {
            of == peer
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use keiro_control::protocol::PathRef;

    use super::*;
    use crate::status::event_now;

    const SECOND: Duration = Duration::from_secs(1);

    fn unknown(peer: &str, id: u64) -> Event {
        event_now(EventKind::TenantUnknown {
            peer: peer.to_owned(),
            id,
        })
    }

    fn on(path: &str) -> PathRef {
        PathRef {
            path: path.to_owned(),
            peer: "osaka".to_owned(),
        }
    }

    fn kinds(recent: &RecentEvents, now: Stopwatch) -> Vec<&'static str> {
        let all = recent.snapshot(now);
        all.iter().map(|recent| recent.event.kind.name()).collect()
    }

    #[test]
    fn the_latest_of_a_kind_and_subject_is_kept_with_a_count_for_ten_minutes() {
        let mut recent = RecentEvents::default();
        let start = Stopwatch::now();
        for second in 0..3 {
            recent.on_event(start + SECOND * second, &unknown("osaka", 7));
        }
        let shown = recent.snapshot(start + SECOND * 12);
        assert_eq!(shown.len(), 1);
        assert_eq!((shown[0].count, shown[0].age_seconds), (3, 10.0));
        assert_eq!(recent.snapshot(start + SECOND * 603), []);
    }

    #[test]
    fn resolved_events_are_forgotten() {
        let mut recent = RecentEvents::default();
        let now = Stopwatch::now();
        let unanswered = EventKind::PathUnanswered {
            on: on("wan0"),
            remote: None,
            sent_packets: 9,
            received_packets: 0,
            unanswered_seconds: 9.0,
            one_way: false,
        };
        let refused = EventKind::KeyRefused {
            peer: "osaka".to_owned(),
        };
        for kind in [unanswered, refused] {
            recent.on_event(now, &event_now(kind));
        }
        recent.on_event(now, &unknown("osaka", 7));
        let up = EventKind::PathUp {
            on: on("wan0"),
            remote: "192.0.2.1:7600".to_owned(),
            rtt_seconds: 0.1,
        };
        recent.on_event(now, &event_now(up));
        assert_eq!(kinds(&recent, now), ["key_refused", "tenant_unknown"]);
        let up = EventKind::PeerUp {
            peer: "osaka".to_owned(),
            path: "wan0".to_owned(),
        };
        recent.on_event(now, &event_now(up));
        assert_eq!(kinds(&recent, now), ["tenant_unknown"]);
        let changes = Box::default();
        recent.on_event(now, &event_now(EventKind::Reloaded { changes }));
        assert_eq!(recent.snapshot(now), []);
    }

    #[test]
    fn a_peer_with_many_subjects_leaves_those_of_others_their_place() {
        let mut recent = RecentEvents::default();
        let start = Stopwatch::now();
        recent.on_event(start, &unknown("osaka", 1));
        for id in 0..1000 {
            recent.on_event(start + SECOND, &unknown("mallory", id));
        }
        assert_eq!(recent.snapshot(start).len(), KEPT_OF_PEER_MAX + 1);
        for number in 0..1000 {
            let peer = format!("peer{number}");
            recent.on_event(start + SECOND * 2, &unknown(&peer, 1));
        }
        assert_eq!(recent.snapshot(start).len(), KEPT_MAX);
    }
}
