//! The event queue: a binary heap ordered by (time, sequence).
//!
//! Every source of events (a node's timer, one direction of a link) is in the heap at most once, with its
//! next instant; changing that instant moves the entry. So the heap is as large as the topology, however
//! often timers change, and there are no outdated entries to skip. Sources with the same instant are ordered
//! by when they were set to it, so that a run never depends on the heap's inner order. The caller defines the
//! sources.

use keiro_units::Instant;

/// The next instant of every source.
#[derive(Clone, Debug, Default)]
pub struct EventQueue {
    /// Sources that have an instant, as a binary heap: no entry is before its parent.
    heap: Vec<Entry>,
    /// Position of each source in the heap; `None` without an instant.
    positions: Vec<Option<u32>>,
    /// Number of instants set so far: the order among equal ones.
    set: u64,
}

/// Identifies a source; counts up from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(u32);

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    order: u64,
    source: u32,
}

impl EventQueue {
    /// A queue without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source, which has no instant yet.
    pub fn add_source(&mut self) -> Source {
        self.positions.push(None);
        Source(self.positions.len() as u32 - 1)
    }

    /// Sets the source's next instant; `None` removes it. An unchanged instant keeps its order.
    pub fn set(&mut self, source: Source, at: Option<Instant>) {
        let position = self.positions[source.0 as usize].map(|position| position as usize);
        let Some(at) = at else {
            if let Some(position) = position {
                self.remove(position);
            }
            return;
        };
        if position.is_some_and(|position| self.heap[position].at == at) {
            return;
        }
        let entry = Entry {
            at,
            order: self.set,
            source: source.0,
        };
        self.set += 1;
        let position = position.unwrap_or_else(|| {
            self.heap.push(entry);
            self.heap.len() - 1
        });
        self.put(position, entry);
    }

    /// Time of the next event; `None` if there is none.
    pub fn next_at(&self) -> Option<Instant> {
        Some(self.heap.first()?.at)
    }

    /// Takes the next event if it is not later than `until`; its source has no instant afterwards.
    pub fn pop_until(&mut self, until: Instant) -> Option<(Instant, Source)> {
        let first = *self.heap.first()?;
        if first.at > until {
            return None;
        }
        self.remove(0);
        Some((first.at, Source(first.source)))
    }

    /// Number of sources with an instant.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no source has an instant.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn remove(&mut self, position: usize) {
        let removed = self.heap.swap_remove(position);
        self.positions[removed.source as usize] = None;
        if let Some(&moved) = self.heap.get(position) {
            self.put(position, moved);
        }
    }

    /// Inserts an entry at `position`, moving others until the heap property holds.
    fn put(&mut self, mut position: usize, entry: Entry) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if !entry.is_before(&self.heap[parent]) {
                break;
            }
            self.move_to(position, self.heap[parent]);
            position = parent;
        }
        loop {
            let left = 2 * position + 1;
            let Some(mut child) = self.heap.get(left).copied() else {
                break;
            };
            let mut child_position = left;
            if let Some(right) = self.heap.get(left + 1)
                && right.is_before(&child)
            {
                child = *right;
                child_position = left + 1;
            }
            if !child.is_before(&entry) {
                break;
            }
            self.move_to(position, child);
            position = child_position;
        }
        self.move_to(position, entry);
    }

    fn move_to(&mut self, position: usize, entry: Entry) {
        self.heap[position] = entry;
        self.positions[entry.source as usize] = Some(position as u32);
    }
}

impl Entry {
    fn is_before(&self, other: &Self) -> bool {
        (self.at, self.order) < (other.at, other.order)
    }
}

impl Source {
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Option<Instant> {
        Some(Instant::from_nanos(nanos))
    }

    #[test]
    fn equal_instants_come_in_the_order_in_which_they_were_set() {
        let mut queue = EventQueue::new();
        let [a, b, c] = std::array::from_fn(|_| queue.add_source());
        queue.set(c, at(5));
        queue.set(a, at(5));
        queue.set(b, at(5));
        queue.set(c, at(5));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop_until(Instant::MAX)).collect();
        assert_eq!(
            order.iter().map(|(_, source)| *source).collect::<Vec<_>>(),
            [c, a, b]
        );
    }

    #[test]
    fn later_events_stay() {
        let mut queue = EventQueue::new();
        let source = queue.add_source();
        queue.set(source, at(10));
        assert_eq!(queue.pop_until(Instant::from_nanos(9)), None);
        assert_eq!(queue.len(), 1);
        assert!(queue.pop_until(Instant::from_nanos(10)).is_some());
        assert!(queue.is_empty());
    }

    proptest! {
        /// Compared with the obvious model: a list searched for its smallest (time, sequence).
        #[test]
        fn events_come_out_as_from_a_sorted_list(
            steps in prop::collection::vec((0..8_u32, prop::option::of(0..20_u64), any::<bool>()), 1..200)
        ) {
            let mut queue = EventQueue::new();
            let sources: Vec<_> = (0..8).map(|_| queue.add_source()).collect();
            let mut model: Vec<Option<(u64, u64)>> = vec![None; 8];
            for (order, (source, nanos, pop)) in (0_u64..).zip(steps) {
                let slot = &mut model[source as usize];
                queue.set(sources[source as usize], nanos.map(Instant::from_nanos));
                if slot.map(|(nanos, _)| nanos) != nanos {
                    *slot = nanos.map(|nanos| (nanos, order));
                }
                if pop {
                    let expected = (0..8).filter(|i| model[*i].is_some()).min_by_key(|i| model[*i]);
                    let popped = queue.pop_until(Instant::MAX);
                    prop_assert_eq!(
                        popped.map(|(at, source)| (at.as_nanos(), source.index())),
                        expected.map(|i| (model[i].unwrap().0, i))
                    );
                    if let Some(i) = expected {
                        model[i] = None;
                    }
                }
                prop_assert_eq!(queue.len(), model.iter().flatten().count());
            }
        }
    }
}
