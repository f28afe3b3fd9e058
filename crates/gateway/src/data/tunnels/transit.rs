//! Packets from one peer of a tenant to another, passed on inside the gateway: sites of a network reach each other
//! through their hub.
//!
//! What a packet may do is decided where it arrives, in [`Tenant::filter_from_peer`]. Here it waits until the core
//! has given out all that came with it, and then leaves as one from the device would: a hop less, within the size
//! that the next path has room for, with the ECN field that the way so far has given it.

use std::{net::IpAddr, ops::Range};

use keiro_core::{Endpoint, Instant, IpPacket, PeerId, TenantId};
use keiro_ip::{
    Header,
    builtin_classes::Classification,
    ecn,
    flow::{FlowKey, FlowSeed},
    fragment,
    icmp::{self, REPLY_BYTES_MAX, Reason, ReplyFrom},
    mss, ttl,
};

use super::{
    next_hops::NextHops,
    tenant::{Tenant, TransitPacket, TransitTarget},
};

/// Packets that wait for the core.
#[derive(Default)]
pub(super) struct TransitQueue {
    bytes: Vec<u8>,
    packets: Vec<(TenantId, TransitPacket, Range<usize>)>,
}

/// Bytes that wait; then they are passed on before more are taken. Ours: what one turn receives is about a quarter.
const BYTES_MAX: usize = 1 << 20;

impl TransitQueue {
    pub(super) fn push(&mut self, tenant: TenantId, transit_packet: TransitPacket, packet: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        let range = start..self.bytes.len();
        self.packets.push((tenant, transit_packet, range));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= BYTES_MAX
    }

    /// In the order in which they came; none are left.
    pub(super) fn drain(&mut self, mut send: impl FnMut(TenantId, TransitPacket, &[u8])) {
        for (tenant, transit_packet, range) in self.packets.drain(..) {
            send(tenant, transit_packet, &self.bytes[range]);
        }
        self.bytes.clear();
    }

    pub(super) fn check_invariants(&self) {
        let waiting: usize = self.packets.iter().map(|(.., range)| range.len()).sum();
        assert_eq!(waiting, self.bytes.len(), "each byte is of one packet");
    }
}

/// What a packet that passes is handled with.
pub(super) struct TransitContext<'a> {
    pub(super) now: Instant,
    pub(super) seed: &'a FlowSeed,
    pub(super) next_hops: &'a NextHops,
    pub(super) endpoint: &'a mut Endpoint,
}

impl Tenant {
    /// Sends a packet of one peer on to another.
    pub(super) fn send_transit(
        &mut self,
        with: &mut TransitContext<'_>,
        transit_packet: &TransitPacket,
        packet: &[u8],
    ) {
        let TransitPacket { from, header, .. } = transit_packet;
        let id = self.setup.config.id;
        if let TransitTarget::Refused(why) = transit_packet.to {
            match why {
                Reason::NoRoute => self.counts.drops.exit_no_route += 1,
                _ => self.counts.drops.exit_refused += 1,
            }
            return self.answer_peer(with, *from, packet, header, why);
        }
        let Some(hop) = self.next_hop_of(with.now, with.next_hops, transit_packet) else {
            return;
        };
        let to = hop.peer;
        let Some(peer) = self.peers.get(&to) else {
            return;
        };
        let app = peer.app_of(header, transit_packet.sorted);
        let mut data = with.endpoint.spare_buffer(packet.len());
        data.copy_from_slice(packet);
        ecn::set_ecn(&mut data, header.version(), transit_packet.ecn);
        if ttl::decrement(&mut data, header.version()).is_err() {
            self.counts.drops.hop_limit += 1;
            return self.answer_peer(with, *from, packet, header, Reason::HopLimitExceeded);
        }
        let Some(room) = with.endpoint.packet_room(to, id, app) else {
            self.counts.drops.no_path += 1;
            if !with.endpoint.is_up(to) {
                self.answer_peer(with, *from, packet, header, Reason::HostUnreachable);
            }
            return;
        };
        let room = u16::try_from(room).unwrap_or(u16::MAX);
        // Both ends of a connection send segments that fit both ways.
        let back = self.peers.get(from).map(|peer| peer.max_inner_packet);
        mss::clamp(&mut data, header, room.min(back.unwrap_or(room)));
        // Longer ones than one datagram has room for leave in parts.
        let longest = with.endpoint.packet_max(to, id, app).unwrap_or(0);
        let flow_hash = with.seed.number(&FlowKey::of(header)) as u32;
        let ecn = transit_packet.ecn as u8;
        let needs_order = header.needs_order();
        let stats = &mut self.counts.stats;
        let mut send = |data: Vec<u8>| {
            let packet = IpPacket {
                flow_hash,
                ecn,
                needs_order,
                data,
            };
            // Refusals are counted in the core, or the peer is being removed.
            let _ = with.endpoint.send_packet(with.now, to, id, app, packet);
        };
        let length = data.len();
        let is_sent = match length <= longest {
            true => {
                send(data);
                true
            }
            false => fragment::fragment(&data, header, room, |part| send(part.to_vec())).is_ok(),
        };
        if is_sent {
            stats.backup_packets += u64::from(hop.is_backup);
            stats.transit_packets += 1;
            stats.transit_bytes += length as u64;
        } else {
            self.counts.drops.too_big += 1;
            self.answer_peer(with, *from, packet, header, Reason::TooBig { mtu: room });
        }
    }

    /// Sends an ICMP error about a packet to the peer that it came from. Its source is the address that the packet
    /// was sent to, which that peer accepts from here.
    fn answer_peer(
        &mut self,
        with: &mut TransitContext<'_>,
        to: PeerId,
        packet: &[u8],
        header: &Header,
        reason: Reason,
    ) {
        let from = match header.destination {
            IpAddr::V4(v4) => ReplyFrom {
                v4: Some(v4),
                v6: None,
            },
            IpAddr::V6(v6) => ReplyFrom {
                v4: None,
                v6: Some(v6),
            },
        };
        let mut out = [0; REPLY_BYTES_MAX];
        let Ok(reply) = icmp::reply(packet, header, reason, from, &mut out) else {
            return;
        };
        let (Ok(header), Some(peer)) = (Header::parse(reply), self.peers.get_mut(&to)) else {
            return;
        };
        if !peer.answers.of(reason).take(with.now) {
            self.counts.stats.suppressed_icmp_error_packets += 1;
            return;
        }
        let app = peer.app_of(&header, Classification::default());
        let packet = IpPacket {
            flow_hash: with.seed.number(&FlowKey::of(&header)) as u32,
            ecn: header.traffic_class & 3,
            needs_order: false,
            data: reply.to_vec(),
        };
        let id = self.setup.config.id;
        if with
            .endpoint
            .send_packet(with.now, to, id, app, packet)
            .is_ok()
        {
            self.counts.stats.icmp_error_packets += 1;
        }
    }
}
