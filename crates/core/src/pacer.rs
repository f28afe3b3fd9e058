//! The one owner of a path's rate.

use std::time::Duration;

use keiro_units::{Bandwidth, ByteCount, Instant};

/// Most that a pacer makes up for after its driver was late: with [`BATCH`] 2 ms of the rate.
const CATCH_UP_MAX: Duration = Duration::from_micros(1750);
/// Most that leaves ahead of the rate after a pause: 1 ms of it, a short message at 100 Mbit/s.
///
/// It waits at the bottleneck and keeps it busy while the driver is late for what follows, which
/// otherwise delays every message by the driver's worst lateness. An urgent packet waits for it at
/// most that long.
const HEAD_START: Duration = Duration::from_millis(1);
/// Largest batch, as time at the rate: half of what a driver's timer is late at
/// worst, so that batches exist but a later packet with an earlier deadline waits little.
const BATCH: Duration = Duration::from_micros(250);

/// Divisor of the rate: the part that copies of what left over other paths take. Ours: half, which is
/// all that the first copies take of a path like their own, and the other half is left to the path's
/// own traffic whatever there is of them.
const COPIES_PART: u32 = 2;
/// Packets that do not ask the pacer are debited up to so far ahead. Ours: an aggregate and all of its copies are
/// paid for even at 16 kbit/s, and no packet waits longer for those sent before it.
const DEBT_MAX: Duration = Duration::from_secs(10);

/// An acknowledgement with a few ranges, as an IP packet.
const ACK_PACKET: ByteCount = ByteCount::new(100);
/// Acknowledgements are never further apart: the peer takes silence for loss.
const ACK_SPACING_MAX: Duration = Duration::from_millis(50);

/// Spaces what leaves so that the rate is kept over every interval longer than 2 ms.
///
/// All bytes debit it, whether or not they had to ask first, as long as they are not too far ahead
/// ([`DEBT_MAX`]).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pacer {
    rate: Bandwidth,
    /// When the next packet may leave.
    next: Instant,
    /// Something waited for `next`: what a late driver missed is made up for.
    waiting: bool,
    /// Packets are to leave as one burst: they are held back for as long as can be made up for.
    holding: bool,
    /// When the copies that were taken are paid for out of their part.
    copies_paid: Instant,
}

impl Pacer {
    pub(crate) fn new(rate: Bandwidth) -> Self {
        Self {
            rate,
            next: Instant::ZERO,
            waiting: false,
            holding: false,
            copies_paid: Instant::ZERO,
        }
    }

    pub(crate) fn rate(&self) -> Bandwidth {
        self.rate
    }

    pub(crate) fn set_rate(&mut self, rate: Bandwidth) {
        self.rate = rate;
    }

    /// A batch may begin.
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        self.next() <= now && self.rate > Bandwidth::ZERO
    }

    /// Bytes of one batch beginning now: at least one packet, at most [`BATCH`] worth.
    pub(crate) fn batch_bytes(&self) -> u64 {
        self.rate.bytes_in_floor(BATCH).get()
    }

    /// When the next packet may leave.
    pub(crate) fn next(&self) -> Instant {
        if self.holding {
            self.next + CATCH_UP_MAX
        } else {
            self.next
        }
    }

    /// Bytes that may leave now as one burst, so that no more is ahead of the rate than after any
    /// batch.
    pub(crate) fn burst_bytes(&self, now: Instant) -> u64 {
        let behind = now.saturating_duration_since(self.next).min(self.credit());
        self.rate.bytes_in_floor(behind + BATCH).get()
    }

    /// Nothing more is saved up by waiting.
    pub(crate) fn is_rested(&self, now: Instant) -> bool {
        self.next + self.credit() <= now
    }

    /// Lets nothing that has to ask go until the longest burst may leave, or [`release`](Self::release).
    pub(crate) fn hold(&mut self) {
        self.holding = true;
        self.waiting = true;
    }

    /// Nothing is to leave as one burst any more.
    pub(crate) fn release(&mut self) {
        self.holding = false;
    }

    fn credit(&self) -> Duration {
        if self.waiting {
            CATCH_UP_MAX
        } else {
            HEAD_START
        }
    }

    /// When the packet that leaves at `now` should have left.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        if self.waiting {
            self.next.min(now)
        } else {
            now
        }
    }

    /// A copy of what left over another path may leave at once, since those before it are paid for
    /// within `ahead`: one part in [`COPIES_PART`] of that is what other packets wait for them.
    pub(crate) fn may_take_copy(&self, now: Instant, ahead: Duration) -> bool {
        self.copies_paid <= now + ahead && self.rate > Bandwidth::ZERO
    }

    /// A copy of `bytes` (IP bytes) that may leave is to. When it does,
    /// [`on_sent`](Self::on_sent) is called like for any packet.
    pub(crate) fn on_copy_taken(&mut self, now: Instant, bytes: u64) {
        let time = self.rate.transmission_time_ceil(ByteCount::new(bytes));
        self.copies_paid = self.copies_paid.max(now) + time * COPIES_PART;
    }

    /// Acknowledgements do not ask the pacer: at least this long between two of them keeps them
    /// below a tenth of the rate, so that they cannot starve the data that goes the same way.
    pub(crate) fn ack_spacing(&self) -> Duration {
        let time = self.rate.transmission_time_ceil(ACK_PACKET);
        if self.rate == Bandwidth::ZERO {
            ACK_SPACING_MAX
        } else {
            (time * 10).min(ACK_SPACING_MAX)
        }
    }

    /// Data waits that may not leave yet.
    pub(crate) fn on_blocked(&mut self) {
        self.waiting = true;
    }

    /// Nothing is left to send.
    pub(crate) fn on_idle(&mut self) {
        self.waiting = false;
    }

    /// `bytes` (IP bytes) left at `now`.
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u64) {
        if self.next > now + DEBT_MAX {
            return;
        }
        let earliest = now - self.credit();
        let time = self.rate.transmission_time_ceil(ByteCount::new(bytes));
        // A rate of zero cannot be sent at; what bypasses the pacer then costs nothing.
        let time = if self.rate == Bandwidth::ZERO {
            Duration::ZERO
        } else {
            time
        };
        self.next = self.next.max(earliest) + time;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives a backlogged pacer that is woken `late` after each due time.
    fn bytes_in_a_second(rate: Bandwidth, late: Duration) -> u64 {
        let mut pacer = Pacer::new(rate);
        let mut now = Instant::ZERO;
        let mut bytes = 0;
        while now < Instant::from_nanos(1_000_000_000) {
            while pacer.may_send(now) {
                pacer.on_sent(now, 1500);
                bytes += 1500;
            }
            pacer.on_blocked();
            now = pacer.next() + late;
        }
        bytes
    }

    #[test]
    fn late_driver_still_reaches_the_rate() {
        let rate = Bandwidth::from_mbit_per_second(100);
        for late_us in [0, 50, 500, 1700] {
            let bytes = bytes_in_a_second(rate, Duration::from_micros(late_us));
            let share = bytes as f64 * 8.0 / 1e8;
            assert!(
                (0.99..=1.002).contains(&share),
                "late {late_us} us: {share}"
            );
        }
    }

    #[test]
    fn burst_waits_until_all_of_it_may_leave() {
        let mut pacer = Pacer::new(Bandwidth::from_mbit_per_second(12));
        let now = Instant::from_nanos(1_000_000_000);
        assert_eq!(pacer.burst_bytes(now), 1875, "1.25 ms after a pause");
        assert!(pacer.is_rested(now));
        pacer.on_sent(now, 1500);
        pacer.on_sent(now, 1500);
        pacer.on_blocked();
        let free = pacer.next();
        assert_eq!(pacer.burst_bytes(free), 375, "a batch");
        pacer.hold();
        assert!(!pacer.may_send(free) && !pacer.is_rested(free));
        assert!(pacer.is_rested(pacer.next()));
        assert_eq!(pacer.next(), free + CATCH_UP_MAX);
        assert_eq!(pacer.burst_bytes(pacer.next()), 3000, "2 ms");
        pacer.release();
        assert_eq!(pacer.next(), free);
    }

    #[test]
    fn copies_of_other_paths_take_at_most_half_of_the_rate() {
        let mut pacer = Pacer::new(Bandwidth::from_mbit_per_second(2));
        let (mut copies, mut own) = (0, 0);
        for us in 0..1_000_000 {
            let now = Instant::from_nanos(us * 1000);
            if us % 800 == 0 && pacer.may_take_copy(now, Duration::from_millis(1)) {
                pacer.on_copy_taken(now, 1000);
                pacer.on_sent(now, 1000);
                copies += 1000;
            }
            if pacer.may_send(now) {
                pacer.on_sent(now, 1500);
                own += 1500;
            }
            pacer.on_blocked();
            let ahead = pacer.next().saturating_duration_since(now);
            // Half of what they may be ahead, a copy, and the packet before it.
            assert!(
                ahead <= Duration::from_micros(500 + 4000 + 6000),
                "{ahead:?}"
            );
        }
        for bytes in [copies, own] {
            assert!((120_000..130_000).contains(&bytes), "{copies}, {own}");
        }
    }

    #[test]
    fn unpaced_packets_are_repaid_within_seconds() {
        let mut pacer = Pacer::new(Bandwidth::from_mbit_per_second(2));
        let now = Instant::from_nanos(1_000_000_000);
        for _ in 0..1_000_000 {
            pacer.on_sent(now, 1500);
        }
        let packet = Duration::from_millis(6);
        assert!(pacer.next() <= now + DEBT_MAX + packet);
    }

    #[test]
    fn idle_credit_is_bounded_by_the_head_start() {
        let mut pacer = Pacer::new(Bandwidth::from_mbit_per_second(6));
        pacer.on_sent(Instant::ZERO, 1500);
        pacer.on_idle();
        let later = Instant::from_nanos(1_000_000_000);
        pacer.on_sent(later, 1500);
        assert!(!pacer.may_send(later), "2 ms against a head start of 1 ms");
        assert_eq!(pacer.next(), later + Duration::from_millis(1));
    }

    const NOW: Instant = Instant::from_nanos(1_000_000_000);
    const US: Duration = Duration::from_micros(1);

    /// A byte leaves per microsecond.
    fn eight() -> Pacer {
        Pacer::new(Bandwidth::from_mbit_per_second(8))
    }

    #[test]
    fn after_a_pause_a_millisecond_leaves_at_once_and_the_next_packet_when_it_is_due() {
        let mut pacer = eight();
        assert!(pacer.may_send(NOW));
        assert_eq!(pacer.due(NOW), NOW, "nothing waited");
        pacer.on_sent(NOW, 500);
        assert!(pacer.may_send(NOW));
        pacer.on_sent(NOW, 500);
        assert_eq!(pacer.next(), NOW);
        assert!(pacer.may_send(NOW));
        pacer.on_sent(NOW, 1);
        assert!(!pacer.may_send(NOW));
        assert!(pacer.may_send(NOW + US));
        assert_eq!(pacer.due(NOW + US * 9), NOW + US * 9);
        pacer.on_blocked();
        assert_eq!(pacer.due(NOW + US * 9), NOW + US);
        assert_eq!(pacer.due(NOW), NOW, "what leaves early is due now");
    }

    #[test]
    fn late_driver_makes_up_for_1750_us_and_no_more() {
        let mut pacer = eight();
        pacer.on_sent(NOW, 1000);
        pacer.on_blocked();
        let late = NOW + US * 5000;
        assert_eq!(pacer.burst_bytes(late), 2000);
        assert!(!pacer.is_rested(NOW + US * 1749));
        assert!(pacer.is_rested(NOW + US * 1750));
        pacer.on_sent(late, 1750);
        assert_eq!(pacer.next(), late);
        pacer.on_sent(late, 1);
        assert_eq!(pacer.next(), late + US);
    }

    #[test]
    fn backlog_before_a_pause_earns_no_credit_after_it() {
        let mut pacer = eight();
        pacer.on_sent(NOW, 1000);
        pacer.on_blocked();
        pacer.on_idle();
        let later = NOW + US * 5000;
        assert_eq!(pacer.burst_bytes(later), 1250);
        assert_eq!(pacer.due(later), later);
    }

    #[test]
    fn batch_is_a_quarter_of_a_millisecond_of_the_rate() {
        assert_eq!(eight().batch_bytes(), 250);
    }

    #[test]
    fn zero_rate_blocks_everything_and_charges_nothing() {
        let mut pacer = eight();
        pacer.set_rate(Bandwidth::ZERO);
        assert_eq!(pacer.rate(), Bandwidth::ZERO);
        assert!(!pacer.may_send(NOW));
        assert!(!pacer.may_take_copy(NOW, Duration::from_secs(1)));
        assert_eq!(pacer.ack_spacing(), ACK_SPACING_MAX);
        pacer.on_sent(NOW, 1500);
        assert!(pacer.next() <= NOW);
        pacer.set_rate(Bandwidth::from_mbit_per_second(8));
        assert_eq!(pacer.rate(), Bandwidth::from_mbit_per_second(8));
        assert!(pacer.may_send(NOW));
    }

    #[test]
    fn acknowledgements_take_a_tenth_of_the_rate_but_are_never_50_ms_apart() {
        assert_eq!(eight().ack_spacing(), US * 1000);
        let slow = Pacer::new(Bandwidth::from_bits_per_second(100_000));
        assert_eq!(slow.ack_spacing(), US * 50_000);
    }

    #[test]
    fn copy_is_taken_while_those_before_it_are_paid_for_in_time() {
        let mut pacer = eight();
        assert!(pacer.may_take_copy(NOW, Duration::ZERO));
        pacer.on_copy_taken(NOW, 1000);
        assert!(!pacer.may_take_copy(NOW, US * 1999));
        assert!(pacer.may_take_copy(NOW, US * 2000));
        pacer.on_copy_taken(NOW, 500);
        assert!(!pacer.may_take_copy(NOW, US * 2999));
        assert!(pacer.may_take_copy(NOW + US * 1000, US * 2000));
    }

    #[test]
    fn unpaced_packets_are_debited_up_to_ten_seconds_ahead() {
        let mut pacer = Pacer::new(Bandwidth::from_mbit_per_second(1));
        // A millisecond each; the first one is the head start.
        for _ in 0..20_000 {
            pacer.on_sent(NOW, 125);
        }
        assert_eq!(pacer.next(), NOW + US * 10_001_000);
    }
}
