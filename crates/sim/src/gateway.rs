//! A gateway as a node: drives one [`Endpoint`] as the daemon's data thread does, generates its applications'
//! traffic, and keeps a log.
//!
//! The configuration comes as values from the [`Scenario`](crate::Scenario); [`Report`](crate::Report) judges
//! the log.

mod drops;
mod end;
mod log;
mod meter;
mod queues;
mod stream_context;
mod streams;

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    time::Duration,
};

use keiro_core::{
    AppConfig, DatagramMeta, Delivery, DeliveryClass, Endpoint, EndpointConfig, Event, FlowId,
    MessageId, NewDatagram, PathId, PeerConfig, PeerId, SendError, SessionSnapshot, SocketId,
    TransmitBuf, wire,
};
use keiro_units::{Bandwidth, Instant};

pub use self::log::{
    DeliveredDatagram, DeliveredMessage, Log, QLOG_BYTES_MAX, SentDatagram, SentDialogue,
    SentMessage, StreamObservation,
};
pub(crate) use self::queues::ScheduledItem;
use self::{
    drops::Drops,
    meter::Meter,
    queues::{ReceiveQueue, TransmitQueue},
    stream_context::StreamContext,
    streams::{SignalOfStream, Streams},
};
use crate::{
    content,
    node::{Node, Outbox},
    packet::{Packet, headers},
    scenario::{Bursts, Dialogues, GatewaySpec, Receiver, Start},
    seed,
    trace::TraceHash,
};

/// Batches, deliveries or events in one turn after which the core counts as looping. Ours: the pacer releases
/// 2 ms of any simulated rate at a time, far below.
const POLLS_MAX: u32 = 1 << 20;
/// A debug build checks the core's invariants after this many turns, because a check visits all state. A
/// prime number covers every phase of periodic behaviour.
const CHECK_EVERY: u64 = 509;

/// The driver of one endpoint with one peer.
#[derive(Debug)]
pub struct Gateway {
    spec: GatewaySpec,
    seed: u64,
    config: EndpointConfig,
    peer_config: PeerConfig,
    running: Option<Running>,
    /// Incarnations so far, including the present one.
    incarnations: u32,
    starts_at: Option<Instant>,
    buffer: TransmitBuf,
    receive_queue: ReceiveQueue,
    drops: Drops,
    transmit_queue: TransmitQueue,
    timer: LateTimer,
    /// Messages and datagrams to make, by time.
    scheduled: VecDeque<ScheduledItem>,
    /// Messages that were made and are not yet accepted, by index into the log.
    waiting: VecDeque<usize>,
    /// The body of the first of them, which the core returned because its queue was full. No other is offered
    /// until a message has ended.
    handed_back: Option<Vec<u8>>,
    streams: Streams,
    meters: Vec<Meter>,
    log: Log,
    turns: u64,
}

/// State of one incarnation of a gateway.
#[derive(Debug)]
struct Running {
    endpoint: Endpoint,
    peer: PeerId,
    /// Accepted messages that have not ended, by index into the log.
    open: BTreeMap<MessageId, usize>,
    /// Delivered messages, by the time at which they will be finished.
    unfinished: VecDeque<(Instant, MessageId)>,
}

/// The machine's timer, which fires slightly late.
#[derive(Clone, Copy, Debug, Default)]
struct LateTimer {
    asked: Option<Instant>,
    fires: Option<Instant>,
    asked_times: u64,
}

impl Gateway {
    /// A gateway according to `spec`. `seed` determines all its keys and random choices.
    pub(crate) fn new(
        spec: GatewaySpec,
        config: EndpointConfig,
        peer_config: PeerConfig,
        seed: u64,
    ) -> Self {
        let rates = peer_config.paths.iter().map(|path| path.rate);
        let meters = rates.map(|rate| Meter::new(rate.unwrap_or(Bandwidth::ZERO)));
        Self {
            seed,
            meters: meters.collect(),
            running: None,
            incarnations: 0,
            starts_at: match spec.start {
                Start::AtOnce => Some(Instant::ZERO),
                Start::After(wait) => Some(Instant::ZERO + wait),
                Start::Never => None,
            },
            buffer: TransmitBuf::new(spec.segments_max),
            receive_queue: ReceiveQueue::new(spec.processing.receive, spec.inbox_max),
            drops: Drops::new(seed),
            transmit_queue: TransmitQueue::new(spec.processing.transmit),
            timer: LateTimer::default(),
            scheduled: VecDeque::new(),
            waiting: VecDeque::new(),
            handed_back: None,
            streams: Streams::new(seed),
            log: Log::default(),
            turns: 0,
            spec,
            config,
            peer_config,
        }
    }

    /// The core's endpoint; `None` while the gateway is not running.
    pub fn endpoint(&self) -> Option<&Endpoint> {
        self.running.as_ref().map(|running| &running.endpoint)
    }

    /// The endpoint's session with the peer; `None` while the gateway is not running.
    pub fn session(&self) -> Option<SessionSnapshot> {
        let running = self.running.as_ref()?;
        running.endpoint.session(running.peer)
    }

    /// Its log so far.
    pub const fn log(&self) -> &Log {
        &self.log
    }

    /// Its applications, by index.
    pub fn apps(&self) -> &[AppConfig] {
        &self.peer_config.apps
    }

    /// Whether everything scheduled was made and accepted and has ended.
    pub fn is_finished(&self) -> bool {
        let idle = |running: &Running| {
            running.open.is_empty()
                && running.unfinished.is_empty()
                && running.endpoint.is_drained()
        };
        self.scheduled.is_empty()
            && self.waiting.is_empty()
            && self.streams.is_finished()
            && self.running.as_ref().is_none_or(idle)
            && (self.running.is_some() || self.starts_at.is_none())
            && self
                .session()
                .is_none_or(|session| session.stats.open_streams == self.streams.open() as u64)
    }

    /// Paths that are up.
    pub fn paths_up(&self) -> usize {
        self.session().map_or(0, |session| {
            let paths = session.paths.iter();
            paths
                .filter(|path| path.state == keiro_core::PathState::Up)
                .count()
        })
    }

    /// Schedules a message or datagram, according to the application's class.
    pub(crate) fn plan(&mut self, made: Instant, app: usize, bytes: usize) {
        let scheduled = ScheduledItem { made, app, bytes };
        let position = self.scheduled.partition_point(|other| other.made <= made);
        self.scheduled.insert(position, scheduled);
    }

    /// Like [`plan`](Self::plan), for many at once.
    pub(crate) fn schedule_all(&mut self, more: impl IntoIterator<Item = ScheduledItem>) {
        self.scheduled.extend(more);
        // A stable sort: items of the same instant keep their order.
        self.scheduled.make_contiguous().sort_by_key(|p| p.made);
    }

    /// Schedules dialogues at `times`.
    pub(crate) fn plan_dialogues(&mut self, spec: &Dialogues, times: Vec<Instant>) {
        let app = self.peer_config.apps[spec.app].id;
        self.streams.plan(spec, app, times);
    }

    /// Stops, and starts again after `away`.
    pub(crate) fn restart(
        &mut self,
        now: Instant,
        orderly: bool,
        away: Duration,
        out: &mut Outbox<'_>,
    ) {
        if let Some(mut running) = self.running.take() {
            if orderly {
                running.endpoint.close(now);
                self.transmit(now, &mut running, out);
            }
            for index in running.open.into_values() {
                self.log.messages[index].forgotten = true;
            }
        }
        self.streams.on_restart(&mut self.log);
        self.receive_queue.clear();
        self.handed_back = None;
        self.timer = LateTimer::default();
        self.starts_at = Some(now + away);
        self.turn(now, out);
    }

    /// Changes the paths of an application.
    pub(crate) fn assign(
        &mut self,
        now: Instant,
        app: usize,
        paths: &[usize],
        out: &mut Outbox<'_>,
    ) {
        let config = &mut self.peer_config.apps[app];
        config.paths = paths.iter().map(|path| PathId(*path as u8)).collect();
        let config = config.clone();
        self.act(now, out, |endpoint, peer| {
            endpoint.set_app(peer, config);
        });
    }

    /// Sets the machine's time per received datagram, and the capacity of its receive queue.
    pub(crate) const fn set_receive(&mut self, each: Duration, inbox_max: usize) {
        self.receive_queue.set(each, inbox_max);
    }

    /// Starts or stops bursts of cross traffic.
    pub(crate) fn set_bursts(&mut self, now: Instant, bursts: Option<Bursts>) {
        self.drops.set_bursts(now, bursts);
    }

    /// Applies a closure to the endpoint, if it runs, and handles the consequences.
    pub(crate) fn act(
        &mut self,
        now: Instant,
        out: &mut Outbox<'_>,
        act: impl FnOnce(&mut Endpoint, PeerId),
    ) {
        if let Some(running) = &mut self.running {
            act(&mut running.endpoint, running.peer);
        }
        self.turn(now, out);
    }

    /// Samples the fill of the core's queues.
    pub(crate) fn sample(&mut self) {
        let Some(session) = self.session() else {
            return;
        };
        let log = &mut self.log;
        log.queued_bytes_max = log.queued_bytes_max.max(session.stats.queued_message_bytes);
        log.reassembly_bytes_max = log.reassembly_bytes_max.max(session.stats.reassembly_bytes);
        log.streams_queued_bytes_max = log
            .streams_queued_bytes_max
            .max(session.stats.queued_stream_bytes);
        log.streams_kept_bytes_max = log
            .streams_kept_bytes_max
            .max(session.stats.unread_stream_bytes);
        log.streams_max = log.streams_max.max(session.stats.open_streams as usize);
        log.bursts = self.meters.iter().map(Meter::max).collect();
    }

    /// One turn of the driver: input, timers, then output until there is none.
    fn turn(&mut self, now: Instant, out: &mut Outbox<'_>) {
        if self.running.is_none() && self.starts_at.is_some_and(|at| at <= now) {
            self.start(now);
        }
        if let Some(mut running) = self.running.take() {
            let interfaces = self.peer_config.paths.len();
            self.drops.report(now, &mut running.endpoint, interfaces);
            self.take_in(now, &mut running);
            self.make(now);
            self.offer(now, &mut running);
            running.finish_due(now);
            if self.timer.fires.is_some_and(|at| at <= now) {
                running.endpoint.handle_timeout(now);
            }
            self.talk(now, &mut running);
            self.drain(now, &mut running, out);
            self.rearm(&running);
            self.turns += 1;
            if cfg!(debug_assertions) && self.turns.is_multiple_of(CHECK_EVERY) {
                running.endpoint.check_invariants();
            }
            self.running = Some(running);
        } else {
            self.receive_queue.clear();
            self.make(now);
        }
        self.release(now, out);
    }

    fn start(&mut self, now: Instant) {
        let seed = seed::derive_key(self.seed, "life", u64::from(self.incarnations));
        let mut endpoint = Endpoint::new(now, self.config.clone(), seed);
        let peer = endpoint.add_peer(now, self.peer_config.clone());
        self.running = Some(Running {
            endpoint,
            peer,
            open: BTreeMap::new(),
            unfinished: VecDeque::new(),
        });
        self.drops.forget_announced();
        self.incarnations += 1;
        self.starts_at = None;
    }

    fn take_in(&mut self, now: Instant, running: &mut Running) {
        while let Some(mut arrived) = self.receive_queue.pop(now) {
            let meta = DatagramMeta {
                socket: SocketId(arrived.interface as u16),
                remote: arrived.packet.source,
                ecn: arrived.packet.ecn,
                received_at: arrived.at,
            };
            running
                .endpoint
                .handle_datagram(now, meta, &mut arrived.packet.payload);
            self.receive_queue.recycle(arrived.packet.payload);
        }
    }

    /// Records scheduled messages as made. Datagrams are given to the core at once or lost.
    fn make(&mut self, now: Instant) {
        self.streams.make(now, &mut self.log);
        while self.scheduled.front().is_some_and(|next| next.made <= now) {
            let Some(ScheduledItem { made, app, bytes }) = self.scheduled.pop_front() else {
                return;
            };
            match self.peer_config.apps[app].class {
                DeliveryClass::Message => {
                    self.waiting.push_back(self.log.messages.len());
                    self.log.messages.push(SentMessage {
                        app,
                        bytes,
                        hash: 0,
                        made,
                        accepted: None,
                        done: None,
                        forgotten: false,
                    });
                }
                DeliveryClass::Datagram => {
                    let index = self.log.datagrams.len();
                    let data = self.datagram(index, bytes);
                    self.log.datagrams.push(SentDatagram {
                        app,
                        bytes,
                        hash: TraceHash::of(&data),
                        made,
                    });
                    self.transmit_queue.datagrams.push_back(index);
                }
                DeliveryClass::Stream => panic!("traffic of streams is given as dialogues"),
            }
        }
    }

    /// Offers messages until the core refuses one.
    fn offer(&mut self, now: Instant, running: &mut Running) {
        while let Some(index) = self.transmit_queue.datagrams.pop_front() {
            let SentDatagram { app, bytes, .. } = self.log.datagrams[index];
            let data = self.datagram(index, bytes);
            let (app, flow) = (self.peer_config.apps[app].id, FlowId(app as u32));
            let (endpoint, peer) = (&mut running.endpoint, running.peer);
            if let Err(error) =
                endpoint.send_datagram(now, peer, NewDatagram::new(app, flow, now, &data))
            {
                let fault = format!("{now}: datagram of {bytes} bytes refused: {error}");
                self.log.faults.push(fault);
            }
        }
        while self.handed_back.is_none()
            && let Some(index) = self.waiting.pop_front()
        {
            let bytes = self.log.messages[index].bytes;
            let body = content::body(self.message_key(index), bytes);
            self.log.messages[index].hash = TraceHash::of(&body);
            self.offer_message(now, running, index, body);
        }
    }

    fn offer_message(&mut self, now: Instant, running: &mut Running, index: usize, body: Vec<u8>) {
        let SentMessage { app, made, .. } = self.log.messages[index];
        let (endpoint, peer) = (&mut running.endpoint, running.peer);
        match endpoint.send_message(now, made, peer, self.peer_config.apps[app].id, body) {
            Ok(id) => {
                self.log.messages[index].accepted = Some((now, self.incarnations, id));
                if running.open.insert(id, index).is_some() {
                    let fault = format!("{now}: {id:?} was given out twice");
                    self.log.faults.push(fault);
                }
            }
            Err((SendError::QueueFull, body)) => {
                self.log.queue_full += 1;
                self.waiting.push_front(index);
                self.handed_back = Some(body);
            }
            Err((error, body)) => {
                let fault = format!("{now}: message of {} bytes refused: {error}", body.len());
                self.log.faults.push(fault);
                self.log.messages[index].forgotten = true;
            }
        }
    }

    /// A message has ended, so there may be room again.
    fn offer_again(&mut self, now: Instant, running: &mut Running) {
        if let Some(body) = self.handed_back.take()
            && let Some(index) = self.waiting.pop_front()
        {
            self.offer_message(now, running, index, body);
        }
    }

    fn drain(&mut self, now: Instant, running: &mut Running, out: &mut Outbox<'_>) {
        for _ in 0..POLLS_MAX {
            let mut idle = !self.transmit(now, running, out);
            idle &= !self.poll_deliveries(now, running);
            idle &= !self.poll_events(now, running);
            idle &= !self.talk(now, running);
            if idle {
                self.record_trace(running);
                return;
            }
            self.offer(now, running);
        }
        panic!("polls do not end at {now}");
    }

    /// Lets clients and servers of streams act; returns whether they did.
    fn talk(&mut self, now: Instant, running: &mut Running) -> bool {
        self.streams.run(&mut StreamContext {
            now,
            incarnation: self.incarnations,
            peer: running.peer,
            endpoint: &mut running.endpoint,
            log: &mut self.log,
        })
    }

    fn transmit(&mut self, now: Instant, running: &mut Running, out: &mut Outbox<'_>) -> bool {
        let mut any = false;
        for _ in 0..POLLS_MAX {
            let Some(transmit) = running.endpoint.poll_transmit(now, &mut self.buffer) else {
                return any;
            };
            any = true;
            let interface = usize::from(transmit.socket.0);
            let filled = &self.buffer.filled()[..transmit.len];
            for payload in filled.chunks(transmit.segment_size.max(1)) {
                self.transmit_queue
                    .push(now, interface, transmit.remote, transmit.ecn, payload);
            }
            self.release(now, out);
        }
        panic!("poll_transmit does not end at {now}");
    }

    /// Sends the datagrams that the machine has finished.
    fn release(&mut self, now: Instant, out: &mut Outbox<'_>) {
        while let Some(leaving) = self.transmit_queue.pop(now) {
            let len = leaving.payload.len() as u64 + headers(leaving.remote);
            // Cookie replies go to any sender of too many handshakes, and are not charged to a path.
            let is_cookie = leaving.payload.first() == Some(&wire::KIND_COOKIE);
            if let Some(meter) = self.meters.get_mut(leaving.interface)
                && !is_cookie
            {
                meter.on_sent(now, keiro_units::ByteCount::new(len));
            }
            out.send(
                leaving.interface,
                leaving.remote,
                leaving.ecn,
                &leaving.payload,
            );
            self.transmit_queue.recycle(leaving.payload);
        }
    }

    fn poll_deliveries(&mut self, now: Instant, running: &mut Running) -> bool {
        let mut any = false;
        let mut taken = Vec::new();
        while let Some(delivery) = running.endpoint.poll_delivery() {
            any = true;
            match delivery {
                Delivery::Message { app, id, body, .. } => {
                    self.log.deliveries.push(DeliveredMessage {
                        at: now,
                        incarnation: self.incarnations,
                        app,
                        id,
                        bytes: body.len(),
                        hash: TraceHash::of(&body),
                    });
                    taken.push(id);
                }
                Delivery::Datagram { app, data, .. } => {
                    self.log.arrivals.push(DeliveredDatagram {
                        at: now,
                        incarnation: self.incarnations,
                        app,
                        index: content::index_of(data),
                        hash: TraceHash::of(data),
                    });
                }
                // No simulated host accepts IP packets yet.
                Delivery::Packet { .. } => {}
                Delivery::Stream {
                    app,
                    stream,
                    signal,
                    ..
                } => {
                    let signal = SignalOfStream {
                        app,
                        stream,
                        signal,
                    };
                    let log = &mut self.log;
                    self.streams.on_signal(now, signal, self.incarnations, log);
                }
            }
        }
        for id in taken {
            match self.spec.receiver {
                Receiver::Takes => running.finish(id, None),
                Receiver::TakesAfter(wait) => running.unfinished.push_back((now + wait, id)),
                Receiver::Refuses(reason) => running.finish(id, Some(reason)),
                Receiver::Holds => {}
            }
        }
        any
    }

    /// Appends the paths' events since the last call to the qlog trace.
    fn record_trace(&mut self, running: &mut Running) {
        if !self.spec.qlog || self.log.qlog.len() >= QLOG_BYTES_MAX {
            return;
        }
        let Some(batch) = running.endpoint.take_trace(running.peer) else {
            return;
        };
        if self.log.qlog.is_empty() {
            self.write_qlog(&keiro_qlog::header("gateway", "peer", None));
        }
        for event in &batch.events {
            self.write_qlog(&keiro_qlog::event(event, &format!("path{}", event.path.0)));
        }
    }

    fn write_qlog(&mut self, record: &keiro_qlog::Record) {
        keiro_qlog::write_record(&mut self.log.qlog, record).expect("memory takes what is written");
    }

    fn poll_events(&mut self, now: Instant, running: &mut Running) -> bool {
        let mut any = false;
        while let Some(event) = running.endpoint.poll_event() {
            any = true;
            if let Event::MessageDone { id, outcome, .. } = &event {
                match running.open.remove(id) {
                    Some(index) => self.log.messages[index].done = Some((now, *outcome)),
                    None => {
                        let fault = format!("{now}: {id:?} ended as {outcome:?} but is not open");
                        self.log.faults.push(fault);
                    }
                }
                self.offer_again(now, running);
            }
            self.log.events.push((now, event));
        }
        any
    }

    fn rearm(&mut self, running: &Running) {
        let asked = running.endpoint.poll_timeout();
        if asked == self.timer.asked && self.timer.fires.is_none_or(|at| Some(at) > asked) {
            return;
        }
        self.timer.asked_times += 1;
        let late_max = self.spec.processing.timer_late_max.as_nanos() as u64;
        let late = match late_max {
            0 => 0,
            _ => seed::derive(self.seed, "timer", self.timer.asked_times) % (late_max + 1),
        };
        self.timer.asked = asked;
        self.timer.fires = asked.map(|at| at + Duration::from_nanos(late));
    }

    fn message_key(&self, index: usize) -> u64 {
        seed::derive(self.seed, "message", index as u64)
    }

    fn datagram(&self, index: usize, bytes: usize) -> Vec<u8> {
        let key = seed::derive(self.seed, "datagram", index as u64);
        content::datagram(key, index as u64, bytes)
    }
}

impl Node for Gateway {
    fn handle_packet(
        &mut self,
        now: Instant,
        interface: usize,
        packet: &mut Packet,
        out: &mut Outbox<'_>,
    ) {
        if self.drops.ring_is_full(now) {
            self.log.ring_overflowed += 1;
        } else if !self.receive_queue.push(now, interface, packet) {
            self.drops.on_socket_full(interface);
            self.log.overflowed += 1;
        }
        self.turn(now, out);
    }

    fn handle_timeout(&mut self, now: Instant, out: &mut Outbox<'_>) {
        self.turn(now, out);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let running = self.running.as_ref();
        let unfinished = running.and_then(|running| running.unfinished.front());
        [
            self.starts_at.filter(|_| running.is_none()),
            self.scheduled.front().map(|next| next.made),
            self.streams.next_at(),
            self.receive_queue.next_at(),
            self.transmit_queue.next_at(),
            self.timer.fires.filter(|_| running.is_some()),
            unfinished.map(|(at, _)| *at),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}

impl Running {
    fn finish(&mut self, id: MessageId, refused: Option<keiro_core::RefusalReason>) {
        self.endpoint.finish_message(self.peer, id, refused);
    }

    fn finish_due(&mut self, now: Instant) {
        while self.unfinished.front().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, id)) = self.unfinished.pop_front() {
                self.finish(id, None);
            }
        }
    }
}

/// Addresses of a gateway on a path.
pub(crate) fn address(ipv6: bool, path: usize, host: u8, port: u16) -> SocketAddr {
    if ipv6 {
        let prefix = [0xfd00, 0, 0, path as u16, 0, 0, 0, u16::from(host)];
        SocketAddr::from((prefix, port))
    } else {
        SocketAddr::from(([10, (path >> 8) as u8, path as u8, host], port))
    }
}
