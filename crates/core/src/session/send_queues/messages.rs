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

/// What messages of an application may have begun, as a multiple of the credit that is free: α of the dynamic
/// threshold. Ours: a lone application gets three quarters.
const SHARE_OF_FREE: u64 = 3;

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
    next_unsent: usize,
    /// To be sent again.
    retransmits: RangeSet,
    acked: RangeSet,
}

/// Bytes of a message to be sent as one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageRange {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) is_retransmit: bool,
}

/// Whether a message may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    /// The peer has not granted as much.
    NoCredit,
    /// Its application has begun too much of what the peer has granted.
    NoShare,
}

/// All messages that have not ended.
#[derive(Debug)]
pub(super) struct OutMessages {
    messages: BTreeMap<u64, OutMessage>,
    by_wire_id: BTreeMap<u64, u64>,
    expiries: BTreeSet<(Instant, u64)>,
    /// Messages that may not begin for want of credit, in all or of their application's share.
    without_credit: BTreeMap<AppId, BTreeSet<ScheduleKey>>,
    /// What messages that have begun and not ended have used of the credit, by application.
    begun: BTreeMap<AppId, u64>,
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
            next_unsent: 0,
            retransmits: RangeSet::default(),
            acked: RangeSet::default(),
        }
    }

    /// What it uses of the credit.
    fn charge(&self) -> u64 {
        self.body.len() as u64 + CREDIT_PER_MESSAGE
    }

    fn retransmit_bytes(&self) -> u64 {
        self.retransmits.iter().map(|(low, high)| high - low).sum()
    }

    /// Bytes still to send.
    pub(super) fn left(&self) -> u64 {
        self.retransmit_bytes() + (self.body.len() - self.next_unsent) as u64
    }

    /// All bytes have left at least once: the peer may have it whole.
    pub(crate) fn has_left_whole(&self) -> bool {
        self.next_unsent == self.body.len()
    }

    fn restart(&mut self) {
        self.wire_id = None;
        self.next_unsent = 0;
        self.retransmits = RangeSet::default();
        self.acked = RangeSet::default();
    }
}

impl OutMessages {
    pub(super) fn new(bytes_max: u64) -> Self {
        Self {
            messages: BTreeMap::new(),
            by_wire_id: BTreeMap::new(),
            expiries: BTreeSet::new(),
            without_credit: BTreeMap::new(),
            begun: BTreeMap::new(),
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
        self.remove_waiting(message.app, (message.key, id));
        if let Some(wire_id) = message.wire_id {
            self.by_wire_id.remove(&wire_id);
            self.on_begun_ended(&message);
        }
        if let Some(at) = message.expires {
            self.expiries.remove(&(at, id));
        }
        self.bytes -= message.body.len() as u64;
        Some(message)
    }

    fn on_begun_ended(&mut self, message: &OutMessage) {
        if let Some(begun) = self.begun.get_mut(&message.app) {
            *begun -= message.charge();
            if *begun == 0 {
                self.begun.remove(&message.app);
            }
        }
    }

    fn remove_waiting(&mut self, app: AppId, schedule_key: ScheduleKey) {
        if let Some(waiting) = self.without_credit.get_mut(&app) {
            waiting.remove(&schedule_key);
            if waiting.is_empty() {
                self.without_credit.remove(&app);
            }
        }
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

    /// Where a message is in its queue.
    pub(super) fn schedule_key_of(&self, id: u64) -> Option<ScheduleKey> {
        self.messages.get(&id).map(|message| (message.key, id))
    }

    /// The next part of a message, at most `max` bytes; `None` if nothing is left to send.
    pub(super) fn next_part(&self, id: u64, max: usize) -> Option<MessageRange> {
        let message = self.messages.get(&id)?;
        if let Some((start, end)) = message.retransmits.first() {
            let (start, end) = (start as usize, end as usize);
            return Some(MessageRange {
                start,
                end: end.min(start + max),
                is_retransmit: true,
            });
        }
        let start = message.next_unsent;
        let end = message.body.len().min(start + max);
        (start < end).then_some(MessageRange {
            start,
            end,
            is_retransmit: false,
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
        self.credit_used += message.charge();
        *self.begun.entry(message.app).or_default() += message.charge();
        message.wire_id = Some(wire_id);
        self.by_wire_id.insert(wire_id, id);
        wire_id
    }

    /// `part` of a message has left.
    pub(super) fn on_part_sent(&mut self, id: u64, part: MessageRange) {
        let message = self
            .messages
            .get_mut(&id)
            .expect("a message that is sent exists");
        if part.is_retransmit {
            message
                .retransmits
                .remove(part.start as u64, part.end as u64);
        } else {
            message.next_unsent = part.end;
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
        let retransmits = &mut message.retransmits;
        missing
            .iter()
            .map(|(low, high)| retransmits.insert(low, high))
            .sum()
    }

    /// Bytes `start..end` of a message arrived; how many of them need not be sent again for that.
    pub(super) fn on_acked(&mut self, id: u64, start: u32, end: u32) -> u64 {
        let Some(message) = self.messages.get_mut(&id) else {
            return 0;
        };
        let (start, end) = (u64::from(start), u64::from(end));
        message.acked.insert(start, end);
        if message.retransmits.is_empty() {
            return 0;
        }
        let before = message.retransmit_bytes();
        message.retransmits.remove(start, end);
        before - message.retransmit_bytes()
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

    /// The peer has restarted: it knows no message, and grants `credit` bytes.
    pub(super) fn restart(&mut self, credit: u64) {
        self.without_credit.clear();
        self.begun.clear();
        self.by_wire_id.clear();
        self.credit_granted = credit;
        self.credit_used = 0;
        self.messages.values_mut().for_each(OutMessage::restart);
    }

    /// A message has begun, or may begin now: the credit and the share of its application have room for it.
    pub(super) fn may_send(&self, id: u64) -> bool {
        self.messages.get(&id).is_some_and(|message| {
            message.wire_id.is_some()
                || self.room(message, 0) == Room::Enough
                    && !self.waits_behind(message.app, (message.key, id))
        })
    }

    /// One of the application waits for its share before it: that one would never get it if others passed.
    fn waits_behind(&self, app: AppId, schedule_key: ScheduleKey) -> bool {
        let first = self.without_credit.get(&app).and_then(BTreeSet::first);
        let before = first.filter(|first| **first < schedule_key);
        let before = before.and_then(|(_, id)| self.messages.get(id));
        before.is_some_and(|message| self.room(message, 0) == Room::NoShare)
    }

    /// What messages of an application that have begun and not ended have used of the credit.
    pub(super) fn begun_by(&self, app: AppId) -> u64 {
        self.begun.get(&app).copied().unwrap_or(0)
    }

    /// Whether a message may begin after others of its application that use `before`.
    ///
    /// An application may have begun three times as much as it leaves free, so that a slow receiver of one never
    /// takes the credit of all: the dynamic threshold of shared buffers (Choudhury and Hahne 1998).
    fn room(&self, message: &OutMessage, before: u64) -> Room {
        let begun = self.begun_by(message.app) + before;
        let charge = message.charge();
        let free = self.credit_granted - self.credit_used;
        match free.checked_sub(before) {
            Some(free) if charge > free => Room::NoCredit,
            Some(free) if begun + charge > SHARE_OF_FREE.saturating_mul(free) => Room::NoShare,
            Some(_) => Room::Enough,
            None => Room::NoCredit,
        }
    }

    /// A message waits for credit.
    pub(super) fn wait_for_credit(&mut self, id: u64) {
        if let Some(message) = self.messages.get(&id) {
            let waiting = self.without_credit.entry(message.app).or_default();
            waiting.insert((message.key, id));
        }
    }

    /// The peer lets messages of `granted` bytes in all begin; a smaller number is old news. The
    /// applications that have waited for it.
    pub(super) fn on_credit(&mut self, granted: u64) -> Vec<AppId> {
        if granted <= self.credit_granted {
            return Vec::new();
        }
        self.credit_granted = granted;
        self.without_credit.keys().copied().collect()
    }

    /// Takes the messages of an application that have waited and may begin now, but for those behind more than
    /// `passed_max` that lack credit.
    pub(super) fn take_with_credit(&mut self, app: AppId, passed_max: usize) -> Vec<u64> {
        let (mut before, mut passed) = (0, 0);
        let mut taken = Vec::new();
        for key in self.without_credit.get(&app).into_iter().flatten() {
            let Some(message) = self.messages.get(&key.1) else {
                continue;
            };
            match self.room(message, before) {
                Room::Enough => {
                    before += message.charge();
                    taken.push(*key);
                }
                Room::NoCredit if passed < passed_max => passed += 1,
                Room::NoCredit | Room::NoShare => break,
            }
        }
        for key in &taken {
            self.remove_waiting(app, *key);
        }
        taken.into_iter().map(|(_, id)| id).collect()
    }

    pub(super) fn lacks_credit(&self, id: u64) -> bool {
        self.messages.get(&id).is_some_and(|message| {
            let waiting = self.without_credit.get(&message.app);
            waiting.is_some_and(|waiting| waiting.contains(&(message.key, id)))
        })
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
        let mut begun: BTreeMap<AppId, u64> = BTreeMap::new();
        for message in self.messages.values().filter(|m| m.wire_id.is_some()) {
            *begun.entry(message.app).or_default() += message.charge();
        }
        assert_eq!(self.begun, begun, "credit by application");
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
