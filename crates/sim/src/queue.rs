//! What happens next: a binary heap on (time, order).
//!
//! Every source of events (a node's timer, one direction of a link) stands in the heap at most
//! once, at its next instant; moving that instant moves the entry. So the heap is as large as the
//! topology, however often timers change, and no outdated entries have to be skipped. Two sources
//! of the same instant come in the order in which they were set to it, so that a run never depends
//! on the heap's inner order. What a source means is left to the caller.

use keiro_model::Instant;

/// The next instant of every source.
#[derive(Clone, Debug, Default)]
pub struct EventQueue {
    /// Sources that have an instant, as a binary heap: no entry is before its parent.
    heap: Vec<u32>,
    /// By source.
    entries: Vec<Entry>,
    /// Instants set so far: the order among equal ones.
    set: u64,
}

/// Names a source; counts up from zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(u32);

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: Instant,
    order: u64,
    /// Where it stands in the heap; `None`: it has no instant.
    position: Option<u32>,
}

impl EventQueue {
    /// A queue without sources.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a source, which has no instant yet.
    pub fn add_source(&mut self) -> Source {
        self.entries.push(Entry {
            at: Instant::MAX,
            order: 0,
            position: None,
        });
        Source(self.entries.len() as u32 - 1)
    }

    /// Says when the source is next; `None`: not by itself. An unchanged instant keeps its order.
    pub fn set(&mut self, source: Source, at: Option<Instant>) {
        let entry = &mut self.entries[source.0 as usize];
        match (entry.position, at) {
            (None, None) => {}
            (Some(_), Some(at)) if entry.at == at => {}
            (Some(position), None) => self.remove(position as usize),
            (Some(position), Some(at)) => {
                self.date(source, at);
                let position = self.rise(position as usize);
                self.sink(position);
            }
            (None, Some(at)) => {
                self.date(source, at);
                let position = self.heap.len();
                self.heap.push(source.0);
                self.entries[source.0 as usize].position = Some(position as u32);
                self.rise(position);
            }
        }
    }

    /// When the next event is; `None` if there is none.
    pub fn next_at(&self) -> Option<Instant> {
        let first = *self.heap.first()?;
        Some(self.entries[first as usize].at)
    }

    /// Takes the next event if it is not later than `until`; its source has no instant any more.
    pub fn pop_until(&mut self, until: Instant) -> Option<(Instant, Source)> {
        let at = self.next_at()?;
        if at > until {
            return None;
        }
        let source = self.heap[0];
        self.remove(0);
        Some((at, Source(source)))
    }

    /// Sources that have an instant.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether no source has an instant.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn date(&mut self, source: Source, at: Instant) {
        let entry = &mut self.entries[source.0 as usize];
        entry.at = at;
        entry.order = self.set;
        self.set += 1;
    }

    fn remove(&mut self, position: usize) {
        let source = self.heap.swap_remove(position);
        self.entries[source as usize].position = None;
        if position < self.heap.len() {
            self.place(position);
            let position = self.rise(position);
            self.sink(position);
        }
    }

    /// Moves an entry towards the root while it is before its parent; gives where it ends.
    fn rise(&mut self, mut position: usize) -> usize {
        while position > 0 {
            let parent = (position - 1) / 2;
            if !self.is_before(position, parent) {
                break;
            }
            self.swap(position, parent);
            position = parent;
        }
        position
    }

    fn sink(&mut self, mut position: usize) {
        loop {
            let left = 2 * position + 1;
            let mut first = position;
            for child in [left, left + 1] {
                if child < self.heap.len() && self.is_before(child, first) {
                    first = child;
                }
            }
            if first == position {
                return;
            }
            self.swap(position, first);
            position = first;
        }
    }

    fn is_before(&self, a: usize, b: usize) -> bool {
        let key = |position: usize| {
            let entry = &self.entries[self.heap[position] as usize];
            (entry.at, entry.order)
        };
        key(a) < key(b)
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place(a);
        self.place(b);
    }

    fn place(&mut self, position: usize) {
        self.entries[self.heap[position] as usize].position = Some(position as u32);
    }
}

impl Source {
    /// Its number.
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
        /// Against the obvious model: a list searched for its smallest (time, order).
        #[test]
        fn comes_out_as_from_a_sorted_list(
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
