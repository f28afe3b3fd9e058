//! Messages from the peer that wait for a receiver.

use std::{cell::Cell, collections::VecDeque, rc::Rc, time::Duration};

use keiro_core::{Instant, MessageId, PeerId};

/// A whole message that no receiver has got yet.
pub(crate) struct PendingMessage {
    pub(crate) peer: PeerId,
    pub(crate) id: MessageId,
    /// The sender's number and the body.
    pub(crate) bytes: Vec<u8>,
}

/// A message in the queues of all receivers of its application.
#[derive(Clone)]
pub(super) struct SharedMessage(Rc<(PendingMessage, Cell<bool>)>);

/// Messages of one application that wait for a receiver. Their bytes are of the credit that the peer has, and are
/// bounded by it.
#[derive(Default)]
pub(super) struct HoldQueue {
    messages: VecDeque<(Instant, PendingMessage)>,
    bytes: usize,
}

/// Messages held of an application whose receiver is overdue. Ours: it must not take the credit of others.
const OVERDUE_MESSAGES_MAX: usize = 64;
/// Their bytes: one message of the largest length, or many small ones.
const OVERDUE_BYTES_MAX: usize = (16 << 20) + super::tag::TAG_BYTES;
/// How long a receiver may take to come (back). Ours: a service manager restarts a program within this time.
pub(super) const ABSENCE_MAX: Duration = Duration::from_secs(5);

impl SharedMessage {
    pub(super) fn new(held: PendingMessage) -> Self {
        Self(Rc::new((held, Cell::new(false))))
    }

    /// The sender's number and the body.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.0.0.bytes
    }

    /// A receiver has it whole. If that was the last queue that held it, its peer and number.
    pub(super) fn received(self) -> Option<(PeerId, MessageId)> {
        self.0.1.set(true);
        self.last().map(|(held, _)| (held.peer, held.id))
    }

    /// If this is the last queue that holds it: the message, and whether any receiver has it.
    pub(super) fn last(self) -> Option<(PendingMessage, bool)> {
        Rc::into_inner(self.0).map(|(held, received)| (held, received.get()))
    }
}

impl HoldQueue {
    /// Holds a message of an application whose receiver is attached, or expected.
    pub(super) fn push(&mut self, now: Instant, held: PendingMessage) {
        self.bytes += held.bytes.len();
        self.messages.push_back((now, held));
    }

    /// Holds a message of an application whose receiver is overdue; hands it back if there is no room.
    pub(super) fn push_overdue(
        &mut self,
        now: Instant,
        held: PendingMessage,
    ) -> Result<(), PendingMessage> {
        let bytes = self.bytes + held.bytes.len();
        if self.messages.len() >= OVERDUE_MESSAGES_MAX || bytes > OVERDUE_BYTES_MAX {
            return Err(held);
        }
        self.push(now, held);
        Ok(())
    }

    /// The oldest one.
    pub(super) fn first(&self) -> Option<&PendingMessage> {
        self.messages.front().map(|(_, held)| held)
    }

    /// The length of the oldest one with its number, bytes; `None` if there is none.
    pub(super) fn first_length(&self) -> Option<usize> {
        self.first().map(|held| held.bytes.len())
    }

    /// Takes the oldest one.
    pub(super) fn pop(&mut self) -> Option<PendingMessage> {
        let (_, held) = self.messages.pop_front()?;
        self.bytes -= held.bytes.len();
        Some(held)
    }

    /// Takes those that have waited too long for a receiver, which has been absent since then.
    pub(super) fn expired(&mut self, now: Instant, absent_since: Instant) -> Vec<PendingMessage> {
        let old = |(since, _): &(Instant, PendingMessage)| {
            now.saturating_duration_since((*since).max(absent_since)) >= ABSENCE_MAX
        };
        let mut expired = Vec::new();
        while self.messages.front().is_some_and(old) {
            expired.extend(self.pop());
        }
        expired
    }

    pub(super) fn take_all(&mut self) -> Vec<PendingMessage> {
        self.bytes = 0;
        self.messages.drain(..).map(|(_, held)| held).collect()
    }

    /// Drops those of a peer.
    pub(super) fn forget_peer(&mut self, peer: PeerId) {
        self.messages.retain(|(_, held)| held.peer != peer);
        self.bytes = self.messages.iter().map(|(_, held)| held.bytes.len()).sum();
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(id: u64, length: usize) -> PendingMessage {
        PendingMessage {
            peer: PeerId((id % 2) as u32),
            id: MessageId(id),
            bytes: vec![0; length],
        }
    }

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn number_and_bytes_of_an_overdue_receiver_are_bounded() {
        let mut queue = HoldQueue::default();
        for id in 0..OVERDUE_MESSAGES_MAX as u64 {
            assert!(queue.push_overdue(at(0), held(id, 10)).is_ok());
        }
        assert!(queue.push_overdue(at(0), held(99, 10)).is_err());
        let mut queue = HoldQueue::default();
        let longest = held(1, OVERDUE_BYTES_MAX);
        assert!(queue.push_overdue(at(0), longest).is_ok());
        assert!(queue.push_overdue(at(0), held(2, 1)).is_err());
        assert_eq!(queue.first_length(), Some(OVERDUE_BYTES_MAX));
        assert!(queue.pop().is_some() && queue.is_empty());
        assert!(queue.push_overdue(at(0), held(2, 1)).is_ok());
    }

    #[test]
    fn expired_messages_end_in_order() {
        let mut queue = HoldQueue::default();
        for id in 0..4 {
            queue.push(at(id), held(id, 10));
        }
        let ids =
            |messages: Vec<PendingMessage>| messages.iter().map(|m| m.id.0).collect::<Vec<_>>();
        assert!(ids(queue.expired(at(4), at(0))).is_empty());
        // Before it left, a receiver was attached: the wait begins with its absence.
        assert!(ids(queue.expired(at(6), at(2))).is_empty());
        assert_eq!(ids(queue.expired(at(6), at(0))), [0, 1]);
        queue.forget_peer(PeerId(0));
        assert_eq!(ids(queue.take_all()), [3]);
        assert!(queue.is_empty());
    }
}
