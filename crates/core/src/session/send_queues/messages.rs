//! Messages that have not ended: what of each is to be sent, and the peer's credit for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use keiro_units::Instant;

use super::ready::ScheduleKey;
use crate::{id::AppId, ranges::RangeSet, wire::CREDIT_PER_MESSAGE};

/// Messages accepted and not ended at most, whatever their bytes: bounds bookkeeping.
pub(super) const MESSAGES_MAX: usize = 65_536;

/// A message that is to be sent.
#[derive(Debug)]
pub(crate) struct NewMessage {
    pub(crate) app: AppId,
    pub(crate) body: Vec<u8>,
    pub(crate) made: Instant,
    pub(crate) latency_target: Option<Duration>,
    pub(crate) lifetime: Option<Duration>,
}

/// A message on its way.
#[derive(Debug)]
pub(crate) struct OutMessage {
    pub(crate) app: AppId,
    pub(crate) body: Vec<u8>,
    pub(crate) made: Instant,
    key: u64,
    expires: Option<Instant>,
    /// Its number on the wire, given when its first byte leaves.
    pub(crate) wire_id: Option<u64>,
    /// Sent for the first time up to here.
    fresh: usize,
    /// To be sent again.
    repair: RangeSet,
    acked: RangeSet,
}

/// Part of a message to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) repair: bool,
}

/// All messages that have not ended.
#[derive(Debug)]
pub(super) struct OutMessages {
    messages: BTreeMap<u64, OutMessage>,
    by_wire_id: BTreeMap<u64, u64>,
    expiries: BTreeSet<(Instant, u64)>,
    /// Messages that may not begin for want of credit.
    without_credit: BTreeSet<ScheduleKey>,
    bytes: u64,
    bytes_max: u64,
    next_wire_id: u64,
    credit_granted: u64,
    credit_used: u64,
}

impl OutMessage {
    /// `key`: its place in the schedule.
    pub(super) fn new(new: NewMessage, key: u64) -> Self {
        Self {
            app: new.app,
            body: new.body,
            made: new.made,
            key,
            expires: new.lifetime.map(|lifetime| new.made + lifetime),
            wire_id: None,
            fresh: 0,
            repair: RangeSet::default(),
            acked: RangeSet::default(),
        }
    }

    fn repair_bytes(&self) -> u64 {
        self.repair.iter().map(|(low, high)| high - low).sum()
    }

    /// Bytes still to send.
    pub(super) fn left(&self) -> u64 {
        self.repair_bytes() + (self.body.len() - self.fresh) as u64
    }

    /// All bytes have left at least once: the peer may have it whole.
    pub(crate) fn has_left_whole(&self) -> bool {
        self.fresh == self.body.len()
    }

    fn restart(&mut self) {
        self.wire_id = None;
        self.fresh = 0;
        self.repair = RangeSet::default();
        self.acked = RangeSet::default();
    }
}

impl OutMessages {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            messages: BTreeMap::new(),
            by_wire_id: BTreeMap::new(),
            expiries: BTreeSet::new(),
            without_credit: BTreeSet::new(),
            bytes: 0,
            bytes_max,
            next_wire_id: 0,
            credit_granted: 0,
            credit_used: 0,
        }
    }

    /// A message of `len` bytes would be accepted.
    pub(super) fn has_room(&self, len: usize) -> bool {
        self.messages.len() < MESSAGES_MAX
            && (self.bytes + len as u64 <= self.bytes_max || self.messages.is_empty())
    }

    pub(super) fn insert(&mut self, id: u64, message: OutMessage) {
        if let Some(at) = message.expires {
            self.expiries.insert((at, id));
        }
        self.bytes += message.body.len() as u64;
        self.messages.insert(id, message);
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<OutMessage> {
        let message = self.messages.remove(&id)?;
        self.without_credit.remove(&(message.key, id));
        if let Some(wire_id) = message.wire_id {
            self.by_wire_id.remove(&wire_id);
        }
        if let Some(at) = message.expires {
            self.expiries.remove(&(at, id));
        }
        self.bytes -= message.body.len() as u64;
        Some(message)
    }

    pub(super) fn get(&self, id: u64) -> Option<&OutMessage> {
        self.messages.get(&id)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&u64, &OutMessage)> {
        self.messages.iter()
    }

    pub(super) fn ids(&self) -> Vec<u64> {
        self.messages.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The place of a message in its queue.
    pub(super) fn place_of(&self, id: u64) -> Option<ScheduleKey> {
        self.messages.get(&id).map(|message| (message.key, id))
    }

    /// The next part of a message, at most `max` bytes; `None` if nothing is left to send.
    pub(super) fn next_part(&self, id: u64, max: usize) -> Option<Part> {
        let message = self.messages.get(&id)?;
        if let Some((start, end)) = message.repair.first() {
            let (start, end) = (start as usize, end as usize);
            return Some(Part {
                start,
                end: end.min(start + max),
                repair: true,
            });
        }
        let start = message.fresh;
        let end = message.body.len().min(start + max);
        (start < end).then_some(Part {
            start,
            end,
            repair: false,
        })
    }

    /// The number of a message on the wire; beginning it uses credit.
    pub(super) fn begin(&mut self, id: u64) -> u64 {
        let message = self
            .messages
            .get_mut(&id)
            .expect("a message that is sent exists");
        if let Some(wire_id) = message.wire_id {
            return wire_id;
        }
        let wire_id = self.next_wire_id;
        self.next_wire_id += 1;
        self.credit_used += message.body.len() as u64 + CREDIT_PER_MESSAGE;
        message.wire_id = Some(wire_id);
        self.by_wire_id.insert(wire_id, id);
        wire_id
    }

    /// `part` of a message has left.
    pub(super) fn on_part_sent(&mut self, id: u64, part: Part) {
        let message = self
            .messages
            .get_mut(&id)
            .expect("a message that is sent exists");
        if part.repair {
            message.repair.remove(part.start as u64, part.end as u64);
        } else {
            message.fresh = part.end;
        }
    }

    /// Bytes `start..end` of a message were lost; how many of them are to be sent again for that.
    pub(super) fn on_lost(&mut self, id: u64, start: u32, end: u32) -> u64 {
        let Some(message) = self.messages.get_mut(&id) else {
            return 0;
        };
        let mut missing = RangeSet::default();
        missing.insert(u64::from(start), u64::from(end));
        for (low, high) in message.acked.iter() {
            missing.remove(low, high);
        }
        let repair = &mut message.repair;
        missing
            .iter()
            .map(|(low, high)| repair.insert(low, high))
            .sum()
    }

    /// Bytes `start..end` of a message arrived; how many of them need not be sent again for that.
    pub(super) fn on_acked(&mut self, id: u64, start: u32, end: u32) -> u64 {
        let Some(message) = self.messages.get_mut(&id) else {
            return 0;
        };
        let (start, end) = (u64::from(start), u64::from(end));
        message.acked.insert(start, end);
        if message.repair.is_empty() {
            return 0;
        }
        let before = message.repair_bytes();
        message.repair.remove(start, end);
        before - message.repair_bytes()
    }

    /// The message that is called `wire_id` on the wire.
    pub(super) fn by_wire_id(&self, wire_id: u64) -> Option<u64> {
        self.by_wire_id.get(&wire_id).copied()
    }

    /// The next message whose lifetime has ended.
    pub(super) fn next_expired(&self, now: Instant) -> Option<u64> {
        let (at, id) = self.expiries.first()?;
        (*at <= now).then_some(*id)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.expiries.first().map(|(at, _)| *at)
    }

    /// The peer has restarted: it knows no message, and grants so much credit.
    pub(super) fn restart(&mut self, credit: u64) {
        self.without_credit.clear();
        self.by_wire_id.clear();
        self.credit_granted = credit;
        self.credit_used = 0;
        self.messages.values_mut().for_each(OutMessage::restart);
    }

    /// A message has begun, or the peer's credit lets it begin.
    pub(super) fn may_send(&self, id: u64) -> bool {
        self.messages.get(&id).is_some_and(|message| {
            let charge = message.body.len() as u64 + CREDIT_PER_MESSAGE;
            message.wire_id.is_some() || self.credit_used + charge <= self.credit_granted
        })
    }

    /// A message waits for credit.
    pub(super) fn wait_for_credit(&mut self, place: ScheduleKey) {
        self.without_credit.insert(place);
    }

    /// The peer lets messages of `granted` bytes in all begin; a smaller number is old news. Messages
    /// that have waited for it.
    pub(super) fn on_credit(&mut self, granted: u64) -> Vec<u64> {
        if granted <= self.credit_granted {
            return Vec::new();
        }
        self.credit_granted = granted;
        let waiting = std::mem::take(&mut self.without_credit);
        waiting.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn lacks_credit(&self, place: ScheduleKey) -> bool {
        self.without_credit.contains(&place)
    }

    /// # Panics
    ///
    /// Panics with the invariant's name if one does not hold.
    pub(super) fn check_invariants(&self) {
        let bodies = self.messages.values().map(|m| m.body.len() as u64);
        assert_eq!(self.bytes, bodies.sum::<u64>(), "message bytes");
        assert!(self.messages.len() <= MESSAGES_MAX, "messages");
        assert!(
            self.bytes <= self.bytes_max || self.messages.len() == 1,
            "message bytes are bounded"
        );
        assert!(
            self.credit_used <= self.credit_granted,
            "messages begin within the peer's credit"
        );
        let expiring = self.messages.values().filter(|m| m.expires.is_some());
        assert_eq!(self.expiries.len(), expiring.count(), "lifetimes");
        for (id, message) in &self.messages {
            let known = message.wire_id.map(|wire_id| self.by_wire_id.get(&wire_id));
            assert!(
                known.is_none_or(|known| known == Some(id)),
                "number on the wire"
            );
        }
    }
}
