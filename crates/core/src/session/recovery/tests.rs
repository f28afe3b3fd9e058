use proptest::prelude::*;

use super::*;
use crate::session::sent_frames::{MessageControl, SentFrame};

const MS: Duration = Duration::from_millis(1);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn rtt_of(ms: u32) -> RttEstimator {
    let mut rtt = RttEstimator::default();
    rtt.on_sample(MS * ms, Duration::ZERO);
    rtt
}

fn packet(ip_bytes: u16, kind: PacketKind, frames: SentFrames) -> NewPacket {
    NewPacket {
        kind,
        ip_bytes,
        frames,
        self_queueing: SelfQueueing::default(),
        owner: ChargedTenant::default(),
    }
}

fn sent(count: u64) -> LossRecovery {
    let mut packets = LossRecovery::default();
    for ms in 0..count {
        let frames = SentFrames::One(SentFrame::Credit);
        packets.on_sent(at(ms), packet(1500, PacketKind::AckEliciting, frames));
    }
    packets
}

fn ack(packets: &mut LossRecovery, low: u64, high: u64) -> AckOutcome {
    packets
        .on_ack(high, [(low, high)].into_iter())
        .expect("sent before")
}

#[test]
fn packet_threshold_declares_a_loss_that_may_turn_out_spurious() {
    let mut packets = sent(5);
    assert_eq!(ack(&mut packets, 1, 2).acked.len(), 2);
    assert!(packets.detect_lost(at(5), &rtt_of(10)).is_empty());
    ack(&mut packets, 3, 3);
    let lost = packets.detect_lost(at(5), &rtt_of(10));
    assert_eq!(lost.iter().map(|l| l.number).collect::<Vec<_>>(), [0]);
    let outcome = ack(&mut packets, 0, 0);
    assert_eq!(
        (outcome.acked.len(), packets.counters.spurious_lost_packets),
        (1, 1)
    );
    assert_eq!(packets.bytes_in_flight, 1500);
}

#[test]
fn time_threshold_declares_a_loss_below_an_acknowledged_packet() {
    let mut packets = sent(2);
    ack(&mut packets, 1, 1);
    let rtt = rtt_of(80);
    let deadline = packets.loss_deadline(&rtt).unwrap();
    assert_eq!(deadline, at(90));
    assert_eq!(packets.detect_lost(deadline, &rtt).len(), 1);
    assert_eq!(packets.loss_deadline(&rtt), None);
}

#[test]
fn silence_counts_from_the_first_packet_after_the_last_acknowledged_one() {
    let mut packets = sent(5);
    assert_eq!(packets.unanswered_since(), Some(at(0)));
    ack(&mut packets, 0, 1);
    assert_eq!(packets.unanswered_since(), Some(at(2)));
    ack(&mut packets, 2, 4);
    assert_eq!(packets.unanswered_since(), None);
}

#[test]
fn late_departure_moves_silence_and_gives_no_rtt_sample() {
    let mut packets = sent(3);
    packets.on_late_departure(at(2), at(200));
    assert_eq!(packets.unanswered_since(), Some(at(0)));
    assert!(ack(&mut packets, 0, 1).largest.is_some());
    assert_eq!(packets.unanswered_since(), Some(at(200)));
    assert!(packets.detect_lost(at(201), &rtt_of(10)).is_empty());
    // It had left before all the same.
    let late = ack(&mut packets, 2, 2);
    assert!((late.acked.len(), late.largest.is_none()) == (1, true));
    assert_eq!(packets.unanswered_since(), None);
}

#[test]
fn acknowledgement_of_an_unsent_packet_is_refused() {
    assert!(sent(3).on_ack(3, [(0, 3)].into_iter()).is_none());
}

#[test]
fn probe_timeout_retransmits_the_oldest_and_does_not_back_off() {
    let mut packets = sent(3);
    let rtt = rtt_of(100);
    let first = packets.pto_deadline(&rtt, MS).unwrap();
    assert_eq!(first, at(2) + 100 * MS + 35 * MS + MS);
    let lost = packets.on_pto(first);
    assert_eq!(lost.iter().map(|l| l.number).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(packets.pto_deadline(&rtt, MS), Some(first + PROBE_SPACING));
    // Not slower than the first.
    let near = rtt_of(1);
    let mut packets = sent(3);
    let first = packets.pto_deadline(&near, MS).unwrap();
    packets.on_pto(first);
    let timeout = near.probe_timeout(MS);
    assert!(timeout < PROBE_SPACING);
    assert_eq!(packets.pto_deadline(&near, MS), Some(first + timeout));
}

#[test]
fn pto_retransmitted_packet_is_lost_only_once_a_later_one_is_acknowledged() {
    let rtt = rtt_of(10);
    let mut packets = sent(4);
    packets.on_pto(at(20));
    // The first was late, the second is not acknowledged.
    let outcome = ack(&mut packets, 0, 0);
    assert!(!outcome.acked[0].was_lost);
    assert!(packets.detect_lost(at(20), &rtt).is_empty());
    ack(&mut packets, 2, 2);
    let deadline = packets.loss_deadline(&rtt).expect("the second may be lost");
    let lost = packets.detect_lost(deadline, &rtt);
    let confirmed: Vec<_> = lost
        .iter()
        .map(|l| (l.number, l.was_pto_retransmitted))
        .collect();
    assert_eq!(confirmed, [(1, true)]);
    assert_eq!(packets.loss_deadline(&rtt), None);
    // It is reported once, also where it arrives after all.
    assert!(
        packets
            .declare_all_lost()
            .iter()
            .all(|lost| lost.number != 1)
    );
    assert!(ack(&mut packets, 1, 1).acked[0].was_lost);
}

#[test]
fn pto_retransmitted_packet_is_lost_with_its_path() {
    let mut packets = sent(3);
    packets.on_pto(at(20));
    let lost = packets.declare_all_lost();
    let confirmed: Vec<_> = lost
        .iter()
        .map(|l| (l.number, l.was_pto_retransmitted))
        .collect();
    assert_eq!(confirmed, [(0, true), (1, true), (2, false)]);
    assert!(packets.declare_all_lost().is_empty());
}

proptest! {
    #[test]
    fn counters_and_deadlines_agree_with_a_visit_of_every_packet(
        steps in proptest::collection::vec((0u8..10, 0u64..40, 0u64..20), 1..200),
    ) {
        let mut packets = LossRecovery::starting_at(5);
        let rtt = rtt_of(20);
        for (now, (what, from, len)) in (0..).zip(steps) {
            match what {
                0..5 => {
                    let id = from;
                    let status = crate::wire::MessageStatus::Delivered;
                    let frame = SentFrame::MessageControl(MessageControl::Done {
                        id,
                        status,
                        whole_at: 0,
                    });
                    let frame = if len > 10 { frame } else { SentFrame::Credit };
                    let frames = SentFrames::One(frame);
                    let kind = match len {
                        0..2 => PacketKind::NonEliciting,
                        2 => PacketKind::MtuProbe,
                        _ => PacketKind::AckEliciting,
                    };
                    packets.on_sent(at(now), packet(100, kind, frames));
                }
                5..8 => {
                    let high = (packets.base + from).min(packets.next_number().saturating_sub(1));
                    packets.on_ack(high, [(high.saturating_sub(len), high)].into_iter());
                    let threshold = packets.packet_threshold.max(PACKET_THRESHOLD_MIN);
                    let sent_at: Vec<Instant> = packets.packets.iter().map(|packet| packet.at).collect();
                    let base = packets.base;
                    for lost in packets.detect_lost(at(now), &rtt) {
                        let is_old = sent_at[(lost.number - base) as usize] + rtt.loss_delay() <= at(now);
                        let largest = packets.largest_acked.expect("something was acknowledged");
                        prop_assert!(is_old || lost.number + threshold <= largest);
                    }
                    let largest = packets.largest_acked.unwrap_or(0);
                    for number in packets.base..largest {
                        let packet = packets.packet(number).unwrap();
                        let due = number + packets.packet_threshold.max(PACKET_THRESHOLD_MIN) <= largest
                            || packet.at + rtt.loss_delay() <= at(now);
                        prop_assert!(!due || packet.state != State::Outstanding);
                    }
                }
                8 => drop(packets.on_pto(at(now))),
                _ => drop(packets.declare_all_lost()),
            }
            packets.check_invariants();
            let end = packets.largest_acked.unwrap_or(0);
            let undecided = (packets.base..end).zip(&packets.packets).filter(|(_, packet)| {
                matches!(packet.state, State::Outstanding | State::PtoRetransmitted)
            });
            let deadlines = undecided.map(|(_, packet)| packet.at + rtt.loss_delay());
            prop_assert_eq!(packets.loss_deadline(&rtt), deadlines.min());
        }
    }
}

/// Packets lost, and of these spurious.
fn losses(packets: &LossRecovery) -> (u64, u64) {
    let counters = packets.counters;
    (counters.lost_packets, counters.spurious_lost_packets)
}

/// A probe that is declared lost, retransmitted or late leaves no trace in the path's loss.
#[test]
fn mtu_probe_is_never_counted_as_lost_or_spurious() {
    let rtt = rtt_of(10);
    let mut packets = sent(1);
    let probe = packet(1500, PacketKind::MtuProbe, SentFrames::None);
    packets.on_sent(at(1), probe);
    for ms in 2..6 {
        let frames = SentFrames::One(SentFrame::Credit);
        packets.on_sent(at(ms), packet(1500, PacketKind::AckEliciting, frames));
    }
    // Packet 0 is really lost, and so is the probe for all that is known.
    ack(&mut packets, 2, 5);
    let lost = packets.detect_lost(at(6), &rtt);
    let probes: Vec<_> = lost.iter().map(|l| (l.number, l.is_mtu_probe)).collect();
    assert_eq!(probes, [(0, false), (1, true)]);
    assert_eq!(losses(&packets), (1, 0));
    // It comes late: the real loss stays counted.
    assert_eq!(ack(&mut packets, 1, 1).acked.len(), 1);
    assert_eq!(losses(&packets), (1, 0));
    packets.check_invariants();
}

#[test]
fn mtu_probe_that_a_probe_timeout_retransmits_is_not_counted_either() {
    let mut packets = LossRecovery::default();
    let probe = packet(1500, PacketKind::MtuProbe, SentFrames::None);
    packets.on_sent(at(0), probe);
    assert!(packets.on_pto(at(20))[0].is_mtu_probe);
    assert_eq!(packets.counters.lost_packets, 0);
    assert!(packets.declare_all_lost()[0].is_mtu_probe);
    ack(&mut packets, 0, 0);
    assert_eq!(packets.counters, PathStats::default());
}

/// Sends one ack-eliciting packet of a tenant.
fn send(packets: &mut LossRecovery, ms: u64, tenant: u32) {
    let mut new = packet(1000, PacketKind::AckEliciting, SentFrames::None);
    new.owner.tenant = TenantId(tenant);
    packets.on_sent(at(ms), new);
}

fn numbers(packets: &[AckedOrLostPacket]) -> Vec<u64> {
    packets.iter().map(|packet| packet.number).collect()
}

#[test]
fn acknowledgement_or_outage_ends_a_row_of_probe_timeouts() {
    let rtt = rtt_of(100);
    let timeout = rtt.probe_timeout(MS);
    let mut packets = sent(6);
    packets.on_pto(at(200));
    assert_eq!(packets.pto_deadline(&rtt, MS), Some(at(200) + MS * 15));
    ack(&mut packets, 2, 2);
    assert_eq!(packets.pto_deadline(&rtt, MS), Some(at(5) + timeout));

    packets.on_pto(at(200));
    packets.declare_all_lost();
    send(&mut packets, 300, 0);
    assert_eq!(packets.pto_deadline(&rtt, MS), Some(at(300) + timeout));
}

#[test]
fn probes_go_on_while_something_is_unanswered_or_outstanding() {
    let rtt = rtt_of(100);
    let mut packets = sent(2);
    packets.on_pto(at(200));
    assert!(!packets.has_outstanding(), "both were retransmitted");
    assert!(packets.pto_deadline(&rtt, MS).is_some());
    // Only an older packet is left once the newest is acknowledged.
    let mut packets = sent(2);
    ack(&mut packets, 1, 1);
    assert_eq!(packets.unanswered_since(), None);
    assert!(packets.has_outstanding());
    assert!(packets.pto_deadline(&rtt, MS).is_some());
    ack(&mut packets, 0, 0);
    assert_eq!(packets.pto_deadline(&rtt, MS), None);
}

#[test]
fn late_departure_moves_the_probe_timeout() {
    let rtt = rtt_of(100);
    let mut packets = sent(3);
    packets.on_late_departure(at(2), at(50));
    let timeout = rtt.probe_timeout(MS);
    assert_eq!(packets.pto_deadline(&rtt, MS), Some(at(50) + timeout));
}

/// The first three packets leave before the outage, the others after it.
#[test]
fn arrival_from_before_an_outage_is_no_reordering_of_the_path_after_it() {
    let rtt = rtt_of(10);
    let mut packets = sent(3);
    packets.declare_all_lost();
    assert_eq!(packets.unanswered_since(), None);
    for ms in 100..104 {
        send(&mut packets, ms, 0);
    }
    ack(&mut packets, 2, 2);
    let spurious = |packets: &LossRecovery| {
        let spurious = packets.counters.spurious_lost_packets;
        (spurious, packets.spurious_after_outage)
    };
    assert_eq!(spurious(&packets), (1, 1));
    assert_eq!(packets.packet_threshold, 0);
    // Number 3 is the first after the outage.
    ack(&mut packets, 6, 6);
    assert_eq!(numbers(&packets.detect_lost(at(104), &rtt)), [3]);
    ack(&mut packets, 3, 3);
    assert_eq!(spurious(&packets), (2, 1));
    assert_eq!(
        packets.packet_threshold, 4,
        "three packets late is reordering"
    );
}

#[test]
fn outage_is_counted_from_its_own_first_packet_even_after_another() {
    let mut packets = sent(2);
    packets.declare_all_lost();
    send(&mut packets, 100, 0);
    packets.declare_all_lost();
    ack(&mut packets, 2, 2);
    assert_eq!(packets.spurious_after_outage, 1);
}

#[test]
fn no_more_than_131072_packets_are_remembered() {
    let mut packets = LossRecovery::default();
    for number in 0..131_072 {
        assert!(!packets.is_full(), "full at {number}");
        send(&mut packets, number / 1000, 0);
    }
    assert!(packets.is_full());
    ack(&mut packets, 0, 0);
    packets.detect_lost(at(200), &rtt_of(100));
    assert!(!packets.is_full());
}

#[test]
fn packets_without_anything_to_acknowledge_are_forgotten() {
    let mut packets = LossRecovery::starting_at(7);
    for ms in 0..100 {
        packets.on_sent(
            at(ms),
            packet(60, PacketKind::NonEliciting, SentFrames::None),
        );
        assert!(packets.packets.len() <= 1);
    }
    assert_eq!(packets.next_number(), 107);
    assert_eq!(packets.unanswered_since(), None);
    assert_eq!(packets.bytes_in_flight(), 0);
}

#[test]
fn silence_skips_packets_that_ask_for_no_acknowledgement() {
    let mut packets = sent(1);
    packets.on_sent(
        at(1),
        packet(60, PacketKind::NonEliciting, SentFrames::None),
    );
    send(&mut packets, 2, 0);
    ack(&mut packets, 0, 0);
    assert_eq!(packets.unanswered_since(), Some(at(2)));
}

#[test]
fn lost_packet_is_remembered_for_three_loss_delays() {
    let rtt = rtt_of(80);
    for (ms, acked) in [(269, 1), (270, 0)] {
        let mut packets = sent(2);
        ack(&mut packets, 1, 1);
        assert_eq!(packets.detect_lost(at(90), &rtt).len(), 1);
        packets.detect_lost(at(ms), &rtt);
        assert_eq!(ack(&mut packets, 0, 0).acked.len(), acked, "{ms} ms");
        packets.check_invariants();
    }
}

#[test]
fn largest_acknowledged_packet_is_sampled_once() {
    let mut packets = sent(3);
    let largest = ack(&mut packets, 1, 1).largest.expect("newly acknowledged");
    assert_eq!((largest.sent_at, largest.ip_bytes), (at(1), 1500));
    assert!(ack(&mut packets, 1, 1).largest.is_none(), "the same again");
    assert!(ack(&mut packets, 0, 0).largest.is_none(), "an older one");
    assert!(ack(&mut packets, 2, 2).largest.is_some());
}

#[test]
fn unresolved_bytes_of_a_tenant_are_outstanding_or_pto_retransmitted() {
    let mut packets = LossRecovery::default();
    for (ms, tenant) in (0..).zip([1, 2, 1, 1, 2, 1]) {
        send(&mut packets, ms, tenant);
    }
    let unresolved = |packets: &LossRecovery| {
        [1, 2, 3].map(|tenant| packets.unresolved_bytes_of(TenantId(tenant)))
    };
    assert_eq!(unresolved(&packets), [4000, 2000, 0]);
    packets.on_pto(at(20));
    assert_eq!(unresolved(&packets), [4000, 2000, 0]);
    ack(&mut packets, 5, 5);
    assert_eq!(unresolved(&packets), [3000, 2000, 0]);
    packets.detect_lost(at(1000), &rtt_of(10));
    assert_eq!(unresolved(&packets), [0, 0, 0]);
}

#[test]
fn outcomes_are_in_flight_until_their_packet_is_acknowledged_or_lost() {
    let outcome = SentFrame::MessageControl(MessageControl::Done {
        id: 1,
        status: crate::wire::MessageStatus::Delivered,
        whole_at: 0,
    });
    let mut packets = LossRecovery::default();
    for ms in 0..2 {
        let frames = SentFrames::One(outcome);
        packets.on_sent(at(ms), packet(100, PacketKind::AckEliciting, frames));
        assert!(packets.has_outstanding_outcomes());
    }
    assert_eq!(packets.bytes_in_flight(), 200);
    ack(&mut packets, 1, 1);
    assert!(packets.has_outstanding_outcomes());
    assert_eq!(packets.bytes_in_flight(), 100);
    packets.declare_all_lost();
    assert!(!packets.has_outstanding_outcomes());
    assert_eq!(packets.bytes_in_flight(), 0);
    send(&mut packets, 3, 0);
    assert!(!packets.has_outstanding_outcomes());
}

#[test]
fn frames_of_a_packet_keep_their_order() {
    let all: Vec<SentFrame> = (0..5)
        .map(|id| SentFrame::MessageControl(MessageControl::Drop { id, total: 1 }))
        .collect();
    let mut frames = SentFrames::default();
    for count in 0..=all.len() {
        assert_eq!(frames.as_slice(), &all[..count]);
        frames.push(all[count % all.len()]);
    }
}

#[test]
fn restart_begins_the_numbers_again_and_keeps_the_statistics() {
    let mut packets = sent(5);
    ack(&mut packets, 0, 1);
    let counters = packets.counters;
    assert_eq!(counters.acked_packets, 2);
    packets.restart(0);
    assert_eq!((packets.next_number(), packets.counters), (0, counters));
    assert!(!packets.has_outstanding());
    assert_eq!(packets.bytes_in_flight(), 0);
    assert!(packets.on_ack(0, [(0, 0)].into_iter()).is_none());
}

#[test]
fn pto_retransmitted_packet_is_confirmed_lost_by_the_packet_threshold() {
    // Time confirms nothing yet.
    let rtt = rtt_of(1000);
    let mut packets = sent(6);
    packets.on_pto(at(20));
    for (acked, confirmed) in [(2, vec![]), (3, vec![0]), (4, vec![1])] {
        ack(&mut packets, acked, acked);
        let lost = packets.detect_lost(at(20), &rtt);
        assert_eq!(numbers(&lost), confirmed, "{acked} is acknowledged");
    }
}

#[test]
fn reordering_by_more_than_256_packets_stays_a_loss() {
    let mut packets = sent(400);
    ack(&mut packets, 399, 399);
    packets.detect_lost(at(400), &rtt_of(1000));
    ack(&mut packets, 0, 0);
    assert_eq!(packets.packet_threshold, 256);
    assert_eq!(packets.counters.acked_packets, 2);
}

#[test]
fn silence_is_found_in_numbers_that_begin_above_zero() {
    let mut packets = LossRecovery::starting_at(5);
    for ms in 0..3 {
        send(&mut packets, ms, 0);
    }
    ack(&mut packets, 5, 5);
    assert_eq!(packets.unanswered_since(), Some(at(1)));
}

#[test]
fn a_peer_that_acknowledges_nothing_has_no_frames_of_lost_packets_kept() {
    let mut packets = LossRecovery::default();
    for round in 0..50 {
        for _ in 0..100 {
            let frames = SentFrames::Many(vec![SentFrame::Credit; 200]);
            packets.on_sent(
                at(round * 1000),
                packet(1400, PacketKind::AckEliciting, frames),
            );
        }
        packets.on_pto(at(round * 1000 + 500));
        let lost = packets.declare_all_lost();
        let again: usize = lost.iter().map(|lost| lost.frames.as_slice().len()).sum();
        assert_eq!(again, 98 * 200, "of all but what was probed");
        let kept: usize = packets
            .packets
            .iter()
            .map(|p| p.frames.as_slice().len())
            .sum();
        assert_eq!(kept, 0);
        assert!(
            packets
                .detect_lost(at(round * 1000 + 999), &rtt_of(10))
                .is_empty()
        );
        assert!(packets.packets.is_empty(), "{}", packets.packets.len());
        packets.check_invariants();
    }
}

#[test]
fn few_frames_of_a_lost_packet_stay_to_recognise_its_arrival() {
    let mut packets = sent(3);
    packets.on_pto(at(100));
    packets.declare_all_lost();
    let outcome = ack(&mut packets, 0, 2);
    for packet in &outcome.acked {
        assert_eq!(packet.frames.as_slice(), [SentFrame::Credit]);
        assert!(packet.was_retransmitted);
    }
    let mut packets = sent(1);
    assert!(!ack(&mut packets, 0, 0).acked[0].was_retransmitted);
}
