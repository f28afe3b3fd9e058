//! What a link holds: something per ticket. Tickets count up, so it is a queue with a few holes.

use std::collections::VecDeque;

use keiro_link::Ticket;

/// Packets, or what stands for them, by ticket.
#[derive(Debug)]
pub(crate) struct InTransit<T> {
    first: u64,
    slots: VecDeque<Option<T>>,
}

impl<T> InTransit<T> {
    /// Nothing yet.
    pub(crate) const fn new() -> Self {
        Self {
            first: 0,
            slots: VecDeque::new(),
        }
    }

    /// Keeps `what` under a ticket later than all before.
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

    /// Gives out what is kept under a ticket; `None` if nothing is.
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
