//! What is on the wire: bytes to values and back, nothing else.
//!
//! `docs/wire-format.md` describes every byte; `tests/endpoint/wire_document.rs` holds it against this code.

mod frame;
mod frame_error;
mod frame_type;
mod packet;
mod report;
mod varint;
mod version;

pub use frame::{
    AckFrame, AckRanges, Frame, MessageStatus, PacketOrder, ParityFrame, RefusalCause, StreamHead,
};
pub use frame_error::FrameError;
pub use packet::{
    ANY_INITIATION_LEN_MIN, COOKIE_LEN, DATA_HEADER_LEN, DataHeader, HandshakePayload,
    INITIATION_LEN, KIND_COOKIE, KIND_DATA, KIND_INITIATION, KIND_RESPONSE, KIND_VERSION_REPLY,
    PAYLOAD_LEN, RESPONSE_LEN, TAG_LEN, VERSION_REPLY_LEN, expand_packet_number,
};
pub use report::{CopySpacing, Feedback, TrainReport};
pub use varint::{Reader, VARINT_MAX, put_varint, varint_len};
pub use version::{Features, VERSION, Versions};

/// Longest message, bytes: 16 MiB, and the eight bytes that a driver may put in front.
pub const MESSAGE_LEN_MAX: usize = (16 << 20) + 8;

/// Longest datagram, bytes: what one UDP datagram over IPv4 can hold.
pub const DATAGRAM_LEN_MAX: usize = 65_507;

/// Longest IP packet that travels in parts, bytes: what IPv6 needs of every link (RFC 8200 §5).
pub const SPLIT_PACKET_MAX: usize = 1280;

/// Most parts of a packet: as many as the longest takes where a path carries 576 bytes.
pub const PACKET_PARTS_MAX: u8 = 3;

/// What every message costs of the credit besides its length, for its bookkeeping.
pub const CREDIT_PER_MESSAGE: u64 = 256;
