//! Writes frames.

use std::net::IpAddr;

use super::*;
use crate::{
    tenant::PacketAddress,
    wire::{VARINT_MAX, put_varint},
};

impl Frame<'_> {
    /// Appends the frame. `Padding` is one byte; `Unknown` is an empty frame of that type.
    pub fn encode(&self, buf: &mut Vec<u8>) {
        match *self {
            Self::Padding => put_varint(buf, PADDING),
            Self::Ping => put_varint(buf, PING),
            Self::Ack(ack) => {
                ack.encode_head(buf);
                buf.extend_from_slice(ack.ranges.encoded);
            }
            Self::PathChallenge(token) => put_token(buf, PATH_CHALLENGE, token),
            Self::PathResponse(token) => put_token(buf, PATH_RESPONSE, token),
            Self::Datagram { .. }
            | Self::Fragment { .. }
            | Self::Packet { .. }
            | Self::OrderedPacket { .. }
            | Self::PacketPart { .. } => {
                self.encode_datagram(buf);
            }
            Self::Message { .. } | Self::MessageDone { .. } | Self::MessageDrop { .. } => {
                self.encode_message(buf);
            }
            Self::Credit(bytes) => {
                put_varint(buf, CREDIT);
                put_varint(buf, bytes);
            }
            Self::Close => put_varint(buf, CLOSE),
            Self::StreamOpen { .. }
            | Self::Stream { .. }
            | Self::StreamCredit { .. }
            | Self::StreamReturn { .. }
            | Self::StreamReset { .. } => self.encode_of_stream(buf),
            Self::Aggregate { .. } | Self::Protected { .. } => self.encode_aggregate_head(buf),
            Self::Parity(parity) => parity.encode(buf),
            Self::Feedback(feedback) => feedback.encode(buf),
            Self::Train { id, index, count } => {
                put_varint(buf, TRAIN);
                put_varint(buf, varint_len(id) as u64 + 2);
                put_varint(buf, id);
                buf.extend_from_slice(&[index, count]);
            }
            Self::TrainReport(report) => {
                TrainReport::encode(buf, report.path, report.train, report.arrivals());
            }
            Self::UnknownTenant { tenant, packets } => {
                let (tenant, packets) = (u64::from(tenant), packets.min(VARINT_MAX));
                put_varint(buf, UNKNOWN_TENANT);
                put_varint(buf, (varint_len(tenant) + varint_len(packets)) as u64);
                put_varint(buf, tenant);
                put_varint(buf, packets);
            }
            Self::Refusal(cause) => {
                put_varint(buf, REFUSAL);
                put_varint(buf, 1);
                buf.push(cause.to_byte());
            }
            Self::PrefixMismatch(mismatch) => encode_prefix_mismatch(buf, mismatch),
            Self::ProbeLimit(limit) => {
                let limit = limit.map_or(VARINT_MAX, |limit| limit.min(VARINT_MAX - 1));
                put_skippable_varint(buf, PROBE_LIMIT, limit);
            }
            Self::TenantLimited(tenant) => {
                put_skippable_varint(buf, TENANT_LIMITED, tenant.into());
            }
            Self::TenantUnit(unit) => {
                put_skippable_varint(buf, TENANT_UNIT, unit.min(VARINT_MAX));
            }
            Self::PathTerms(terms) => {
                let backup = u64::from(terms.role == PathRole::Backup) * TERMS_BACKUP;
                let flags = backup + u64::from(terms.is_spent) * TERMS_SPENT;
                let cost = terms.cost.as_micros();
                put_varint(buf, PATH_TERMS);
                put_varint(buf, (varint_len(flags) + varint_len(cost)) as u64);
                put_varint(buf, flags);
                put_varint(buf, cost);
            }
            Self::StrangerDrops { path, packets } => {
                let packets = packets.min(VARINT_MAX);
                put_varint(buf, STRANGER_DROPS);
                put_varint(buf, 1 + varint_len(packets) as u64);
                buf.push(path);
                put_varint(buf, packets);
            }
            Self::Unknown(kind) => {
                put_varint(buf, kind);
                put_varint(buf, 0);
            }
        }
    }

    fn encode_datagram(&self, buf: &mut Vec<u8>) {
        match *self {
            Self::Datagram {
                app,
                flow,
                reply,
                data,
            } => {
                put_varint(buf, DATAGRAM);
                put_app(buf, app);
                put_flow(buf, flow, reply);
                put_data(buf, data);
            }
            Self::Fragment {
                id,
                total,
                offset,
                app,
                flow,
                reply,
                data,
            } => {
                put_varint(buf, FRAGMENT);
                put_varint(buf, id);
                put_varint(buf, total as u64);
                put_varint(buf, offset as u64);
                put_app(buf, app);
                put_flow(buf, flow, reply);
                put_data(buf, data);
            }
            Self::Packet {
                tenant,
                marked,
                data,
            } => {
                put_varint(buf, if marked { PACKET_MARKED } else { PACKET });
                put_varint(buf, u64::from(tenant));
                put_data(buf, data);
            }
            Self::OrderedPacket {
                tenant,
                order,
                marked,
                data,
            } => {
                let kind = match marked {
                    true => ORDERED_PACKET_MARKED,
                    false => ORDERED_PACKET,
                };
                put_varint(buf, kind);
                put_varint(buf, u64::from(tenant));
                put_varint(buf, u64::from(order.flow));
                put_varint(buf, u64::from(order.number));
                put_varint(buf, u64::from(order.hold_ms));
                put_varint(buf, u64::from(order.paths));
                put_data(buf, data);
            }
            Self::PacketPart {
                tenant,
                number,
                count,
                index,
                marked,
                data,
            } => {
                let tenant = u64::from(tenant);
                let head = varint_len(tenant) + varint_len(number) + 3;
                put_varint(buf, PACKET_PART);
                put_varint(buf, (head + data.len()) as u64);
                put_varint(buf, tenant);
                put_varint(buf, number);
                buf.extend_from_slice(&[count, index, u8::from(marked)]);
                buf.extend_from_slice(data);
            }
            _ => unreachable!("a frame with a datagram"),
        }
    }

    fn encode_message(&self, buf: &mut Vec<u8>) {
        match *self {
            Self::Message {
                id,
                app,
                total,
                offset,
                data,
            } => {
                put_varint(buf, MESSAGE);
                put_varint(buf, id);
                put_app(buf, app);
                put_varint(buf, total as u64);
                put_varint(buf, offset as u64);
                put_data(buf, data);
            }
            Self::MessageDone {
                id,
                status,
                whole_at,
            } => {
                put_varint(buf, MESSAGE_DONE);
                put_varint(buf, id);
                buf.push(status.to_byte());
                buf.extend_from_slice(&whole_at.to_be_bytes());
            }
            Self::MessageDrop { id, total } => {
                put_varint(buf, MESSAGE_DROP);
                put_varint(buf, id);
                put_varint(buf, total as u64);
            }
            _ => unreachable!("a frame of a message"),
        }
    }

    fn encode_of_stream(&self, buf: &mut Vec<u8>) {
        match *self {
            Self::StreamOpen { id, app, target } => {
                put_varint(buf, STREAM_OPEN);
                put_varint(buf, id);
                put_app(buf, app);
                put_target(buf, target);
            }
            Self::Stream {
                id,
                offset,
                fin,
                data,
            } => Self::encode_stream(buf, StreamHead { id, offset, fin }, data, &[]),
            Self::StreamCredit { id, granted } => {
                put_varint(buf, STREAM_CREDIT);
                put_varint(buf, id);
                put_varint(buf, granted);
            }
            Self::StreamReturn { id, returned } => {
                put_varint(buf, STREAM_RETURN);
                put_varint(buf, id);
                put_varint(buf, returned);
            }
            Self::StreamReset { id, reason } => {
                put_varint(buf, STREAM_RESET);
                put_varint(buf, id);
                buf.push(reason.to_byte());
            }
            _ => unreachable!("a frame of a stream"),
        }
    }

    fn encode_aggregate_head(&self, buf: &mut Vec<u8>) {
        match *self {
            Self::Aggregate {
                path,
                number,
                index,
                count,
            } => {
                put_varint(buf, AGGREGATE);
                buf.push(path);
                put_varint(buf, number);
                // The last two, so that a copy differs from the next in a byte that is easily found.
                buf.extend_from_slice(&[count, index]);
            }
            Self::Protected {
                path,
                number,
                place,
            } => {
                put_varint(buf, PROTECTED);
                put_varint(buf, varint_len(number) as u64 + 2);
                buf.push(path);
                put_varint(buf, number);
                buf.push(place);
            }
            _ => unreachable!("the head of an aggregate"),
        }
    }

    /// Appends a `Stream` frame whose bytes lie in two pieces.
    pub fn encode_stream(buf: &mut Vec<u8>, head: StreamHead, first: &[u8], second: &[u8]) {
        put_varint(buf, if head.fin { STREAM_FIN } else { STREAM });
        put_varint(buf, head.id);
        put_varint(buf, head.offset);
        put_varint(buf, (first.len() + second.len()) as u64);
        buf.extend_from_slice(first);
        buf.extend_from_slice(second);
    }
}

fn put_app(buf: &mut Vec<u8>, app: AppId) {
    buf.extend_from_slice(&app.0.to_be_bytes());
}

fn put_data(buf: &mut Vec<u8>, data: &[u8]) {
    put_varint(buf, data.len() as u64);
    buf.extend_from_slice(data);
}

fn put_token(buf: &mut Vec<u8>, kind: u64, token: u64) {
    put_varint(buf, kind);
    buf.extend_from_slice(&token.to_be_bytes());
}

/// Flow number and direction share one integer: the lowest bit says that it is a reply.
fn put_flow(buf: &mut Vec<u8>, flow: u32, reply: bool) {
    put_varint(buf, u64::from(flow) << 1 | u64::from(reply));
}

fn put_target(buf: &mut Vec<u8>, target: Option<SocketAddr>) {
    match target.map(|target| (target.ip(), target.port())) {
        None => buf.push(0),
        Some((IpAddr::V4(ip), port)) => {
            buf.push(4);
            buf.extend_from_slice(&ip.octets());
            buf.extend_from_slice(&port.to_be_bytes());
        }
        Some((IpAddr::V6(ip), port)) => {
            buf.push(6);
            buf.extend_from_slice(&ip.octets());
            buf.extend_from_slice(&port.to_be_bytes());
        }
    }
}

/// A frame of a number and nothing else.
fn put_skippable_varint(buf: &mut Vec<u8>, kind: u64, value: u64) {
    put_varint(buf, kind);
    put_varint(buf, varint_len(value) as u64);
    put_varint(buf, value);
}

fn encode_prefix_mismatch(buf: &mut Vec<u8>, mismatch: PrefixMismatch) {
    let tenant = u64::from(mismatch.tenant.0);
    let packets = mismatch.packets.min(VARINT_MAX);
    let (field, address) = match mismatch.address {
        PacketAddress::Source(address) => (0, address),
        PacketAddress::Destination(address) => (1, address),
    };
    let address_len = match address {
        IpAddr::V4(_) => 4,
        IpAddr::V6(_) => 16,
    };
    let len = varint_len(tenant) + varint_len(packets) + 2 + address_len;
    put_varint(buf, PREFIX_MISMATCH);
    put_varint(buf, len as u64);
    put_varint(buf, tenant);
    put_varint(buf, packets);
    buf.push(field);
    match address {
        IpAddr::V4(v4) => {
            buf.push(4);
            buf.extend_from_slice(&v4.octets());
        }
        IpAddr::V6(v6) => {
            buf.push(6);
            buf.extend_from_slice(&v6.octets());
        }
    }
}
