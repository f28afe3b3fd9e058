//! Frames: what the encrypted part of a data packet is made of.

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

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
/// Frame types from here on carry a length and are skipped by whoever does not know them.
const SKIPPABLE: u64 = 0x40;

/// A peer that does not know trains skips them.
const TRAIN: u64 = 0x40;
pub(super) const TRAIN_REPORT: u64 = 0x41;
pub(super) const FEEDBACK: u64 = 0x42;
/// A peer that does not know groups skips these, and reads what follows.
const PROTECTED: u64 = 0x43;
const PARITY: u64 = 0x44;

/// Most aggregates of a group.
const GROUP_MAX: u8 = 32;
/// Most parity packets of a group.
const PARITY_MAX: u8 = 64;

/// Most ranges in one acknowledgement; older ones have been told before.
const ACK_RANGES_MAX: usize = 32;

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
        /// The client at the intake.
        flow: u32,
        /// From outlet to intake.
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
        /// The client at the intake.
        flow: u32,
        /// From outlet to intake.
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
        /// Where to connect it; `None`: to the application's outlet.
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
    /// The peer may send the bytes of a stream up to `granted`.
    StreamCredit {
        /// Which stream.
        id: u64,
        /// Bytes from its beginning.
        granted: u64,
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
    /// A frame that this version does not know and may skip.
    Unknown(u64),
}

/// One of the packets that give back lost aggregates of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParityFrame<'a> {
    /// The path that numbers the aggregates; the packet may take another.
    pub path: u8,
    /// Number of the group's first aggregate.
    pub first: u64,
    /// How many aggregates the group has, 1 to 32.
    pub data: u8,
    /// How many of these packets there are, 1 to 64.
    pub count: u8,
    /// Its place among them, from 0.
    pub index: u8,
    /// The parity of the aggregates' contents, two bytes at least.
    pub shard: &'a [u8],
}

/// An acknowledgement of packets of one path of the peer, and what was measured with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrame<'a> {
    /// The path whose packets are acknowledged, as the peer numbers it.
    pub path: u8,
    /// Largest packet number received.
    pub largest: u64,
    /// When it arrived, microseconds of the receiver's own epoch.
    pub received_at_us: u64,
    /// For how long the acknowledgement was held back, microseconds.
    pub delay_us: u64,
    /// Packets of this path that arrived with a congestion mark, in all.
    pub ecn_ce: u64,
    /// What was received.
    pub ranges: AckRanges<'a>,
}

/// Ranges of packet numbers, from the largest down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckRanges<'a> {
    largest: u64,
    encoded: &'a [u8],
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
    /// The next frame, or `None` at the end of the packet.
    pub fn decode(reader: &mut Reader<'a>) -> Result<Option<Self>, FrameError> {
        if reader.is_empty() {
            return Ok(None);
        }
        let kind = reader.varint().ok_or(FrameError::Truncated)?;
        let frame = match kind {
            PADDING => Some(Self::Padding),
            PING => Some(Self::Ping),
            ACK => return decode_ack(reader).map(Some),
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
            AGGREGATE => return decode_aggregate(reader).map(Some),
            PACKET | PACKET_MARKED => return decode_packet(kind, reader).map(Some),
            TRAIN | TRAIN_REPORT | FEEDBACK | PROTECTED | PARITY => {
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
            Self::MessageDone { id, status } => {
                put_varint(buf, MESSAGE_DONE);
                put_varint(buf, id);
                buf.push(status.to_byte());
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

impl ParityFrame<'_> {
    /// Most bytes of one besides its shard.
    pub const HEAD_LEN_MAX: usize = 2 + 4 + 1 + 8 + 3;

    fn encode(&self, buf: &mut Vec<u8>) {
        put_varint(buf, PARITY);
        let head = varint_len(self.first) + 4;
        put_varint(buf, (head + self.shard.len()) as u64);
        buf.push(self.path);
        put_varint(buf, self.first);
        buf.extend_from_slice(&[self.data, self.count, self.index]);
        buf.extend_from_slice(self.shard);
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

impl AckFrame<'_> {
    /// Everything but the ranges, which [`AckFrame::encode`] is given beside it.
    pub const fn head(
        path: u8,
        largest: u64,
        received_at_us: u64,
        delay_us: u64,
        ecn_ce: u64,
    ) -> AckFrame<'static> {
        AckFrame {
            path,
            largest,
            received_at_us,
            delay_us,
            ecn_ce,
            ranges: AckRanges {
                largest,
                encoded: &[],
            },
        }
    }

    /// Most bytes that [`AckFrame::encode`] appends for `ranges` ranges.
    pub const fn len_max(ranges: usize) -> usize {
        let ranges = if ranges < ACK_RANGES_MAX {
            ranges
        } else {
            ACK_RANGES_MAX
        };
        2 + 4 * 8 + 8 + ranges * 16
    }

    /// Appends an acknowledgement of `ranges`: inclusive pairs from the largest down, not empty,
    /// not touching. Only the first 32 are told.
    pub fn encode(
        buf: &mut Vec<u8>,
        head: &AckFrame<'_>,
        ranges: impl Iterator<Item = (u64, u64)>,
    ) {
        head.encode_head(buf);
        let mut encoded = Vec::with_capacity(64);
        let mut count = 0u64;
        let mut above: Option<u64> = None;
        for (low, high) in ranges.take(ACK_RANGES_MAX) {
            if let Some(above) = above {
                // At least one packet is missing between two ranges.
                put_varint(&mut encoded, above - high - 2);
            }
            put_varint(&mut encoded, high - low);
            above = Some(low);
            count += 1;
        }
        put_varint(buf, count);
        buf.extend_from_slice(&encoded);
    }

    fn encode_head(&self, buf: &mut Vec<u8>) {
        put_varint(buf, ACK);
        buf.push(self.path);
        put_varint(buf, self.largest);
        put_varint(buf, self.received_at_us);
        put_varint(buf, self.delay_us);
        put_varint(buf, self.ecn_ce);
    }
}

impl<'a> AckRanges<'a> {
    /// Inclusive (lowest, highest) pairs, from the largest down.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + 'a {
        let mut reader = Reader::new(self.encoded);
        let count = reader.varint().unwrap_or(0);
        let mut next_high = Some(self.largest);
        // Validated by `decode_ack`: no step below can fail for a frame that was decoded.
        (0..count).map_while(move |_| {
            let high = next_high?;
            let low = high.checked_sub(reader.varint()?)?;
            next_high = reader
                .varint()
                .and_then(|gap| low.checked_sub(gap)?.checked_sub(2));
            Some((low, high))
        })
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

fn decode_ack<'a>(reader: &mut Reader<'a>) -> Result<Frame<'a>, FrameError> {
    let head = |reader: &mut Reader<'a>| {
        Some((
            reader.u8()?,
            reader.varint()?,
            reader.varint()?,
            reader.varint()?,
            reader.varint()?,
        ))
    };
    let (path, largest, received_at_us, delay_us, ecn_ce) =
        head(reader).ok_or(FrameError::Truncated)?;
    let before = reader.rest();
    let count = reader.varint().ok_or(FrameError::Truncated)?;
    if count == 0 || count > ACK_RANGES_MAX as u64 {
        return Err(FrameError::Range);
    }
    let mut high = largest;
    for index in 0..count {
        if index > 0 {
            let gap = reader.varint().ok_or(FrameError::Truncated)?;
            high = high
                .checked_sub(gap)
                .and_then(|high| high.checked_sub(2))
                .ok_or(FrameError::Range)?;
        }
        let len = reader.varint().ok_or(FrameError::Truncated)?;
        high = high.checked_sub(len).ok_or(FrameError::Range)?;
    }
    let encoded = &before[..before.len() - reader.rest().len()];
    Ok(Frame::Ack(AckFrame {
        path,
        largest,
        received_at_us,
        delay_us,
        ecn_ce,
        ranges: AckRanges { largest, encoded },
    }))
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
            Some(SocketAddr::from((ip, port(&bytes[16..]))))
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
        PARITY => decode_parity(&mut reader).map(Frame::Parity),
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

fn decode_parity<'a>(reader: &mut Reader<'a>) -> Result<ParityFrame<'a>, FrameError> {
    let mut fields = || {
        let (path, first) = (reader.u8()?, reader.varint()?);
        Some((path, first, reader.u8()?, reader.u8()?, reader.u8()?))
    };
    let (path, first, data, count, index) = fields().ok_or(FrameError::Truncated)?;
    let shard = reader.rest();
    let ends_beyond = first + u64::from(data) > VARINT_MAX;
    if !(1..=GROUP_MAX).contains(&data)
        || count > PARITY_MAX
        || index >= count
        || shard.len() < 2
        || ends_beyond
    {
        return Err(FrameError::Range);
    }
    Ok(ParityFrame {
        path,
        first,
        data,
        count,
        index,
        shard,
    })
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
    Some(Frame::MessageDone { id, status })
}

fn decode_drop<'a>(reader: &mut Reader<'a>) -> Option<Frame<'a>> {
    let id = reader.varint()?;
    let total = reader.length(MESSAGE_LEN_MAX)?;
    Some(Frame::MessageDrop { id, total })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CopySpacing, report::ARRIVALS_MAX};
    use proptest::prelude::*;

    fn decode_all(bytes: &[u8]) -> Result<Vec<Frame<'_>>, FrameError> {
        let mut reader = Reader::new(bytes);
        let mut frames = Vec::new();
        while let Some(frame) = Frame::decode(&mut reader)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    fn frame(data: &'static [u8]) -> impl Strategy<Value = Frame<'static>> {
        let id = 0u64..1 << 62;
        prop_oneof![
            Just(Frame::Padding),
            Just(Frame::Ping),
            any::<u64>().prop_map(Frame::PathChallenge),
            any::<u64>().prop_map(Frame::PathResponse),
            any::<(u32, bool)>().prop_map(move |(tenant, marked)| Frame::Packet {
                tenant,
                marked,
                data
            }),
            any::<(u32, u32, bool)>().prop_map(move |(app, flow, reply)| Frame::Datagram {
                app: AppId(app),
                flow,
                reply,
                data
            }),
            (id.clone(), any::<(u32, u32, bool)>(), 0..1000usize).prop_map(
                move |(id, (app, flow, reply), offset)| Frame::Fragment {
                    id,
                    total: offset + data.len() + 3,
                    offset,
                    app: AppId(app),
                    flow,
                    reply,
                    data
                }
            ),
            (id.clone(), any::<u32>(), 0..1_000_000usize).prop_map(move |(id, app, offset)| {
                Frame::Message {
                    id,
                    app: AppId(app),
                    total: offset + data.len(),
                    offset,
                    data,
                }
            }),
            (id.clone(), any::<u8>()).prop_map(|(id, status)| Frame::MessageDone {
                id,
                status: MessageStatus::from_byte(status)
            }),
            (id.clone(), 0..MESSAGE_LEN_MAX)
                .prop_map(|(id, total)| Frame::MessageDrop { id, total }),
            id.clone().prop_map(Frame::Credit),
            Just(Frame::Close),
            (id.clone(), any::<u32>(), any::<Option<SocketAddr>>()).prop_map(
                |(id, app, target)| {
                    Frame::StreamOpen {
                        id: id & !1,
                        app: AppId(app),
                        target: target.map(|target| SocketAddr::new(target.ip(), target.port())),
                    }
                }
            ),
            (id.clone(), 0u64..1 << 60, any::<bool>()).prop_map(move |(id, offset, fin)| {
                Frame::Stream {
                    id,
                    offset,
                    fin,
                    data,
                }
            }),
            (id.clone(), 0u64..1 << 62)
                .prop_map(|(id, granted)| Frame::StreamCredit { id, granted }),
            (id.clone(), any::<u8>()).prop_map(|(id, byte)| Frame::StreamReset {
                id,
                reason: ResetReason::from_byte(byte)
            }),
            (id, 0..255u8, 1..100u8).prop_map(|(id, index, more)| Frame::Train {
                id,
                index,
                count: index.saturating_add(more),
            }),
            (any::<u8>(), 0u64..1 << 62, 0..5u8, 5..10u8).prop_map(
                |(path, number, index, count)| Frame::Aggregate {
                    path,
                    number,
                    index,
                    count,
                }
            ),
            (any::<u8>(), 0u64..1 << 62, any::<Option<(u16, u32)>>()).prop_map(
                |(path, highest, copies)| Frame::Feedback(Feedback {
                    path,
                    highest,
                    aggregates: highest / 2,
                    copies: highest,
                    socket_overflows: 7,
                    system_overflows: highest / 3,
                    spacing: copies.map(|(ip_bytes, gap)| {
                        let mut spacing = CopySpacing::new(ip_bytes, 3, 0);
                        spacing.push(2, std::time::Duration::from_nanos(u64::from(gap) >> 4));
                        spacing
                    }),
                })
            ),
            (any::<u8>(), 32u64..1 << 62, 0..32u8).prop_map(|(path, number, place)| {
                Frame::Protected {
                    path,
                    number,
                    place,
                }
            }),
            (any::<u8>(), 0u64..1 << 61, 1..=32u8, 0..32u8, 1..=32u8).prop_map(
                move |(path, first, group, index, more)| Frame::Parity(ParityFrame {
                    path,
                    first,
                    data: group,
                    count: index + more,
                    index,
                    shard: data,
                })
            ),
            (PARITY + 1..1 << 62).prop_map(Frame::Unknown),
        ]
    }

    const DATA: &[u8] = b"some data of a frame";

    proptest! {
        #[test]
        fn frames_round_trip(frames in proptest::collection::vec(frame(DATA), 0..20)) {
            let mut bytes = Vec::new();
            for frame in &frames {
                frame.encode(&mut bytes);
            }
            prop_assert_eq!(decode_all(&bytes), Ok(frames));
        }

        #[test]
        fn acks_round_trip(
            path: u8,
            times in (0u64..1 << 62, 0u64..1 << 40, 0u64..1 << 40),
            steps in proptest::collection::vec((0u64..1 << 30, 0u64..1 << 30), 1..40),
        ) {
            // From small to large: (gap, length) pairs make ranges that do not touch.
            let mut ranges = Vec::new();
            let mut next = 0;
            for (gap, len) in steps {
                let low = next + gap;
                ranges.push((low, low + len));
                next = low + len + 2;
            }
            ranges.reverse();
            let head = AckFrame {
                path,
                largest: ranges[0].1,
                received_at_us: times.0,
                delay_us: times.1,
                ecn_ce: times.2,
                ranges: AckRanges { largest: 0, encoded: &[] },
            };
            let mut bytes = Vec::new();
            AckFrame::encode(&mut bytes, &head, ranges.iter().copied());
            prop_assert!(bytes.len() <= AckFrame::len_max(ranges.len()));
            let frames = decode_all(&bytes).unwrap();
            let [Frame::Ack(ack)] = frames[..] else { panic!("one ack") };
            ranges.truncate(ACK_RANGES_MAX);
            prop_assert_eq!(ack.ranges.iter().collect::<Vec<_>>(), ranges);
            prop_assert_eq!((ack.path, ack.largest), (path, head.largest));
            let mut again = Vec::new();
            Frame::Ack(ack).encode(&mut again);
            prop_assert_eq!(bytes, again);
        }

        #[test]
        fn train_reports_round_trip(
            path: u8,
            train in 0u64..1 << 62,
            arrivals in proptest::collection::vec((any::<u8>(), 0u64..1 << 62), 2..30),
        ) {
            let mut bytes = Vec::new();
            TrainReport::encode(&mut bytes, path, train, arrivals.iter().copied());
            prop_assert!(bytes.len() <= TrainReport::LEN_MAX);
            let frames = decode_all(&bytes).unwrap();
            let [Frame::TrainReport(report)] = frames[..] else { panic!("one report") };
            prop_assert_eq!((report.path, report.train), (path, train));
            let told = &arrivals[..arrivals.len().min(ARRIVALS_MAX)];
            prop_assert_eq!(&report.arrivals().collect::<Vec<_>>(), told);
            let mut again = Vec::new();
            frames[0].encode(&mut again);
            prop_assert_eq!(bytes, again);
        }

        #[test]
        fn garbage_ends_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(frames) = decode_all(&bytes) {
                for frame in frames {
                    if let Frame::Ack(ack) = frame {
                        prop_assert!(ack.ranges.iter().count() <= ACK_RANGES_MAX);
                    }
                }
            }
        }
    }

    #[test]
    fn unknown_frames_of_the_skippable_range_are_skipped() {
        let mut bytes = Vec::new();
        put_varint(&mut bytes, 0x1234);
        put_varint(&mut bytes, 3);
        bytes.extend_from_slice(b"abc");
        Frame::Ping.encode(&mut bytes);
        assert_eq!(
            decode_all(&bytes),
            Ok(vec![Frame::Unknown(0x1234), Frame::Ping])
        );
        assert_eq!(decode_all(&[0x3f]), Err(FrameError::UnknownType));
    }

    #[test]
    fn groups_that_cannot_be_are_refused() {
        let parity = ParityFrame {
            path: 0,
            first: 7,
            data: 4,
            count: 2,
            index: 1,
            shard: b"abcd",
        };
        let read = |frame: Frame<'_>| {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            decode_all(&bytes).map(|frames| frames.len())
        };
        assert_eq!(read(Frame::Parity(parity)), Ok(1));
        for wrong in [
            ParityFrame { data: 0, ..parity },
            ParityFrame { data: 33, ..parity },
            ParityFrame { count: 1, ..parity },
            ParityFrame {
                count: 65,
                ..parity
            },
            ParityFrame {
                shard: b"a",
                ..parity
            },
            ParityFrame {
                first: VARINT_MAX,
                ..parity
            },
        ] {
            assert_eq!(
                read(Frame::Parity(wrong)),
                Err(FrameError::Range),
                "{wrong:?}"
            );
        }
        for (number, place) in [(3, 4), (100, 32)] {
            let path = 0;
            let protected = Frame::Protected {
                path,
                number,
                place,
            };
            assert_eq!(read(protected), Err(FrameError::Range));
        }
    }

    #[test]
    fn parts_outside_their_whole_are_refused() {
        for (total, offset, data) in [
            (5, 3, &b"abc"[..]),
            (5, 5, b""),
            (MESSAGE_LEN_MAX + 1, 0, b"a"),
        ] {
            let mut bytes = Vec::new();
            Frame::Message {
                id: 1,
                app: AppId(1),
                total,
                offset,
                data,
            }
            .encode(&mut bytes);
            assert_eq!(decode_all(&bytes), Err(FrameError::Range));
        }
    }
}
