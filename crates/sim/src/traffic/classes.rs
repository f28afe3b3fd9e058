//! Weighted classes at a port, as in a router that has every tenant's weight.
//!
//! Deficit round robin (Shreedhar, Varghese 1996) between classes, first in first out within one. All share
//! one buffer; if it is full, the longest class drops its last packet. The mesh has the packets on the link.

use std::{
    collections::{BTreeMap, VecDeque},
    net::Ipv4Addr,
};

use keiro_units::Instant;

use super::packet::Slot;

/// Quantum of the lightest class in IP bytes: a full packet, so that it can send in every round.
const QUANTUM: f64 = 1500.0;

/// Shares of a link.
#[derive(Clone, Debug, PartialEq)]
pub struct Classes {
    /// Weights of the classes; above zero.
    pub weights: Vec<f64>,
    /// The class of each host's packets, by node number; all others are in the last one.
    pub of: BTreeMap<Ipv4Addr, usize>,
    /// Maximum of queued packets, all classes together.
    pub buffer_packets: usize,
}

/// A packet that waits for its class's turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) entered: Instant,
    pub(super) slot: Slot,
    pub(super) bytes: u64,
}

/// The queues of a port with classes.
#[derive(Debug)]
pub(super) struct Scheduler {
    of: BTreeMap<Ipv4Addr, usize>,
    classes: Vec<Class>,
    /// Backlogged classes, in the order of their turns.
    active: VecDeque<usize>,
    waiting: usize,
    waiting_max: usize,
    /// When the last packet has left completely.
    pub(super) busy_until: Instant,
}

#[derive(Debug)]
struct Class {
    quantum: u64,
    deficit: u64,
    /// Its turn has begun.
    served: bool,
    packets: VecDeque<Waiting>,
}

impl Scheduler {
    /// # Panics
    ///
    /// If there is no class, or a weight is not above zero.
    pub(super) fn new(classes: Classes) -> Self {
        let class = |quantum| Class {
            quantum,
            deficit: 0,
            served: false,
            packets: VecDeque::new(),
        };
        Self {
            of: classes.of,
            classes: quanta(&classes.weights).map(class).collect(),
            active: VecDeque::new(),
            waiting: 0,
            waiting_max: classes.buffer_packets,
            busy_until: Instant::ZERO,
        }
    }

    /// Changes the weights from the classes' next turns on; queued packets stay.
    ///
    /// # Panics
    ///
    /// If their number differs from that of the classes, or one is not above zero.
    pub(super) fn set_weights(&mut self, weights: &[f64]) {
        assert_eq!(
            weights.len(),
            self.classes.len(),
            "every class has a weight"
        );
        for (class, quantum) in self.classes.iter_mut().zip(quanta(weights)) {
            class.quantum = quantum;
        }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Enqueues a packet; returns the packet that is dropped for it, which may be itself.
    pub(super) fn push(&mut self, from: Ipv4Addr, packet: Waiting) -> Option<Slot> {
        let last = self.classes.len() - 1;
        let index = self.of.get(&from).map_or(last, |class| (*class).min(last));
        let class = &mut self.classes[index];
        if class.packets.is_empty() {
            (class.deficit, class.served) = (0, false);
            self.active.push_back(index);
        }
        class.packets.push_back(packet);
        self.waiting += 1;
        if self.waiting <= self.waiting_max {
            return None;
        }
        let longest = (0..self.classes.len()).max_by_key(|&c| self.classes[c].packets.len())?;
        let dropped = self.classes[longest].packets.pop_back()?;
        self.waiting -= 1;
        if self.classes[longest].packets.is_empty() {
            self.active.retain(|active| *active != longest);
        }
        Some(dropped.slot)
    }

    /// The next packet to send.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        loop {
            let index = *self.active.front()?;
            let class = &mut self.classes[index];
            if !class.served {
                class.served = true;
                class.deficit += class.quantum;
            }
            let head = class.packets.front()?.bytes;
            if head > class.deficit {
                class.served = false;
                self.active.rotate_left(1);
                continue;
            }
            class.deficit -= head;
            self.waiting -= 1;
            let packet = class.packets.pop_front();
            if class.packets.is_empty() {
                self.active.pop_front();
            }
            return packet;
        }
    }
}

/// Quantum of every class in bytes.
fn quanta(weights: &[f64]) -> impl Iterator<Item = u64> + '_ {
    let least = weights.iter().copied().fold(f64::MAX, f64::min);
    let valid = least > 0.0 && !weights.is_empty();
    assert!(valid, "classes have weights above zero");
    let quantum = move |weight: &f64| (weight / least * QUANTUM).round() as u64;
    weights.iter().map(quantum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTS: [Ipv4Addr; 3] = [
        Ipv4Addr::new(10, 0, 0, 1),
        Ipv4Addr::new(10, 0, 0, 2),
        Ipv4Addr::new(10, 0, 0, 3),
    ];

    fn scheduler(buffer_packets: usize) -> Scheduler {
        Scheduler::new(Classes {
            weights: vec![1.0, 3.0],
            of: BTreeMap::from([(HOSTS[0], 0), (HOSTS[1], 1)]),
            buffer_packets,
        })
    }

    fn packet(bytes: u64) -> Waiting {
        Waiting {
            entered: Instant::ZERO,
            slot: Slot::default(),
            bytes,
        }
    }

    #[test]
    fn classes_get_bytes_by_weight_whatever_the_packets_lengths() {
        let mut scheduler = scheduler(1000);
        for _ in 0..300 {
            assert!(scheduler.push(HOSTS[0], packet(1500)).is_none());
            // No tenant's host is in the last class.
            assert!(scheduler.push(HOSTS[2], packet(700)).is_none());
            assert!(scheduler.push(HOSTS[1], packet(700)).is_none());
        }
        let mut bytes = [0, 0];
        for _ in 0..400 {
            let sent = scheduler.pop().expect("much waits").bytes;
            bytes[usize::from(sent == 700)] += sent;
        }
        let ratio = bytes[1] as f64 / bytes[0] as f64;
        assert!((2.9..3.1).contains(&ratio), "{bytes:?}");
    }

    #[test]
    fn other_weights_hold_for_what_waits_already() {
        let mut scheduler = scheduler(1000);
        for _ in 0..300 {
            assert!(scheduler.push(HOSTS[0], packet(1500)).is_none());
            assert!(scheduler.push(HOSTS[1], packet(1499)).is_none());
        }
        let ratio = |scheduler: &mut Scheduler| {
            let mut packets = [0, 0];
            for _ in 0..200 {
                let sent = scheduler.pop().expect("much waits").bytes;
                packets[usize::from(sent == 1499)] += 1;
            }
            f64::from(packets[1]) / f64::from(packets[0])
        };
        assert!((2.9..3.1).contains(&ratio(&mut scheduler)));
        scheduler.set_weights(&[2.0, 1.0]);
        assert!((0.48..0.52).contains(&ratio(&mut scheduler)));
    }

    #[test]
    fn a_full_buffer_takes_from_the_longest_class() {
        let mut scheduler = scheduler(10);
        let dropped = (0..30).filter_map(|_| scheduler.push(HOSTS[0], packet(1000)));
        assert_eq!(dropped.count(), 20);
        for _ in 0..4 {
            assert!(scheduler.push(HOSTS[1], packet(900)).is_some());
        }
        let sent: Vec<u64> = std::iter::from_fn(|| Some(scheduler.pop()?.bytes)).collect();
        assert_eq!(sent.iter().filter(|bytes| **bytes == 900).count(), 4);
        assert_eq!(sent.len(), 10);
        assert!(scheduler.is_empty());
    }
}
