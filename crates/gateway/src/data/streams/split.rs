//! Both ends of tenants' split TCP connections: clients that were accepted, and servers that peers' clients want.

use std::{collections::BTreeMap, io, net::SocketAddr, time::Duration};

use keiro_core::{Instant, PeerId, ResetReason, StreamId, StreamSignal, TenantId};
use keiro_linux::{
    epoll::Interest,
    limit, route,
    tcp::{self, Progress as ConnectProgress},
};
use keiro_stats::TenantStats;

use super::{
    super::{
        context::Context,
        epoll_registration::EpollRegistration,
        quota::{Quota, QuotaGuard, QuotaOwner},
        split::{
            CLIENT_BYTES_MAX, ClientBytes, FlowAddresses, SplitFlows, TransparentSockets, app_of,
            read_client,
        },
        tunnels::AcceptedClient,
    },
    CONNECT_MAX, StreamServer,
    connect_error::reason_of,
    connection::{Connecting, Connection, SplitEnd},
    waiting_opens::WaitingOpen,
};

/// What split connections have beside what all have.
pub(super) struct SplitConnections {
    /// `None`: no tenant is split.
    sockets: Option<TransparentSockets>,
    pub(super) flows: SplitFlows,
    counts: BTreeMap<TenantId, SplitCounts>,
    /// Streams that have not named their client, and until when they may.
    unnamed: BTreeMap<(PeerId, StreamId), Unnamed>,
    /// How many of these there may be, which peers share.
    unnamed_places: Quota,
    /// Clients' ports that connections to servers take, which peers share.
    ports: Quota,
}

/// A stream that has not named its client.
#[derive(Debug)]
struct Unnamed {
    open: WaitingOpen,
    until: Instant,
    _place: QuotaGuard,
}

/// Of a tenant.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SplitCounts {
    pub(super) open: u64,
    all: u64,
}

/// A connection that a peer asks for, and what was found for it.
struct Wanted {
    open: WaitingOpen,
    tenant: TenantId,
    client: SocketAddr,
    server: SocketAddr,
    share: QuotaGuard,
    port: QuotaGuard,
}

/// Streams that have not named their client, half of them of one peer. Ours: the name comes in the same packet in most
/// cases.
const UNNAMED_MAX: usize = 1024;
/// Connections to servers. The kernel gives a port that one of them has, as its client has, to no connection of this
/// machine's own (`inet_hash_connect`). Ours: this leaves 11,800 of those that it has for them by default.
const PORTS_MAX: usize = 16_384;
/// Ours: longer than what is lost takes to come again.
const UNNAMED_FOR: Duration = Duration::from_secs(10);

impl SplitConnections {
    pub(super) fn new() -> Self {
        Self {
            sockets: None,
            flows: SplitFlows::new(),
            counts: BTreeMap::new(),
            unnamed: BTreeMap::new(),
            unnamed_places: Quota::new(UNNAMED_MAX),
            ports: Quota::new(PORTS_MAX),
        }
    }

    pub(super) fn counts_of(&mut self, tenant: TenantId) -> &mut SplitCounts {
        self.counts.entry(tenant).or_default()
    }

    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        self.unnamed.retain(|(of, _), _| *of != peer);
    }
}

impl StreamServer {
    pub(crate) fn set_split_sockets(&mut self, sockets: TransparentSockets) {
        self.split.sockets = Some(sockets);
    }

    /// Packets that the kernel is to take.
    pub(crate) fn split_flows(&self) -> &SplitFlows {
        &self.split.flows
    }

    pub(crate) fn add_split_counts(&self, tenant: TenantId, stats: &mut TenantStats) {
        if let Some(counts) = self.split.counts.get(&tenant) {
            stats.open_split_connections = counts.open;
            stats.split_connections = counts.all;
        }
    }

    /// Connects a client that was accepted with its stream, whose server is there.
    pub(crate) fn adopt(&mut self, context: &mut Context<'_>, client: AcceptedClient) {
        let AcceptedClient {
            socket,
            tenant,
            peer,
            stream,
            flow,
            share,
        } = client;
        if self.draining.is_some() {
            context
                .endpoint
                .reset_stream(peer, stream, ResetReason::Gateway);
            tcp::reset(socket);
            return;
        }
        let connection = Connection {
            share: Some(share),
            split: Some(SplitEnd { tenant, flow }),
            ..Connection::new(socket, peer, stream, app_of(tenant), context.now)
        };
        if let Some(number) = self.insert_split(context, connection) {
            // What the server has said was signalled before.
            self.write(context, number);
            self.read(context, number);
        }
    }

    /// Connects the server that a peer's client wants, once the peer has named the client.
    pub(super) fn connect_split(
        &mut self,
        context: &mut Context<'_>,
        open: WaitingOpen,
        tenant: TenantId,
    ) -> Result<(), ResetReason> {
        let WaitingOpen {
            peer,
            stream,
            target,
            ..
        } = open;
        let server = target.ok_or(ResetReason::Protocol)?;
        let Some(client) = client_of(context, peer, stream)? else {
            return self.wait_for_name(context.now, open);
        };
        let flow = FlowAddresses {
            source: client,
            destination: server,
        };
        // To bind to port 0 takes another one.
        if client.is_ipv4() != server.is_ipv4() || client.port() == 0 || server.port() == 0 {
            return Err(ResetReason::Protocol);
        }
        context.tunnels.check_connection(tenant, peer, &flow)?;
        let owner = QuotaOwner::Peer(peer);
        let (share, port) = (self.descriptors.take(owner), self.split.ports.take(owner));
        let wanted = Wanted {
            open,
            tenant,
            client,
            server,
            share: share.ok_or(ResetReason::TooMany)?,
            port: port.ok_or(ResetReason::TooMany)?,
        };
        for address in [client, server] {
            // Packets of this machine's own addresses do not come in by an interface. Asked last, since it takes the
            // kernel 10 µs.
            let is_own = route::is_own(address.ip(), None);
            if is_own.map_err(|_| ResetReason::Gateway)? {
                return Err(ResetReason::Forbidden);
            }
        }
        self.connect_server(context, wanted)
    }

    fn connect_server(
        &mut self,
        context: &mut Context<'_>,
        wanted: Wanted,
    ) -> Result<(), ResetReason> {
        let WaitingOpen {
            peer, stream, app, ..
        } = wanted.open;
        let (client, server) = (wanted.client, wanted.server);
        let sockets = self.split.sockets.as_ref();
        let socket = sockets.and_then(|sockets| sockets.take(server.is_ipv6()));
        let socket = socket.ok_or(ResetReason::TooMany)?;
        let (socket, progress) = socket.connect(client, server).map_err(|error| {
            tracing::debug!(%client, %server, %error, "tcp = \"split\"");
            refusal_of(&error)
        })?;
        let connected = matches!(progress, ConnectProgress::Connected);
        let by = context.now + CONNECT_MAX;
        let flow = FlowAddresses {
            source: server,
            destination: client,
        };
        let interest = if connected {
            Interest::Read
        } else {
            Interest::Write
        };
        let connection = Connection {
            connecting: (!connected).then_some(Connecting { to: server, by }),
            share: Some(wanted.share),
            _port: Some(wanted.port),
            reads: connected,
            watch: EpollRegistration::new(interest),
            split: Some(SplitEnd {
                tenant: wanted.tenant,
                flow,
            }),
            ..Connection::new(socket, peer, stream, app, context.now)
        };
        if connected {
            connection.say_connected(context);
        }
        match self.insert_split(context, connection) {
            Some(number) if !connected => {
                self.connecting.insert((by, number));
            }
            Some(number) => self.write(context, number),
            None => {}
        }
        Ok(())
    }

    fn insert_split(&mut self, context: &mut Context<'_>, connection: Connection) -> Option<u64> {
        let SplitEnd { tenant, flow } = connection.split?;
        let counts = self.split.counts_of(tenant);
        counts.open += 1;
        counts.all += 1;
        let number = self.insert(context, connection)?;
        self.split.flows.insert(flow, number);
        Some(number)
    }

    /// The network has said that the server of a split connection cannot be reached.
    pub(crate) fn on_unreachable(&mut self, context: &mut Context<'_>, number: u64) {
        let connection = self.connections.get(&number);
        // One that is there goes on (RFC 1122 §4.2.3.9).
        if connection.is_some_and(|one| one.split.is_some() && one.connecting.is_some()) {
            self.abort(context, number, ResetReason::Unreachable);
        }
    }

    fn wait_for_name(&mut self, now: Instant, open: WaitingOpen) -> Result<(), ResetReason> {
        let place = self.split.unnamed_places.take(QuotaOwner::Peer(open.peer));
        let unnamed = Unnamed {
            open,
            until: now + UNNAMED_FOR,
            _place: place.ok_or(ResetReason::TooMany)?,
        };
        self.split.unnamed.insert((open.peer, open.stream), unnamed);
        Ok(())
    }

    /// Handles a signal of a stream that has no connection yet.
    pub(super) fn on_signal_of_unnamed(
        &mut self,
        context: &mut Context<'_>,
        peer: PeerId,
        stream: StreamId,
        signal: StreamSignal,
    ) {
        let Some(Unnamed { open, .. }) = self.split.unnamed.remove(&(peer, stream)) else {
            return;
        };
        if signal == StreamSignal::Readable && !self.waiting_opens.push(peer, open) {
            context
                .endpoint
                .reset_stream(peer, stream, ResetReason::Gateway);
        }
    }

    /// Resets streams that have not named their client in time.
    pub(super) fn end_unnamed(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let over = |_: &(PeerId, StreamId), of: &mut Unnamed| now >= of.until;
        for ((peer, stream), _) in self.split.unnamed.extract_if(.., over) {
            context
                .endpoint
                .reset_stream(peer, stream, ResetReason::Protocol);
        }
    }

    /// Resets the connections of a tenant that it may not have any more: it is changed or gone.
    pub(crate) fn end_inadmissible(&mut self, context: &mut Context<'_>, tenant: TenantId) {
        let tunnels = context.tunnels;
        let is_over = |connection: &Connection| {
            let end = connection.split.filter(|end| end.tenant == tenant);
            end.is_some_and(|SplitEnd { flow, .. }| {
                // What comes in here goes to a host behind the peer, whose packets are admitted then, too.
                let from_peer = flow.reversed();
                tunnels
                    .check_connection(tenant, connection.peer, &from_peer)
                    .is_err()
            })
        };
        let connections = self.connections.iter();
        let gone = connections.filter(|(_, connection)| is_over(connection));
        let gone: Vec<u64> = gone.map(|(number, _)| *number).collect();
        for number in gone {
            self.abort(context, number, ResetReason::Gateway);
        }
    }
}

/// The client that a stream has named; `None`: it has not yet.
fn client_of(
    context: &mut Context<'_>,
    peer: PeerId,
    stream: StreamId,
) -> Result<Option<SocketAddr>, ResetReason> {
    let Some((first, second, ends)) = context.endpoint.stream_data(peer, stream) else {
        return Err(ResetReason::Gateway);
    };
    let bytes = first.iter().chain(second).take(CLIENT_BYTES_MAX);
    let bytes: Vec<u8> = bytes.copied().collect();
    match read_client(&bytes) {
        ClientBytes::Whole(client, length) => {
            context
                .endpoint
                .consume_stream(context.now, peer, stream, length);
            Ok(Some(client))
        }
        ClientBytes::Incomplete if !ends => Ok(None),
        ClientBytes::Incomplete | ClientBytes::Malformed => Err(ResetReason::Protocol),
    }
}

/// Why a server was not even tried.
fn refusal_of(error: &io::Error) -> ResetReason {
    match error.kind() {
        _ if limit::is_reached(error) => ResetReason::TooMany,
        // The client's port needs a privilege here, or is in use by a connection that has just ended.
        io::ErrorKind::PermissionDenied
        | io::ErrorKind::AddrInUse
        | io::ErrorKind::AddrNotAvailable => ResetReason::Gateway,
        _ => reason_of(error),
    }
}

#[cfg(test)]
mod tests;
