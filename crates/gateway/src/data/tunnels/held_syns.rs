//! First packets of TCP connections that wait here until the peer is connected to the server.
//!
//! Then the packet is written back to the device, where rules of nftables give it to this machine's kernel, and the
//! connection is accepted for its client. Where the peer does not connect, the packet goes on as an IP packet, so that
//! its client gets the answer that it would have had.

mod places;

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use keiro_core::{
    Endpoint, Instant, PeerId, ResetReason, StreamId, StreamSignal, TenantId, wire::Features,
};
use keiro_ip::{Header, builtin_classes::Classification, protocol};
use keiro_linux::{mptcp_pm::Ends, route, sock_diag::SocketDiag, tcp::HANDSHAKE_MAX};
use keiro_stats::NotSplit;

use self::places::{Place, Places};
use super::super::{
    quota::{Quota, QuotaGuard},
    split::{CONNECTED, FlowAddresses, app_of, client_bytes},
};

/// The packets that wait, and where no connection is tried for a while.
#[derive(Debug)]
pub(super) struct HeldSyns {
    /// The gateway stops: no more are held.
    is_draining: bool,
    held: HashMap<FlowAddresses, HeldSyn>,
    by_stream: HashMap<(PeerId, StreamId), FlowAddresses>,
    places: Places,
    /// Handshakes that the kernel may still have although their streams are gone, and until when.
    orphans: HashMap<FlowAddresses, (Instant, Place)>,
    /// Connections that are packets, whose first one may come again, and until when.
    passed: HashMap<FlowAddresses, Instant>,
    /// Until when connections of a client to a server stay packets, and why.
    refused: HashMap<Refused, (Instant, Reason)>,
    /// Until when those of a tenant to a peer do, which does not split them.
    unknown: BTreeMap<(PeerId, TenantId), Instant>,
    /// When the kernel has last accepted a client of a tenant, and until when it is not asked, by IP version.
    diversions: BTreeMap<(TenantId, bool), Diversion>,
    machine: Machine,
}

/// Questions to the kernel.
#[derive(Clone, Copy, Debug)]
struct Machine {
    /// Whether an address is this machine's.
    is_own: fn(IpAddr) -> bool,
    /// Whether the kernel has begun to answer a client.
    has_begun: fn(FlowAddresses) -> bool,
}

/// Whether this machine takes what is written back for it.
#[derive(Clone, Copy, Debug, Default)]
struct Diversion {
    accepted_at: Option<Instant>,
    off_until: Option<Instant>,
}

/// Whose connections are not split. Tenants may have the same addresses, and what is refused to one client is not
/// refused to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Refused {
    tenant: TenantId,
    peer: PeerId,
    client: IpAddr,
    server: SocketAddr,
}

/// A first packet.
#[derive(Debug)]
pub(super) struct HeldSyn {
    pub(super) tenant: TenantId,
    pub(super) peer: PeerId,
    pub(super) stream: StreamId,
    pub(super) header: Header,
    /// What its flow was when it came.
    pub(super) sorted: Classification,
    /// As it would be sent; empty once it was written back.
    pub(super) packet: Vec<u8>,
    /// The descriptor that its client will have.
    pub(super) share: QuotaGuard,
    place: Place,
    /// When it came, or was last written back.
    since: Instant,
    /// It was written back to the device.
    is_released: bool,
    /// And came again long after that.
    was_repeated: bool,
}

/// What becomes of a first packet that is not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Wait,
    /// It is to be written to the device, as the one before it.
    WriteBack,
}

/// A connection that may be split.
#[derive(Clone, Copy)]
pub(super) struct NewConnection<'a> {
    pub(super) tenant: TenantId,
    pub(super) peer: PeerId,
    pub(super) flow: FlowAddresses,
    pub(super) header: &'a Header,
    pub(super) sorted: Classification,
    pub(super) packet: &'a [u8],
}

/// What became of the stream of a packet that waits.
#[derive(Debug)]
pub(super) enum Answer {
    /// The peer is connected: the packet is to be written to the tenant's device.
    Connected(TenantId, Vec<u8>),
    /// The packet is to be sent.
    Refused(Box<HeldSyn>, ResetReason),
    /// Nothing follows.
    Wait,
}

/// Why a connection stays packets: the counter.
pub(super) type Reason = fn(&mut NotSplit) -> &mut u64;

/// Longer than the peer tries.
const HOLD_MAX: Duration = Duration::from_secs(40);
/// A packet that comes again sooner after the one before was written back may have waited meanwhile. Ours: less than the
/// second after which hosts send it again (RFC 6298 §2).
const REPEAT_MIN: Duration = Duration::from_millis(800);
/// The kernel answers a packet that was written back at once; the client may be far. Longer than the kernel tries.
const ACCEPT_MAX: Duration = HANDSHAKE_MAX.saturating_add(Duration::from_secs(1));
/// Connections that stay packets and are remembered; the first packets of more would be held when they come again.
const PASSED_MAX: usize = 16_384;
/// Longer than Linux waits before it sends a first packet again, but for the last time (`tcp_syn_retries`).
const PASSED_FOR: Duration = Duration::from_secs(40);
/// Clients and servers that are remembered.
const REFUSED_MAX: usize = 4096;
/// Ours: clients that try again have the answer of the network, and a server that comes back is split soon.
const UNREACHABLE_FOR: Duration = Duration::from_secs(10);
/// Ours: what the peer is configured for, and the firewall, rarely change.
const FORBIDDEN_FOR: Duration = Duration::from_secs(60);

/// The flow that a packet begins; `None`: it begins no TCP connection.
pub(super) fn begun_by(header: &Header, packet: &[u8]) -> Option<FlowAddresses> {
    // Where the flags are in the header, and those that matter (RFC 9293 §3.1).
    const FLAGS: usize = 13;
    const FIN: u8 = 1;
    const SYN: u8 = 2;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    if header.protocol != protocol::TCP || header.fragment.is_some() {
        return None;
    }
    let flags = packet.get(header.transport + FLAGS)? & (FIN | SYN | RST | ACK);
    (flags == SYN).then(|| flow_of(header))?
}

/// The addresses of a packet that has ports.
pub(super) fn flow_of(header: &Header) -> Option<FlowAddresses> {
    let ports = header.ports?;
    Some(FlowAddresses {
        source: SocketAddr::new(header.source, ports.source),
        destination: SocketAddr::new(header.destination, ports.destination),
    })
}

impl HeldSyns {
    /// Clients take their descriptors from `descriptors`.
    pub(super) fn new(descriptors: Quota) -> Self {
        Self {
            is_draining: false,
            held: HashMap::new(),
            by_stream: HashMap::new(),
            places: Places::new(descriptors),
            orphans: HashMap::new(),
            passed: HashMap::new(),
            refused: HashMap::new(),
            unknown: BTreeMap::new(),
            diversions: BTreeMap::new(),
            machine: Machine {
                // The kernel drops a packet from outside that has an address of this machine.
                is_own: |address| route::is_own(address, None).unwrap_or(true),
                has_begun,
            },
        }
    }

    /// A tenant has listeners, each with room for `handshakes`.
    pub(super) fn add_tenant(&mut self, tenant: TenantId, handshakes: usize) {
        self.places.add_tenant(tenant, handshakes);
    }

    pub(super) fn remove_tenant(&mut self, tenant: TenantId) {
        self.places.remove_tenant(tenant);
    }

    /// Keeps the first packet of a connection, and asks the peer for its server.
    ///
    /// # Errors
    /// The packet is to be sent as it is; why, if its connection was not counted before.
    pub(super) fn hold(
        &mut self,
        now: Instant,
        new: &NewConnection<'_>,
        endpoint: &mut Endpoint,
    ) -> Result<Hold, Option<Reason>> {
        // The server may have answered the one before.
        if is_before(now, self.passed.get(&new.flow)) {
            return Err(None);
        }
        let held = match self.held.contains_key(&new.flow) {
            true => self.on_repeated(now, new.flow, endpoint),
            false => self.begin(now, new, endpoint).map(|()| Hold::Wait),
        };
        if held.is_err() {
            self.note_passed(now, new.flow);
        }
        held.map_err(Some)
    }

    fn begin(
        &mut self,
        now: Instant,
        new: &NewConnection<'_>,
        endpoint: &mut Endpoint,
    ) -> Result<(), Reason> {
        let NewConnection {
            tenant, peer, flow, ..
        } = *new;
        if let Some(reason) = self.obstacle(now, new, endpoint) {
            return Err(reason);
        }
        let client = flow.source.ip();
        let (place, share) = self
            .places
            .take(tenant, client)
            .ok_or::<Reason>(|of| &mut of.limit)?;
        // Last of what is asked: it takes the kernel 10 µs.
        if (self.machine.is_own)(client) {
            return Err(|of| &mut of.own_address);
        }
        let app = app_of(tenant);
        let Ok(stream) = endpoint.open_stream(now, peer, app, Some(flow.destination)) else {
            return Err(|of| &mut of.limit);
        };
        let client = client_bytes(flow.source);
        if endpoint.write_stream(now, peer, stream, &client) != Some(client.len()) {
            endpoint.reset_stream(peer, stream, ResetReason::Gateway);
            return Err(|of| &mut of.limit);
        }
        let held = HeldSyn {
            tenant,
            peer,
            stream,
            header: *new.header,
            sorted: new.sorted,
            packet: new.packet.to_vec(),
            share,
            place,
            since: now,
            is_released: false,
            was_repeated: false,
        };
        self.held.insert(flow, held);
        self.by_stream.insert((peer, stream), flow);
        Ok(())
    }

    /// Why a connection is not even tried, as far as that is known; `None`: it is.
    fn obstacle(
        &self,
        now: Instant,
        new: &NewConnection<'_>,
        endpoint: &Endpoint,
    ) -> Option<Reason> {
        let NewConnection {
            tenant, peer, flow, ..
        } = *new;
        if !endpoint.has_feature(peer, Features::TCP_SPLIT)
            || is_before(now, self.unknown.get(&(peer, tenant)))
        {
            return Some(|of| &mut of.peer);
        }
        let diversion = self.diversions.get(&(tenant, flow.source.is_ipv6()));
        if is_before(now, diversion.and_then(|of| of.off_until.as_ref())) {
            return Some(|of| &mut of.diversion);
        }
        if let Some((until, reason)) = self.refused.get(&refused(tenant, peer, flow))
            && now < *until
        {
            return Some(*reason);
        }
        self.is_draining.then_some(|of| &mut of.limit)
    }

    /// The client sends the packet again.
    fn on_repeated(
        &mut self,
        now: Instant,
        flow: FlowAddresses,
        endpoint: &mut Endpoint,
    ) -> Result<Hold, Reason> {
        let Some(held) = self.held.get_mut(&flow) else {
            return Ok(Hold::Wait);
        };
        if !held.is_released {
            if endpoint.is_up(held.peer) {
                return Ok(Hold::Wait);
            }
            self.give_up(flow, endpoint);
            return Err(|of| &mut of.limit);
        }
        if now.saturating_duration_since(held.since) < REPEAT_MIN {
            return Ok(Hold::Wait);
        }
        // The kernel's answer may have been lost, and so may its repetition: then it has the connection.
        if !std::mem::replace(&mut held.was_repeated, true) || (self.machine.has_begun)(flow) {
            held.since = now;
            return Ok(Hold::WriteBack);
        }
        let (tenant, peer) = (held.tenant, held.peer);
        self.give_up(flow, endpoint);
        self.on_not_diverted(now, tenant, peer, flow);
        Err(|of| &mut of.diversion)
    }

    /// The kernel did not take a packet that was written back twice.
    fn on_not_diverted(
        &mut self,
        now: Instant,
        tenant: TenantId,
        peer: PeerId,
        flow: FlowAddresses,
    ) {
        let until = now + FORBIDDEN_FOR;
        let of = self.diversions.entry((tenant, flow.source.is_ipv6()));
        let of = of.or_default();
        let takes_others = of
            .accepted_at
            .is_some_and(|at| now.saturating_duration_since(at) < FORBIDDEN_FOR);
        if takes_others {
            let refused = refused(tenant, peer, flow);
            return self.note_refused(refused, until, |of| &mut of.diversion);
        }
        of.off_until = Some(until);
        tracing::warn!(
            client = %flow.source, server = %flow.destination,
            "tcp = \"split\": this machine did not take a connection from the tenant's device; \
             does a firewall or the reverse path filter drop it? Connections stay IP packets for a minute"
        );
    }

    pub(super) fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Whether a stream belongs to a packet that waits.
    pub(super) fn has(&self, peer: PeerId, stream: StreamId) -> bool {
        self.by_stream.contains_key(&(peer, stream))
    }

    /// Something came of the stream of a packet that waits.
    pub(super) fn on_signal(
        &mut self,
        now: Instant,
        peer: PeerId,
        stream: StreamId,
        signal: StreamSignal,
        endpoint: &mut Endpoint,
    ) -> Answer {
        let Some(&flow) = self.by_stream.get(&(peer, stream)) else {
            return Answer::Wait;
        };
        let reason = match signal {
            StreamSignal::Opened { .. } | StreamSignal::Writable => return Answer::Wait,
            StreamSignal::Reset(reason) => reason,
            StreamSignal::Readable => {
                let Some(held) = self.held.get_mut(&flow) else {
                    return Answer::Wait;
                };
                if held.is_released {
                    // What the server has said waits for its client.
                    return Answer::Wait;
                }
                let first = endpoint.stream_data(peer, stream);
                if first.and_then(|(first, ..)| first.first().copied()) == Some(CONNECTED) {
                    endpoint.consume_stream(now, peer, stream, 1);
                    (held.is_released, held.since) = (true, now);
                    return Answer::Connected(held.tenant, std::mem::take(&mut held.packet));
                }
                endpoint.reset_stream(peer, stream, ResetReason::Protocol);
                ResetReason::Protocol
            }
        };
        let is_released = self.held.get(&flow).is_some_and(|held| held.is_released);
        match self.forget(flow) {
            Some(held) if is_released => {
                self.note_orphan(flow, held);
                Answer::Wait
            }
            Some(held) => {
                self.note_passed(now, flow);
                self.remember(now, &held, flow, reason);
                Answer::Refused(Box::new(held), reason)
            }
            None => Answer::Wait,
        }
    }

    /// A client of a tenant that the kernel has accepted, and its stream; `None`: none waits for it.
    pub(super) fn take_accepted(
        &mut self,
        now: Instant,
        tenant: TenantId,
        flow: FlowAddresses,
    ) -> Option<HeldSyn> {
        let is_v6 = flow.source.is_ipv6();
        let held = self.held.get(&flow).filter(|held| held.tenant == tenant);
        if !held.is_some_and(|held| held.is_released) {
            self.orphans.remove(&flow);
            return None;
        }
        let diversion = self.diversions.entry((tenant, is_v6)).or_default();
        diversion.accepted_at = Some(now);
        self.forget(flow)
    }

    /// Gives up what waits for too long, and forgets what was remembered.
    pub(super) fn tick(&mut self, now: Instant, endpoint: &mut Endpoint) {
        let is_over = |_: &FlowAddresses, held: &HeldSyn| {
            let longest = if held.is_released {
                ACCEPT_MAX
            } else {
                HOLD_MAX
            };
            now.saturating_duration_since(held.since) >= longest
        };
        self.forget_where(endpoint, is_over);
        self.orphans.retain(|_, (until, _)| now < *until);
        self.passed.retain(|_, until| now < *until);
        self.refused.retain(|_, (until, _)| now < *until);
        self.unknown.retain(|_, until| now < *until);
        self.diversions.retain(|_, of| {
            let is_recent = |at| now.saturating_duration_since(at) < FORBIDDEN_FOR;
            is_before(now, of.off_until.as_ref()) || of.accepted_at.is_some_and(is_recent)
        });
    }

    /// Gives up packets; their clients send them again.
    pub(super) fn forget_where(
        &mut self,
        endpoint: &mut Endpoint,
        is_over: impl Fn(&FlowAddresses, &HeldSyn) -> bool,
    ) {
        let over = self.held.iter().filter(|(flow, held)| is_over(flow, held));
        let over: Vec<FlowAddresses> = over.map(|(flow, _)| *flow).collect();
        for flow in over {
            if let Some(held) = self.give_up(flow, endpoint) {
                self.note_orphan(flow, held);
            }
        }
    }

    fn give_up(&mut self, flow: FlowAddresses, endpoint: &mut Endpoint) -> Option<HeldSyn> {
        let held = self.forget(flow)?;
        endpoint.reset_stream(held.peer, held.stream, ResetReason::Gateway);
        Some(held)
    }

    /// The kernel keeps the handshake of a packet that was written back, although its stream is gone.
    fn note_orphan(&mut self, flow: FlowAddresses, held: HeldSyn) {
        if held.is_released {
            let until = held.since + ACCEPT_MAX;
            self.orphans.insert(flow, (until, held.place));
        }
    }

    fn remember(&mut self, now: Instant, held: &HeldSyn, flow: FlowAddresses, reason: ResetReason) {
        let time = match reason {
            ResetReason::UnknownApplication => {
                let of_peer = (held.peer, held.tenant);
                self.unknown.insert(of_peer, now + FORBIDDEN_FOR);
                return;
            }
            ResetReason::Forbidden => FORBIDDEN_FOR,
            ResetReason::Unreachable => UNREACHABLE_FOR,
            _ => return,
        };
        let refused = refused(held.tenant, held.peer, flow);
        self.note_refused(refused, now + time, reason_of(reason));
    }

    fn note_refused(&mut self, refused: Refused, until: Instant, reason: Reason) {
        if self.refused.len() < REFUSED_MAX {
            self.refused.insert(refused, (until, reason));
        }
    }

    fn note_passed(&mut self, now: Instant, flow: FlowAddresses) {
        if self.passed.len() < PASSED_MAX {
            self.passed.insert(flow, now + PASSED_FOR);
        }
    }

    fn forget(&mut self, flow: FlowAddresses) -> Option<HeldSyn> {
        let held = self.held.remove(&flow)?;
        self.by_stream.remove(&(held.peer, held.stream));
        Some(held)
    }

    pub(super) fn check_invariants(&self) {
        assert_eq!(self.held.len(), self.by_stream.len(), "a stream for each");
        let places = self.held.len() + self.orphans.len();
        assert_eq!(places, self.places.taken(), "a place for each");
        assert!(
            self.passed.len() <= PASSED_MAX,
            "connections that are packets"
        );
        assert!(self.refused.len() <= REFUSED_MAX, "servers remembered");
    }
}

/// Whether the kernel has begun to answer the client of a packet that was written back. Without its report
/// (`tcp_diag`) it counts as if it had not.
fn has_begun(flow: FlowAddresses) -> bool {
    let ends = Ends {
        local: flow.destination,
        remote: flow.source,
    };
    let asked = SocketDiag::open().and_then(|mut diag| diag.has_connection(ends));
    asked.unwrap_or(false)
}

fn refused(tenant: TenantId, peer: PeerId, flow: FlowAddresses) -> Refused {
    Refused {
        tenant,
        peer,
        client: flow.source.ip(),
        server: flow.destination,
    }
}

/// The counter of a connection that its peer did not take.
pub(super) fn reason_of(reason: ResetReason) -> Reason {
    match reason {
        ResetReason::Refused | ResetReason::Unreachable => |of| &mut of.no_server,
        ResetReason::UnknownApplication => |of| &mut of.peer,
        ResetReason::Forbidden => |of| &mut of.destination,
        _ => |of| &mut of.limit,
    }
}

fn is_before(now: Instant, until: Option<&Instant>) -> bool {
    until.is_some_and(|until| now < *until)
}

#[cfg(test)]
mod tests;
