//! First packets of TCP connections that wait here until the peer is connected to the server.
//!
//! Then the packet is written back to the device, where rules of nftables give it to this machine's kernel, and the
//! connection is accepted for its client. Where the peer does not connect, the packet goes on as an IP packet, so that
//! its client gets the answer that it would have had.

use std::{
    collections::{BTreeMap, HashMap},
    net::SocketAddr,
    time::Duration,
};

use keiro_core::{
    Endpoint, Instant, PeerId, ResetReason, StreamId, StreamSignal, TenantId, wire::Features,
};
use keiro_ip::{Header, classes::Sorted, protocol};
use keiro_stats::NotSplit;

use super::super::split::{CONNECTED, FlowAddresses, app_of, client_bytes};

/// The packets that wait, and where no connection is tried for a while.
#[derive(Debug, Default)]
pub(super) struct HeldSyns {
    /// The gateway stops: no more are held.
    is_draining: bool,
    held: HashMap<FlowAddresses, HeldSyn>,
    by_stream: HashMap<(PeerId, StreamId), FlowAddresses>,
    /// How many of each tenant.
    of_tenant: BTreeMap<TenantId, usize>,
    /// Connections that are packets, whose first one may come again, and until when.
    passed: HashMap<FlowAddresses, Instant>,
    /// Until when connections to a server behind a peer stay packets, and why.
    refused: HashMap<(PeerId, SocketAddr), (Instant, Reason)>,
    /// Until when those of a tenant to a peer do, which does not split them.
    unknown: BTreeMap<(PeerId, TenantId), Instant>,
    /// Until when those of a tenant do, because this machine does not take them.
    undiverted: BTreeMap<TenantId, Instant>,
}

/// A first packet.
#[derive(Debug)]
pub(super) struct HeldSyn {
    pub(super) tenant: TenantId,
    pub(super) peer: PeerId,
    pub(super) stream: StreamId,
    pub(super) header: Header,
    /// What its flow was when it came.
    pub(super) sorted: Sorted,
    /// As it would be sent; empty once it was written back.
    pub(super) packet: Vec<u8>,
    /// When it came, or was written back.
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
    pub(super) sorted: Sorted,
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

/// Packets that wait, and those of one tenant. Ours: thousands of connections each second where the server is near.
const HELD_MAX: usize = 4096;
const HELD_OF_TENANT_MAX: usize = HELD_MAX / 2;
/// Longer than the peer tries.
const HOLD_MAX: Duration = Duration::from_secs(40);
/// A packet that comes again sooner after the one before was written back may have waited meanwhile. Ours: less than the
/// second after which hosts send it again (RFC 6298 §2).
const REPEAT_MIN: Duration = Duration::from_millis(800);
/// The kernel answers a packet that was written back at once; the client may be far.
const ACCEPT_MAX: Duration = Duration::from_secs(10);
/// Connections that stay packets and are remembered; the first packets of more would be held when they come again.
const PASSED_MAX: usize = 16_384;
/// Longer than Linux waits before it sends a first packet again, but for the last time (`tcp_syn_retries`).
const PASSED_FOR: Duration = Duration::from_secs(40);
/// Servers that are remembered.
const REFUSED_MAX: usize = 4096;
/// Ours: clients that try again have the answer of the network, and a server that comes back is split soon.
const UNREACHABLE_FOR: Duration = Duration::from_secs(10);
/// Ours: what the peer is configured for rarely changes.
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
        if !endpoint.has_feature(peer, Features::TCP_SPLIT)
            || is_before(now, self.unknown.get(&(peer, tenant)))
        {
            return Err(|of| &mut of.peer);
        }
        if is_before(now, self.undiverted.get(&tenant)) {
            return Err(|of| &mut of.diversion);
        }
        if let Some((until, reason)) = self.refused.get(&(peer, flow.destination))
            && now < *until
        {
            return Err(*reason);
        }
        if self.is_draining {
            return Err(|of| &mut of.limit);
        }
        let of_tenant = self.of_tenant.get(&tenant).copied().unwrap_or(0);
        if self.held.len() >= HELD_MAX || of_tenant >= HELD_OF_TENANT_MAX {
            return Err(|of| &mut of.limit);
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
            since: now,
            is_released: false,
            was_repeated: false,
        };
        self.held.insert(flow, held);
        self.of_tenant.insert(tenant, of_tenant + 1);
        self.by_stream.insert((peer, stream), flow);
        Ok(())
    }

    /// The client sends the packet again. Had the kernel taken the one that was written back, the rules would have led
    /// this one to it, unless it has waited in the device since before.
    fn on_repeated(
        &mut self,
        now: Instant,
        flow: FlowAddresses,
        endpoint: &mut Endpoint,
    ) -> Result<Hold, Reason> {
        let Some(held) = self.held.get_mut(&flow) else {
            return Ok(Hold::Wait);
        };
        let may_be_late = now.saturating_duration_since(held.since) < REPEAT_MIN;
        match held.is_released {
            true if may_be_late => return Ok(Hold::Wait),
            true if !held.was_repeated => {
                held.was_repeated = true;
                return Ok(Hold::WriteBack);
            }
            false if endpoint.is_up(held.peer) => return Ok(Hold::Wait),
            _ => {}
        }
        let Some(held) = self.forget(flow) else {
            return Ok(Hold::Wait);
        };
        endpoint.reset_stream(held.peer, held.stream, ResetReason::Gateway);
        if !held.is_released {
            return Err(|of| &mut of.limit);
        }
        if self
            .undiverted
            .insert(held.tenant, now + FORBIDDEN_FOR)
            .is_none()
        {
            tracing::warn!(
                client = %flow.source, server = %flow.destination,
                "tcp = \"split\": this machine did not take a connection from the tenant's device; \
                 does a firewall or the reverse path filter drop it? Connections stay IP packets for a minute"
            );
        }
        Err(|of| &mut of.diversion)
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
        match self.forget(flow) {
            Some(held) if !held.is_released => {
                self.note_passed(now, flow);
                self.remember(now, &held, flow.destination, reason);
                Answer::Refused(Box::new(held), reason)
            }
            _ => Answer::Wait,
        }
    }

    /// A client that the kernel has accepted, and its stream; `None`: none waits for it.
    pub(super) fn take_accepted(&mut self, flow: FlowAddresses) -> Option<HeldSyn> {
        let is_released = self.held.get(&flow)?.is_released;
        is_released.then(|| self.forget(flow))?
    }

    /// Gives up what waits for too long, and forgets what was remembered.
    pub(super) fn tick(&mut self, now: Instant, endpoint: &mut Endpoint) {
        let is_over = |held: &HeldSyn| {
            let longest = if held.is_released {
                ACCEPT_MAX
            } else {
                HOLD_MAX
            };
            now.saturating_duration_since(held.since) >= longest
        };
        self.forget_where(endpoint, is_over);
        self.passed.retain(|_, until| now < *until);
        self.refused.retain(|_, (until, _)| now < *until);
        self.unknown.retain(|_, until| now < *until);
        self.undiverted.retain(|_, until| now < *until);
    }

    /// Gives up packets; their clients send them again.
    pub(super) fn forget_where(
        &mut self,
        endpoint: &mut Endpoint,
        is_over: impl Fn(&HeldSyn) -> bool,
    ) {
        let over = self.held.iter().filter(|(_, held)| is_over(held));
        let over: Vec<FlowAddresses> = over.map(|(flow, _)| *flow).collect();
        for flow in over {
            if let Some(held) = self.forget(flow) {
                endpoint.reset_stream(held.peer, held.stream, ResetReason::Gateway);
            }
        }
    }

    fn remember(&mut self, now: Instant, held: &HeldSyn, server: SocketAddr, reason: ResetReason) {
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
        if self.refused.len() < REFUSED_MAX {
            let until = now + time;
            self.refused
                .insert((held.peer, server), (until, reason_of(reason)));
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
        if let Some(count) = self.of_tenant.get_mut(&held.tenant) {
            *count -= 1;
            if *count == 0 {
                self.of_tenant.remove(&held.tenant);
            }
        }
        Some(held)
    }

    pub(super) fn check_invariants(&self) {
        assert_eq!(self.held.len(), self.by_stream.len(), "a stream for each");
        let of_tenants: usize = self.of_tenant.values().sum();
        assert_eq!(self.held.len(), of_tenants, "a tenant for each");
        assert!(self.held.len() <= HELD_MAX, "packets that wait");
        assert!(
            self.passed.len() <= PASSED_MAX,
            "connections that are packets"
        );
        assert!(self.refused.len() <= REFUSED_MAX, "servers remembered");
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
mod tests {
    use super::*;

    /// A TCP packet of IPv4 with these flags and field of fragments, of a length that a first fragment may have.
    fn segment(flags: u8, fragment: u16) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 44, 0, 0];
        packet.extend(fragment.to_be_bytes());
        packet.extend([64, protocol::TCP, 0, 0, 10, 1, 0, 5, 10, 2, 0, 5]);
        let sum = keiro_ip::checksum::Sum::default().bytes(&packet).checksum();
        packet[10..12].copy_from_slice(&sum);
        packet.extend([0x9c, 0x41, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags]);
        packet.extend([0; 10]);
        packet
    }

    #[test]
    fn only_a_whole_packet_with_syn_alone_begins_a_connection() {
        let flow = |flags, fragment| {
            let packet = segment(flags, fragment);
            begun_by(&Header::parse(&packet).unwrap(), &packet)
        };
        let expected = FlowAddresses {
            source: "10.1.0.5:40001".parse().unwrap(),
            destination: "10.2.0.5:80".parse().unwrap(),
        };
        assert_eq!(flow(2, 0), Some(expected));
        // With both flags of ECN, as hosts begin that want it (RFC 3168 §6.1.1).
        assert_eq!(flow(2 | 0xc0, 0), Some(expected));
        for other in [16, 18, 4, 20, 17, 3, 0] {
            assert_eq!(flow(other, 0), None, "{other:#x}");
        }
        // More fragments follow.
        assert_eq!(flow(2, 0x2000), None);
    }
}
