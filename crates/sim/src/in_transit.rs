//! Items in a link, by ticket. Tickets ascend, so it is a queue with a few holes.

use std::collections::VecDeque;

use keiro_link::Ticket;

/// Packets, or their identifiers, by ticket.
#[derive(Debug)]
pub(crate) struct InTransit<T> {
    first: u64,
    slots: VecDeque<Option<T>>,
}

impl<T> InTransit<T> {
    pub(crate) const fn new() -> Self {
        Self {
            first: 0,
            slots: VecDeque::new(),
        }
    }

    /// Stores `what` under a ticket greater than all before.
    pub(crate) fn put(&mut self, ticket: Ticket, what: T) {
        if self.slots.is_empty() {
            self.first = ticket.index();
        }
        let position = (ticket.index() - self.first) as usize;
        // Tickets of packets lost on the wire leave holes.
        while self.slots.len() < position {
            self.slots.push_back(None);
        }
        self.slots.push_back(Some(what));
    }

    /// Removes the item of a ticket; `None` if there is none.
    pub(crate) fn take(&mut self, ticket: Ticket) -> Option<T> {
        let position = usize::try_from(ticket.index().checked_sub(self.first)?).ok()?;
        let what = self.slots.get_mut(position)?.take();
        while let Some(None) = self.slots.front() {
            self.slots.pop_front();
            self.first += 1;
        }
        what
    }
}
