//! Which TCP connections of a tenant are split.

use keiro_core::PeerId;
use keiro_ip::{
    Header,
    builtin_classes::Classification,
    icmp,
    offload::{Segments, VnetHeader},
};

use super::{
    super::{
        super::split::{CLIENT_PORT_MIN, FlowAddresses},
        held_syns::{Hold, NewConnection, Reason},
        next_hops::NextHop,
    },
    IngressContext, Location, Tenant,
};

/// Connections that are noted in one turn; the kernel repeats the error of others with their next packet.
const UNREACHABLE_MAX: usize = 64;

impl Tenant {
    /// Whether a packet is an ICMP error about a packet that this machine has sent for a split connection: this
    /// machine's own errors are routed to the client or server whose address the packet has.
    pub(super) fn is_error_of_split(
        with: &mut IngressContext<'_>,
        packet: &[u8],
        header: &Header,
    ) -> bool {
        let Some(quoted) = icmp::quoted_segment(packet, header) else {
            return false;
        };
        let answers = FlowAddresses {
            source: quoted.destination,
            destination: quoted.source,
        };
        let Some(number) = with.split_flows.get(&answers) else {
            return false;
        };
        if quoted.is_unreachable && with.unreachable.len() < UNREACHABLE_MAX {
            with.unreachable.push(*number);
        }
        true
    }

    /// Keeps the first packet of a connection that is to be split; another one is sent.
    pub(super) fn begin_connection(
        &mut self,
        with: &mut IngressContext<'_>,
        flow: FlowAddresses,
        header: &Header,
        hop: &NextHop,
        sorted: Classification,
        mut segments: Segments<'_>,
    ) {
        let mut packet = vec![0; segments.largest()];
        let Some(length) = segments.write_next(&mut packet) else {
            return;
        };
        packet.truncate(length);
        let new = NewConnection {
            tenant: self.setup.config.id,
            peer: hop.peer,
            flow,
            header,
            sorted,
            packet: &packet,
        };
        let held = match self.split_obstacle(&flow, header, hop, sorted) {
            Some(reason) => Err(Some(reason)),
            // As without: its client gets an ICMP error.
            None if !with.endpoint.is_up(hop.peer) => {
                return self.send_whole(with, hop.peer, header, sorted, &packet);
            }
            None => with.held_syns.hold(with.now, &new, with.endpoint),
        };
        match held {
            Ok(Hold::Wait) => {}
            Ok(Hold::WriteBack) => {
                with.device.write_one(&packet);
            }
            Err(reason) => {
                if let Some(reason) = reason {
                    *reason(&mut self.counts.not_split) += 1;
                }
                self.send_whole(with, hop.peer, header, sorted, &packet);
            }
        }
    }

    /// Why a connection is not to be split, as far as its first packet shows; `None`: it is.
    pub(in super::super) fn split_obstacle(
        &self,
        flow: &FlowAddresses,
        header: &Header,
        hop: &NextHop,
        sorted: Classification,
    ) -> Option<Reason> {
        let source = self.locations.longest_match(header.source);
        if hop.is_default || source != Some(&Location::Local) {
            return Some(|of| &mut of.internet);
        }
        let peer = self.peers.get(&hop.peer)?;
        // Its class does not count: all of the connection would have the class that the first packet shows.
        if peer.app_by_rule(header, sorted).unwrap_or(peer.app) != peer.app {
            return Some(|of| &mut of.rule);
        }
        // The peer has no privilege to connect from there.
        (flow.source.port() < CLIENT_PORT_MIN).then_some(|of| &mut of.client_port)
    }

    /// Sends a packet that is as it is to be sent.
    pub(in super::super) fn send_whole(
        &mut self,
        with: &mut IngressContext<'_>,
        to: PeerId,
        header: &Header,
        sorted: Classification,
        packet: &[u8],
    ) {
        if let Ok(segments) = Segments::new(VnetHeader::default(), packet) {
            self.send_segments(with, header, to, sorted, segments);
        }
    }

    /// Whether a connection that a peer asks for has addresses that its packets may have, and leads to a network here.
    pub(in super::super) fn admits_connection(&self, from: PeerId, flow: &FlowAddresses) -> bool {
        let source = self.locations.longest_match(flow.source.ip());
        let is_behind = match source {
            Some(Location::Peers {
                route,
                is_default: false,
            }) => self.routes[route.0].contains(&from),
            _ => false,
        };
        let destination = self.locations.longest_match(flow.destination.ip());
        is_behind && destination == Some(&Location::Local)
    }
}
