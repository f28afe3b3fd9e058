//! What it costs to receive, as nanoseconds of a core that a model gives: the same for the same packets, so
//! that turns of peers do not depend on the machine. Ours, from profiles of hostile peers, rounded up; a
//! packet alone is cheap here, because a batch of the kernel has few of them.

use crate::wire::Frame;

/// Opening a packet and noting its number.
pub(super) const PACKET: u64 = 100;
/// The same on one of many paths, of which each has acknowledgements.
pub(super) const PACKET_OF_MANY_PATHS: u64 = 1_500;
/// Reading an aggregate that parity has given back.
pub(super) const RECOVERED: u64 = 2_000;
/// A stream that the peer begins: it becomes a connection, or is reset.
pub(super) const NEW_STREAM: u64 = 10_000;
/// Paths that a gateway may well have.
pub(super) const FEW_PATHS: usize = 16;

/// A buffer of `bytes` bytes, set to zero.
pub(super) fn of_buffer(bytes: usize) -> u64 {
    bytes as u64 / 32
}

/// Products of bytes, by which parity gives back what was lost. One takes 1 to 2 ns. Time that passes pays a peer's
/// debt, so that a group which cost no more than it takes would be paid before the next one is handled.
pub(super) fn of_products(products: u64) -> u64 {
    4 * products
}

/// What a frame costs beside its packet.
pub(super) fn of_frame(frame: &Frame<'_>) -> u64 {
    match frame {
        Frame::Padding => 1,
        Frame::ProbeLimit(_) | Frame::PathTerms(_) => 500,
        Frame::Packet { .. } | Frame::Datagram { .. } | Frame::Ping | Frame::Aggregate { .. } => 50,
        Frame::Stream { .. }
        | Frame::StreamOpen { .. }
        | Frame::Ack(_)
        | Frame::Protected { .. } => 100,
        Frame::Message { .. }
        | Frame::OrderedPacket { .. }
        | Frame::Credit(_)
        | Frame::StreamCredit { .. } => 200,
        Frame::MessageDone { .. }
        | Frame::MessageDrop { .. }
        | Frame::Fragment { .. }
        | Frame::PacketPart { .. }
        | Frame::StreamReturn { .. }
        | Frame::Train { .. }
        | Frame::PathResponse(_)
        | Frame::UnknownTenant { .. }
        | Frame::PrefixMismatch(_)
        | Frame::TenantLimited(_)
        | Frame::TenantUnit(_)
        | Frame::StrangerDrops { .. }
        | Frame::Unknown(_) => 500,
        Frame::Feedback(_) | Frame::TrainReport(_) | Frame::Parity(_) => 2_000,
        Frame::PathChallenge(_) | Frame::StreamReset { .. } => 3_000,
        Frame::Refusal(_) | Frame::Close => 20_000,
    }
}
