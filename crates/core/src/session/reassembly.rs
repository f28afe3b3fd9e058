//! Reassembly of the peer's messages in bounded memory. A message is delivered once.

mod finished_ids;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use self::finished_ids::FinishedIds;
use super::receive_memory::{RANGE_BYTES, SpareMemory};
use crate::{
    id::AppId,
    ranges::RangeSet,
    wire::{CREDIT_PER_MESSAGE, MESSAGE_LEN_MAX},
};

/// Unused credit with which a peer need not wait for more: any message may begin. Bytes.
const ENOUGH_CREDIT: u64 = charge(MESSAGE_LEN_MAX);
/// Grants of less than a quarter of the window in a round trip, at most: the wait for one is short beside the
/// round trip that the credit takes. Ours.
const GRANTS_PER_RTT: u32 = 8;
/// The same as times: a frame for each of a burst of messages would gain nothing, and no peer should wait for
/// longer over a path whose round trip is long. Ours.
const GRANT_INTERVAL: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(25)];

/// Pieces that a message may be in. 16 MiB in packets that all skip the next one are half of
/// this; a peer that cuts finer costs more than it may.
const PIECES_MAX: usize = 16_384;
/// Pieces beyond the first that all messages may be in. Ours: more than a path has packets in flight of which
/// every second was lost.
const EXTRA_PIECES_MAX: usize = 65_536;
/// A message that is whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ReassembledMessage {
    /// Our own number for it, unique for the session's life: the peer's numbers begin again when
    /// it restarts, and the driver may still hold a message of before.
    pub(crate) number: u64,
    pub(crate) app: AppId,
    pub(crate) body: Vec<u8>,
}

/// A part of a message could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartError {
    /// Beyond what was granted.
    OverCredit,
    /// It contradicts an earlier part or leaves the message in too many pieces: the message has
    /// ended and the peer should know.
    Abandoned,
    /// The driver still has too much that the peer sent before it restarted: the message has ended and
    /// the peer should know.
    Full,
}

#[derive(Clone, Copy, Debug)]
struct Delivered {
    id: u64,
    charge: u64,
    whole_at: Instant,
}

#[derive(Debug)]
struct Partial {
    app: AppId,
    body: Vec<u8>,
    received: RangeSet,
}

impl Partial {
    fn extra_pieces(&self) -> usize {
        self.received.len().saturating_sub(1)
    }
}

/// When credit is granted, and how long it takes to bring messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditTime {
    pub(crate) now: Instant,
    /// The longest round trip to the peer.
    pub(crate) rtt: Duration,
}

/// Messages of one peer, from their first part until the driver has finished them.
#[derive(Debug)]
pub(crate) struct Reassembly {
    window: u64,
    window_initial: u64,
    /// When credit was granted last, and for how long after it only a quarter of the window is granted.
    granted_at: Instant,
    grant_interval: Duration,
    /// A grant of which nothing was used yet.
    unused_grant: Option<Grant>,
    /// How long it took until the last such grant was used.
    used_after: Option<Duration>,
    /// From when on the peer's use of credit is counted, and what it had used before.
    counted_from: (Instant, u64),
    partial: BTreeMap<u64, Partial>,
    /// Of all messages in parts, beyond the first of each.
    extra_pieces: usize,
    /// Delivered to the driver, not finished by it, by our number.
    delivered: BTreeMap<u64, Delivered>,
    /// The same by the peer's number.
    delivered_ids: BTreeSet<u64>,
    /// Charges of messages that the driver has not finished and that came before the peer restarted, by
    /// our number. The credit of the new run does not count them.
    former: BTreeMap<u64, u64>,
    former_bytes: u64,
    next_number: u64,
    finished: FinishedIds,
    /// Charges of all messages that have begun.
    used: u64,
    /// Charges of all messages that have ended.
    returned: u64,
    granted: u64,
}

/// Credit that was granted at some time.
#[derive(Clone, Copy, Debug)]
struct Grant {
    at: Instant,
    /// What was granted before.
    from: u64,
}

/// A part of a message as it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessagePart<'a> {
    pub(crate) id: u64,
    pub(crate) app: AppId,
    /// Bytes of the message.
    pub(crate) total: usize,
    pub(crate) offset: usize,
    pub(crate) data: &'a [u8],
}

impl Reassembly {
    /// `window`: charges of messages that may be open at once.
    pub(crate) fn new(window: u64) -> Self {
        Self {
            window,
            window_initial: window,
            granted_at: Instant::ZERO,
            grant_interval: Duration::ZERO,
            unused_grant: None,
            used_after: None,
            counted_from: (Instant::ZERO, 0),
            partial: BTreeMap::new(),
            extra_pieces: 0,
            delivered: BTreeMap::new(),
            delivered_ids: BTreeSet::new(),
            former: BTreeMap::new(),
            former_bytes: 0,
            next_number: 0,
            finished: FinishedIds::default(),
            used: 0,
            returned: 0,
            granted: window,
        }
    }

    /// The peer has restarted: what it sent before is void, but for what the driver has. Its first credit is
    /// `granted`.
    pub(crate) fn restart(&mut self, granted: u64) {
        let mut former = std::mem::take(&mut self.former);
        let delivered = self.delivered.iter();
        former.extend(delivered.map(|(number, delivered)| (*number, delivered.charge)));
        *self = Self {
            next_number: self.next_number,
            former_bytes: former.values().sum(),
            former,
            granted,
            ..Self::new(self.window_initial)
        };
    }

    /// The first credit for a peer that has restarted, which the handshake carries: the driver may still have
    /// messages of before.
    pub(crate) fn initial_credit(&self) -> u64 {
        self.window_initial.saturating_sub(self.kept_bytes())
    }

    /// Takes a part that arrived at `at`; the message if it is whole now.
    pub(crate) fn on_part(
        &mut self,
        at: Instant,
        part: MessagePart<'_>,
    ) -> Result<Option<ReassembledMessage>, PartError> {
        let MessagePart {
            id,
            app,
            total,
            offset,
            data,
        } = part;
        if self.is_over(id) {
            return Ok(None);
        }
        if !self.partial.contains_key(&id) {
            let charge = charge(total);
            if self.used + charge > self.granted {
                return Err(PartError::OverCredit);
            }
            if let Some(grant) = self.use_credit(charge) {
                self.used_after = Some(at.saturating_duration_since(grant.at));
            }
            if self.former_bytes > 0 && self.kept_bytes() > self.promised_bytes() {
                self.returned += charge;
                self.finish(id);
                return Err(PartError::Full);
            }
            let partial = Partial {
                app,
                body: vec![0; total],
                received: RangeSet::default(),
            };
            self.partial.insert(id, partial);
        }
        let partial = self.partial.get_mut(&id).expect("just inserted");
        if partial.body.len() != total || partial.app != app {
            self.abandon(id);
            return Err(PartError::Abandoned);
        }
        partial.body[offset..offset + data.len()].copy_from_slice(data);
        self.extra_pieces -= partial.extra_pieces();
        partial
            .received
            .insert(offset as u64, (offset + data.len()) as u64);
        self.extra_pieces += partial.extra_pieces();
        if partial.received.len() > PIECES_MAX || self.extra_pieces > EXTRA_PIECES_MAX {
            self.abandon(id);
            return Err(PartError::Abandoned);
        }
        if !partial.received.covers(0, total as u64) {
            return Ok(None);
        }
        let partial = self.partial.remove(&id).expect("it is whole");
        let number = self.next_number;
        self.next_number += 1;
        let charge = charge(total);
        let delivered = Delivered {
            id,
            charge,
            whole_at: at,
        };
        self.delivered.insert(number, delivered);
        self.delivered_ids.insert(id);
        Ok(Some(ReassembledMessage {
            number,
            app,
            body: partial.body,
        }))
    }

    /// The driver is done with a delivered message, by our number; the peer's number and when it was
    /// whole, or `None` if the peer knows no such message (any more).
    pub(crate) fn on_finished(&mut self, number: u64) -> Option<(u64, Instant)> {
        if let Some(charge) = self.former.remove(&number) {
            self.former_bytes -= charge;
            return None;
        }
        let Delivered {
            id,
            charge,
            whole_at,
        } = self.delivered.remove(&number)?;
        self.delivered_ids.remove(&id);
        self.returned += charge;
        self.finish(id);
        Some((id, whole_at))
    }

    /// The peer gave a message up; `false` if it says that of more than it was granted.
    pub(crate) fn on_drop(&mut self, id: u64, total: usize) -> bool {
        if self.is_over(id) {
            return true;
        }
        if self.partial.contains_key(&id) {
            self.abandon(id);
            return true;
        }
        // Its charge was used at the sender though nothing of it arrived here.
        if self.used + charge(total) > self.granted {
            return false;
        }
        self.use_credit(charge(total));
        self.returned += charge(total);
        self.finish(id);
        true
    }

    /// There is much credit to grant: it should be sent now.
    pub(crate) fn has_credit_to_grant(&self) -> bool {
        let freed = self.freed();
        freed > 0 && freed >= self.window / 4
    }

    /// When there is less to grant that the peer may be waiting for; `None`: nothing is free, or what it has is
    /// enough.
    pub(crate) fn credit_due(&self) -> Option<Instant> {
        let left = self.granted - self.used;
        let may_wait = self.freed() > 0 && left < ENOUGH_CREDIT;
        may_wait.then(|| self.granted_at + self.grant_interval)
    }

    /// A message of the peer has begun that uses `charge` bytes of credit; the grant of which it is the first to
    /// use some.
    fn use_credit(&mut self, charge: u64) -> Option<Grant> {
        self.used += charge;
        self.unused_grant.take_if(|grant| self.used > grant.from)
    }

    /// What of the window is not granted: messages have ended, also those from before a restart.
    fn freed(&self) -> u64 {
        let window = self.window.saturating_sub(self.former_bytes);
        (self.returned + window).saturating_sub(self.granted)
    }

    /// A new credit to send: all that is free. `None`: nothing is.
    ///
    /// The window grows if it is what limits the peer: a quarter of it went in less than half a round trip, the
    /// peer uses in a round trip what it has left, or a message used new credit as soon as it could. It grows into what is left of what the peer may make us
    /// keep, and shrinks again when that is short.
    pub(crate) fn credit_to_grant(&mut self, at: CreditTime, spare: SpareMemory) -> Option<u64> {
        let freed = self.freed();
        if freed == 0 {
            return None;
        }
        let CreditTime { now, rtt } = at;
        let is_quick =
            self.has_credit_to_grant() && now.saturating_duration_since(self.granted_at) < rtt / 2;
        let used_after = self.used_after.take();
        let was_awaited = used_after.is_some_and(|after| after < rtt + rtt / 2);
        match spare.for_messages() {
            None => {
                let grown = self.window - self.window_initial;
                self.window -= grown.min(freed);
            }
            Some(room) if is_quick || was_awaited || self.uses_all(at) => {
                self.window += (self.window / 2).min(room);
            }
            Some(_) => {}
        }
        let from = self.granted;
        self.granted += self.freed();
        if self.granted > from {
            self.unused_grant.get_or_insert(Grant { at: now, from });
        }
        let [least, most] = GRANT_INTERVAL;
        self.grant_interval = (rtt / GRANTS_PER_RTT).clamp(least, most);
        self.granted_at = now;
        Some(self.granted)
    }

    /// The peer has used as much credit in a round trip as it has left with what is granted now. Its applications
    /// leave some free for each other, so that none of them need be out of credit.
    fn uses_all(&mut self, at: CreditTime) -> bool {
        let (since, used_before) = self.counted_from;
        let elapsed = at.now.saturating_duration_since(since);
        if at.rtt.is_zero() || elapsed < at.rtt {
            return false;
        }
        self.counted_from = (at.now, self.used);
        let used = u128::from(self.used - used_before);
        let left = u128::from(self.granted - self.used + self.freed());
        used * at.rtt.as_nanos() >= left * elapsed.as_nanos()
    }

    /// The credit that was sent last.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Charges of messages that are open.
    fn open_bytes(&self) -> u64 {
        self.used - self.returned
    }

    /// Charges of all messages that are kept, here or by the driver.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.open_bytes() + self.former_bytes
    }

    /// What messages may make us keep: those that are here, and those that there is credit for.
    pub(crate) fn memory_of_messages(&self) -> u64 {
        self.promised_bytes().max(self.kept_bytes())
    }

    /// A window, or what is left of a wider one.
    fn promised_bytes(&self) -> u64 {
        self.window.max(self.granted - self.returned)
    }

    /// What is kept beside messages and credit: pieces and numbers.
    pub(crate) fn memory_beside(&self) -> u64 {
        let ranges = self.extra_pieces + self.finished.ranges();
        ranges as u64 * RANGE_BYTES
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(crate) fn check_invariants(&self) {
        let partial = self.partial.values();
        let partial: u64 = partial.map(|partial| charge(partial.body.len())).sum();
        let delivered: u64 = self.delivered.values().map(|d| d.charge).sum();
        assert_eq!(
            self.open_bytes(),
            partial + delivered,
            "open bytes are those of open messages"
        );
        assert_eq!(
            self.former_bytes,
            self.former.values().sum::<u64>(),
            "bytes of messages from before a restart"
        );
        assert!(
            self.kept_bytes() <= self.promised_bytes().max(self.former_bytes),
            "messages are bounded, also over restarts"
        );
        assert!(self.used <= self.granted, "credit is never exceeded");
        assert!(
            self.unused_grant
                .is_none_or(|grant| self.used <= grant.from),
            "a grant that was used is not looked for"
        );
        assert!(
            self.window >= self.window_initial,
            "a window shrinks to what it began with"
        );
        let pieces = self.partial.values().map(Partial::extra_pieces);
        assert_eq!(self.extra_pieces, pieces.sum::<usize>(), "pieces");
        assert!(self.extra_pieces <= EXTRA_PIECES_MAX, "pieces are bounded");
        assert!(
            self.delivered
                .values()
                .all(|d| self.delivered_ids.contains(&d.id)),
            "delivered ids"
        );
        assert_eq!(
            self.delivered.len(),
            self.delivered_ids.len(),
            "delivered ids"
        );
        self.finished.check_invariants();
    }

    /// Nothing more is expected of a message.
    fn is_over(&self, id: u64) -> bool {
        self.finished.contains(id) || self.delivered_ids.contains(&id)
    }

    /// Ends a message that is not whole.
    fn abandon(&mut self, id: u64) {
        if let Some(partial) = self.partial.remove(&id) {
            self.extra_pieces -= partial.extra_pieces();
            self.returned += charge(partial.body.len());
            self.finish(id);
        }
    }

    fn finish(&mut self, id: u64) {
        self.finished.insert(id);
    }
}

/// What a message of `len` bytes takes of the credit.
const fn charge(len: usize) -> u64 {
    len as u64 + CREDIT_PER_MESSAGE
}

#[cfg(test)]
mod credit_tests;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AT: Instant = Instant::ZERO;
    const RTT: Duration = Duration::from_millis(100);
    /// What messages do not grow into by default.
    const FOR_SMALL_WINDOWS: u64 = 8 << 20;

    const APP: AppId = AppId(1);

    fn part(id: u64, app: AppId, total: usize, offset: usize, data: &[u8]) -> MessagePart<'_> {
        MessagePart {
            id,
            app,
            total,
            offset,
            data,
        }
    }

    /// The new credit, where little else is kept and the peer is far away from using all.
    fn grant(reassembly: &mut Reassembly) -> Option<u64> {
        grant_after(reassembly, Duration::from_secs(1), u64::MAX)
    }

    fn grant_after(reassembly: &mut Reassembly, after: Duration, spare: u64) -> Option<u64> {
        let at = CreditTime {
            now: reassembly.granted_at + after,
            rtt: RTT,
        };
        let granted = reassembly.credit_to_grant(at, SpareMemory::of_default(spare));
        reassembly.check_invariants();
        granted
    }

    /// A message of `len` bytes comes and is taken.
    fn pass(reassembly: &mut Reassembly, id: u64, len: usize) {
        let whole = reassembly.on_part(AT, part(id, APP, len, 0, &vec![7; len]));
        let whole = whole.unwrap().expect("it came in one part");
        reassembly.on_finished(whole.number);
    }

    #[test]
    fn credit_grows_when_it_limits_the_peer_and_yields_to_streams() {
        const WINDOW: u64 = 8 << 20;
        let mut reassembly = Reassembly::new(WINDOW);
        let mut ids = 0..;
        let mut turn = |reassembly: &mut Reassembly, after, spare| {
            pass(
                reassembly,
                ids.next().unwrap(),
                (reassembly.window / 4) as usize,
            );
            grant_after(reassembly, after, spare).expect("a quarter is free");
            reassembly.memory_of_messages()
        };
        let (quick, slow) = (Duration::from_millis(20), Duration::from_millis(60));
        assert_eq!(turn(&mut reassembly, slow, u64::MAX), WINDOW);
        assert_eq!(turn(&mut reassembly, quick, u64::MAX), WINDOW * 3 / 2);
        let spare = FOR_SMALL_WINDOWS + 1000;
        assert_eq!(turn(&mut reassembly, quick, spare), WINDOW * 3 / 2 + 1000);
        let little = FOR_SMALL_WINDOWS - 1;
        let shrunk = turn(&mut reassembly, quick, little);
        assert!(shrunk < WINDOW * 3 / 2 && shrunk > WINDOW, "{shrunk}");
        assert_eq!(turn(&mut reassembly, quick, little), WINDOW);
        assert_eq!(turn(&mut reassembly, quick, little), WINDOW);
    }

    #[test]
    fn pieces_of_all_messages_are_bounded() {
        let mut reassembly = Reassembly::new(1 << 30);
        let mut piece = |id, at| reassembly.on_part(AT, part(id, APP, 40_000, at, b"a"));
        let mut taken = 0;
        let refused = (0..100).find_map(|id| {
            (0..10_000).find_map(|at| {
                taken += 1;
                piece(id, at * 2).err()
            })
        });
        assert_eq!(refused, Some(PartError::Abandoned));
        assert!(
            (EXTRA_PIECES_MAX..EXTRA_PIECES_MAX + 10).contains(&taken),
            "{taken}"
        );
        reassembly.check_invariants();
        assert!(reassembly.memory_beside() <= EXTRA_PIECES_MAX as u64 * RANGE_BYTES);
    }

    #[test]
    fn messages_from_before_a_restart_hold_credit_until_delivered() {
        let mut reassembly = Reassembly::new(10_000);
        let mut numbers = Vec::new();
        for id in 0..4 {
            let whole = reassembly.on_part(AT, part(id, APP, 1744, 0, &[7; 1744]));
            numbers.push(whole.unwrap().expect("it came in one part").number);
        }
        let credit = reassembly.initial_credit();
        assert_eq!(credit, 2000);
        reassembly.restart(credit);
        assert_eq!(grant(&mut reassembly), None);
        for number in numbers {
            assert_eq!(reassembly.on_finished(number), None);
        }
        assert_eq!(grant(&mut reassembly), Some(10_000));
    }

    proptest! {
        #[test]
        fn fragments_reassemble_once_in_any_order(
            len in 1usize..200,
            cuts in proptest::collection::vec((0usize..200, 1usize..60), 1..80),
        ) {
            let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut reassembly = Reassembly::new(1000);
            let mut covered = vec![false; len];
            let mut whole = 0;
            for (start, size) in cuts {
                let start = start % len;
                let end = (start + size).min(len);
                covered[start..end].fill(true);
                if let Some(got) = reassembly.on_part(AT, part(0, APP, len, start, &body[start..end])).unwrap() {
                    prop_assert_eq!(&got.body, &body);
                    whole += 1;
                }
            }
            prop_assert_eq!(whole, i32::from(covered.iter().all(|c| *c)));
        }
    }

    #[test]
    fn memory_is_bounded_by_the_credit_that_was_granted() {
        let mut reassembly = Reassembly::new(1000);
        let len = 1000 - CREDIT_PER_MESSAGE as usize;
        assert!(reassembly.on_part(AT, part(0, APP, len, 0, b"a")).is_ok());
        assert_eq!(
            reassembly.on_part(AT, part(1, APP, 1, 0, b"a")),
            Err(PartError::OverCredit)
        );
        reassembly.on_drop(0, len);
        assert_eq!(grant(&mut reassembly), Some(2000));
        assert_eq!(reassembly.open_bytes(), 0);
        assert!(
            reassembly
                .on_part(AT, part(1, APP, 1, 0, b"a"))
                .unwrap()
                .is_some()
        );
        assert_eq!(reassembly.on_finished(0), Some((1, AT)));
        assert_eq!(reassembly.on_finished(0), None);
    }

    #[test]
    fn contradicting_parts_end_the_message_and_return_its_credit() {
        for (app, total) in [(APP, 11), (AppId(2), 10)] {
            let mut reassembly = Reassembly::new(10_000);
            reassembly.on_part(AT, part(0, APP, 10, 0, b"a")).unwrap();
            let refused = reassembly.on_part(AT, part(0, app, total, 0, b"a"));
            assert_eq!(refused, Err(PartError::Abandoned));
            assert_eq!(reassembly.open_bytes(), 0);
            assert_eq!(reassembly.on_part(AT, part(0, APP, 10, 0, b"a")), Ok(None));
        }
    }

    #[test]
    fn message_in_too_many_pieces_is_given_up() {
        let mut reassembly = Reassembly::new(1 << 20);
        let piece = |reassembly: &mut Reassembly, at| {
            reassembly.on_part(AT, part(0, APP, 100_000, at, b"a"))
        };
        for at in 0..PIECES_MAX {
            assert_eq!(piece(&mut reassembly, at * 2), Ok(None));
        }
        assert_eq!(piece(&mut reassembly, 99_999), Err(PartError::Abandoned));
        assert_eq!(reassembly.open_bytes(), 0);
    }

    #[test]
    fn drop_never_returns_more_than_was_used() {
        let mut reassembly = Reassembly::new(1000);
        reassembly.on_part(AT, part(0, APP, 2, 0, b"a")).unwrap();
        assert!(reassembly.on_drop(0, 700));
        assert_eq!(reassembly.open_bytes(), 0);
        assert_eq!(grant(&mut reassembly), Some(1000 + 258));
        assert!(!reassembly.on_drop(1, 2000));
    }

    #[test]
    fn undelivered_messages_of_restarting_peers_are_bounded() {
        const WINDOW: u64 = 10_000;
        let mut reassembly = Reassembly::new(WINDOW);
        let mut kept = Vec::new();
        for run in 0..10 {
            for id in 0.. {
                let before = reassembly.granted() - reassembly.used;
                if before < charge(1000) {
                    break;
                }
                match reassembly.on_part(AT, part(id, APP, 1000, 0, &[7; 1000])) {
                    Ok(whole) => kept.push(whole.expect("it came in one part").number),
                    Err(error) => panic!("{error:?} of {id} in run {run}"),
                }
                reassembly.check_invariants();
            }
            let credit = reassembly.initial_credit();
            reassembly.restart(credit);
            reassembly.check_invariants();
        }
        assert!(kept.len() as u64 * charge(1000) <= WINDOW);
        for number in kept {
            assert_eq!(reassembly.on_finished(number), None);
            reassembly.check_invariants();
        }
        assert_eq!(reassembly.kept_bytes(), 0);
    }

    #[test]
    fn message_of_before_a_restart_cannot_be_finished_after_it() {
        let mut reassembly = Reassembly::new(1000);
        let before = reassembly
            .on_part(AT, part(0, APP, 1, 0, b"a"))
            .unwrap()
            .unwrap();
        reassembly.restart(1000);
        let after = reassembly
            .on_part(AT, part(0, APP, 1, 0, b"b"))
            .unwrap()
            .unwrap();
        assert_eq!(reassembly.on_finished(before.number), None);
        assert_eq!(reassembly.on_finished(after.number), Some((0, AT)));
    }

    #[test]
    fn dropped_message_that_never_arrived_returns_its_credit() {
        let mut reassembly = Reassembly::new(1000);
        reassembly.on_drop(0, 700);
        assert_eq!(grant(&mut reassembly), Some(1000 + 956));
        assert_eq!(reassembly.on_part(AT, part(0, APP, 700, 0, b"a")), Ok(None));
    }
}
