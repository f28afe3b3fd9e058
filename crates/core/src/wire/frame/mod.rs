//! Frames: what the encrypted part of a data packet is made of.

mod ack;
mod parity;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use thiserror::Error;

pub use self::{
    ack::{AckFrame, AckRanges},
    parity::ParityFrame,
};
use super::{
    DATAGRAM_LEN_MAX, MESSAGE_LEN_MAX, Reader, VARINT_MAX, put_varint,
    report::{COPIES_MAX, Feedback, TrainReport},
    varint_len,
};
use crate::{
    event::{RefusalReason, ResetReason},
    id::AppId,
};

const PADDING: u64 = 0x00;
const PING: u64 = 0x01;
const ACK: u64 = 0x02;
const PATH_CHALLENGE: u64 = 0x03;
const PATH_RESPONSE: u64 = 0x04;
const DATAGRAM: u64 = 0x05;
const FRAGMENT: u64 = 0x06;
const MESSAGE: u64 = 0x07;
const MESSAGE_DONE: u64 = 0x08;
const MESSAGE_DROP: u64 = 0x09;
const CREDIT: u64 = 0x0a;
const CLOSE: u64 = 0x0b;
const STREAM_OPEN: u64 = 0x0c;
const STREAM: u64 = 0x0d;
/// As [`STREAM`], and nothing follows.
const STREAM_FIN: u64 = 0x0e;
const STREAM_CREDIT: u64 = 0x0f;
const STREAM_RESET: u64 = 0x10;
const AGGREGATE: u64 = 0x11;
const PACKET: u64 = 0x12;
/// As [`PACKET`], and it waited long at the sender: to be marked.
const PACKET_MARKED: u64 = 0x13;
const STREAM_RETURN: u64 = 0x14;
/// Frame types from here on carry a length, so that a receiver can skip unknown ones.
const SKIPPABLE: u64 = 0x40;

/// A peer that does not know trains skips them.
const TRAIN: u64 = 0x40;
pub(super) const TRAIN_REPORT: u64 = 0x41;
pub(super) const FEEDBACK: u64 = 0x42;
/// A peer that does not know groups skips these, and reads what follows.
const PROTECTED: u64 = 0x43;
const PARITY: u64 = 0x44;
const UNKNOWN_TENANT: u64 = 0x45;

/// Most aggregates of a group.
const GROUP_MAX: u8 = 32;

/// One frame. Borrowed parts point into the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Nothing; fills a packet up to a size.
    Padding,
    /// Asks for an acknowledgement.
    Ping,
    /// What was received of one path.
    Ack(AckFrame<'a>),
    /// Asks for the same eight bytes from where this arrives.
    PathChallenge(u64),
    /// The answer to a challenge.
    PathResponse(u64),
    /// A whole datagram.
    Datagram {
        /// Its application.
        app: AppId,
        /// The client at the listener.
        flow: u32,
        /// From forward to listener.
        reply: bool,
        /// The datagram.
        data: &'a [u8],
    },
    /// A part of a datagram that does not fit into one packet; never retransmitted.
    Fragment {
        /// Counts fragmented datagrams of this sender.
        id: u64,
        /// Length of the whole datagram.
        total: usize,
        /// Where this part begins.
        offset: usize,
        /// Its application.
        app: AppId,
        /// The client at the listener.
        flow: u32,
        /// From forward to listener.
        reply: bool,
        /// The part.
        data: &'a [u8],
    },
    /// A part of a message.
    Message {
        /// Counts started messages of this sender.
        id: u64,
        /// Its application.
        app: AppId,
        /// Length of the whole message.
        total: usize,
        /// Where this part begins.
        offset: usize,
        /// The part.
        data: &'a [u8],
    },
    /// The receiver has a message whole and took or refused it.
    MessageDone {
        /// Which.
        id: u64,
        /// Taken or refused.
        status: MessageStatus,
        /// When it was whole, microseconds of the receiver's own epoch modulo 2^32.
        whole_at: u32,
    },
    /// The sender gave a message up.
    MessageDrop {
        /// Which.
        id: u64,
        /// Its length: returns its credit even if nothing of it arrived.
        total: usize,
    },
    /// The peer may have started this many bytes of messages in all.
    Credit(u64),
    /// The sender forgets the session.
    Close,
    /// The sender opens a stream.
    StreamOpen {
        /// Its number, shifted left by one.
        id: u64,
        /// Its application.
        app: AppId,
        /// Where to connect it; `None`: to the application's forward.
        target: Option<SocketAddr>,
    },
    /// Bytes of a stream.
    Stream {
        /// The number that its opener gave it, shifted left by one; the lowest bit is set by the
        /// side that did not open it. The same in all frames of streams.
        id: u64,
        /// Where they begin.
        offset: u64,
        /// The stream ends behind them.
        fin: bool,
        /// The bytes.
        data: &'a [u8],
    },
    /// The peer may send the bytes of a stream up to `granted`, less what it has given back.
    StreamCredit {
        /// Which stream.
        id: u64,
        /// Bytes from its beginning, and those that the peer has given back.
        granted: u64,
    },
    /// The sender gives credit of a stream back.
    StreamReturn {
        /// Which stream.
        id: u64,
        /// Bytes, in all since its beginning.
        returned: u64,
    },
    /// Both directions of a stream end at once.
    StreamReset {
        /// Which stream.
        id: u64,
        /// Why.
        reason: ResetReason,
    },
    /// This packet is one of a train, sent back to back.
    Train {
        /// Counts trains of this path of the sender.
        id: u64,
        /// Its place, from 0.
        index: u8,
        /// How many packets the train has.
        count: u8,
    },
    /// When the packets of a train arrived.
    TrainReport(TrainReport<'a>),
    /// This packet is a copy of an aggregate: what follows is the same in all of them.
    Aggregate {
        /// The path that numbers it; copies may take others.
        path: u8,
        /// Counts the aggregates of that path.
        number: u64,
        /// Its place among the copies, from 0.
        index: u8,
        /// How many copies there are.
        count: u8,
    },
    /// An IP packet of a tenant.
    Packet {
        /// Whose it is.
        tenant: u32,
        /// It is to be delivered with a congestion mark.
        marked: bool,
        /// The packet, IP header first.
        data: &'a [u8],
    },
    /// What came of the aggregates of a path.
    Feedback(Feedback),
    /// This packet is an aggregate of a group, sent once.
    Protected {
        /// The path that numbers it.
        path: u8,
        /// Counts the aggregates of that path.
        number: u64,
        /// Its place in its group, from 0.
        place: u8,
    },
    /// What gives back a lost aggregate of a group.
    Parity(ParityFrame<'a>),
    /// The receiver of a tenant's packets does not know it.
    UnknownTenant {
        /// Which.
        tenant: u32,
        /// Its packets that were dropped for that since the session began.
        packets: u64,
    },
    /// A frame that this version does not know and may skip.
    Unknown(u64),
}

/// What became of a message at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    /// It was taken over.
    Delivered,
    /// It was not.
    Refused(RefusalReason),
}

/// The frames of an authentic packet cannot be parsed: the peer is broken or another version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// A frame ends after the packet does.
    #[error("frame is cut off")]
    Truncated,
    /// A type below the range that may be skipped.
    #[error("unknown frame type")]
    UnknownType,
    /// A field has a value that it cannot have.
    #[error("field out of range")]
    Range,
}

impl<'a> Frame<'a> {
    /// A packet with it asks for an acknowledgement. Padding, acknowledgements and CLOSE do not
    /// (RFC 9002 §2), nor do frames that are repeated or reported by other means.
    pub(crate) fn ack_eliciting(&self) -> bool {
        !matches!(
            self,
            Self::Padding
                | Self::Ack(_)
                | Self::PathChallenge(_)
                | Self::PathResponse(_)
                | Self::Train { .. }
                | Self::TrainReport(_)
                | Self::Feedback(_)
                | Self::UnknownTenant { .. }
                | Self::Close
        )
    }

    /// The next frame, or `None` at the end of the packet.
    pub fn decode(reader: &mut Reader<'a>) -> Result<Option<Self>, FrameError> {
        if reader.is_empty() {
            return Ok(None);
        }
        let kind = reader.varint().ok_or(FrameError::Truncated)?;
        let frame = match kind {
            PADDING => Some(Self::Padding),
            PING => Some(Self::Ping),
            ACK => return ack::decode(reader).map(Some),
            PATH_CHALLENGE => reader.u64().map(Self::PathChallenge),
            PATH_RESPONSE => reader.u64().map(Self::PathResponse),
            DATAGRAM => decode_datagram(reader),
            FRAGMENT => return decode_fragment(reader).map(Some),
            MESSAGE => return decode_message(reader).map(Some),
            MESSAGE_DONE => decode_done(reader),
            MESSAGE_DROP => decode_drop(reader),
            CREDIT => reader.varint().map(Self::Credit),
            CLOSE => Some(Self::Close),
            STREAM_OPEN => return decode_stream_open(reader).map(Some),
            STREAM | STREAM_FIN => return decode_stream(kind, reader).map(Some),
            STREAM_CREDIT => decode_stream_credit(reader),
            STREAM_RESET => decode_stream_reset(reader),
            STREAM_RETURN => decode_stream_return(reader),
            AGGREGATE => return decode_aggregate(reader).map(Some),
            PACKET | PACKET_MARKED => return decode_packet(kind, reader).map(Some),
            TRAIN | TRAIN_REPORT | FEEDBACK | PROTECTED | PARITY | UNKNOWN_TENANT => {
                return decode_sized(kind, reader).map(Some);
            }
            SKIPPABLE.. => {
                let len = reader.length(usize::MAX).ok_or(FrameError::Truncated)?;
                reader.bytes(len).map(|_| Self::Unknown(kind))
            }
            _ => return Err(FrameError::UnknownType),
        };
        frame.ok_or(FrameError::Truncated).map(Some)
    }

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
            Self::Datagram {
                app,
                flow,
                reply,
                data,
            } => {
                put_varint(buf, DATAGRAM);
                buf.extend_from_slice(&app.0.to_be_bytes());
                put_flow(buf, flow, reply);
                put_varint(buf, data.len() as u64);
                buf.extend_from_slice(data);
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
                buf.extend_from_slice(&app.0.to_be_bytes());
                put_flow(buf, flow, reply);
                put_varint(buf, data.len() as u64);
                buf.extend_from_slice(data);
            }
            Self::Message {
                id,
                app,
                total,
                offset,
                data,
            } => {
                put_varint(buf, MESSAGE);
                put_varint(buf, id);
                buf.extend_from_slice(&app.0.to_be_bytes());
                put_varint(buf, total as u64);
                put_varint(buf, offset as u64);
                put_varint(buf, data.len() as u64);
                buf.extend_from_slice(data);
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
            Self::Credit(bytes) => {
                put_varint(buf, CREDIT);
                put_varint(buf, bytes);
            }
            Self::Close => put_varint(buf, CLOSE),
            Self::StreamOpen { id, app, target } => {
                put_varint(buf, STREAM_OPEN);
                put_varint(buf, id);
                buf.extend_from_slice(&app.0.to_be_bytes());
                put_target(buf, target);
            }
            Self::Stream {
                id,
                offset,
                fin,
                data,
            } => Self::encode_stream(buf, (id, offset, fin), data, &[]),
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
            Self::Train { id, index, count } => {
                put_varint(buf, TRAIN);
                put_varint(buf, varint_len(id) as u64 + 2);
                put_varint(buf, id);
                buf.extend_from_slice(&[index, count]);
            }
            Self::TrainReport(report) => {
                TrainReport::encode(buf, report.path, report.train, report.arrivals());
            }
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
            Self::Packet {
                tenant,
                marked,
                data,
            } => {
                put_varint(buf, if marked { PACKET_MARKED } else { PACKET });
                put_varint(buf, u64::from(tenant));
                put_varint(buf, data.len() as u64);
                buf.extend_from_slice(data);
            }
            Self::Feedback(feedback) => feedback.encode(buf),
            Self::UnknownTenant { tenant, packets } => {
                let (tenant, packets) = (u64::from(tenant), packets.min(VARINT_MAX));
                put_varint(buf, UNKNOWN_TENANT);
                put_varint(buf, (varint_len(tenant) + varint_len(packets)) as u64);
                put_varint(buf, tenant);
                put_varint(buf, packets);
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
            Self::Parity(parity) => parity.encode(buf),
            Self::Unknown(kind) => {
                put_varint(buf, kind);
                put_varint(buf, 0);
            }
        }
    }
}

impl Frame<'_> {
    /// Most bytes of a `Protected`.
    pub const PROTECTED_LEN_MAX: usize = 2 + 1 + 1 + 8 + 1;

    /// Most bytes of an `UnknownTenant`.
    pub const UNKNOWN_TENANT_LEN_MAX: usize = 2 + 1 + 8 + 8;

    /// Bytes of a `Packet` beside its data, of at most `len` bytes.
    pub const fn packet_head_len(tenant: u32, len: usize) -> usize {
        1 + varint_len(tenant as u64) + varint_len(len as u64)
    }

    /// Most bytes of a `StreamOpen`: with an IPv6 target.
    pub const STREAM_OPEN_LEN_MAX: usize = 1 + 8 + 4 + 1 + 16 + 2;

    /// Appends a `Stream` frame whose bytes lie in two pieces: (id, offset, fin), then the bytes.
    pub fn encode_stream(
        buf: &mut Vec<u8>,
        (id, offset, fin): (u64, u64, bool),
        first: &[u8],
        second: &[u8],
    ) {
        put_varint(buf, if fin { STREAM_FIN } else { STREAM });
        put_varint(buf, id);
        put_varint(buf, offset);
        put_varint(buf, (first.len() + second.len()) as u64);
        buf.extend_from_slice(first);
        buf.extend_from_slice(second);
    }
}

impl ResetReason {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Application => 0,
            Self::Refused => 1,
            Self::Unreachable => 2,
            Self::TooMany => 3,
            Self::UnknownApplication => 4,
            Self::Forbidden => 5,
            Self::Gateway => 6,
            Self::Protocol => 7,
            Self::Other => 255,
        }
    }

    const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Application,
            1 => Self::Refused,
            2 => Self::Unreachable,
            3 => Self::TooMany,
            4 => Self::UnknownApplication,
            5 => Self::Forbidden,
            6 => Self::Gateway,
            7 => Self::Protocol,
            _ => Self::Other,
        }
    }
}

impl MessageStatus {
    const fn to_byte(self) -> u8 {
        match self {
            Self::Delivered => 0,
            Self::Refused(RefusalReason::UnknownApplication) => 1,
            Self::Refused(RefusalReason::NoReceiver) => 2,
            Self::Refused(RefusalReason::ReceiverFull) => 3,
            Self::Refused(RefusalReason::Other) => 255,
        }
    }

    const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Delivered,
            1 => Self::Refused(RefusalReason::UnknownApplication),
            2 => Self::Refused(RefusalReason::NoReceiver),
            3 => Self::Refused(RefusalReason::ReceiverFull),
            _ => Self::Refused(RefusalReason::Other),
        }
    }
}

fn put_token(buf: &mut Vec<u8>, kind: u64, token: u64) {
    put_varint(buf, kind);
    buf.extend_from_slice(&token.to_be_bytes());
}

/// Flow number and direction share one integer: the lowest bit says that it is a reply.
fn put_flow(buf: &mut Vec<u8>, flow: u32, reply: bool) {
    put_varint(buf, u64::from(flow) << 1 | u64::from(reply));
}

fn read_flow(reader: &mut Reader<'_>) -> Option<(u32, bool)> {
    let value = reader.varint()?;
    Some((u32::try_from(value >> 1).ok()?, value & 1 == 1))
}

fn decode_datagram<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let app = AppId(reader.u32()?);
    let (flow, reply) = read_flow(reader)?;
    let len = reader.length(DATAGRAM_LEN_MAX)?;
    let data = reader.bytes(len)?;
    Some(Frame::Datagram {
        app,
        flow,
        reply,
        data,
    })
}

fn decode_fragment<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let mut fields = || {
        let id = reader.varint()?;
        let total = reader.varint()?;
        let offset = reader.varint()?;
        let app = AppId(reader.u32()?);
        let (flow, reply) = read_flow(reader)?;
        let len = reader.length(DATAGRAM_LEN_MAX)?;
        Some((id, total, offset, app, flow, reply, reader.bytes(len)?))
    };
    let (id, total, offset, app, flow, reply, data) = fields().ok_or(FrameError::Truncated)?;
    let (total, offset) = part_of(total, offset, data.len(), DATAGRAM_LEN_MAX)?;
    Ok(Frame::Fragment {
        id,
        total,
        offset,
        app,
        flow,
        reply,
        data,
    })
}

fn decode_message<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let mut fields = || {
        let id = reader.varint()?;
        let app = AppId(reader.u32()?);
        let total = reader.varint()?;
        let offset = reader.varint()?;
        let len = reader.length(MESSAGE_LEN_MAX)?;
        Some((id, app, total, offset, reader.bytes(len)?))
    };
    let (id, app, total, offset, data) = fields().ok_or(FrameError::Truncated)?;
    let (total, offset) = part_of(total, offset, data.len(), MESSAGE_LEN_MAX)?;
    Ok(Frame::Message {
        id,
        app,
        total,
        offset,
        data,
    })
}

/// A part must be non-empty and lie inside a whole of at most `max` bytes.
fn part_of(total: u64, offset: u64, len: usize, max: usize) -> Result<(usize, usize), FrameError> {
    let end = offset.checked_add(len as u64).ok_or(FrameError::Range)?;
    if len == 0 || end > total || total > max as u64 {
        return Err(FrameError::Range);
    }
    Ok((total as usize, offset as usize))
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

fn decode_stream_open<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let head = |reader: &mut Reader<'a>| Some((reader.varint()?, reader.u32()?, reader.u8()?));
    let (id, app, kind) = head(reader).ok_or(FrameError::Truncated)?;
    let port = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
    let target = match kind {
        0 => None,
        4 => {
            let bytes = reader.bytes(6).ok_or(FrameError::Truncated)?;
            let ip = <[u8; 4]>::try_from(&bytes[..4]).map_err(|_| FrameError::Truncated)?;
            Some(SocketAddr::from((ip, port(&bytes[4..]))))
        }
        6 => {
            let bytes = reader.bytes(18).ok_or(FrameError::Truncated)?;
            let ip = <[u8; 16]>::try_from(&bytes[..16]).map_err(|_| FrameError::Truncated)?;
            // The kernel reaches an IPv4 address so, too, and who decides what may be reached must see it.
            let ip = Ipv6Addr::from(ip).to_canonical();
            Some(SocketAddr::new(ip, port(&bytes[16..])))
        }
        _ => return Err(FrameError::Range),
    };
    if id & 1 == 1 {
        return Err(FrameError::Range);
    }
    let app = AppId(app);
    Ok(Frame::StreamOpen { id, app, target })
}

fn decode_stream<'a>(kind: u64, reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let mut fields = || {
        let id = reader.varint()?;
        let offset = reader.varint()?;
        let len = reader.length(DATAGRAM_LEN_MAX)?;
        Some((id, offset, reader.bytes(len)?))
    };
    let (id, offset, data) = fields().ok_or(FrameError::Truncated)?;
    let fin = kind == STREAM_FIN;
    let ends_beyond = offset + data.len() as u64 > VARINT_MAX;
    if ends_beyond || data.is_empty() && !fin {
        return Err(FrameError::Range);
    }
    Ok(Frame::Stream {
        id,
        offset,
        fin,
        data,
    })
}

fn decode_aggregate<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let mut fields = || Some((reader.u8()?, reader.varint()?, reader.u8()?, reader.u8()?));
    let (path, number, count, index) = fields().ok_or(FrameError::Truncated)?;
    if index >= count || usize::from(count) > COPIES_MAX {
        return Err(FrameError::Range);
    }
    Ok(Frame::Aggregate {
        path,
        number,
        index,
        count,
    })
}

fn decode_packet<'a>(kind: u64, reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let tenant = reader.varint().ok_or(FrameError::Truncated)?;
    let tenant = u32::try_from(tenant).map_err(|_| FrameError::Range)?;
    let len = reader
        .length(DATAGRAM_LEN_MAX)
        .ok_or(FrameError::Truncated)?;
    let data = reader.bytes(len).ok_or(FrameError::Truncated)?;
    Ok(Frame::Packet {
        tenant,
        marked: kind == PACKET_MARKED,
        data,
    })
}

fn decode_stream_credit<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let granted = reader.varint()?;
    Some(Frame::StreamCredit { id, granted })
}

fn decode_stream_return<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let returned = reader.varint()?;
    Some(Frame::StreamReturn { id, returned })
}

fn decode_stream_reset<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let reason = ResetReason::from_byte(reader.u8()?);
    Some(Frame::StreamReset { id, reason })
}

/// Frames with a length; what follows the known fields is a later version's.
fn decode_sized<'a>(kind: u64, reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let len = reader.length(usize::MAX).ok_or(FrameError::Truncated)?;
    let body = reader.bytes(len).ok_or(FrameError::Truncated)?;
    let mut reader = Reader::new(body);
    match kind {
        TRAIN => decode_train(&mut reader),
        TRAIN_REPORT => TrainReport::decode(&mut reader).map(Frame::TrainReport),
        PROTECTED => decode_protected(&mut reader),
        PARITY => parity::decode(&mut reader).map(Frame::Parity),
        UNKNOWN_TENANT => decode_unknown_tenant(&mut reader),
        _ => Feedback::decode(&mut reader).map(Frame::Feedback),
    }
}

fn decode_protected<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let mut fields = || Some((reader.u8()?, reader.varint()?, reader.u8()?));
    let (path, number, place) = fields().ok_or(FrameError::Truncated)?;
    if place >= GROUP_MAX || u64::from(place) > number {
        return Err(FrameError::Range);
    }
    Ok(Frame::Protected {
        path,
        number,
        place,
    })
}

fn decode_unknown_tenant<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let mut fields = || Some((reader.varint()?, reader.varint()?));
    let (tenant, packets) = fields().ok_or(FrameError::Truncated)?;
    let tenant = u32::try_from(tenant).map_err(|_| FrameError::Range)?;
    Ok(Frame::UnknownTenant { tenant, packets })
}

fn decode_train<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let mut fields = || Some((reader.varint()?, reader.u8()?, reader.u8()?));
    let (id, index, count) = fields().ok_or(FrameError::Truncated)?;
    if index >= count {
        return Err(FrameError::Range);
    }
    Ok(Frame::Train { id, index, count })
}

fn decode_done<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let status = MessageStatus::from_byte(reader.u8()?);
    let whole_at = reader.u32()?;
    Some(Frame::MessageDone {
        id,
        status,
        whole_at,
    })
}

fn decode_drop<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let total = reader.length(MESSAGE_LEN_MAX)?;
    Some(Frame::MessageDrop { id, total })
}
