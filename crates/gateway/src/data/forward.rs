//! UDP forwards: datagrams of an application leave for one configured destination, from one local
//! port per flow, so that replies find their flow.
//!
//! A datagram goes only to the destination that this gateway's configuration names. Messages of
//! class `message` leave as one datagram each, all from one port; replies to those are dropped.

use std::{collections::HashMap, io, net::UdpSocket, time::Duration};

use keiro_core::{AppId, DeliveryClass, Endpoint, FlowId, Instant, NewDatagram, PeerId};
use keiro_linux::{
    epoll::{Epoll, Interest},
    limit, udp,
};
use keiro_stats::UdpForwardStats;

use super::{
    destination::UdpDestination,
    figures::ForwardFigures,
    flow::{self, FLOW_IDLE_MAX},
    log_throttle::LogThrottle,
    quota::{Quota, QuotaGuard, QuotaOwner},
    route::Routes,
    token,
};

pub(crate) struct Forwards {
    forwards: HashMap<AppId, Forward>,
    flows: HashMap<u64, Flow>,
    by_flow: HashMap<FlowKey, u64>,
    next: u64,
    /// When it was last looked for idle flows because there were too many.
    searched: Option<Instant>,
    /// Flows and descriptors that peers share.
    flow_shares: Quota,
    descriptors: Quota,
}

struct Forward {
    figures: ForwardFigures,
    destination: UdpDestination,
    /// When it last led to this machine, which is not allowed.
    closed_at: Option<Instant>,
    log_throttle: LogThrottle,
    refusals: LogThrottle,
}

/// Whose flow it is, by the peer's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct FlowKey {
    peer: PeerId,
    app: AppId,
    flow: FlowId,
}

struct Flow {
    key: FlowKey,
    socket: UdpSocket,
    used: Instant,
    replies: bool,
    _shares: [QuotaGuard; 2],
}

/// Why there is no socket for a flow.
#[derive(Debug)]
enum NoFlow {
    /// The application has no forward, or it leads to this machine.
    Closed,
    /// The peer has as many flows as are left to the others.
    Flows,
    /// The peer has as many descriptors as are left to the others.
    Descriptors,
    System(io::Error),
}

/// The origin of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct From {
    pub(crate) peer: PeerId,
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    /// Answers are carried back.
    pub(crate) replies: bool,
}

/// Flows of all peers and applications: each takes a socket. Ours.
const FLOWS_MAX: usize = 16_384;
/// Replies taken from one flow before others have their turn.
const REPLIES_PER_TURN: usize = 64;
/// The longest payload of UDP over IPv4.
pub(crate) const DATAGRAM_BYTES_MAX: usize = 65_507;

/// The kernel is asked at most this often about a forward that is closed.
const CLOSED_FOR: Duration = Duration::from_secs(1);

impl Forward {
    /// As [`UdpDestination::is_open`]; `false` if the kernel does not say.
    fn is_open(&mut self, now: Instant) -> bool {
        let asked = self.closed_at;
        if asked.is_some_and(|at| now.saturating_duration_since(at) < CLOSED_FOR) {
            return false;
        }
        let open = self.destination.is_open().unwrap_or_else(|error| {
            if self.log_throttle.is_due(now) {
                let to = self.destination.to;
                tracing::warn!(%to, %error, "UDP forward: cannot find out whether it leads to this machine");
            }
            false
        });
        self.closed_at = (!open).then_some(now);
        open
    }

    /// Counts a datagram that has no socket to leave by.
    fn on_no_flow(&mut self, now: Instant, no_flow: &NoFlow) {
        let reason = match no_flow {
            NoFlow::Closed => {
                self.figures.stats.failed_packets += 1;
                return;
            }
            NoFlow::System(error) if !limit::is_reached(error) => {
                tracing::debug!(to = %self.destination.to, %error, "UDP forward: no socket for a flow");
                self.figures.stats.failed_packets += 1;
                return;
            }
            NoFlow::System(error) => error.to_string(),
            NoFlow::Flows => "the peer has as many flows as are left to the others".to_owned(),
            NoFlow::Descriptors => {
                "the peer has as many descriptors as are left to the others; raise the limit of open files".to_owned()
            }
        };
        self.figures.stats.refused_packets += 1;
        if self.refusals.is_due(now) {
            let to = self.destination.to;
            tracing::warn!(%to, reason, "UDP forward: a flow is refused");
        }
    }
}

impl Forwards {
    /// Sockets count among `descriptors`.
    pub(crate) fn new(descriptors: Quota) -> Self {
        Self {
            flow_shares: Quota::new(FLOWS_MAX),
            descriptors,
            forwards: HashMap::new(),
            flows: HashMap::new(),
            by_flow: HashMap::new(),
            next: 0,
            searched: None,
        }
    }

    /// Whether the application has a forward.
    pub(crate) fn has(&self, app: AppId) -> bool {
        self.forwards.contains_key(&app)
    }

    /// Lets an application's datagrams out; flows to another destination end.
    pub(crate) fn set(&mut self, app: AppId, destination: UdpDestination) {
        self.remove(app);
        let figures = ForwardFigures {
            to: destination.to,
            stats: UdpForwardStats::default(),
        };
        let forward = Forward {
            figures,
            destination,
            closed_at: None,
            log_throttle: LogThrottle::default(),
            refusals: LogThrottle::default(),
        };
        self.forwards.insert(app, forward);
    }

    pub(crate) fn remove(&mut self, app: AppId) {
        self.forwards.remove(&app);
        self.forget(|flow| flow.key.app == app);
    }

    /// Ends the flows of a peer that was removed.
    pub(crate) fn forget_peer(&mut self, peer: PeerId) {
        self.forget(|flow| flow.key.peer == peer);
    }

    /// Sends one datagram of `app` to its destination; whether that was possible.
    pub(crate) fn send(&mut self, now: Instant, epoll: &Epoll, from: From, data: &[u8]) -> bool {
        let app = from.app;
        let number = self.flow(now, epoll, from);
        let Some(forward) = self.forwards.get_mut(&app) else {
            return false;
        };
        let number = match number {
            Ok(number) => number,
            Err(no_flow) => {
                forward.on_no_flow(now, &no_flow);
                return false;
            }
        };
        let sent = self.flows.get_mut(&number).is_some_and(|flow| {
            flow.used = now;
            send_again_once(&flow.socket, data).is_ok()
        });
        match sent {
            true => {
                forward.figures.stats.sent_packets += 1;
                forward.figures.stats.sent_bytes += data.len() as u64;
            }
            false => forward.figures.stats.failed_packets += 1,
        }
        sent
    }

    /// Takes over what the destination answered on flow `number`.
    pub(crate) fn receive(
        &mut self,
        now: Instant,
        number: u64,
        buffer: &mut [u8],
        routes: &Routes,
        endpoint: &mut Endpoint,
    ) {
        let Some(flow) = self.flows.get_mut(&number) else {
            return;
        };
        let FlowKey {
            peer,
            app,
            flow: id,
        } = flow.key;
        for _ in 0..REPLIES_PER_TURN {
            let length = match flow.socket.recv(buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The destination's port is closed, say: an error per datagram that it refused.
                Err(_) => continue,
            };
            let class = routes.get(app).map(|route| route.config.class);
            if flow.replies && class == Some(DeliveryClass::Datagram) {
                flow.used = now;
                // A full queue drops its oldest; other errors mean that the application is gone.
                let _ = endpoint.send_datagram(
                    now,
                    peer,
                    NewDatagram {
                        app,
                        flow: id,
                        reply: true,
                        made: now,
                        data: &buffer[..length],
                    },
                );
            }
        }
    }

    /// Closes flows that have been idle, and those to an address that has become this machine's.
    pub(crate) fn sweep(&mut self, now: Instant) {
        let forbidden = self
            .forwards
            .iter()
            .filter(|(_, forward)| matches!(forward.destination.is_open(), Ok(false)));
        let forbidden: Vec<AppId> = forbidden.map(|(app, _)| *app).collect();
        self.forget(|flow| forbidden.contains(&flow.key.app));
        self.forget(|flow| now.saturating_duration_since(flow.used) >= FLOW_IDLE_MAX);
    }

    pub(crate) fn figures(&self, app: AppId) -> Option<ForwardFigures> {
        self.forwards
            .get(&app)
            .map(|forward| forward.figures.clone())
    }

    /// The socket of a flow, a new one if need be.
    fn flow(&mut self, now: Instant, epoll: &Epoll, from: From) -> Result<u64, NoFlow> {
        let key = FlowKey {
            peer: from.peer,
            app: from.app,
            flow: from.flow,
        };
        if let Some(number) = self.by_flow.get(&key) {
            return Ok(*number);
        }
        if !self.forwards.contains_key(&from.app) {
            return Err(NoFlow::Closed);
        }
        let shares = match self.take_shares(from.peer) {
            Err(_) if flow::is_due(&mut self.searched, now) => {
                self.sweep(now);
                self.take_shares(from.peer)?
            }
            shares => shares?,
        };
        let forward = self.forwards.get_mut(&from.app).ok_or(NoFlow::Closed)?;
        if !forward.is_open(now) {
            return Err(NoFlow::Closed);
        }
        // Connected: the kernel gives us only what comes from the destination.
        let socket = udp::connected(
            forward.destination.to,
            forward.destination.interface.as_deref(),
        )
        .map_err(NoFlow::System)?;
        let number = self.next;
        self.next += 1;
        let added = epoll.add(&socket, token::forward(number), Interest::Read);
        added.map_err(NoFlow::System)?;
        self.by_flow.insert(key, number);
        let flow = Flow {
            key,
            socket,
            used: now,
            replies: from.replies,
            _shares: shares,
        };
        self.flows.insert(number, flow);
        Ok(number)
    }

    fn take_shares(&self, peer: PeerId) -> Result<[QuotaGuard; 2], NoFlow> {
        let owner = QuotaOwner::Peer(peer);
        let flow = self.flow_shares.take(owner).ok_or(NoFlow::Flows)?;
        let descriptor = self.descriptors.take(owner).ok_or(NoFlow::Descriptors)?;
        Ok([flow, descriptor])
    }

    fn forget(&mut self, ends: impl Fn(&Flow) -> bool) {
        let by_flow = &mut self.by_flow;
        self.flows.retain(|_, flow| {
            let ended = ends(flow);
            if ended {
                by_flow.remove(&flow.key);
            }
            !ended
        });
    }
}

/// A connected socket first reports that an earlier datagram was refused, which says nothing about
/// this one.
fn send_again_once(socket: &UdpSocket, data: &[u8]) -> io::Result<usize> {
    match socket.send(data) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => socket.send(data),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    const APP: AppId = AppId(2);

    fn local(to: SocketAddr) -> UdpDestination {
        UdpDestination {
            to,
            allow_local: true,
            interface: None,
        }
    }

    fn from(flow: u32) -> From {
        From {
            peer: PeerId(1),
            app: APP,
            flow: FlowId(flow),
            replies: true,
        }
    }

    fn destination() -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn every_flow_has_its_own_port_and_keeps_it() {
        let (socket, address) = destination();
        let epoll = Epoll::new().unwrap();
        let mut forwards = Forwards::new(Quota::new(usize::MAX));
        forwards.set(APP, local(address));
        let mut buffer = [0; 16];
        let mut port_of = |forwards: &mut Forwards, flow| {
            assert!(forwards.send(at(0), &epoll, from(flow), b"x"));
            socket.recv_from(&mut buffer).unwrap().1.port()
        };
        let first = port_of(&mut forwards, 1);
        assert_ne!(port_of(&mut forwards, 2), first);
        assert_eq!(port_of(&mut forwards, 1), first);
        assert_eq!(forwards.figures(APP).unwrap().stats.sent_packets, 3);
    }

    #[test]
    fn nothing_leaves_without_an_forward_and_idle_flows_end() {
        let (_socket, address) = destination();
        let epoll = Epoll::new().unwrap();
        let mut forwards = Forwards::new(Quota::new(usize::MAX));
        assert!(!forwards.send(at(0), &epoll, from(1), b"x"));
        assert!(forwards.flows.is_empty());
        forwards.set(APP, local(address));
        assert!(forwards.send(at(0), &epoll, from(1), b"x"));
        assert!(forwards.send(at(200), &epoll, from(2), b"x"));
        forwards.sweep(at(300));
        assert_eq!(forwards.flows.len(), 1);
        forwards.forget_peer(PeerId(1));
        assert!(forwards.flows.is_empty() && forwards.by_flow.is_empty());
        forwards.remove(APP);
        assert!(!forwards.has(APP));
    }

    #[test]
    fn flows_of_one_peer_leave_room_for_those_of_others_and_refusals_are_counted() {
        let (_socket, address) = destination();
        let epoll = Epoll::new().unwrap();
        let descriptors = Quota::new(20);
        let mut forwards = Forwards::new(descriptors.clone());
        for app in [APP, AppId(3)] {
            forwards.set(app, local(address));
        }
        let mut send = |at, peer, app, flow| {
            let from = From {
                peer: PeerId(peer),
                app,
                ..from(flow)
            };
            let sent = forwards.send(at, &epoll, from, b"x");
            (sent, forwards.figures(app).unwrap().stats.refused_packets)
        };
        // Half of all, over all applications.
        for flow in 0..5 {
            assert_eq!(send(at(0), 1, APP, flow), (true, 0));
            assert_eq!(send(at(0), 1, AppId(3), flow), (true, 0));
        }
        assert_eq!(send(at(0), 1, APP, 77), (false, 1));
        assert_eq!(send(at(0), 1, AppId(3), 77), (false, 1));
        assert_eq!(send(at(1), 2, APP, 1), (true, 1));
        assert_eq!(send(at(200), 1, APP, 0), (true, 1));
        // Those that have been idle make room.
        assert_eq!(send(at(300), 1, APP, 77), (true, 1));
        forwards.remove(AppId(3));
        forwards.remove(APP);
        let all = (0..10).map_while(|_| descriptors.take(QuotaOwner::Peer(PeerId(3))));
        assert_eq!(all.collect::<Vec<_>>().len(), 10, "all were given back");
    }

    #[test]
    fn a_closed_destination_is_no_reason_to_stop() {
        let (socket, address) = destination();
        drop(socket);
        let epoll = Epoll::new().unwrap();
        let mut forwards = Forwards::new(Quota::new(usize::MAX));
        forwards.set(APP, local(address));
        for _ in 0..10 {
            forwards.send(at(0), &epoll, from(1), b"x");
        }
        let figures = forwards.figures(APP).unwrap();
        assert_eq!(
            figures.stats.sent_packets + figures.stats.failed_packets,
            10
        );
    }

    #[test]
    fn an_forward_to_this_machine_opens_within_a_second_once_it_leads_elsewhere() {
        let (_socket, to) = destination();
        let epoll = Epoll::new().unwrap();
        let mut forwards = Forwards::new(Quota::new(usize::MAX));
        let destination = UdpDestination {
            allow_local: false,
            ..local(to)
        };
        forwards.set(APP, destination);
        assert!(!forwards.send(at(0), &epoll, from(1), b"x"));
        forwards
            .forwards
            .get_mut(&APP)
            .unwrap()
            .destination
            .allow_local = true;
        assert!(!forwards.send(at(0), &epoll, from(1), b"x"));
        assert!(forwards.send(at(1), &epoll, from(1), b"x"));
        assert_eq!(forwards.figures(APP).unwrap().stats.failed_packets, 2);
    }
}
