//! TCP at this gateway: connections of local clients become streams, and streams that the peer
//! opens become connections to servers.
//!
//! A connection is read only as far as its stream takes bytes, and a stream only as far as its
//! connection does. Nothing is buffered here, so a reader that stops slows its own writer only.
//! Half-closes and resets are passed on after the bytes that came before them. A connection goes
//! only where this gateway's configuration says.

mod connect_error;
mod connection;
mod deferred_reset;
mod split;
mod waiting_opens;

use std::{
    collections::{BTreeSet, HashMap},
    io,
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use keiro_core::{AppId, Instant, PeerId, ResetReason, StreamId, StreamSignal};
use keiro_linux::{
    acceptor::Acceptor,
    epoll::{Epoll, Interest, Ready},
    limit,
    tcp::{self, Listener, Mode, Progress as ConnectProgress},
};
use keiro_stats::{TcpForwardStats, TcpListenerStats};

use self::{
    connect_error::{is_connected, is_reset_of_accepted, reason_of},
    connection::{Connecting, Connection, Progress},
    deferred_reset::{DeferredResets, ResetTimeouts},
    split::{SplitConnections, SplitCounts},
    waiting_opens::{WaitingOpen, WaitingOpens},
};
use super::{
    context::Context,
    destination::TcpDestination,
    epoll_registration::EpollRegistration,
    figures::{TcpForwardFigures, TcpListenerFigures},
    log_throttle::LogThrottle,
    quota::{Quota, QuotaOwner},
    route::AppRoute,
    token,
};

/// All TCP listeners, forwards and their connections.
pub(crate) struct StreamServer {
    listeners: HashMap<u64, AppListener>,
    forwards: HashMap<AppId, Forward>,
    connections: HashMap<u64, Connection>,
    by_stream: HashMap<(PeerId, StreamId), u64>,
    /// Streams whose connections are still to be begun.
    waiting_opens: WaitingOpens<WaitingOpen>,
    split: SplitConnections,
    /// Connections to servers that are not there yet.
    connecting: BTreeSet<(Instant, u64)>,
    /// Connections that are broken and may have something to read.
    broken: BTreeSet<u64>,
    deferred_resets: DeferredResets,
    /// That peers and local clients share.
    descriptors: Quota,
    next: u64,
    buffer: Vec<u8>,
    /// Since when nothing new is taken.
    draining: Option<Instant>,
}

struct Forward {
    /// By which interface alone; a tenant's.
    interface: Option<String>,
    log_throttle: LogThrottle,
    refusals: LogThrottle,
    figures: TcpForwardFigures,
}

struct AppListener {
    app: AppId,
    acceptor: Acceptor<Listener>,
    refusals: LogThrottle,
    figures: TcpListenerFigures,
}

/// The counters of a connection.
enum Counts<'a> {
    Listener(&'a mut TcpListenerStats),
    Forward(&'a mut TcpForwardStats),
    Split(&'a mut SplitCounts),
}

/// Connections accepted in one turn. Ours: accepting one and opening its stream takes some 30 µs.
const ACCEPTS_PER_TURN: usize = 16;
/// Connections begun in one turn for streams of peers. Ours: half a millisecond where the kernel has few
/// ports left to search.
const CONNECTS_PER_TURN: usize = 4;
/// Bytes read from one connection in one turn.
const READ_PER_TURN: usize = 64 << 10;
/// How long a server may take to accept. Shorter than TCP's own two minutes, which no client
/// waits for.
const CONNECT_MAX: Duration = Duration::from_secs(30);
/// What a broken connection holds is not kept any longer for a stream that takes nothing.
const BROKEN_IDLE_MAX: Duration = Duration::from_secs(2);
/// Nor longer than that in all.
const BROKEN_MAX: Duration = Duration::from_secs(30);
/// When the gateway stops, connections may go on for this long; then they are reset.
const DRAIN_MAX: Duration = Duration::from_secs(4);
/// Unless nothing moves for this long.
const DRAIN_IDLE_MAX: Duration = Duration::from_secs(1);

impl StreamServer {
    /// Connections count among `descriptors`.
    pub(crate) fn new(descriptors: Quota) -> Self {
        Self {
            descriptors,
            listeners: HashMap::new(),
            forwards: HashMap::new(),
            connections: HashMap::new(),
            by_stream: HashMap::new(),
            waiting_opens: WaitingOpens::default(),
            split: SplitConnections::new(),
            connecting: BTreeSet::new(),
            broken: BTreeSet::new(),
            deferred_resets: DeferredResets::default(),
            next: 0,
            buffer: vec![0; READ_PER_TURN],
            draining: None,
        }
    }

    /// Takes the connections of `listener` over for an application.
    pub(crate) fn listen(
        &mut self,
        epoll: &Epoll,
        app: AppId,
        listener: Listener,
        mode: Mode,
    ) -> io::Result<()> {
        let number = self.number();
        let address = listener.local();
        let (token, name) = (
            token::tcp_listener(number),
            format!("TCP listener {address}"),
        );
        let acceptor = Acceptor::new(epoll, listener, token, name)?;
        let figures = TcpListenerFigures {
            address,
            mode,
            stats: TcpListenerStats::default(),
        };
        let listener = AppListener {
            app,
            acceptor,
            refusals: LogThrottle::default(),
            figures,
        };
        self.listeners.insert(number, listener);
        Ok(())
    }

    /// Gives the listener at `address` to another application; connections that are there stay.
    pub(crate) fn move_listener(&mut self, address: SocketAddr, app: AppId) {
        for listener in self.listeners.values_mut() {
            if listener.figures.address == address {
                listener.app = app;
            }
        }
    }

    /// Takes no new connections at `address`; those that are there stay.
    pub(crate) fn remove_listener(&mut self, address: SocketAddr) {
        self.listeners
            .retain(|_, listener| listener.figures.address != address);
    }

    /// Says where an application's streams go from now on, by `interface` alone if one is named.
    pub(crate) fn set_forward(
        &mut self,
        app: AppId,
        destination: TcpDestination,
        interface: Option<String>,
    ) {
        let open = self
            .connections
            .values()
            .filter(|connection| connection.listener.is_none() && connection.app == app)
            .count();
        let figures = TcpForwardFigures {
            destination: destination.clone(),
            stats: TcpForwardStats {
                open_connections: open as u64,
                ..TcpForwardStats::default()
            },
        };
        let forward = self.forwards.entry(app).or_insert(Forward {
            interface: None,
            log_throttle: LogThrottle::default(),
            refusals: LogThrottle::default(),
            figures,
        });
        forward.interface = interface;
        forward.figures.destination = destination;
    }

    /// Takes no new streams of an application; connections that are there stay.
    pub(crate) fn remove_forward(&mut self, app: AppId) {
        self.forwards.remove(&app);
    }

    /// Lets listeners that rest listen again, and gives up what does not connect.
    pub(crate) fn tick(&mut self, context: &mut Context<'_>) {
        for listener in self.listeners.values_mut() {
            listener.acceptor.rearm(context.epoll);
        }
        while let Some(&(by, number)) = self.connecting.first() {
            if by > context.now {
                break;
            }
            self.connecting.pop_first();
            self.abort(context, number, ResetReason::Unreachable);
        }
        self.end_unnamed(context);
        self.end_broken(context);
        self.deferred_resets.tick(
            context.now,
            ResetTimeouts {
                idle: BROKEN_IDLE_MAX,
                total: BROKEN_MAX,
            },
        );
        if let Some(since) = self.draining {
            self.end_drained(context, since);
        }
    }

    /// Resets all connections of a peer that was removed.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.reset_where(|connection| connection.peer == peer);
        self.split.forget_peer(peer);
    }

    /// Resets all connections of an application that is gone.
    pub(crate) fn forget_app(&mut self, context: &mut Context<'_>, app: AppId) {
        let gone: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.app == app)
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            self.abort(context, number, ResetReason::Gateway);
        }
    }

    /// Takes nothing new, and lets what there is come to its end: for [`DRAIN_MAX`], and as long as
    /// something moves, since connections need not have an end of their own.
    pub(crate) fn drain(&mut self, context: &mut Context<'_>) {
        self.draining = Some(context.now);
        self.listeners.clear();
        self.end_drained(context, context.now);
    }

    /// All connections have ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.connections.is_empty()
            && self.waiting_opens.is_empty()
            && self.deferred_resets.is_empty()
    }

    /// Gives up broken connections whose streams do not take what they hold.
    fn end_broken(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let over = |number: &u64| {
            let connection = self.connections.get(number)?;
            let since = connection.broken?;
            let moved_at = since.max(connection.moved_at);
            let quiet = now.saturating_duration_since(moved_at) >= BROKEN_IDLE_MAX;
            (quiet || now.saturating_duration_since(since) >= BROKEN_MAX).then_some(*number)
        };
        let over: Vec<u64> = self.broken.iter().filter_map(over).collect();
        for number in over {
            self.abort(context, number, ResetReason::Application);
        }
    }

    fn end_drained(&mut self, context: &mut Context<'_>, since: Instant) {
        let now = context.now;
        let late = now.saturating_duration_since(since) >= DRAIN_MAX;
        if late {
            self.deferred_resets.end();
        }
        let silent = |connection: &Connection| {
            now.saturating_duration_since(connection.moved_at) >= DRAIN_IDLE_MAX
        };
        let over: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| late || silent(connection))
            .map(|(number, _)| *number)
            .collect();
        for number in over {
            self.abort(context, number, ResetReason::Gateway);
        }
    }

    /// Accepts connections that wait at listener `number`.
    pub(crate) fn accept(&mut self, context: &mut Context<'_>, number: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get_mut(&number) else {
                return;
            };
            let accepted = listener.acceptor.accept(context.epoll, Listener::accept);
            let Some((socket, remote)) = accepted else {
                return;
            };
            self.open_stream_for(context, number, socket, remote);
        }
    }

    /// Does what connection `number` is ready for.
    pub(crate) fn serve(&mut self, context: &mut Context<'_>, number: u64, ready: Ready) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        if let Some(Connecting { to, by }) = connection.connecting {
            if !ready.writable && !ready.hangup {
                return;
            }
            let failed = match connection.socket.take_error() {
                Ok(None) => None,
                Ok(Some(error)) | Err(error) => Some(error),
            };
            let was_reset = failed.as_ref().is_some_and(is_reset_of_accepted);
            if let Some(error) = failed.filter(|_| !was_reset) {
                tracing::debug!(app = context.routes.name(connection.app), %error, "TCP forward");
                self.abort(context, number, reason_of(&error));
                return;
            }
            if let Some(forward) = self.forwards.get_mut(&connection.app) {
                // The address may have become this machine's meanwhile.
                let by_way_of = forward.interface.as_deref();
                if forward
                    .figures
                    .destination
                    .is_forbidden_by_now(to, by_way_of)
                {
                    self.forbid(context, number);
                    return;
                }
                forward.figures.stats.accepted_connections += 1;
            }
            self.connecting.remove(&(by, number));
            connection.connecting = None;
            connection.reads = true;
            connection.writes = true;
            if connection.split.is_some() {
                connection.say_connected(context);
            }
            if was_reset {
                connection.watch.note(ready);
                self.drain_broken(context, number);
                return;
            }
        }
        connection.watch.note(ready);
        // Taking the error clears it.
        let fails = || matches!(connection.socket.take_error(), Ok(Some(_)) | Err(_));
        if connection.broken.is_some() || ready.hangup && fails() {
            self.drain_broken(context, number);
            return;
        }
        if ready.writable {
            self.write(context, number);
        }
        if ready.readable {
            self.read(context, number);
        }
    }

    /// Handles a stream signal of the core.
    pub(crate) fn on_signal(
        &mut self,
        context: &mut Context<'_>,
        peer: PeerId,
        app: AppId,
        stream: StreamId,
        signal: StreamSignal,
    ) {
        if let StreamSignal::Opened { target } = signal {
            let open = WaitingOpen {
                peer,
                stream,
                app,
                target,
            };
            if !self.waiting_opens.push(peer, open) {
                context
                    .endpoint
                    .reset_stream(peer, stream, ResetReason::Gateway);
            }
            return;
        }
        let Some(&number) = self.by_stream.get(&(peer, stream)) else {
            self.on_signal_of_unnamed(context, peer, stream, signal);
            return;
        };
        match signal {
            StreamSignal::Opened { .. } => {}
            StreamSignal::Readable => self.write(context, number),
            StreamSignal::Writable => {
                if let Some(connection) = self.connections.get_mut(&number) {
                    connection.reads = true;
                }
                self.read(context, number);
            }
            StreamSignal::Reset(reason) => {
                if let Some(connection) = self.remove(number) {
                    self.count_reset(&connection, reason);
                    match reason {
                        ResetReason::Application => {
                            let Connection { socket, share, .. } = connection;
                            let now = context.now;
                            self.deferred_resets
                                .reset(now, context.epoll, socket, share);
                        }
                        _ => tcp::reset(connection.socket),
                    }
                }
            }
        }
    }

    /// Whether [`connect_waiting`](Self::connect_waiting) has something to do.
    pub(crate) fn has_waiting_opens(&self) -> bool {
        !self.waiting_opens.is_empty()
    }

    /// Begins a few of the connections that peers wait for.
    pub(crate) fn connect_waiting(&mut self, context: &mut Context<'_>) {
        for _ in 0..CONNECTS_PER_TURN {
            let Some(open) = self.waiting_opens.poll() else {
                return;
            };
            let WaitingOpen {
                peer, stream, app, ..
            } = open;
            if context.endpoint.stream_data(peer, stream).is_none() {
                // It was reset meanwhile, or its peer was removed.
                continue;
            }
            let is_known = context.routes.of_peer(peer, app).is_some();
            let opened = match context.tunnels.split_tenant(peer, app) {
                Some(_) if self.draining.is_some() => Err(ResetReason::Gateway),
                Some(tenant) => self.connect_split(context, open, tenant),
                None if is_known && self.draining.is_none() => self.connect(context, open),
                None => Err(ResetReason::UnknownApplication),
            };
            if let Err(reason) = opened {
                tracing::debug!(?app, ?reason, "stream refused");
                context.endpoint.reset_stream(peer, stream, reason);
            }
        }
    }

    /// The TCP listeners of an application, by address.
    pub(crate) fn listener_figures(&self, app: AppId) -> Vec<TcpListenerFigures> {
        let of_app = self
            .listeners
            .values()
            .filter(|listener| listener.app == app);
        let mut figures: Vec<TcpListenerFigures> = of_app.map(|i| i.figures.clone()).collect();
        figures.sort_by_key(|figures| figures.address);
        figures
    }

    pub(crate) fn forward_figures(&self, app: AppId) -> Option<TcpForwardFigures> {
        self.forwards
            .get(&app)
            .map(|forward| forward.figures.clone())
    }

    /// A client has connected: its stream is opened at once, so that a server that speaks first
    /// is heard.
    fn open_stream_for(
        &mut self,
        context: &mut Context<'_>,
        number: u64,
        socket: TcpStream,
        remote: SocketAddr,
    ) {
        let Some(listener) = self.listeners.get_mut(&number) else {
            return;
        };
        let Some(share) = self.descriptors.take(QuotaOwner::LocalClients) else {
            listener.figures.stats.refused_connections += 1;
            if listener.refusals.is_due(context.now) {
                let listener = listener.figures.address;
                tracing::warn!(
                    %listener, %remote,
                    "TCP listener: a connection is refused: local clients have as many as are left to peers; \
                     raise the limit of open files"
                );
            }
            tcp::reset(socket);
            return;
        };
        let target = match listener.figures.mode {
            Mode::Plain => None,
            // The kernel made the socket for the address that the client wanted.
            Mode::Transparent => socket.local_addr().ok(),
        };
        // A rule that sends the listener's own address here, or a client that knows it.
        let round = target.is_some_and(|target| listener.acceptor.listener().is_reached_at(target));
        let route = context.routes.get(listener.app).filter(|_| !round);
        let up = |route: &&AppRoute| context.endpoint.is_up(route.peer);
        let opened = route.filter(up).map(|route| {
            let (peer, app) = (route.peer, route.config.id);
            let stream = context.endpoint.open_stream(context.now, peer, app, target);
            stream.map(|stream| (peer, stream))
        });
        let Some(Ok((peer, stream))) = opened else {
            // As if the server could not be reached, which it cannot.
            tracing::debug!(app = context.routes.name(listener.app), %remote, "TCP listener: no way to the peer");
            listener.figures.stats.refused_connections += 1;
            tcp::reset(socket);
            return;
        };
        listener.figures.stats.accepted_connections += 1;
        listener.figures.stats.open_connections += 1;
        let app = listener.app;
        let connection = Connection {
            listener: Some(number),
            share: Some(share),
            ..Connection::new(socket, peer, stream, app, context.now)
        };
        let number = self.insert(context, connection);
        if let Some(number) = number {
            // What came with the connection leaves with what opens the stream.
            self.read(context, number);
        }
    }

    fn connect(&mut self, context: &mut Context<'_>, open: WaitingOpen) -> Result<(), ResetReason> {
        let WaitingOpen {
            peer,
            stream,
            app,
            target,
        } = open;
        let share = self.descriptors.take(QuotaOwner::Peer(peer));
        let Forward {
            interface,
            log_throttle,
            refusals,
            figures: forward,
        } = self
            .forwards
            .get_mut(&app)
            .ok_or(ResetReason::UnknownApplication)?;
        let server = forward.destination.server(target, interface.as_deref());
        let server = server.map_err(|error| {
            if log_throttle.is_due(context.now) {
                let to = target.map(tracing::field::display);
                tracing::warn!(
                    app = context.routes.name(app), to, %error, "TCP forward: cannot find out whether it leads to this machine"
                );
            }
            forward.stats.failed_connections += 1;
            reason_of(&error)
        })?;
        let Some(to) = server else {
            forward.stats.forbidden_connections += 1;
            return Err(ResetReason::Forbidden);
        };
        let mut refuse = |reason: &str| {
            forward.stats.refused_connections += 1;
            if refusals.is_due(context.now) {
                let app = context.routes.name(app);
                tracing::warn!(app, %to, reason, "TCP forward: a connection is refused");
            }
            ResetReason::Gateway
        };
        let Some(share) = share else {
            return Err(refuse(
                "the peer has as many descriptors as are left to the others; raise the limit of open files",
            ));
        };
        let (socket, progress) = match tcp::connect(to, interface.as_deref()) {
            Ok(connected) => connected,
            Err(error) if limit::is_reached(&error) => return Err(refuse(&error.to_string())),
            Err(error) => {
                tracing::debug!(app = context.routes.name(app), %to, %error, "TCP forward");
                forward.stats.failed_connections += 1;
                return Err(reason_of(&error));
            }
        };
        forward.stats.open_connections += 1;
        let by = context.now + CONNECT_MAX;
        let connected = matches!(progress, ConnectProgress::Connected);
        forward.stats.accepted_connections += u64::from(connected);
        let connection = Connection {
            connecting: (!connected).then_some(Connecting { to, by }),
            share: Some(share),
            reads: connected,
            watch: EpollRegistration::new(match connected {
                true => Interest::Read,
                false => Interest::Write,
            }),
            ..Connection::new(socket, peer, stream, app, context.now)
        };
        match self.insert(context, connection) {
            Some(number) if !connected => {
                self.connecting.insert((by, number));
            }
            // What came while it waited has been signalled already.
            Some(number) => self.write(context, number),
            None => {}
        }
        Ok(())
    }

    /// Moves what the socket has into the stream, as far as that takes it.
    fn read(&mut self, context: &mut Context<'_>, number: u64) {
        let buffer = &mut self.buffer;
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let turn = connection.read(context, buffer);
        self.after(context, number, turn);
    }

    /// Moves what the stream has into the socket, as far as that takes it.
    fn write(&mut self, context: &mut Context<'_>, number: u64) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let turn = connection.write(context);
        self.after(context, number, turn);
    }

    fn after(&mut self, context: &mut Context<'_>, number: u64, turn: Progress) {
        match turn {
            Progress::Open => {
                let connection = self.connections.get_mut(&number);
                let watched = connection.map(|one| one.update_interest(context.epoll, number));
                if let Some(Err(error)) = watched {
                    tracing::warn!(%error, "TCP: cannot wait for a connection");
                    self.abort(context, number, ResetReason::Gateway);
                }
            }
            Progress::Ended => {
                if let Some(connection) = self.remove(number) {
                    tcp::close(connection.socket);
                }
            }
            Progress::Broken => self.abort(context, number, ResetReason::Application),
            Progress::Unwritable => self.drain_broken(context, number),
        }
    }

    /// Reads what a broken connection still holds, as far as its stream takes it, and then gives it up.
    fn drain_broken(&mut self, context: &mut Context<'_>, number: u64) {
        if let Some(connection) = self.connections.get_mut(&number) {
            connection.broken.get_or_insert(context.now);
            connection.writes = false;
            self.broken.insert(number);
            self.read(context, number);
        }
    }

    /// Ends a connection at once, and its stream: behind what was read if that is what the connection did.
    fn abort(&mut self, context: &mut Context<'_>, number: u64, reason: ResetReason) {
        if let Some(connection) = self.remove(number) {
            let (peer, stream) = (connection.peer, connection.stream);
            let (now, endpoint) = (context.now, &mut *context.endpoint);
            match reason {
                ResetReason::Application => endpoint.reset_stream_behind(now, peer, stream, reason),
                _ => endpoint.reset_stream(peer, stream, reason),
            }
            self.count_reset(&connection, reason);
            tcp::reset(connection.socket);
        }
    }

    /// Takes back what was let out to where nothing may go.
    fn forbid(&mut self, context: &mut Context<'_>, number: u64) {
        if let Some(connection) = self.remove(number) {
            let (peer, stream) = (connection.peer, connection.stream);
            context
                .endpoint
                .reset_stream(peer, stream, ResetReason::Forbidden);
            if let Some(forward) = self.forwards.get_mut(&connection.app) {
                forward.figures.stats.forbidden_connections += 1;
            }
            tcp::reset(connection.socket);
        }
    }

    fn count_reset(&mut self, connection: &Connection, reason: ResetReason) {
        match self.counts_of(connection) {
            Some(Counts::Listener(listener)) => match reason {
                ResetReason::Application => listener.reset_connections += 1,
                _ => listener.failed_connections += 1,
            },
            Some(Counts::Forward(forward)) => {
                let unseen = connection.connecting.is_some();
                if unseen && !is_connected(&connection.socket) {
                    forward.failed_connections += 1;
                } else {
                    forward.accepted_connections += u64::from(unseen);
                    forward.reset_connections += 1;
                }
            }
            Some(Counts::Split(_)) | None => {}
        }
    }

    /// Where a connection is counted; `None`: its listener or forward has gone before it.
    fn counts_of(&mut self, connection: &Connection) -> Option<Counts<'_>> {
        if let Some(end) = connection.split {
            return Some(Counts::Split(self.split.counts_of(end.tenant)));
        }
        match connection.listener {
            Some(listener) => {
                let listener = self.listeners.get_mut(&listener)?;
                Some(Counts::Listener(&mut listener.figures.stats))
            }
            None => {
                let forward = self.forwards.get_mut(&connection.app)?;
                Some(Counts::Forward(&mut forward.figures.stats))
            }
        }
    }

    fn insert(&mut self, context: &mut Context<'_>, connection: Connection) -> Option<u64> {
        let number = self.number();
        let token = token::connection(number);
        let key = (connection.peer, connection.stream);
        let added = connection
            .watch
            .begin(context.epoll, &connection.socket, token);
        self.by_stream.insert(key, number);
        self.connections.insert(number, connection);
        if let Err(error) = added {
            tracing::warn!(%error, "TCP: cannot wait for a connection");
            self.abort(context, number, ResetReason::Gateway);
            return None;
        }
        Some(number)
    }

    /// Takes a connection out; dropping its socket takes that out of the epoll set.
    fn remove(&mut self, number: u64) -> Option<Connection> {
        let connection = self.connections.remove(&number)?;
        self.by_stream.remove(&(connection.peer, connection.stream));
        if let Some(Connecting { by, .. }) = connection.connecting {
            self.connecting.remove(&(by, number));
        }
        self.broken.remove(&number);
        if let Some(end) = connection.split {
            self.split.flows.remove(&end.flow);
        }
        match self.counts_of(&connection) {
            Some(Counts::Listener(listener)) => listener.open_connections -= 1,
            Some(Counts::Forward(forward)) => {
                forward.open_connections = forward.open_connections.saturating_sub(1);
            }
            Some(Counts::Split(counts)) => counts.open -= 1,
            None => {}
        }
        Some(connection)
    }

    fn reset_where(&mut self, ends: impl Fn(&Connection) -> bool) {
        let gone: Vec<u64> = self
            .connections
            .iter()
            .filter(|(_, connection)| ends(connection))
            .map(|(number, _)| *number)
            .collect();
        for number in gone {
            if let Some(connection) = self.remove(number) {
                tcp::reset(connection.socket);
            }
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

#[cfg(test)]
mod tests;
