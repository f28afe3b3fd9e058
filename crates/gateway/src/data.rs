//! The data thread: one run-to-completion loop that owns the core, every WAN socket, the UDP
//! listeners and forwards, the tenants' TUN devices and the message socket.
//!
//! Packets are not passed between threads; the control thread sends [`Command`]s and receives
//! [`Report`]s. A turn handles what arrived, then sends what the core has, then sleeps until the
//! next deadline or input. The work of a turn is bounded, so that no source starves pacing.

pub(crate) mod command;
mod context;
mod deliver;
pub(crate) mod destination;
pub(crate) mod drops;
pub(crate) mod epoll_registration;
pub(crate) mod figures;
mod flow;
mod forward;
mod handle_command;
#[cfg(test)]
mod joined;
mod listener;
pub(crate) mod log_throttle;
pub(crate) mod measure;
pub(crate) mod messages;
pub(crate) mod network_channel;
mod quota;
pub(crate) mod report;
pub(crate) mod route;
pub(crate) mod split;
mod streams;
mod token;
pub(crate) mod tunnels;
mod wan;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::{Arc, mpsc::Receiver},
    time::Duration,
};

use keiro_core::{AppId, DatagramMeta, Endpoint, Instant, PeerId, SocketId, TransmitBuf};
use keiro_linux::{
    clock,
    epoll::{Alarm, Epoll, Interest, Ready, ReadyList, Waker},
    limit,
    udp::{RECEIVE_PARTS_MAX, ReceiveBuffers},
};

use self::{
    command::{Command, Snapshot},
    context::Context,
    drops::SystemDrops,
    figures::AppFigures,
    forward::Forwards,
    listener::Listeners,
    measure::{DelayMeter, LatenessMeter},
    messages::MessageServer,
    network_channel::NetworkChannel,
    quota::Quota,
    report::{Report, Reporter},
    route::Routes,
    streams::StreamServer,
    token::Token,
    tunnels::Tunnels,
    wan::Wan,
};

/// What the data thread works with.
pub(crate) struct DataThread {
    endpoint: Endpoint,
    epoll: Epoll,
    alarm: Alarm,
    wan: Wan,
    listeners: Listeners,
    forwards: Forwards,
    streams: StreamServer,
    tunnels: Tunnels,
    messages: MessageServer,
    network: NetworkChannel,
    peers: BTreeSet<PeerId>,
    routes: Routes,
    delays: HashMap<AppId, DelayMeter>,
    lateness: LatenessMeter,
    commands: Receiver<Command>,
    wake: Arc<Waker>,
    reporter: Reporter,
    transmit: TransmitBuf,
    buffers: ReceiveBuffers,
    datagram: Vec<u8>,
    spin: Duration,
    turn: TurnState,
    draining: Draining,
}

/// Times and counts that the loop carries from turn to turn.
struct TurnState {
    /// The next timeout as of the last poll of the sockets. Later ones, except departures, wait for
    /// the next turn.
    due: Option<Instant>,
    /// When the sockets were last polled.
    asked_at: Instant,
    /// Everything that arrived before this has been read.
    read_until: Instant,
    /// Consecutive turns in which a WAN socket was not emptied.
    unread_turns: u32,
    next_tick: Instant,
    /// When the kernel's counters are read again at the earliest.
    next_count: Instant,
    /// When the counter of a socket that holds more than a batch is read next.
    next_full_count: Instant,
    ticks: u64,
}

/// How the thread is to run.
pub(crate) struct DataOptions {
    /// How long before a departure it stops sleeping and spins.
    pub(crate) spin: Duration,
    /// The first flow number of the listeners; random.
    pub(crate) first_flow: u32,
    /// Random: spreads tenants' flows over queues.
    pub(crate) flow_seed: [u8; 16],
    /// `None`: the system's drop counter is not read.
    pub(crate) drops: Option<SystemDrops>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draining {
    No,
    Yes,
    Reported,
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Turn,
    End,
}

/// Descriptors looked at per turn.
const READY_PER_TURN: usize = 256;
/// While many local clients have their turns, the WAN sockets are read about so often. Ours: less than a
/// packet's time at 10 Mbit/s, and the sockets, which are empty in most cases, cost a hundredth of it.
const WAN_READ_EVERY: Duration = Duration::from_micros(500);
/// Clients of split connections accepted in one turn. Ours: some 30 µs each.
const SPLIT_CLIENTS_PER_TURN: usize = 16;
/// Receive batches taken from one WAN socket before others have their turn.
const BATCHES_PER_TURN: usize = 4;
/// Transmit batches per turn; the rest leaves after the next look at the sockets.
const TRANSMITS_PER_TURN: usize = 64;
/// A longer gap means that the thread was descheduled: it has not seen what arrived meanwhile and
/// does not know when its packets left. Timeouts are then judged as of the last complete read plus
/// this. Ours: many times what a turn takes.
const UNNOTICED_MAX: Duration = Duration::from_millis(5);
/// Turns with unread packets after which timeouts are judged all the same. Ours: more than the
/// buffer holds, so that it is overload.
const UNREAD_TURNS_MAX: u32 = 64;
/// How often the kernel's counters are read at least, and whether draining is done.
const TICK: Duration = Duration::from_millis(100);
/// How often the kernel's drop counters are read while there is something to do. Ours: as often as
/// they are reported to peers; a controller that decides four times as often would see no drops,
/// and then all at once.
const COUNT_EVERY: Duration = Duration::from_millis(20);
/// The same for a socket that holds more than was read at once. Ours: short against a round trip, so that peers hear
/// of an overflow before they find what it cost them.
const COUNT_FULL_EVERY: Duration = Duration::from_millis(1);
/// Every how many ticks idle flows and held messages are looked for.
const TICKS_PER_SWEEP: u64 = 10;
/// How long the close notice to the peers may take to leave.
const CLOSE_TIME: Duration = Duration::from_millis(100);

/// The daemon's epoch is that of CLOCK_MONOTONIC.
pub(crate) fn now() -> Instant {
    Instant::from_nanos(clock::monotonic_nanos())
}

impl DataThread {
    pub(crate) fn new(
        endpoint: Endpoint,
        commands: Receiver<Command>,
        wake: Arc<Waker>,
        reporter: Reporter,
        options: DataOptions,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(&*wake, token::WAKE, Interest::Read)?;
        let alarm = Alarm::new(&epoll, token::ALARM)?;
        let descriptors = Quota::new(limit::left_outside_reserve());
        Ok(Self {
            endpoint,
            epoll,
            alarm,
            wan: Wan::new(options.drops),
            listeners: Listeners::new(options.first_flow),
            forwards: Forwards::new(descriptors.clone()),
            streams: StreamServer::new(descriptors.clone()),
            tunnels: Tunnels::new(&options.flow_seed, descriptors),
            messages: MessageServer::new(),
            network: NetworkChannel::default(),
            peers: BTreeSet::new(),
            routes: Routes::default(),
            delays: HashMap::new(),
            lateness: LatenessMeter::new(),
            commands,
            wake,
            reporter,
            transmit: TransmitBuf::new(64),
            buffers: ReceiveBuffers::new(),
            datagram: vec![0; 1 << 16],
            spin: options.spin,
            turn: TurnState {
                due: None,
                asked_at: now(),
                read_until: now(),
                unread_turns: 0,
                next_tick: now(),
                next_count: now(),
                next_full_count: now(),
                ticks: 0,
            },
            draining: Draining::No,
        })
    }

    /// Runs until [`Command::Close`], or until the control thread is gone.
    pub(crate) fn run(mut self) {
        let mut ready = ReadyList::new(READY_PER_TURN);
        loop {
            if let Err(error) = self.wait(&mut ready) {
                self.reporter
                    .report(Report::Failed(format!("epoll: {error}")));
                break;
            }
            let mut next = Next::Turn;
            // Packets that arrived are handled before timeouts: a thread that was descheduled would
            // otherwise declare its paths silent.
            let is_wan = |event: &Ready| matches!(Token::of(event.token), Some(Token::Wan(_)));
            let unread_before = std::mem::take(&mut self.turn.unread_turns);
            for event in ready.iter().filter(is_wan) {
                self.dispatch(event);
            }
            if self.turn.unread_turns > 0 {
                self.turn.unread_turns = unread_before + 1;
            }
            if !(1..UNREAD_TURNS_MAX).contains(&self.turn.unread_turns) {
                self.turn.read_until = self.turn.asked_at;
                self.keep_pace();
            }
            let mut drained = !ready.is_empty();
            let mut wan_read_at = now();
            for event in ready.iter().filter(|event| !is_wan(event)) {
                if self.dispatch(event) == Next::End {
                    next = Next::End;
                }
                // Data of a client leaves at once, and due packets do not wait until all clients
                // had their turn.
                self.send();
                self.keep_pace();
                drained = false;
                if now() >= wan_read_at + WAN_READ_EVERY {
                    self.receive_from_all();
                    wan_read_at = now();
                }
            }
            // WAN sockets have drained the core themselves.
            if !drained {
                self.drain_core();
            }
            if self.streams.has_waiting_opens() {
                self.with_streams(StreamServer::connect_waiting);
                self.send();
            }
            let time = now();
            if time >= self.turn.next_tick {
                self.tick(time);
                self.drain_core();
            } else if time >= self.turn.next_count {
                self.count_drops(time);
            }
            self.wan.update_system_drops(&mut self.endpoint);
            self.reporter.flush();
            if next == Next::End {
                break;
            }
        }
        self.close();
        self.reporter.flush();
    }

    /// Sleeps until there is something to do. Shortly before packets may leave it polls instead,
    /// because waking up takes some 25 µs, and more under load.
    fn wait(&mut self, ready: &mut ReadyList) -> io::Result<()> {
        let due = self.endpoint.poll_timeouts();
        self.turn.due = due.earliest();
        let rest = due
            .rest
            .map_or(self.turn.next_tick, |at| at.min(self.turn.next_tick));
        let deadline = due.departure.map_or(rest, |at| at.min(rest));
        let awake_from = due.departure.map_or(rest, |at| (at - self.spin).min(rest));
        loop {
            self.turn.asked_at = now();
            let slept = self.turn.asked_at < awake_from && !self.streams.has_waiting_opens();
            if slept {
                self.alarm.wait(&self.epoll, ready, awake_from.as_nanos())?;
            } else {
                self.alarm.look(&self.epoll, ready)?;
            }
            // What came while it slept for too long is seen by another look.
            let has_work = self.streams.has_waiting_opens();
            if !ready.is_empty() || !slept && (has_work || now() >= deadline) {
                return Ok(());
            }
        }
    }

    fn dispatch(&mut self, ready: Ready) -> Next {
        match Token::of(ready.token) {
            Some(Token::Wan(id)) => self.receive_wan(SocketId(id)),
            Some(Token::Client(number)) => {
                self.with_messages(|messages, context| messages.serve(context, number, ready));
            }
            Some(Token::Listener(number)) => {
                let result = self.listeners.receive(
                    now(),
                    number,
                    &mut self.buffers,
                    &self.routes,
                    &mut self.endpoint,
                );
                if let Err(error) = result {
                    tracing::debug!(%error, "listener: receive");
                }
            }
            Some(Token::Forward(number)) => self.forwards.receive(
                now(),
                number,
                &mut self.datagram,
                &self.routes,
                &mut self.endpoint,
            ),
            Some(Token::MessageListener(number)) => {
                self.with_messages(|messages, context| messages.accept(context, number));
            }
            Some(Token::Connection(number)) => {
                self.with_streams(|streams, context| streams.serve(context, number, ready));
            }
            Some(Token::TcpListener(number)) => {
                self.with_streams(|streams, context| streams.accept(context, number));
            }
            Some(Token::Tun(number)) => {
                let (endpoint, reporter) = (&mut self.endpoint, &mut self.reporter);
                let flows = self.streams.split_flows();
                self.tunnels
                    .receive(now(), number, flows, endpoint, reporter);
                for connection in self.tunnels.take_unreachable() {
                    self.with_streams(|streams, context| {
                        streams.on_unreachable(context, connection);
                    });
                }
            }
            Some(Token::SplitListener(number)) => self.accept_split_clients(number),
            Some(Token::Wake) => return self.handle_commands(),
            None => {}
        }
        Next::Turn
    }

    fn accept_split_clients(&mut self, number: u64) {
        for _ in 0..SPLIT_CLIENTS_PER_TURN {
            let client = self.tunnels.accept_client(now(), &self.epoll, number);
            let Some(client) = client else {
                return;
            };
            self.with_streams(|streams, context| streams.adopt(context, client));
        }
    }

    /// What has come meanwhile, while many clients have their turns.
    fn receive_from_all(&mut self) {
        let ids: Vec<SocketId> = self.wan.ids().collect();
        for id in ids {
            self.receive_wan(id);
        }
    }

    fn receive_wan(&mut self, id: SocketId) {
        for _ in 0..BATCHES_PER_TURN {
            let Some(socket) = self.wan.socket(id) else {
                return;
            };
            let endpoint = &mut self.endpoint;
            // What has waited for its peer's turn is handled before what comes now.
            endpoint.begin_turn(now());
            let result = socket.receive(&mut self.buffers, |received| {
                // Taken after the packet arrived: otherwise a thread that had to wait between the
                // two would count its own waiting as the path's delay.
                let now = Instant::from_nanos(received.read_at_nanos);
                let meta = DatagramMeta {
                    socket: id,
                    remote: received.remote,
                    ecn: received.ecn,
                    received_at: Instant::from_nanos(received.received_at_nanos),
                };
                endpoint.handle_datagrams(now, meta, received.data, received.stride);
            });
            match result {
                // Another look would find nothing in most cases; if not, the next wait ends at once.
                Ok(parts) if parts < RECEIVE_PARTS_MAX => {
                    return self.drain_core();
                }
                Ok(_) => {
                    self.count_drops_of(id);
                    self.drain_core();
                }
                Err(error) => {
                    tracing::debug!(%error, "WAN socket: receive");
                    return self.drain_core();
                }
            }
        }
        self.turn.unread_turns = 1;
    }

    /// Does what is due, and sends what may leave.
    fn keep_pace(&mut self) {
        let now = now();
        if self.turn.due.is_some_and(|due| due <= now) {
            let judged_by = now.min(self.turn.read_until + UNNOTICED_MAX);
            self.endpoint.handle_timeout(judged_by);
            self.send();
            self.turn.due = self.endpoint.poll_timeout();
        }
    }

    /// Delivers, reports and sends what the core has. Local receivers are served first:
    /// acknowledgements may leave a little later, and paced packets do not wait.
    fn drain_core(&mut self) {
        self.keep_pace();
        self.deliver();
        self.handle_events();
        if self.tunnels.has_faults() {
            let (endpoint, reporter) = (&mut self.endpoint, &mut self.reporter);
            self.tunnels.report_faults(now(), endpoint, reporter);
        }
        self.send();
    }

    fn send(&mut self) {
        let mut polled_at = now();
        for _ in 0..TRANSMITS_PER_TURN {
            let Some(transmit) = self.endpoint.poll_transmit(polled_at, &mut self.transmit) else {
                return;
            };
            self.lateness
                .record(polled_at.saturating_duration_since(transmit.due));
            let packets = self.transmit.filled();
            self.wan
                .send(polled_at, &transmit, packets, &mut self.reporter);
            let sent_by = now();
            if sent_by.saturating_duration_since(polled_at) > UNNOTICED_MAX {
                self.endpoint.on_late_departure(polled_at, sent_by);
            }
            polled_at = sent_by;
        }
    }

    fn tick(&mut self, now: Instant) {
        self.turn.next_tick = now + TICK;
        self.turn.ticks += 1;
        self.count_drops(now);
        self.messages.rearm(&self.epoll);
        self.with_streams(StreamServer::tick);
        self.tunnels.tick(now, &self.epoll, &mut self.endpoint);
        self.retry_forwards();
        if self.turn.ticks.is_multiple_of(TICKS_PER_SWEEP) {
            self.listeners.sweep(now, &self.routes);
            self.forwards.sweep(now);
            self.with_messages(MessageServer::sweep);
        }
        self.check_drained();
    }

    fn count_drops(&mut self, now: Instant) {
        self.turn.next_count = now + COUNT_EVERY;
        self.wan.count_drops(&mut self.endpoint);
    }

    /// More waits at a socket than was read at once: its buffer may have been full. The counter shows drops before
    /// the packets are read that came behind them.
    fn count_drops_of(&mut self, socket: SocketId) {
        let now = now();
        if now >= self.turn.next_full_count {
            self.turn.next_full_count = now + COUNT_FULL_EVERY;
            self.wan.count_drops_of(&mut self.endpoint, socket);
        }
    }

    fn check_drained(&mut self) {
        let drained = self.draining == Draining::Yes
            && self.streams.is_drained()
            && self.endpoint.is_drained()
            && self.messages.is_drained();
        // If the report queue is full, a later tick tries again: the control thread waits for this
        // report.
        if drained && self.reporter.report(Report::Drained) {
            self.draining = Draining::Reported;
        }
    }

    /// Sends close notices, ends what has no outcome, and gives pending packets a moment to leave.
    fn close(&mut self) {
        let start = now();
        self.endpoint.close(start);
        self.handle_events();
        let mut ready = ReadyList::new(1);
        loop {
            self.send();
            let now = now();
            let due = self.endpoint.poll_timeout();
            let soon = due.filter(|due| *due <= start + CLOSE_TIME);
            let Some(due) = soon.filter(|_| now < start + CLOSE_TIME) else {
                return;
            };
            let left = due
                .saturating_duration_since(now)
                .max(Duration::from_micros(100));
            if self.epoll.wait(&mut ready, Some(left)).is_err() {
                return;
            }
            self.endpoint
                .handle_timeout(Instant::from_nanos(clock::monotonic_nanos()));
        }
    }

    fn snapshot(&mut self, now: Instant) -> Snapshot {
        let (message_senders, message_receivers) = self.messages.client_counts();
        let session = |peer: &PeerId| Some((*peer, self.endpoint.session(*peer)?));
        let sessions = self.peers.iter().filter_map(session).collect();
        let mut apps = BTreeMap::new();
        for route in self.routes.iter() {
            let app = route.config.id;
            let messages = self.messages.figures(app);
            let delay = self.delays.get_mut(&app).map(|meter| meter.figures(now));
            let packets = self.tunnels.received_of(app);
            let figures = AppFigures {
                delay: delay.unwrap_or_default(),
                senders: messages.senders,
                receivers: messages.receivers,
                refused_here: messages.refused,
                received_packets: packets.packets,
                received_packet_bytes: packets.bytes,
                listeners: self.listeners.figures(app),
                forward: self.forwards.figures(app),
                tcp_listeners: self.streams.listener_figures(app),
                tcp_forward: self.streams.forward_figures(app),
            };
            apps.insert(app, figures);
        }
        Snapshot {
            at: now,
            endpoint: self.endpoint.snapshot(),
            sessions,
            apps,
            sockets: self.wan.stats(),
            lateness: self.lateness.figures(),
            message_senders,
            message_receivers,
            reports_lost: self.reporter.lost(),
        }
    }

    /// Calls `act` with the stream server and what it works with.
    fn with_streams<T>(&mut self, act: impl FnOnce(&mut StreamServer, &mut Context<'_>) -> T) -> T {
        let mut context = Context {
            now: now(),
            epoll: &self.epoll,
            routes: &self.routes,
            tunnels: &self.tunnels,
            endpoint: &mut self.endpoint,
        };
        act(&mut self.streams, &mut context)
    }

    /// Calls `act` with the message server and what it works with.
    fn with_messages<T>(
        &mut self,
        act: impl FnOnce(&mut MessageServer, &mut Context<'_>) -> T,
    ) -> T {
        let mut context = Context {
            now: now(),
            epoll: &self.epoll,
            routes: &self.routes,
            tunnels: &self.tunnels,
            endpoint: &mut self.endpoint,
        };
        act(&mut self.messages, &mut context)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use keiro_core::{
        AppConfig, DeliveryClass, EndpointConfig, MessageId, PeerConfig, PrivateKey, PublicKey,
        TenantId,
    };

    use super::{
        deliver::FORWARDED_PER_TICK, destination::UdpDestination, messages::tag::tagged_body,
        route::AppRoute, *,
    };

    /// A data thread whose commands come from the test alone.
    pub(super) fn data_thread(reporter: Reporter) -> DataThread {
        let config = EndpointConfig::new(PrivateKey::from_bytes([1; 32]));
        let endpoint = Endpoint::new(now(), config, [2; 32]);
        let (_commands, receiver) = std::sync::mpsc::channel();
        let options = DataOptions {
            spin: Duration::ZERO,
            first_flow: 0,
            flow_seed: [0; 16],
            drops: None,
        };
        let wake = Arc::new(Waker::new().unwrap());
        DataThread::new(endpoint, receiver, wake, reporter, options).unwrap()
    }

    #[test]
    fn a_message_that_its_forward_does_not_take_waits_and_is_not_called_delivered() {
        let (reporter, _reports) = Reporter::new(Arc::new(Waker::new().unwrap()));
        let mut data = data_thread(reporter);
        let peer = PeerConfig::new(PublicKey::from_bytes([3; 32]));
        let peer = data.endpoint.add_peer(now(), peer);
        let app = AppId::of_name("M");
        let config = AppConfig {
            id: app,
            class: DeliveryClass::Message,
            latency_target: None,
            lifetime: None,
            paths: Vec::new(),
            tenant: TenantId::ZERO,
            is_spread: false,
        };
        data.routes.insert(AppRoute {
            name: "M".to_owned(),
            peer,
            config,
            has_forward: true,
        });
        let forward_to = |to| Command::SetForward {
            app,
            destination: UdpDestination {
                to,
                allow_local: true,
                interface: None,
            },
        };
        // Without leave to broadcast the kernel refuses every datagram.
        data.handle_command(forward_to("255.255.255.255:9".parse().unwrap()));
        for id in 0..100 {
            let result = data.deliver_message(peer, app, MessageId(id), tagged_body(id, b"body"));
            assert_eq!(result, None);
        }
        data.retry_forwards();
        assert!(data.messages.holds(app));
        let destination = UdpSocket::bind("127.0.0.1:0").unwrap();
        destination
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        data.handle_command(forward_to(destination.local_addr().unwrap()));
        data.retry_forwards();
        assert!(!data.messages.holds(app));
        let arrive = |count: usize| {
            for _ in 0..count {
                let mut buffer = [0; 8];
                let length = destination.recv(&mut buffer).unwrap();
                assert_eq!(&buffer[..length], b"body");
            }
        };
        arrive(100);
        // Much that was held is given in several ticks.
        data.handle_command(forward_to("255.255.255.255:9".parse().unwrap()));
        let more = FORWARDED_PER_TICK as u64 + 10;
        for id in 100..100 + more {
            let result = data.deliver_message(peer, app, MessageId(id), tagged_body(id, b"body"));
            assert_eq!(result, None);
        }
        data.handle_command(forward_to(destination.local_addr().unwrap()));
        data.retry_forwards();
        assert!(data.messages.holds(app));
        arrive(FORWARDED_PER_TICK);
        data.retry_forwards();
        assert!(!data.messages.holds(app));
        arrive(10);
    }

    #[test]
    fn the_end_of_draining_is_reported_even_if_the_reports_were_full() {
        let wake = || Arc::new(Waker::new().unwrap());
        let (mut reporter, reports) = Reporter::new(wake());
        let full = || Report::Failed(String::new());
        while reporter.report(full()) {}
        let mut data = data_thread(reporter);
        data.handle_command(Command::Drain);
        assert_eq!(data.draining, Draining::Yes);
        assert!(reports.try_iter().all(|r| matches!(r, Report::Failed(_))));
        data.tick(now());
        assert_eq!(data.draining, Draining::Reported);
        data.tick(now());
        let received: Vec<Report> = reports.try_iter().collect();
        assert!(matches!(received[..], [Report::Drained]));
    }
}
