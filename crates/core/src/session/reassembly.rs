//! Reassembly of the peer's messages and fragmented datagrams, in bounded memory. A message is
//! delivered once.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use keiro_units::Instant;

use crate::{
    id::{AppId, FlowId},
    ranges::RangeSet,
    wire::CREDIT_PER_MESSAGE,
};

/// Ranges of finished message numbers that are kept. A peer numbers messages as it begins them
/// and has few open at a time; one that leaves more gaps is broken.
const FINISHED_RANGES_MAX: usize = 70_000;
/// Pieces that a message may be in. 16 MiB in packets that all skip the next one are half of
/// this; a peer that cuts finer costs more than it may.
const PIECES_MAX: usize = 16_384;
/// Datagrams in fragments that are put together at once; the oldest is given up.
const FRAGMENTED_MAX: usize = 32;
/// Pieces that such a datagram may be in: 64 KiB in packets of the smallest MTU are fewer.
const FRAGMENTS_MAX: usize = 64;

/// Windows of messages that are kept at most: one that the peer has credit for, and one of what the driver still
/// has of the time before the peer restarted. Ours: only a peer that restarts again and again meets it.
const MEMORY_WINDOWS: u64 = 2;

/// A message that is whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Whole {
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

/// Messages of one peer, from their first part until the driver has finished them.
#[derive(Debug)]
pub(crate) struct Reassembly {
    window: u64,
    partial: BTreeMap<u64, Partial>,
    /// Delivered to the driver, not finished by it, by our number.
    delivered: BTreeMap<u64, Delivered>,
    /// The same by the peer's number.
    delivered_ids: BTreeSet<u64>,
    /// Charges of messages that the driver has not finished and that came before the peer restarted, by
    /// our number. The credit of the new run does not count them.
    former: BTreeMap<u64, u64>,
    former_bytes: u64,
    next_number: u64,
    finished: Finished,
    /// Charges of all messages that have begun.
    used: u64,
    /// Charges of all messages that have ended.
    returned: u64,
    granted: u64,
    fragmented: VecDeque<Fragmented>,
}

#[derive(Debug)]
struct Fragmented {
    id: u64,
    app: AppId,
    flow: FlowId,
    reply: bool,
    body: Vec<u8>,
    received: RangeSet,
}

/// Numbers of messages that have ended, as ranges by their start. A peer may leave many gaps and
/// fill them in any order: neither may cost more than the logarithm of their number.
#[derive(Debug, Default)]
struct Finished {
    /// First number of a range to the one behind its last.
    ranges: BTreeMap<u64, u64>,
}

impl Finished {
    fn insert(&mut self, id: u64) {
        if self.contains(id) {
            return;
        }
        let end = self.ranges.remove(&(id + 1)).unwrap_or(id + 1);
        match self.ranges.range_mut(..id).next_back() {
            Some((_, before)) if *before == id => *before = end,
            _ => {
                self.ranges.insert(id, end);
            }
        }
        if self.ranges.len() > FINISHED_RANGES_MAX {
            self.ranges.pop_first();
        }
    }

    fn contains(&self, id: u64) -> bool {
        let before = self.ranges.range(..=id).next_back();
        before.is_some_and(|(_, end)| id < *end)
    }
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

/// A part of a fragmented datagram as it arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FragmentPart<'a> {
    pub(crate) id: u64,
    pub(crate) total: usize,
    pub(crate) offset: usize,
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    pub(crate) reply: bool,
    pub(crate) data: &'a [u8],
}

/// A fragmented datagram that is whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WholeDatagram {
    pub(crate) app: AppId,
    pub(crate) flow: FlowId,
    pub(crate) reply: bool,
    pub(crate) body: Vec<u8>,
}

impl Reassembly {
    /// `window`: charges of messages that may be open at once.
    pub(crate) fn new(window: u64) -> Self {
        Self {
            window,
            partial: BTreeMap::new(),
            delivered: BTreeMap::new(),
            delivered_ids: BTreeSet::new(),
            former: BTreeMap::new(),
            former_bytes: 0,
            next_number: 0,
            finished: Finished::default(),
            used: 0,
            returned: 0,
            granted: window,
            fragmented: VecDeque::new(),
        }
    }

    /// The peer has restarted: what it sent before is void, but for what the driver has.
    pub(crate) fn restart(&mut self) {
        let mut former = std::mem::take(&mut self.former);
        let delivered = self.delivered.iter();
        former.extend(delivered.map(|(number, delivered)| (*number, delivered.charge)));
        *self = Self {
            next_number: self.next_number,
            former_bytes: former.values().sum(),
            former,
            ..Self::new(self.window)
        };
    }

    /// The first credit, which the handshake carries.
    pub(crate) fn initial_credit(&self) -> u64 {
        self.window
    }

    /// Takes a part that arrived at `at`; the message if it is whole now.
    pub(crate) fn on_part(
        &mut self,
        at: Instant,
        part: MessagePart<'_>,
    ) -> Result<Option<Whole>, PartError> {
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
            self.used += charge;
            if self.former_bytes > 0 && self.kept_bytes() > MEMORY_WINDOWS * self.window {
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
        partial
            .received
            .insert(offset as u64, (offset + data.len()) as u64);
        if partial.received.len() > PIECES_MAX {
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
        Ok(Some(Whole {
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
        self.used += charge(total);
        self.returned += charge(total);
        self.finish(id);
        true
    }

    /// There is a new credit to send, see [`credit_to_grant`](Self::credit_to_grant).
    pub(crate) fn has_credit_to_grant(&self) -> bool {
        let freed = self.returned + self.window - self.granted;
        freed > 0 && (freed >= self.window / 4 || self.open_bytes() == 0)
    }

    /// A new credit to send, once a quarter of the window has come free or nothing is open: a
    /// message as large as the window must not wait for ever.
    pub(crate) fn credit_to_grant(&mut self) -> Option<u64> {
        if !self.has_credit_to_grant() {
            return None;
        }
        self.granted = self.returned + self.window;
        Some(self.granted)
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

    /// Takes a fragment of a datagram; the datagram if it is whole now.
    pub(crate) fn on_fragment(&mut self, part: FragmentPart<'_>) -> Option<WholeDatagram> {
        let index = match self
            .fragmented
            .iter()
            .position(|fragmented| fragmented.id == part.id)
        {
            Some(index) => index,
            None => {
                if self.fragmented.len() >= FRAGMENTED_MAX {
                    self.fragmented.pop_front();
                }
                self.fragmented.push_back(Fragmented {
                    id: part.id,
                    app: part.app,
                    flow: part.flow,
                    reply: part.reply,
                    body: vec![0; part.total],
                    received: RangeSet::default(),
                });
                self.fragmented.len() - 1
            }
        };
        let fragmented = &mut self.fragmented[index];
        if fragmented.body.len() != part.total {
            return None;
        }
        let end = part.offset + part.data.len();
        fragmented.body[part.offset..end].copy_from_slice(part.data);
        fragmented.received.insert(part.offset as u64, end as u64);
        if fragmented.received.len() > FRAGMENTS_MAX {
            self.fragmented.remove(index);
            return None;
        }
        if !fragmented.received.covers(0, part.total as u64) {
            return None;
        }
        let whole = self.fragmented.remove(index)?;
        Some(WholeDatagram {
            app: whole.app,
            flow: whole.flow,
            reply: whole.reply,
            body: whole.body,
        })
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
            self.kept_bytes() <= MEMORY_WINDOWS * self.window,
            "messages from before restarts are bounded"
        );
        assert!(self.used <= self.granted, "credit is never exceeded");
        assert!(
            self.granted <= self.returned + self.window,
            "no more than the window is granted at once"
        );
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
        assert!(
            self.fragmented.len() <= FRAGMENTED_MAX,
            "fragmented datagrams"
        );
        assert!(
            self.finished.ranges.len() <= FINISHED_RANGES_MAX,
            "ranges of finished messages"
        );
    }

    /// Nothing more is expected of a message.
    fn is_over(&self, id: u64) -> bool {
        self.finished.contains(id) || self.delivered_ids.contains(&id)
    }

    /// Ends a message that is not whole.
    fn abandon(&mut self, id: u64) {
        if let Some(partial) = self.partial.remove(&id) {
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const AT: Instant = Instant::ZERO;

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

    proptest! {
        #[test]
        fn parts_in_any_order_and_number_make_the_message_once(
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
        assert_eq!(reassembly.credit_to_grant(), Some(2000));
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
        assert_eq!(reassembly.credit_to_grant(), Some(1000 + 258));
        assert!(!reassembly.on_drop(1, 2000));
    }

    #[test]
    fn what_a_peer_leaves_at_the_driver_by_restarting_is_bounded() {
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
                    Err(error) => assert_eq!((error, run > 1), (PartError::Full, true)),
                }
                reassembly.check_invariants();
            }
            reassembly.restart();
            reassembly.check_invariants();
        }
        assert!(kept.len() as u64 * charge(1000) <= MEMORY_WINDOWS * WINDOW);
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
        reassembly.restart();
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
        assert_eq!(reassembly.credit_to_grant(), Some(1000 + 956));
        assert_eq!(reassembly.on_part(AT, part(0, APP, 700, 0, b"a")), Ok(None));
    }

    proptest! {
        #[test]
        fn finished_numbers_behave_like_a_set(ids in proptest::collection::vec(0u64..60, 0..80)) {
            let mut finished = Finished::default();
            let mut set = BTreeSet::new();
            for id in ids {
                finished.insert(id);
                set.insert(id);
                for probe in 0..62 {
                    prop_assert_eq!(finished.contains(probe), set.contains(&probe));
                }
            }
            let touching = finished.ranges.iter().zip(finished.ranges.iter().skip(1));
            prop_assert!(touching.into_iter().all(|(a, b)| a.1 < b.0));
        }
    }

    #[test]
    fn fragments_are_put_together_and_the_oldest_is_given_up() {
        let mut reassembly = Reassembly::new(1000);
        let fragment = |id, offset, data| FragmentPart {
            id,
            total: 4,
            offset,
            app: APP,
            flow: FlowId(3),
            reply: true,
            data,
        };
        for id in 0..=FRAGMENTED_MAX as u64 {
            assert!(reassembly.on_fragment(fragment(id, 2, b"cd")).is_none());
        }
        assert!(reassembly.on_fragment(fragment(0, 0, b"ab")).is_none());
        let whole = reassembly.on_fragment(fragment(5, 0, b"ab"));
        let expected = WholeDatagram {
            app: APP,
            flow: FlowId(3),
            reply: true,
            body: b"abcd".to_vec(),
        };
        assert_eq!(whole, Some(expected));
    }
}
