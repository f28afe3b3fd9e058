//! Results of streams: both ends of each, and the dialogues over them.

use std::{collections::BTreeMap, time::Duration};

use keiro_core::{AppId, ResetReason};
use keiro_units::Instant;

use super::Report;
use crate::{
    gateway::{Log, StreamObservation},
    scenario::{Scenario, ScenarioEvent, Side},
};

/// A stream from one end to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamRecord {
    /// Side of its client.
    pub from: Side,
    /// Index of the application.
    pub app: usize,
    /// Log of its client.
    pub client: StreamObservation,
    /// Log of its server; `None` if no header arrived.
    pub server: Option<StreamObservation>,
}

/// A dialogue of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialogueRecord {
    /// Side of its client.
    pub from: Side,
    /// Index of the application.
    pub app: usize,
    /// Index of the client on that side, in the order of the scenario.
    pub client: usize,
    /// When it was made.
    pub made: Instant,
    /// When its first request was begun; `None` if never.
    pub begun: Option<Instant>,
    /// When its last response was complete; `None` if never.
    pub done: Option<Instant>,
    /// Its stream was reset, or its gateway restarted, before completion.
    pub failed: bool,
    /// It completes if there are no faults.
    pub completes: bool,
}

impl StreamRecord {
    /// Why it has no expected end; `None` if it has one, or is not meant to end.
    fn missing(&self) -> Option<&'static str> {
        let Self { client, server, .. } = self;
        if !client.ends && !client.is_over() {
            return None;
        }
        if !client.is_over() {
            return Some("the client's end is open");
        }
        match server {
            Some(server) if !server.is_over() => Some("the server's end is open"),
            None if client.is_closed() => Some("the server heard nothing"),
            _ => None,
        }
    }
}

impl DialogueRecord {
    /// From its scheduled start to its last response; `None` if that never arrived.
    pub fn delay(&self) -> Option<Duration> {
        self.done.map(|at| at - self.made)
    }

    /// From its first request to its last response; `None` if that never arrived.
    pub fn duration(&self) -> Option<Duration> {
        Some(self.done? - self.begun?)
    }
}

impl Report {
    /// The dialogues of one application, those of side A first.
    pub fn dialogues_of(&self, app: usize) -> impl Iterator<Item = &DialogueRecord> {
        self.dialogues
            .iter()
            .filter(move |dialogue| dialogue.app == app)
    }

    /// Streams and dialogues without an expected end, as texts.
    pub fn incomplete_streams(&self) -> Vec<String> {
        let dialogues = self
            .dialogues
            .iter()
            .filter(|dialogue| dialogue.completes && dialogue.done.is_none() && !dialogue.failed)
            .map(|dialogue| format!("{dialogue:?}"));
        let streams = self
            .streams
            .iter()
            .filter_map(|stream| Some(format!("{}: {stream:?}", stream.missing()?)));
        let nameless = self.nameless_streams.iter();
        let nameless = nameless
            .filter(|stream| !stream.is_over())
            .map(|stream| format!("no client: {stream:?}"));
        streams.chain(nameless).chain(dialogues).collect()
    }

    pub(super) fn match_streams(
        &mut self,
        scenario: &Scenario,
        from: Side,
        apps: &[AppId],
        near: &Log,
        far: &Log,
    ) {
        for dialogue in &near.dialogues {
            self.dialogues.push(DialogueRecord {
                from,
                app: dialogue.app,
                client: dialogue.client,
                made: dialogue.made,
                begun: dialogue.begun,
                done: dialogue.done,
                failed: dialogue.failed,
                completes: dialogue.completes,
            });
        }
        let mut servers: BTreeMap<usize, StreamObservation> = BTreeMap::new();
        for server in far.streams.iter().filter(|end| end.dialogues.is_none()) {
            let Some(index) = server.other else {
                self.nameless_streams.push(*server);
                continue;
            };
            if let Some(first) = servers.insert(index, *server) {
                let violation = format!("{from:?}: two servers: {first:?} and {server:?}");
                self.violations.push(violation);
            }
        }
        let restarts = scenario
            .events
            .iter()
            .any(|event| matches!(event.what, ScenarioEvent::Restart { .. }));
        for (index, client) in near.streams.iter().enumerate() {
            let server = servers.remove(&index);
            let Some(app) = client.dialogues else {
                if server.is_some() {
                    let violation = format!("{from:?}: not a client: {client:?} of {server:?}");
                    self.violations.push(violation);
                }
                continue;
            };
            let record = StreamRecord {
                from,
                app,
                client: *client,
                server,
            };
            for wrong in wrongs(&record, apps, restarts) {
                self.violations
                    .push(format!("{from:?}: {wrong}: {record:?}"));
            }
            self.streams.push(record);
        }
        for server in servers.values() {
            let violation = format!("{from:?}: no such stream was opened: {server:?}");
            self.violations.push(violation);
        }
    }
}

/// The faults of a stream, finished or not.
fn wrongs(record: &StreamRecord, apps: &[AppId], restarts: bool) -> Vec<&'static str> {
    let StreamRecord { client, server, .. } = record;
    let mut wrongs = Vec::new();
    if client.app != apps[record.app] || server.is_some_and(|server| server.app != client.app) {
        wrongs.push("another application");
    }
    let unobserved = StreamObservation {
        written: 0,
        read: 0,
        finished: None,
        end_seen: None,
        reset_sent: None,
        reset_seen: None,
        ..*client
    };
    let server = server.unwrap_or(unobserved);
    for (writer, reader) in [(client, &server), (&server, client)] {
        if reader.read > writer.written {
            wrongs.push("more was read than written");
        }
        let cut = writer.finished.is_none() || writer.written != reader.read;
        if reader.end_seen.is_some() && cut {
            wrongs.push("an end arrived that was not sent");
        }
        match reader.reset_seen {
            Some((at, ResetReason::Application))
                if writer.reset_sent.is_none_or(|sent| sent > at) =>
            {
                wrongs.push("a reset arrived that was not sent");
            }
            Some((_, ResetReason::Gateway)) if !restarts => wrongs.push("no gateway restarted"),
            Some((_, ResetReason::Application | ResetReason::Gateway)) | None => {}
            Some(_) => wrongs.push("a reset for an impossible reason"),
        }
    }
    wrongs
}
