//! TCP, one direction of data per connection: a sender and a receiver, without content.
//!
//! | part | |
//! |---|---|
//! | `sender.rs` | sending: windows, recovery by selective acknowledgements (RFC 6675), timer |
//! | `scoreboard.rs` | segments in flight, acknowledged and lost |
//! | `window.rs` | the congestion window: NewReno (RFC 5681, 6582) and CUBIC (RFC 9438) |
//! | `rtt.rs` | round trip and retransmission timeout (RFC 6298) |
//! | `receiver.rs` | reordering, acknowledgements, delayed and selective |
//!
//! Left out, because the experiments do not need it: content, urgent data, closing (a flow ends when its last
//! byte is acknowledged), window probes (receivers read at once, so that windows never close), path MTU
//! discovery, fast open, pacing.

mod receiver;
mod rtt;
mod scoreboard;
mod sender;
mod window;

use std::time::Duration;

use keiro_units::ByteCount;

pub use self::{
    receiver::{Delivered, ReceiverCounts, TcpReceiver},
    sender::{SenderCounts, TcpSender},
};

/// Parameters of a TCP host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TcpConfig {
    /// Maximum segment size in bytes without options (RFC 9293 §3.7.1).
    pub mss: u16,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Segments sent before the first acknowledgement (RFC 6928: 10).
    pub initial_window: u32,
    /// Minimum of the retransmission timeout.
    pub rto_floor: RtoFloor,
    /// Initial timeout (RFC 6298 §2.1: 1 s).
    pub rto_initial: Duration,
    /// Maximum timeout (RFC 6298 §2.5: at least 60 s).
    pub rto_max: Duration,
    pub loss_detection: LossDetection,
    /// Maximum delay of an acknowledgement of a single segment; `None` acknowledges every segment at once.
    pub delayed_ack: Option<Duration>,
    /// Whether it uses timestamps (RFC 7323): 12 bytes in every segment.
    pub timestamps: bool,
    /// Whether it supports ECN (RFC 3168).
    pub ecn: bool,
    /// Receive buffer, rounded down to a multiple of 1 KiB; at least one, at most [`RECEIVE_BUFFER_MAX`].
    pub receive_buffer: ByteCount,
}

/// The largest [`receive_buffer`](TcpConfig::receive_buffer): 65,535 units of the window scale.
pub const RECEIVE_BUFFER_MAX: ByteCount = ByteCount::new(65_535 << WINDOW_SCALE);

/// Windows are advertised in units of 2^10 bytes (RFC 7323 §2).
pub const WINDOW_SCALE: u8 = 10;

/// Congestion control of a TCP sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CongestionControl {
    /// NewReno: one segment per round trip, half at a loss (RFC 5681).
    NewReno,
    /// CUBIC: a cubic of the time since the last loss, 0.7 at a loss (RFC 9438).
    Cubic,
}

/// Minimum of the retransmission timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RtoFloor {
    /// The timeout as a whole (RFC 6298 §2.4: 1 s).
    Timeout(Duration),
    /// Minimum of the variance term, which is added to the smoothed round trip (Linux: 200 ms).
    BeyondRoundTrip(Duration),
}

/// Loss detection before the retransmission timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossDetection {
    /// Three later segments arrived (RFC 6675 §4). A lost retransmission waits for the timer.
    Sack,
    /// The same. In addition, a retransmission is lost if a segment sent a quarter of a round trip after it
    /// arrived (RFC 8985 §6.2, for retransmissions only).
    SackAndTime,
}

impl TcpConfig {
    /// As the RFCs specify: NewReno, a timeout of at least 1 s.
    pub const RFC: Self = Self {
        mss: 1460,
        congestion: CongestionControl::NewReno,
        initial_window: 10,
        rto_floor: RtoFloor::Timeout(Duration::from_secs(1)),
        rto_initial: Duration::from_secs(1),
        rto_max: Duration::from_secs(60),
        loss_detection: LossDetection::Sack,
        delayed_ack: Some(Duration::from_millis(200)),
        timestamps: true,
        ecn: false,
        receive_buffer: ByteCount::new(6 << 20),
    };

    /// As a Linux host: CUBIC, 200 ms beyond the round trip, acknowledgements delayed by 40 ms.
    pub const LINUX: Self = Self {
        congestion: CongestionControl::Cubic,
        rto_floor: RtoFloor::BeyondRoundTrip(Duration::from_millis(200)),
        loss_detection: LossDetection::SackAndTime,
        delayed_ack: Some(Duration::from_millis(40)),
        rto_max: Duration::from_secs(120),
        ..Self::RFC
    };

    /// The receive window that a receiver advertises, in bytes.
    pub(crate) fn window(&self) -> u32 {
        let most = RECEIVE_BUFFER_MAX.get();
        let units = self.receive_buffer.get().min(most) >> WINDOW_SCALE;
        (units.max(1) << WINDOW_SCALE) as u32
    }
}

/// Converts a sequence number to a stream offset, if it is within 2^31 of `near`.
///
/// Sequence number `first` is offset 0; numbers wrap around, offsets do not. `None` for numbers before the
/// stream's first byte.
const fn offset_of(sequence: u32, first: u32, near: u64) -> Option<u64> {
    let distance = sequence.wrapping_sub(sequence_of(near, first)) as i32;
    near.checked_add_signed(distance as i64)
}

/// The sequence number of an offset.
const fn sequence_of(offset: u64, first: u32) -> u32 {
    first.wrapping_add(offset as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequence_numbers_wrap_and_offsets_do_not() {
        let first = u32::MAX - 10;
        for near in [0_u64, 5, 1_000, 1 << 32, (1 << 40) + 17] {
            for offset in [near, near + 3_000_000, near.saturating_sub(900_000)] {
                let sequence = sequence_of(offset, first);
                assert_eq!(offset_of(sequence, first, near), Some(offset));
            }
        }
        assert_eq!(offset_of(first.wrapping_sub(1), first, 0), None);
    }
}
