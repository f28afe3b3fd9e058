//! What arrives from one peer: messages put together, in bounded memory, exactly once.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    id::{AppId, FlowId},
    ranges::RangeSet,
    wire::CREDIT_PER_MESSAGE,
};

/// Ranges of finished message numbers that are kept. A peer numbers messages as it begins them
/// and has few open at a time; one that leaves more gaps is broken.
const FINISHED_RANGES_MAX: usize = 70_000;
/// Datagrams in fragments that are put together at once; the oldest is given up.
const FRAGMENTED_MAX: usize = 32;

/// A message that is whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Whole {
    pub(crate) id: u64,
    pub(crate) app: AppId,
    pub(crate) body: Vec<u8>,
}

/// A part of a message could not be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartError {
    /// Beyond what was granted.
    OverCredit,
    /// It contradicts an earlier part.
    Contradiction,
}

#[derive(Debug)]
struct Partial {
    app: AppId,
    body: Vec<u8>,
    received: RangeSet,
}

/// Messages of one peer, from their first part until the driver has finished them.
#[derive(Debug)]
pub(crate) struct Incoming {
    window: u64,
    partial: BTreeMap<u64, Partial>,
    /// Delivered to the driver, not finished by it: number and charge.
    delivered: BTreeMap<u64, u64>,
    finished: RangeSet,
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

impl Incoming {
    /// `window`: charges of messages that may be open at once.
    pub(crate) fn new(window: u64) -> Self {
        Self {
            window,
            partial: BTreeMap::new(),
            delivered: BTreeMap::new(),
            finished: RangeSet::default(),
            used: 0,
            returned: 0,
            granted: window,
            fragmented: VecDeque::new(),
        }
    }

    /// The first credit, told in the handshake.
    pub(crate) fn initial_credit(&self) -> u64 {
        self.window
    }

    /// Takes a part; the message if it is whole now.
    pub(crate) fn on_part(
        &mut self,
        id: u64,
        app: AppId,
        total: usize,
        offset: usize,
        data: &[u8],
    ) -> Result<Option<Whole>, PartError> {
        if self.finished.contains(id) || self.delivered.contains_key(&id) {
            return Ok(None);
        }
        if !self.partial.contains_key(&id) {
            let charge = charge(total);
            if self.used + charge > self.granted {
                return Err(PartError::OverCredit);
            }
            self.used += charge;
            let partial = Partial {
                app,
                body: vec![0; total],
                received: RangeSet::default(),
            };
            self.partial.insert(id, partial);
        }
        let partial = self.partial.get_mut(&id).expect("just inserted");
        if partial.body.len() != total || partial.app != app {
            return Err(PartError::Contradiction);
        }
        partial.body[offset..offset + data.len()].copy_from_slice(data);
        partial
            .received
            .insert(offset as u64, (offset + data.len()) as u64);
        if !partial.received.covers(0, total as u64) {
            return Ok(None);
        }
        let partial = self.partial.remove(&id).expect("it is whole");
        self.delivered.insert(id, charge(total));
        Ok(Some(Whole {
            id,
            app,
            body: partial.body,
        }))
    }

    /// The driver is done with a delivered message; `false` if it was not delivered.
    pub(crate) fn on_finished(&mut self, id: u64) -> bool {
        let Some(charge) = self.delivered.remove(&id) else {
            return false;
        };
        self.returned += charge;
        self.finish(id)
    }

    /// The peer gave a message up.
    pub(crate) fn on_drop(&mut self, id: u64, total: usize) {
        if self.finished.contains(id) || self.delivered.contains_key(&id) {
            return;
        }
        if self.partial.remove(&id).is_none() {
            // Its charge was used at the sender though nothing of it arrived here.
            self.used += charge(total);
        }
        self.returned += charge(total);
        self.finish(id);
    }

    /// A new credit to tell, once a quarter of the window has come free or nothing is open: a
    /// message as large as the window must not wait for ever.
    pub(crate) fn credit_to_grant(&mut self) -> Option<u64> {
        let granted = self.returned + self.window;
        let freed = granted - self.granted;
        if freed == 0 || (freed < self.window / 4 && self.open_bytes() > 0) {
            return None;
        }
        self.granted = granted;
        Some(granted)
    }

    /// The credit that was told last.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// Charges of messages that are open.
    pub(crate) fn open_bytes(&self) -> u64 {
        self.used - self.returned
    }

    /// Takes a fragment of a datagram; the datagram if it is whole now.
    pub(crate) fn on_fragment(
        &mut self,
        part: FragmentPart<'_>,
    ) -> Option<(AppId, FlowId, bool, Vec<u8>)> {
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
        if !fragmented.received.covers(0, part.total as u64) {
            return None;
        }
        let whole = self.fragmented.remove(index)?;
        Some((whole.app, whole.flow, whole.reply, whole.body))
    }

    fn finish(&mut self, id: u64) -> bool {
        self.finished.insert(id, id + 1);
        if self.finished.len() > FINISHED_RANGES_MAX {
            self.finished.drop_lowest();
        }
        true
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

    const APP: AppId = AppId(1);

    proptest! {
        #[test]
        fn parts_in_any_order_and_number_make_the_message_once(
            len in 1usize..200,
            cuts in proptest::collection::vec((0usize..200, 1usize..60), 1..80),
        ) {
            let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let mut incoming = Incoming::new(1000);
            let mut covered = vec![false; len];
            let mut whole = 0;
            for (start, size) in cuts {
                let start = start % len;
                let end = (start + size).min(len);
                covered[start..end].fill(true);
                if let Some(got) = incoming.on_part(0, APP, len, start, &body[start..end]).unwrap() {
                    prop_assert_eq!(&got.body, &body);
                    whole += 1;
                }
            }
            prop_assert_eq!(whole, i32::from(covered.iter().all(|c| *c)));
        }
    }

    #[test]
    fn memory_is_bounded_by_the_credit_that_was_granted() {
        let mut incoming = Incoming::new(1000);
        let len = 1000 - CREDIT_PER_MESSAGE as usize;
        assert!(incoming.on_part(0, APP, len, 0, b"a").is_ok());
        assert_eq!(
            incoming.on_part(1, APP, 1, 0, b"a"),
            Err(PartError::OverCredit)
        );
        incoming.on_drop(0, len);
        assert_eq!(incoming.credit_to_grant(), Some(2000));
        assert_eq!(incoming.open_bytes(), 0);
        assert!(incoming.on_part(1, APP, 1, 0, b"a").unwrap().is_some());
        assert!(incoming.on_finished(1));
        assert!(!incoming.on_finished(1));
    }

    #[test]
    fn contradicting_parts_are_refused() {
        let mut incoming = Incoming::new(10_000);
        incoming.on_part(0, APP, 10, 0, b"a").unwrap();
        assert_eq!(
            incoming.on_part(0, APP, 11, 0, b"a"),
            Err(PartError::Contradiction)
        );
        assert_eq!(
            incoming.on_part(0, AppId(2), 10, 0, b"a"),
            Err(PartError::Contradiction)
        );
    }

    #[test]
    fn dropped_message_that_never_arrived_returns_its_credit() {
        let mut incoming = Incoming::new(1000);
        incoming.on_drop(0, 700);
        assert_eq!(incoming.credit_to_grant(), Some(1000 + 956));
        assert_eq!(incoming.on_part(0, APP, 700, 0, b"a"), Ok(None));
    }

    #[test]
    fn fragments_are_put_together_and_the_oldest_is_given_up() {
        let mut incoming = Incoming::new(1000);
        let part = |id, offset, data| FragmentPart {
            id,
            total: 4,
            offset,
            app: APP,
            flow: FlowId(3),
            reply: true,
            data,
        };
        for id in 0..=FRAGMENTED_MAX as u64 {
            assert!(incoming.on_fragment(part(id, 2, b"cd")).is_none());
        }
        assert!(incoming.on_fragment(part(0, 0, b"ab")).is_none());
        let whole = incoming.on_fragment(part(5, 0, b"ab"));
        assert_eq!(whole, Some((APP, FlowId(3), true, b"abcd".to_vec())));
    }
}
