//! What the gateway has answered: the latest snapshot, rates since the one before, events, and whether it answers.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::{Duration, SystemTime},
};

use keiro_control::{
    event_text::{Severity, sentence, severity},
    protocol::{
        AppSnapshot, Event, Explanation, PathSnapshot, RecentEvent, StatusSnapshot, TenantSnapshot,
    },
};

/// Events that are kept to look at. Ours: an hour of a gateway that has much to say.
pub(crate) const EVENTS_MAX: usize = 2000;

/// The gateway at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) taken: SystemTime,
    pub(crate) status: StatusSnapshot,
    pub(crate) paths: Vec<PathSnapshot>,
    pub(crate) apps: Vec<AppSnapshot>,
    pub(crate) tenants: Vec<TenantSnapshot>,
    pub(crate) rates: Rates,
}

/// Rates in bit/s by name, from the counters of two snapshots; none before the second one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) apps: BTreeMap<String, Rate>,
    /// By path and peer.
    pub(crate) paths: BTreeMap<(String, String), Rate>,
    pub(crate) tenants: BTreeMap<String, Rate>,
}

/// Out of this gateway and into it, bit/s.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Rate {
    pub(crate) sent: f64,
    pub(crate) received: f64,
}

/// Whether the gateway answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// It has not answered yet.
    Opening,
    Live,
    /// It does not, since when and why; it is asked again.
    Lost {
        since: SystemTime,
        why: String,
    },
}

/// An event in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EventLine {
    pub(crate) time: SystemTime,
    pub(crate) name: &'static str,
    pub(crate) text: String,
    pub(crate) is_warning: bool,
}

/// What came from the gateway.
#[derive(Debug)]
pub(crate) enum Update {
    Snapshot(Box<Snapshot>),
    Event(Box<Event>),
    /// The gateway does not answer, and why.
    Lost(String),
    /// Of the application of this name; why there is none.
    Explanation(String, Result<Box<Explanation>, String>),
}

/// An application's explanation, or why there is none.
#[derive(Clone, Debug)]
pub(crate) struct Explained {
    pub(crate) app: String,
    pub(crate) answer: Result<Arc<Explanation>, String>,
}

/// All that is known.
#[derive(Clone, Debug)]
pub(crate) struct Data {
    pub(crate) connection: Connection,
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    /// The newest first.
    pub(crate) events: VecDeque<EventLine>,
    /// Events that have come so far.
    pub(crate) events_seen: u64,
    pub(crate) explained: Option<Explained>,
}

impl Data {
    pub(crate) fn new() -> Self {
        Self {
            connection: Connection::Opening,
            snapshot: None,
            events: VecDeque::new(),
            events_seen: 0,
            explained: None,
        }
    }

    pub(crate) fn apply(&mut self, now: SystemTime, update: Update) {
        match update {
            Update::Snapshot(snapshot) => {
                // What happened before this view began.
                if self.snapshot.is_none() {
                    self.add_recent(&snapshot.status.recent_events);
                }
                self.connection = Connection::Live;
                self.snapshot = Some(Arc::from(snapshot));
            }
            Update::Event(event) => self.add(&event),
            Update::Lost(why) => {
                let since = match &self.connection {
                    Connection::Lost { since, .. } => *since,
                    Connection::Opening | Connection::Live => now,
                };
                self.connection = Connection::Lost { since, why };
            }
            Update::Explanation(app, answer) => {
                let answer = answer.map(Arc::from);
                self.explained = Some(Explained { app, answer });
            }
        }
        debug_assert!(self.events.len() <= EVENTS_MAX);
    }

    /// The application that `explained` is about.
    pub(crate) fn explained_app(&self) -> Option<&str> {
        self.explained.as_ref().map(|of| of.app.as_str())
    }

    fn add(&mut self, event: &Event) {
        self.events_seen += 1;
        self.events.push_front(Self::line(event));
        self.events.truncate(EVENTS_MAX);
    }

    /// Events of the last minutes that the gateway has kept, behind those that have come since.
    fn add_recent(&mut self, recent: &[RecentEvent]) {
        let mut older: Vec<EventLine> = recent.iter().map(|of| Self::line(&of.event)).collect();
        older.sort_by_key(|line| std::cmp::Reverse(line.time));
        let is_new = |line: &EventLine| !self.events.contains(line);
        older.retain(is_new);
        self.events.extend(older);
        self.events.truncate(EVENTS_MAX);
    }

    fn line(event: &Event) -> EventLine {
        EventLine {
            time: event.time.0,
            name: event.kind.name(),
            text: sentence(&event.kind),
            is_warning: severity(&event.kind) == Severity::Warning,
        }
    }
}

impl Snapshot {
    /// The same with the rates since `before`.
    pub(crate) fn since(mut self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self };
        let elapsed = self.taken.duration_since(before.taken).unwrap_or_default();
        self.rates = Rates {
            apps: rates(before.apps_bytes(), &self.apps_bytes(), elapsed),
            paths: rates(before.paths_bytes(), &self.paths_bytes(), elapsed),
            tenants: rates(before.tenants_bytes(), &self.tenants_bytes(), elapsed),
        };
        self
    }

    fn apps_bytes(&self) -> BTreeMap<String, [u64; 2]> {
        let bytes = |app: &AppSnapshot| [app.stats.sent_bytes, app.stats.received_bytes];
        let apps = self.apps.iter();
        apps.map(|app| (app.name.clone(), bytes(app))).collect()
    }

    fn paths_bytes(&self) -> BTreeMap<(String, String), [u64; 2]> {
        let bytes = |path: &PathSnapshot| [path.stats.sent_bytes, path.stats.received_bytes];
        let key = |path: &PathSnapshot| (path.name.clone(), path.peer.clone());
        let paths = self.paths.iter();
        paths.map(|path| (key(path), bytes(path))).collect()
    }

    fn tenants_bytes(&self) -> BTreeMap<String, [u64; 2]> {
        let bytes =
            |tenant: &TenantSnapshot| [tenant.stats.ingress_bytes, tenant.stats.egress_bytes];
        let tenants = self.tenants.iter();
        tenants.map(|of| (of.name.clone(), bytes(of))).collect()
    }
}

/// None for what was not there before, or whose counters began again.
fn rates<K: Ord + Clone>(
    before: BTreeMap<K, [u64; 2]>,
    after: &BTreeMap<K, [u64; 2]>,
    elapsed: Duration,
) -> BTreeMap<K, Rate> {
    let seconds = elapsed.as_secs_f64();
    let rate = |(key, [sent, received]): (K, [u64; 2])| {
        let [sent_now, received_now] = after.get(&key)?;
        let sent = sent_now.checked_sub(sent)?;
        let received = received_now.checked_sub(received)?;
        let rate = Rate {
            sent: sent as f64 * 8.0 / seconds,
            received: received as f64 * 8.0 / seconds,
        };
        (seconds > 0.0).then_some((key, rate))
    };
    before.into_iter().filter_map(rate).collect()
}
