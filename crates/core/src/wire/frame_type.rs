//! Types of frames.

pub(super) const PADDING: u64 = 0x00;
pub(super) const PING: u64 = 0x01;
pub(super) const ACK: u64 = 0x02;
pub(super) const PATH_CHALLENGE: u64 = 0x03;
pub(super) const PATH_RESPONSE: u64 = 0x04;
pub(super) const DATAGRAM: u64 = 0x05;
pub(super) const FRAGMENT: u64 = 0x06;
pub(super) const MESSAGE: u64 = 0x07;
pub(super) const MESSAGE_DONE: u64 = 0x08;
pub(super) const MESSAGE_DROP: u64 = 0x09;
pub(super) const CREDIT: u64 = 0x0a;
pub(super) const CLOSE: u64 = 0x0b;
pub(super) const STREAM_OPEN: u64 = 0x0c;
pub(super) const STREAM: u64 = 0x0d;
/// As [`STREAM`], and nothing follows.
pub(super) const STREAM_FIN: u64 = 0x0e;
pub(super) const STREAM_CREDIT: u64 = 0x0f;
pub(super) const STREAM_RESET: u64 = 0x10;
pub(super) const AGGREGATE: u64 = 0x11;
pub(super) const PACKET: u64 = 0x12;
/// As [`PACKET`], and it waited long at the sender: to be marked.
pub(super) const PACKET_MARKED: u64 = 0x13;
pub(super) const STREAM_RETURN: u64 = 0x14;
/// Sent only to peers that know it.
pub(super) const ORDERED_PACKET: u64 = 0x15;
/// As [`ORDERED_PACKET`], and it waited long at the sender: to be marked.
pub(super) const ORDERED_PACKET_MARKED: u64 = 0x16;
/// Frame types from here on carry a length, so that a receiver can skip unknown ones.
pub(super) const SKIPPABLE: u64 = 0x40;

/// A peer that does not know trains skips them.
pub(super) const TRAIN: u64 = 0x40;
pub(super) const TRAIN_REPORT: u64 = 0x41;
pub(super) const FEEDBACK: u64 = 0x42;
/// A peer that does not know groups skips these, and reads what follows.
pub(super) const PROTECTED: u64 = 0x43;
pub(super) const PARITY: u64 = 0x44;
pub(super) const UNKNOWN_TENANT: u64 = 0x45;
/// A peer that does not know it skips it, and reads the CLOSE behind it.
pub(super) const REFUSAL: u64 = 0x46;
/// A peer that does not know it skips it.
pub(super) const PREFIX_MISMATCH: u64 = 0x47;
/// A peer that does not know it skips it, and measures as before.
pub(super) const PROBE_LIMIT: u64 = 0x48;
/// Sent only to peers that know it.
pub(super) const PACKET_PART: u64 = 0x49;
/// Sent only to peers that know them.
pub(super) const TENANT_LIMITED: u64 = 0x4a;
pub(super) const TENANT_UNIT: u64 = 0x4b;
/// A peer that does not know it skips it, and uses the path as any other.
pub(super) const PATH_TERMS: u64 = 0x4c;
/// A peer that does not know it skips it, and takes these losses for its own.
pub(super) const STRANGER_DROPS: u64 = 0x4d;
