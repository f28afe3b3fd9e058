use std::net::SocketAddr;

use rand_core::SeedableRng;

use super::{
    super::{
        recovery::{ChargedTenant, PacketKind},
        sent_frames::SentFrames,
    },
    *,
};
use crate::wire::{Frame, Reader};

const MS: Duration = Duration::from_millis(1);

fn at(millis: u64) -> Instant {
    Instant::ZERO + MS * millis as u32
}

/// A path that has answered a challenge after 100 ms.
fn path() -> Path {
    let remote: SocketAddr = "192.0.2.1:4500".parse().expect("an address");
    let config = PathConfig {
        id: PathId(0),
        socket: SocketId(0),
        remote: Some(remote),
        rate: Some(Bandwidth::from_mbit_per_second(100)),
        mtu_max: 1500,
        probe_limit: None,
        terms: crate::PathTerms::FREE,
    };
    let aggregation = AggregationConfig::default();
    let mut path = Path::new(&config, &aggregation, UsedNumbers::default());
    let mut random = ChaCha20Rng::from_seed([1; 32]);
    let challenge = path
        .poll_challenge(at(0), &mut random, &TimingConfig::default())
        .expect("a new path is challenged");
    path.on_response(at(100), challenge.challenge.token, at(100))
        .expect("the challenge is answered");
    assert!(path.is_up());
    path
}

/// Packet `number` leaves at `sent_ms` and is acknowledged at `acked_ms`.
fn ack(path: &mut Path, sent_ms: u64, acked_ms: u64, is_same_path: bool) -> AckResult {
    let number = path.next_packet_number();
    let frames = SentFrames::None;
    let kind = PacketKind::AckEliciting;
    path.on_packet_sent(at(sent_ms), 1400, kind, frames, ChargedTenant::default());
    let mut encoded = Vec::new();
    let head = AckFrame::head(0, number, 0, 0, 0);
    AckFrame::encode(&mut encoded, &head, [(number, number)].into_iter());
    let mut reader = Reader::new(&encoded);
    let Ok(Some(Frame::Ack(frame))) = Frame::decode(&mut reader) else {
        panic!("an acknowledgement");
    };
    let ack = ReceivedAck {
        now: at(acked_ms),
        received_at: at(acked_ms),
        frame,
        is_same_path,
        ack_delay_max: MS,
    };
    path.on_ack(ack).expect("of a packet that was sent")
}

#[test]
fn acknowledgement_over_another_path_is_no_round_trip_of_this_one() {
    let mut path = path();
    assert_eq!(path.rtt().smoothed(), Some(100 * MS));
    // Over a path that is far shorter, then over one that is far longer.
    for (sent_ms, acked_ms, smoothed_us) in [(200, 230, 100_000), (300, 700, 137_500)] {
        let result = ack(&mut path, sent_ms, acked_ms, false);
        assert_eq!(result.acked.len(), 1, "it is acknowledged all the same");
        assert!(result.signals.sampled.is_none() && result.clock_sample.is_none());
        let smoothed = Duration::from_micros(smoothed_us);
        assert_eq!(path.rtt().smoothed(), Some(smoothed));
        assert_eq!(path.rtt().min(), Some(100 * MS));
    }
    let result = ack(&mut path, 800, 880, true);
    assert!(result.signals.sampled.is_some() && result.clock_sample.is_some());
    assert_eq!(path.rtt().min(), Some(80 * MS));
}
