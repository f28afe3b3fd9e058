//! Clients and servers of a gateway's streams, in place of its TCP listeners and forwards.
//!
//! Checks every byte by its position as it arrives, and every signal of the core. [`end`](super::end) is the
//! behaviour of one end of a stream; [`Report`](crate::Report) judges whether all came to an end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use keiro_core::{AppId, ResetReason, SendError, StreamId, StreamSignal};
use keiro_units::Instant;

use super::{
    end::{End, Head, Role},
    log::{Log, SentDialogue, StreamObservation},
    stream_context::StreamContext,
};
use crate::{
    scenario::{Dialogues, StreamEnd},
    seed,
};

/// A signal of the core about a stream of an application.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignalOfStream {
    pub(super) app: AppId,
    pub(super) stream: StreamId,
    pub(super) signal: StreamSignal,
}

/// All clients and servers of one gateway.
#[derive(Debug, Default)]
pub(super) struct Streams {
    seed: u64,
    clients: Vec<Client>,
    /// Scheduled dialogues: time and client.
    planned: VecDeque<(Instant, usize)>,
    ends: BTreeMap<StreamId, End>,
    /// Ends that may have something to do.
    work: BTreeSet<StreamId>,
    /// Ends that are scheduled to act again; some no longer need to.
    timers: BTreeSet<(Instant, StreamId)>,
    /// Clients that cannot open a stream yet.
    blocked: BTreeSet<usize>,
    /// Number of ends that should come to an end and have not.
    unfinished: usize,
    /// Number of dialogues that were made, should complete and have not.
    talking: usize,
}

/// A client that runs dialogues, one after the other.
#[derive(Debug)]
pub(super) struct Client {
    spec: Dialogues,
    app: AppId,
    stream: Option<StreamId>,
    /// Its dialogues that have been made and have not ended, by index into the log.
    queue: VecDeque<usize>,
    /// Those that are still to be made.
    to_come: usize,
}

impl Streams {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// Schedules dialogues at `times`.
    pub(super) fn plan(&mut self, spec: &Dialogues, app: AppId, times: Vec<Instant>) {
        let first = self.clients.len();
        let count = spec.clients.max(1) as usize;
        self.clients.extend((0..count).map(|_| Client {
            spec: spec.clone(),
            app,
            stream: None,
            queue: VecDeque::new(),
            to_come: 0,
        }));
        for (index, at) in times.into_iter().enumerate() {
            let client = first + index % count;
            self.clients[client].to_come += 1;
            self.planned.push_back((at, client));
        }
        // A stable sort: dialogues of the same instant keep their order.
        self.planned.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    pub(super) fn is_finished(&self) -> bool {
        self.planned.is_empty()
            && self.blocked.is_empty()
            && (self.unfinished, self.talking) == (0, 0)
    }

    /// Streams that the core should still have.
    pub(super) fn open(&self) -> usize {
        self.ends.values().filter(|end| !end.gone).count()
    }

    pub(super) fn next_at(&self) -> Option<Instant> {
        let planned = self.planned.front().map(|(at, _)| *at);
        let timer = self.timers.first().map(|(at, _)| *at);
        planned.into_iter().chain(timer).min()
    }

    /// Forgets all streams; clients remain and start again.
    pub(super) fn on_restart(&mut self, log: &mut Log) {
        let streams: Vec<StreamId> = self.ends.keys().copied().collect();
        for stream in streams {
            let end = &self.ends[&stream];
            if !end.gone {
                log.streams[end.record].forgotten = true;
                self.drop_end(stream, log);
            }
        }
        self.ends.clear();
        self.work.clear();
        self.timers.clear();
    }

    /// Records scheduled dialogues as made.
    pub(super) fn make(&mut self, now: Instant, log: &mut Log) {
        while let Some((made, index)) = self.planned.pop_front_if(|(at, _)| *at <= now) {
            let client = &mut self.clients[index];
            client.to_come -= 1;
            client.queue.push_back(log.dialogues.len());
            let completes = client.spec.completes();
            self.talking += usize::from(completes);
            log.dialogues.push(SentDialogue {
                app: client.spec.app,
                client: index,
                completes,
                made,
                begun: None,
                done: None,
                failed: false,
            });
            match client.stream {
                Some(stream) => self.work.insert(stream),
                None => self.blocked.insert(index),
            };
        }
    }

    pub(super) fn on_signal(
        &mut self,
        now: Instant,
        of_stream: SignalOfStream,
        incarnation: u32,
        log: &mut Log,
    ) {
        let SignalOfStream {
            app,
            stream,
            signal,
        } = of_stream;
        if let StreamSignal::Opened { target } = signal {
            if stream.is_ours() || self.ends.contains_key(&stream) || target.is_some() {
                let fault = format!("{now}: {stream:?} of {app:?}: {signal:?}");
                log.faults.push(fault);
                return;
            }
            let end = End::of_server(now, log.streams.len());
            log.streams
                .push(StreamObservation::new(stream, app, incarnation, now));
            self.ends.insert(stream, end);
            self.unfinished += 1;
            self.work.insert(stream);
            return;
        }
        let Some(end) = self.ends.get_mut(&stream) else {
            let fault = format!("{now}: {signal:?} for {stream:?}, which was never opened");
            log.faults.push(fault);
            return;
        };
        let record = &mut log.streams[end.record];
        if record.app != app || record.reset_seen.is_some() {
            let fault = format!("{now}: {signal:?} of {app:?} for {record:?}");
            log.faults.push(fault);
        }
        if let StreamSignal::Reset(reason) = signal {
            record.reset_seen = Some((now, reason));
            self.drop_end(stream, log);
        } else {
            self.work.insert(stream);
        }
    }

    /// Lets all ends act; returns whether any did.
    pub(super) fn run(&mut self, turn: &mut StreamContext<'_>) -> bool {
        self.open_blocked(turn);
        while let Some((at, stream)) = self.timers.first().copied()
            && at <= turn.now
        {
            self.timers.pop_first();
            self.work.insert(stream);
        }
        let any = !self.work.is_empty();
        while let Some(stream) = self.work.pop_first() {
            self.serve(turn, stream);
            self.open_blocked(turn);
        }
        any
    }

    fn open_blocked(&mut self, turn: &mut StreamContext<'_>) {
        if self.blocked.is_empty() || !turn.endpoint.is_up(turn.peer) {
            return;
        }
        while let Some(index) = self.blocked.pop_first() {
            let client = &mut self.clients[index];
            if client.stream.is_some() || client.queue.is_empty() {
                continue;
            }
            let opened = turn
                .endpoint
                .open_stream(turn.now, turn.peer, client.app, None);
            match opened {
                Ok(stream) => self.on_opened(turn, index, stream),
                Err(SendError::QueueFull) => {
                    self.blocked.insert(index);
                    return;
                }
                Err(error) => panic!("stream of client {index} refused: {error}"),
            }
        }
    }

    fn on_opened(&mut self, turn: &mut StreamContext<'_>, index: usize, stream: StreamId) {
        let client = &mut self.clients[index];
        client.stream = Some(stream);
        let record = turn.log.streams.len();
        let mut observation =
            StreamObservation::new(stream, client.app, turn.incarnation, turn.now);
        observation.dialogues = Some(client.spec.app);
        observation.ends = client.spec.ends();
        turn.log.streams.push(observation);
        let head = Head::new(
            record,
            seed::derive(self.seed, "stream", record as u64),
            &client.spec,
        );
        let end = End::of_client(turn.now, record, index, &head, &client.spec);
        self.unfinished += usize::from(end.ends);
        self.timers.extend(end.resets_at.map(|at| (at, stream)));
        self.ends.insert(stream, end);
        self.work.insert(stream);
    }

    /// Lets one end read, compute and write until it has to wait.
    fn serve(&mut self, turn: &mut StreamContext<'_>, stream: StreamId) {
        let Some(end) = self.ends.get_mut(&stream).filter(|end| !end.gone) else {
            return;
        };
        let (now, before) = (turn.now, (end.resets_at, end.ends));
        let again = end.read(turn, stream);
        if end.looks_again(now, again) {
            self.timers.extend(again.map(|at| (at, stream)));
        }
        // A server learns from its client's header whether it will end, and when to reset.
        self.unfinished -= usize::from(before.1 && !end.ends);
        if before.0 != end.resets_at {
            self.timers.extend(end.resets_at.map(|at| (at, stream)));
        }
        if end.resets_at.is_some_and(|at| at <= now) {
            let reason = ResetReason::Application;
            turn.endpoint.reset_stream(turn.peer, stream, reason);
            turn.log.streams[end.record].reset_sent = Some(now);
            return self.drop_end(stream, turn.log);
        }
        if let Role::Client { client, .. } = end.role {
            let (index, client) = (client, &mut self.clients[client]);
            while end.write(turn, stream)
                && client.stream == Some(stream)
                && client.think(now, end, turn.log, &mut self.talking)
            {}
            if client.stream == Some(stream) && client.has_left(end, turn.log) {
                client.stream = None;
                if !client.queue.is_empty() {
                    self.blocked.insert(index);
                }
            }
        } else {
            end.answer(turn.log);
            end.write(turn, stream);
        }
        let observation = &turn.log.streams[end.record];
        if observation.end_seen.is_some() && observation.finished.is_some() {
            self.drop_end(stream, turn.log);
        }
    }

    /// Nothing more happens at this end.
    fn drop_end(&mut self, stream: StreamId, log: &mut Log) {
        let Some(end) = self.ends.get_mut(&stream).filter(|end| !end.gone) else {
            return;
        };
        end.gone = true;
        self.unfinished -= usize::from(end.ends);
        let Role::Client { client: index, .. } = end.role else {
            return;
        };
        let client = &mut self.clients[index];
        if client.stream != Some(stream) {
            return;
        }
        client.stream = None;
        if let Some(&front) = client.queue.front()
            && log.dialogues[front].begun.is_some()
        {
            client.queue.pop_front();
            log.dialogues[front].failed = true;
            self.talking -= usize::from(client.spec.completes());
        }
        if !client.queue.is_empty() {
            self.blocked.insert(index);
        }
    }
}

impl Client {
    /// It has finished with a stream that stays open.
    fn has_left(&self, end: &End, log: &Log) -> bool {
        let said_all = matches!(
            end.role,
            Role::Client {
                rounds_left: 0,
                begun: 1..,
                ..
            }
        );
        let front = self.queue.front();
        let talks = front.is_some_and(|index| log.dialogues[*index].begun.is_some());
        self.spec.end == StreamEnd::Never && !self.spec.keeps_stream && said_all && !talks
    }

    /// Begins its next request, if it has the response to the previous one; `false` if it has to wait.
    fn think(&mut self, now: Instant, end: &mut End, log: &mut Log, talking: &mut usize) -> bool {
        let Role::Client {
            rounds_left,
            expected,
            begun,
            ..
        } = &mut end.role
        else {
            return false;
        };
        let observation = &log.streams[end.record];
        if observation.written < end.goal || observation.read < *expected {
            return false;
        }
        let front = self.queue.front().copied();
        if let Some(dialogue) = front.filter(|index| log.dialogues[*index].begun.is_some())
            && *rounds_left == 0
        {
            log.dialogues[dialogue].done = Some(now);
            *talking -= usize::from(self.spec.completes());
            self.queue.pop_front();
            return true;
        }
        if end.last {
            return false;
        }
        let another = self.spec.keeps_stream || *begun == 0;
        if *rounds_left == 0 {
            let Some(dialogue) = front.filter(|_| another) else {
                let over = !self.spec.keeps_stream || self.to_come == 0;
                end.last = over && self.spec.closes();
                return end.last;
            };
            *begun += 1;
            *rounds_left = self.spec.rounds.max(1);
            log.dialogues[dialogue].begun = Some(now);
        }
        *rounds_left -= 1;
        end.goal += self.spec.request_bytes.max(1);
        *expected += self.spec.response_bytes.max(1);
        let none_after = !self.spec.keeps_stream || self.queue.len() == 1 && self.to_come == 0;
        end.last = self.spec.end == StreamEnd::AfterRequest && *rounds_left == 0 && none_after;
        true
    }
}
