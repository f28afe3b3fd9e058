//! Frames: what the encrypted part of a data packet is made of.

mod ack;
mod decode;
mod encode;
mod parity;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use keiro_model::path_terms::{CostPerGb, PathRole, PathTerms};

pub use self::{
    ack::{AckFrame, AckRanges},
    parity::ParityFrame,
};
use super::{
    FrameError,
    frame_error::field,
    frame_type::*,
    report::{Feedback, TrainReport},
    varint_len,
};
use crate::{
    event::{RefusalReason, ResetReason},
    id::AppId,
    tenant::PrefixMismatch,
};

/// Bits of the first field of path terms.
const TERMS_BACKUP: u64 = 1;
const TERMS_SPENT: u64 = 2;

/// Most aggregates of a group.
const GROUP_MAX: u8 = 32;

/// One frame. Borrowed parts point into the packet.
#[allow(missing_docs, reason = "some fields say it with their names")]
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
    /// A datagram that fits into the packet.
    Datagram {
        app: AppId,
        /// The client at the listener.
        flow: u32,
        /// From forward to listener.
        reply: bool,
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
        app: AppId,
        /// The client at the listener.
        flow: u32,
        /// From forward to listener.
        reply: bool,
        data: &'a [u8],
    },
    /// A part of a message.
    Message {
        /// Counts started messages of this sender.
        id: u64,
        app: AppId,
        /// Length of the whole message.
        total: usize,
        /// Where this part begins.
        offset: usize,
        data: &'a [u8],
    },
    /// The receiver has a message whole and took or refused it.
    MessageDone {
        id: u64,
        status: MessageStatus,
        /// When it was whole, microseconds of the receiver's own epoch modulo 2^32.
        whole_at: u32,
    },
    /// The sender gave a message up.
    MessageDrop {
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
        app: AppId,
        /// Where to connect it; `None`: to the application's forward.
        target: Option<SocketAddr>,
    },
    /// Bytes of a stream.
    Stream {
        /// The number that its opener gave it, shifted left by one; the lowest bit is set by the
        /// side that did not open it. The same in all frames of streams.
        id: u64,
        /// Offset of the first byte in the stream.
        offset: u64,
        /// The stream ends behind them.
        fin: bool,
        data: &'a [u8],
    },
    /// The peer may send the bytes of a stream up to `granted`, less what it has given back.
    StreamCredit {
        id: u64,
        /// Bytes from its beginning, and those that the peer has given back.
        granted: u64,
    },
    /// The sender gives credit of a stream back.
    StreamReturn {
        id: u64,
        /// Bytes, in all since its beginning.
        returned: u64,
    },
    /// Both directions of a stream end at once.
    StreamReset { id: u64, reason: ResetReason },
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
        tenant: u32,
        /// It is to be delivered with a congestion mark.
        marked: bool,
        /// The packet, IP header first.
        data: &'a [u8],
    },
    /// An IP packet of a flow that uses several paths and is to be delivered in order.
    OrderedPacket {
        tenant: u32,
        order: PacketOrder,
        /// It is to be delivered with a congestion mark.
        marked: bool,
        /// The packet, IP header first.
        data: &'a [u8],
    },
    /// A part of an IP packet of a tenant that does not fit into one datagram of the path.
    PacketPart {
        tenant: u32,
        /// Counts the packets that the sender has split.
        number: u64,
        /// How many parts there are.
        count: u8,
        /// Its place, from 0.
        index: u8,
        /// The packet is to be delivered with a congestion mark.
        marked: bool,
        /// At least one byte.
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
        tenant: u32,
        /// Its packets that were dropped for that since the session began.
        packets: u64,
    },
    /// The sender does not serve the receiver; a close follows.
    Refusal(RefusalCause),
    /// The sender has dropped packets of a tenant because of an address.
    PrefixMismatch(PrefixMismatch),
    /// What both ends together may send a month on the path over which it comes, to keep it alive and to measure it:
    /// bytes of IP packets; `None`: it is not limited any more.
    ProbeLimit(Option<u64>),
    /// More waits of this tenant at the sender than its window and rate let go.
    TenantLimited(u32),
    /// Largest rate per weight of limited tenants that arrive at the sender, from all of its peers, bit/s.
    TenantUnit(u64),
    /// On which terms the sender uses the path over which it comes.
    PathTerms(PathTerms),
    /// Packets that strangers have kept from arriving.
    StrangerDrops {
        /// The path, as the sender of the packets numbers it.
        path: u8,
        /// Its packets that the receiver's socket dropped for that, in all, as far as the receiver can say.
        packets: u64,
    },
    /// A frame that this version does not know and may skip.
    Unknown(u64),
}

/// Why a gateway does not serve a peer whose keys are right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalCause {
    /// Another gateway with the same private key is served.
    DuplicateKey,
    /// A cause that this version does not know.
    Other,
}

/// The place of an IP packet in its flow, and how long it may wait for those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketOrder {
    /// The sender's number of the flow: below [`FLOW_END`](Self::FLOW_END), and new whenever it begins to use
    /// several paths.
    pub flow: u32,
    /// Counts its packets from 0, below [`NUMBER_END`](Self::NUMBER_END).
    pub number: u32,
    /// How long the packet is held at most if an earlier one is missing, in milliseconds.
    pub hold_ms: u16,
    /// The sender's paths, one bit each, on which packets of the flow may be on the way.
    pub paths: u32,
}

impl PacketOrder {
    /// Flows have numbers below this: four bytes on the wire.
    pub const FLOW_END: u32 = 1 << 30;
    /// Packets have numbers below this.
    pub const NUMBER_END: u32 = 1 << 30;
    /// Paths have bits below this.
    pub const PATHS_END: u8 = 30;
    /// The longest hold, two bytes on the wire.
    pub const HOLD_MS_MAX: u16 = (1 << 14) - 1;
    /// Most bytes that it takes.
    pub const LEN_MAX: usize = 4 + 4 + 2 + 4;
}

/// What stands in front of the bytes of a `Stream` frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamHead {
    /// The stream's number as in [`Frame::Stream`].
    pub id: u64,
    /// Where the bytes begin.
    pub offset: u64,
    /// The stream ends behind them.
    pub fin: bool,
}

/// What became of a message at its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageStatus {
    /// It was taken over.
    Delivered,
    /// The receiver did not take it, for this reason.
    Refused(RefusalReason),
}

impl Frame<'_> {
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
                | Self::Refusal(_)
                | Self::PrefixMismatch(_)
                | Self::ProbeLimit(_)
                | Self::TenantLimited(_)
                | Self::TenantUnit(_)
                | Self::PathTerms(_)
                | Self::StrangerDrops { .. }
                | Self::Close
        )
    }
}

impl Frame<'_> {
    /// It carries something of an application or a tenant.
    pub(crate) fn is_data(&self) -> bool {
        matches!(
            self,
            Self::Datagram { .. }
                | Self::Fragment { .. }
                | Self::Message { .. }
                | Self::Stream { .. }
                | Self::Packet { .. }
                | Self::OrderedPacket { .. }
                | Self::PacketPart { .. }
        )
    }

    /// Most bytes of a `Protected`.
    pub const PROTECTED_LEN_MAX: usize = 2 + 1 + 1 + 8 + 1;

    /// Most bytes of an `UnknownTenant`.
    pub const UNKNOWN_TENANT_LEN_MAX: usize = 2 + 1 + 8 + 8;

    /// Most bytes of a `PrefixMismatch`: with an IPv6 address.
    pub const PREFIX_MISMATCH_LEN_MAX: usize = 2 + 1 + 8 + 8 + 1 + 1 + 16;

    /// Most bytes of a `ProbeLimit`.
    pub const PROBE_LIMIT_LEN_MAX: usize = 2 + 1 + 8;

    /// Most bytes of a `TenantLimited`, and of a `TenantUnit`.
    pub const TENANT_LIMITED_LEN_MAX: usize = 2 + 1 + 8;
    /// See [`TENANT_LIMITED_LEN_MAX`](Self::TENANT_LIMITED_LEN_MAX).
    pub const TENANT_UNIT_LEN_MAX: usize = 2 + 1 + 8;
    /// Most bytes of a `PathTerms`.
    pub const PATH_TERMS_LEN_MAX: usize = 2 + 1 + 1 + 8;

    /// Most bytes of a `StrangerDrops`.
    pub const STRANGER_DROPS_LEN_MAX: usize = 2 + 1 + 1 + 8;

    /// Bytes of a `Packet` beside its data, of at most `len` bytes.
    pub const fn packet_head_len(tenant: u32, len: usize) -> usize {
        1 + varint_len(tenant as u64) + varint_len(len as u64)
    }

    /// Most bytes of an `OrderedPacket` beside its data, of at most `len` bytes.
    pub const fn ordered_packet_head_len(tenant: u32, len: usize) -> usize {
        Self::packet_head_len(tenant, len) + PacketOrder::LEN_MAX
    }

    /// Most bytes of a `PacketPart` beside its data.
    pub const fn packet_part_head_len(tenant: u32, number: u64) -> usize {
        2 + 2 + varint_len(tenant as u64) + varint_len(number) + 3
    }

    /// Most bytes of a `StreamOpen`: with an IPv6 target.
    pub const STREAM_OPEN_LEN_MAX: usize = 1 + 8 + 4 + 1 + 16 + 2;
}

impl RefusalCause {
    const fn to_byte(self) -> u8 {
        match self {
            Self::DuplicateKey => 0,
            Self::Other => 255,
        }
    }

    const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::DuplicateKey,
            _ => Self::Other,
        }
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
            Self::Refused(RefusalReason::Other | RefusalReason::NotSent) => 255,
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
